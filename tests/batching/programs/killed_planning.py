"""Plan batches, and be killed where a phase of the work begins: killed_planning.py SPEC.json STORE PHASE NUMBER."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zephon_core.batching.specs import BatchesRun, BatchesSpec
from zephon_core.batching.steps import plan_batches
from zephon_core.progress import NULL_PROGRESS, Phase


class Killer:
    """Progress that kills its process at the `number`-th phase with a label."""

    def __init__(self, label: str, number: int) -> None:
        self.label, self.left = label, number

    @contextmanager
    def phase(self, label: str, *, total: float | None, unit: str) -> Iterator[Phase]:
        self.left -= label == self.label
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        with NULL_PROGRESS.phase(label, total=total, unit=unit) as inner:
            yield inner

    def note(self, message: str) -> None:
        pass


if __name__ == "__main__":
    spec = BatchesSpec.model_validate(json.loads(Path(sys.argv[1]).read_text()))
    plan_batches(spec, BatchesRun(store=sys.argv[2]), progress=Killer(sys.argv[3], int(sys.argv[4])))
