"""Token ratios: how many tokens a byte of each data set gives, and how wrong that may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zephon_core.errors import FatalCountError
    from zephon_core.ratios.cost import PerShardTokenCost
    from zephon_core.ratios.count import ExactCount, count_tokens
    from zephon_core.ratios.counting import ChatTokenCountingSpec, TextTokenCountingSpec
    from zephon_core.ratios.datasets import Dataset
    from zephon_core.ratios.drift import Drift, check_drift
    from zephon_core.ratios.estimation import TokenEstimation, TokenRatio
    from zephon_core.ratios.mixture import Mixture, mixture_weights
    from zephon_core.ratios.prime import FallbackWarning, prime_token_ratios
    from zephon_core.ratios.specs import RatioRun, RatioSpec

__all__ = [
    "ChatTokenCountingSpec",
    "Dataset",
    "Drift",
    "ExactCount",
    "FallbackWarning",
    "FatalCountError",
    "Mixture",
    "PerShardTokenCost",
    "RatioRun",
    "RatioSpec",
    "TextTokenCountingSpec",
    "TokenEstimation",
    "TokenRatio",
    "check_drift",
    "count_tokens",
    "mixture_weights",
    "prime_token_ratios",
]

_HOMES = {
    "ChatTokenCountingSpec": "ratios.counting",
    "Dataset": "ratios.datasets",
    "Drift": "ratios.drift",
    "ExactCount": "ratios.count",
    "FallbackWarning": "ratios.prime",
    "FatalCountError": "errors",
    "Mixture": "ratios.mixture",
    "PerShardTokenCost": "ratios.cost",
    "RatioRun": "ratios.specs",
    "RatioSpec": "ratios.specs",
    "TextTokenCountingSpec": "ratios.counting",
    "TokenEstimation": "ratios.estimation",
    "TokenRatio": "ratios.estimation",
    "check_drift": "ratios.drift",
    "count_tokens": "ratios.count",
    "mixture_weights": "ratios.mixture",
    "prime_token_ratios": "ratios.prime",
}


def __getattr__(name: str) -> Any:
    """Import an export where it is first used, so that looking at the command line's help doesn't load the library."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"zephon_core.{_HOMES[name]}"), name)
