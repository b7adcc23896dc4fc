"""How inner loops are compiled: numba, without the interpreter lock, cached on disk under a stamp of their package's sources."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

__all__ = ["compiled"]

_F = TypeVar("_F", bound=Callable[..., Any])


@cache
def _cache_folder(package: Path) -> str:
    """Folder of the machine code: numba's own cache keys a function by its own file alone, and would miss an edit in a callee's."""
    stamp = hashlib.sha256()
    for source in sorted(package.glob("*.py")):
        stamp.update(source.read_bytes())
    return str(package / "__pycache__" / f"compiled-{stamp.hexdigest()[:16]}")


def compiled(function: _F) -> _F:
    """Compile at the first call for the argument types met there; later processes load the machine code in milliseconds.

    What the function calls lies in its own package's folder. The cache lies there too; where that can't be written, in the
    user's cache directory (or `NUMBA_CACHE_DIR`, if set); where neither can, each process compiles anew.
    """
    config: Any = numba.config
    given = config.CACHE_DIR
    config.CACHE_DIR = given or _cache_folder(Path(function.__code__.co_filename).parent)
    try:
        dispatcher: Any = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder that can be written
        dispatcher = numba.njit(nogil=True)(function)
    finally:
        config.CACHE_DIR = given
    return cast(_F, dispatcher)
