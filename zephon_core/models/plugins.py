"""Encoders from elsewhere, named `package.module:factory`.

The factory takes no argument and returns an object with

    hidden_size: int                                   width of a feature vector
    encode(ids: int64 [rows, length]) -> float32 [rows, hidden_size]
    content_sha256: str                                optional, also on the factory: changes whenever the features do

All rows of a call are equally long. An encoder that carries a memory which it reads from or writes to while it encodes has
that switched off for the time of the encode, and gets it back as it was, also when the encode raises. It offers one of

    frozen()                                           returns a context manager within which the encoder only encodes
    runtime.read_enabled, runtime.update_enabled       two attributes that can be set; `runtime` may also sit on its `model`
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.errors import ModelError, SpecError

__all__ = ["PluginEncoder", "is_plugin", "load_plugin", "memory_switched_off", "resolve_factory"]

_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_SWITCHES = ("read_enabled", "update_enabled")


def is_plugin(path: str) -> bool:
    """Tell `package.module:factory` from a folder's path."""
    return _FACTORY.fullmatch(path) is not None


def resolve_factory(path: str) -> Callable[[], Any]:
    """Import the factory named `package.module:factory`. Raises ModelError if it isn't there."""
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ModelError(
            path, f"can't be imported ({error})", remedy="Install the package that holds it, or put its folder on PYTHONPATH."
        ) from error
    factory = getattr(module, name, None)
    if not callable(factory):
        found = f"has no {name}" if factory is None else f"has a {name} that can't be called"
        raise ModelError(path, found, wanted="a function that returns an encoder")
    checked: Callable[[], Any] = factory
    return checked


def load_plugin(path: str) -> PluginEncoder:
    """Call the factory named `package.module:factory` and check what it returns. Raises ModelError."""
    encoder = resolve_factory(path)()
    width = getattr(encoder, "hidden_size", None)
    if not isinstance(width, int | np.integer) or width < 1:
        raise ModelError(path, f"returned an object whose hidden_size is {width!r}", wanted="a positive whole number")
    if not callable(getattr(encoder, "encode", None)):
        raise ModelError(path, "returned an object without a method encode", wanted="encode(ids) -> float32 [rows, hidden_size]")
    return PluginEncoder(path, encoder)


class PluginEncoder:
    """A plugin behind the same interface as the built-in encoders; what it returns is checked at every call."""

    ragged = False
    padded = False
    vocabulary_size = 0
    longest_text = 0

    def __init__(self, path: str, encoder: Any) -> None:
        self.name = f"plugin {path}"
        self.hidden_size = int(encoder.hidden_size)
        self._path = path
        self._encoder = encoder

    @property
    def content_sha256(self) -> Any:
        """What the plugin says of its content, None if it says nothing."""
        return getattr(self._encoder, "content_sha256", None)

    def encode(self, groups: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.float32]:
        """See `Encoder.encode`. Raises ModelError if the plugin breaks its contract."""
        return np.concatenate([self._encode_one(ids) for ids in groups])

    def encode_padded(self, ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Refuse: a plugin takes rows of equal length only."""
        raise SpecError(self._path, "takes no padded blocks", wanted="grouping: exact_token_length")

    def frozen(self) -> AbstractContextManager[None]:
        """Switch the plugin's memory off while the block lasts."""
        return memory_switched_off(self._encoder, self._path)

    def close(self) -> None:
        """Nothing to release."""

    def _encode_one(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        returned = self._encoder.encode(ids)
        if hasattr(returned, "detach"):  # a torch tensor, on whatever device
            returned = returned.detach().cpu().numpy()
        wanted = f"float32 [{ids.shape[0]}, {self.hidden_size}]"
        if not isinstance(returned, np.ndarray):
            raise ModelError(self._path, f"returned a {type(returned).__name__} from encode", wanted=wanted)
        if returned.dtype != np.float32 or returned.shape != (ids.shape[0], self.hidden_size):
            raise ModelError(self._path, f"returned {returned.dtype} {list(returned.shape)} from encode", wanted=wanted)
        return returned


@contextmanager
def memory_switched_off(encoder: Any, name: str) -> Iterator[None]:
    """Switch reads and updates of an encoder's memory off, and set them back as they were, whatever happens in between.

    An encoder without a memory is left alone. Raises ModelError for a runtime without the two switches.
    """
    if callable(frozen := getattr(encoder, "frozen", None)):
        with frozen():
            yield
        return
    runtime = getattr(encoder, "runtime", None) or getattr(getattr(encoder, "model", None), "runtime", None)
    if runtime is None:
        yield
        return
    if missing := [switch for switch in _SWITCHES if not hasattr(runtime, switch)]:
        raise ModelError(name, f"has a runtime without {' and '.join(missing)}", wanted="a runtime that can be switched off")
    before = {switch: getattr(runtime, switch) for switch in _SWITCHES}
    try:
        for switch in _SWITCHES:
            setattr(runtime, switch, False)
        yield
    finally:
        for switch, value in before.items():
            setattr(runtime, switch, value)
