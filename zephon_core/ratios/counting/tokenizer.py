"""What counting specs have in common: a tokenizer, loaded once a process while its files stay as they are, and a longest row."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from zephon_core.errors import SpecError
from zephon_core.store import ArtifactStore
from zephon_core.tokenizers import Tokenizer, identify_tokenizer, load_tokenizer

__all__ = ["check_length", "check_switch", "checked_tokenizer", "tokenizer_of", "tokenizer_sha256"]

_Stamp = tuple[tuple[str, int, int, int], ...]


def checked_tokenizer(tokenizer: str | Path) -> str:
    """Return the path of a tokenizer as text. Raises SpecError for none at all: nothing stands in for a tokenizer."""
    if not isinstance(tokenizer, str | Path) or not str(tokenizer):
        raise SpecError("tokenizer", f"is {tokenizer!r}", wanted="the folder or file of the training's tokenizer")
    return str(tokenizer)


def check_length(max_length: int | None, *, least: int) -> None:
    """Raise SpecError for a longest row that is neither None nor a whole number of at least so many tokens."""
    if max_length is None:
        return
    if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < least:
        raise SpecError("max_length", f"is {max_length!r}", wanted=f"None, or a whole number of at least {least} tokens")


def check_switch(where: str, value: bool) -> None:
    """Raise SpecError for what is neither True nor False: "no" would be taken for True."""
    if not isinstance(value, bool):
        raise SpecError(where, f"is {value!r}", wanted="True or False")


def tokenizer_of(path: str, store: ArtifactStore | None = None) -> Tokenizer:
    """Load a tokenizer, or return the one that was loaded from the same files. Raises TokenizerError."""
    return _load(path, _stamp(Path(path)), store.root if store else None)


def tokenizer_sha256(path: str, store: ArtifactStore | None = None) -> str:
    """Return a tokenizer's content identity; one that the store knows is not loaded for it. Raises TokenizerError."""
    return _identify(path, _stamp(Path(path)), store.root) if store else tokenizer_of(path).content_sha256


@lru_cache(maxsize=2)
def _load(path: str, stamp: _Stamp, root: Path | None) -> Tokenizer:
    return load_tokenizer(path, store=ArtifactStore(root) if root else None)


@lru_cache(maxsize=8)
def _identify(path: str, stamp: _Stamp, root: Path) -> str:
    return identify_tokenizer(path, ArtifactStore(root))


def _stamp(path: Path) -> _Stamp:
    files = [path] if path.is_file() else sorted(path.glob("*"))
    states = [(file.name, file.stat()) for file in files if file.is_file()]
    return tuple((name, state.st_size, state.st_mtime_ns, state.st_ino) for name, state in states)
