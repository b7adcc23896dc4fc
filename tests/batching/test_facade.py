"""What programs import from the package."""

from __future__ import annotations

import subprocess
import sys

import zephon_core.batching as batching

PROMISED = {
    "ConsolidatedSamplerState",
    "ConsolidatedTokenBatchState",
    "GlobalBatchPlan",
    "SamplerState",
    "StatefulShardSampler",
    "StatefulTokenBatchSampler",
    "TokenBatchOptions",
    "TokenBatchPlan",
    "TokenBatchState",
}


def test_exports_are_there_sorted_and_as_promised() -> None:
    assert batching.__all__ == sorted(batching.__all__)
    assert set(batching.__all__) >= PROMISED
    assert all(getattr(getattr(batching, name), "__name__", name) == name for name in batching.__all__)


def test_the_package_loads_neither_numba_nor_torch() -> None:
    program = "import sys, zephon_core.batching; print([name for name in ('numba', 'torch', 'numpy') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_planning_loads_no_torch() -> None:
    program = """
import sys
from zephon_core.batching import StatefulShardSampler, StatefulTokenBatchSampler, TokenBatchOptions
shard = StatefulShardSampler("a", 3, 0, 1, shuffle_seed=1)
batches = StatefulTokenBatchSampler(shard, [1, 2, 3], TokenBatchOptions(maximum_tokens=4))
print(batches.next_plan().real_tokens > 0, "torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "True False\n"
