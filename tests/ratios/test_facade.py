"""What programs import from the package."""

from __future__ import annotations

import zephon_core.ratios as ratios

PROMISED = {
    "Dataset",
    "FatalCountError",
    "PerShardTokenCost",
    "TextTokenCountingSpec",
    "TokenEstimation",
    "TokenRatio",
    "count_tokens",
    "mixture_weights",
    "prime_token_ratios",
}


def test_exports_are_there_sorted_and_as_promised() -> None:
    assert ratios.__all__ == sorted(ratios.__all__)
    assert set(ratios.__all__) >= PROMISED
    assert all(getattr(ratios, name).__name__ == name for name in ratios.__all__)
