"""The feature bank: every distinct text of a data set, encoded once by a frozen transformer, as one mapped matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zephon_core.bank.build import BankResult, build_bank
    from zephon_core.bank.reader import FeatureBank
    from zephon_core.bank.specs import BankSpec, RunOptions

__all__ = ["BankResult", "BankSpec", "FeatureBank", "RunOptions", "build_bank"]

_HOMES = {"BankResult": "build", "BankSpec": "specs", "FeatureBank": "reader", "RunOptions": "specs", "build_bank": "build"}


def __getattr__(name: str) -> Any:
    """Import an export where it is first used, so that looking at the command line's help doesn't load the library."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"zephon_core.bank.{_HOMES[name]}"), name)
