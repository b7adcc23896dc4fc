"""Whether a function can be handed to a worker process, which is a fresh interpreter."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from zephon_core.words import in_words

__all__ = ["function_name", "why_not_picklable", "why_not_portable"]


def why_not_portable(function: Callable[..., Any]) -> str:
    """Say why a worker process can't get a function; empty if it can."""
    module = getattr(function, "__module__", None) or type(function).__module__
    return "workers can't import a script; move it to a module" if module == "__main__" else why_not_picklable(function)


def why_not_picklable(function: Callable[..., Any]) -> str:
    """Say why a function can't be written down; empty if it can."""
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return f"workers can't get it ({in_words(error)})"
    return ""


def function_name(function: str | Callable[..., Any]) -> str:
    """Name a function in messages: package.module:function."""
    if isinstance(function, str):
        return function
    owner = function if hasattr(function, "__qualname__") else type(function)
    return f"{owner.__module__}:{owner.__qualname__}"
