"""Reading and writing of saved states: plain documents, whose every field is checked before anything is built from it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from zephon_core.batching.options import LARGEST, TokenBatchOptions
from zephon_core.errors import SpecError, StateError
from zephon_core.fingerprint import canonical_json

__all__ = ["StateFields", "decode_integers", "difference", "encode_integers", "read_options", "refuse_no_states", "sealed"]

_WIDTHS = (1, 2, 4, 8)

Int64 = npt.NDArray[np.int64]
_T = TypeVar("_T")


class StateFields:
    """One object of a saved state, read field by field; whatever isn't as it should be raises StateError naming the field.

    name: how messages call the object. The fields must be exactly those in `names`.
    """

    def __init__(self, value: object, name: str, names: Sequence[str]) -> None:
        if not isinstance(value, Mapping):
            raise StateError(name, f"is {_kind(value)}", wanted="an object")
        self.name = name
        self._value = value
        missing = [key for key in names if key not in value]
        if missing:
            raise StateError(name, f"lacks {', '.join(missing)}", remedy="It is cut short, or not a state of this kind.")
        extra = sorted(str(key) for key in value if key not in names)
        if extra:
            raise StateError(name, f"holds {', '.join(extra)}, which this version doesn't know")

    @classmethod
    def of_document(cls, value: object, kind: str, version: int, names: Sequence[str]) -> StateFields:
        """Read a whole state: a mapping, or its JSON text. Its "format" must be `kind` and its "version" `version`.

        Besides `names` it holds "sha256", which `check_seal` compares once the fields are read.
        """
        if isinstance(value, str | bytes):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise StateError(
                    kind, f"isn't whole JSON ({error})", remedy="The state is cut short: take an older checkpoint."
                ) from error
        if not isinstance(value, Mapping):
            raise StateError(kind, f"is {_kind(value)}", wanted="an object")
        if value.get("format") != kind:
            raise StateError(kind, f"has format {value.get('format')!r}", wanted=repr(kind))
        found = value.get("version")
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise StateError(kind, f"has version {found!r}", wanted=str(version))
        if found > version:
            remedy = "A later release wrote it: use that one, or a later one still."
            raise StateError(kind, f"has version {found}", wanted=f"{version} or below", remedy=remedy)
        return cls(value, kind, ["format", "version", *names, "sha256"])

    def check_seal(self) -> None:
        """Raise StateError unless the document's "sha256" is that of the rest of it: then something in it was changed."""
        try:
            whole = _seal(self._value) == self._value["sha256"]
        except (TypeError, ValueError, RecursionError) as error:
            raise StateError(self.name, f"holds what no state holds ({error})") from error
        if not whole:
            remedy = "It is damaged, or was changed since it was saved: take an older checkpoint."
            raise StateError(self.name, "has another SHA-256 than it says itself", remedy=remedy)

    def raw(self, name: str) -> Any:
        """Return a field as it is."""
        return self._value[name]

    def integer(self, name: str, *, low: int = 0, high: int = LARGEST) -> int:
        """Return a whole number from `low` to `high`."""
        value = self._value[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"is {_kind(value)}", "a whole number")
        if not low <= value <= high:
            raise self.error(name, f"is {value}", f"{low} to {high}" if low < high else str(low))
        return value

    def optional_integer(self, name: str, *, low: int = 0) -> int | None:
        """Return a whole number from `low` on, or None."""
        return None if self._value[name] is None else self.integer(name, low=low)

    def text(self, name: str) -> str:
        """Return a non-empty text."""
        value = self._value[name]
        if not isinstance(value, str) or not value:
            raise self.error(name, f"is {value!r}" if value == "" else f"is {_kind(value)}", "a text that isn't empty")
        return value

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of the given texts."""
        value = self.text(name)
        if value not in choices:
            raise self.error(name, f"is {value!r}", " or ".join(repr(choice) for choice in choices))
        return value

    def error(self, name: str, found: str, wanted: str = "", remedy: str = "") -> StateError:
        """Make the error that says what is wrong with a field."""
        return StateError(f"{self.name}.{name}", found, wanted=wanted, remedy=remedy)


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with "sha256", the SHA-256 of the rest as canonical JSON, by which a change shows."""
    return {**document, "sha256": _seal(document)}


def _seal(document: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in document.items() if key != "sha256"}
    return hashlib.sha256(canonical_json(rest)).hexdigest()


def difference(where: str, saved: object, present: object, *, remedy: str = "") -> StateError:
    """Make the error for a value that isn't the same in the state and here."""
    return StateError(where, f"is {saved!r} in the state and {present!r} here", remedy=remedy)


def encode_integers(values: npt.NDArray[Any]) -> dict[str, Any]:
    """Write integers [n], none below -2**63 or beyond 2**63 - 1, as a small plain object.

    least: their least; bytes: how many each takes (1, 2, 4 or 8); count; data: base64 of value - least, little-endian, unsigned.
    """
    least = int(values.min()) if len(values) else 0
    spread = int(values.max()) - least if len(values) else 0
    width = next(width for width in _WIDTHS if spread < 1 << 8 * width)
    above = (values.astype(np.int64).view(np.uint64) - np.int64(least).view(np.uint64)).astype(f"<u{width}")
    return {"least": least, "bytes": width, "count": len(values), "data": base64.b64encode(above.tobytes()).decode()}


def decode_integers(value: object, name: str) -> Int64:
    """Read what `encode_integers` wrote, or a plain list of whole numbers: int64 [n]. Raises StateError naming `name`."""
    if isinstance(value, list | tuple):
        return _listed(value, name)
    fields = StateFields(value, name, ["least", "bytes", "count", "data"])
    least, width = fields.integer("least", low=-LARGEST - 1), fields.integer("bytes", low=1, high=8)
    count = fields.integer("count")
    if width not in _WIDTHS:
        raise fields.error("bytes", f"is {width}", "1, 2, 4 or 8")
    data = fields.raw("data")
    try:
        content = base64.b64decode(data, validate=True) if isinstance(data, str) else None
    except (binascii.Error, ValueError) as error:
        raise fields.error("data", f"isn't base64 ({error})", remedy="The state is damaged: take an older checkpoint.") from error
    if content is None or len(content) != count * width:
        found = "no text" if content is None else f"{len(content)} bytes"
        raise fields.error("data", f"holds {found}", f"{count * width}", "The state is cut short: take an older checkpoint.")
    above = np.frombuffer(content, f"<u{width}").astype(np.uint64)
    if count and int(above.max()) + least > LARGEST:
        raise fields.error("data", f"reaches {int(above.max()) + least}", f"at most {LARGEST}")
    result: Int64 = (above + np.int64(least).view(np.uint64)).view(np.int64)
    return result


def _listed(value: Sequence[object], name: str) -> Int64:
    for k, number in enumerate(value):
        if isinstance(number, bool) or not isinstance(number, int) or not -LARGEST - 1 <= number <= LARGEST:
            raise StateError(f"{name}[{k}]", f"is {number!r}", wanted="a whole number below 2**63")
    return np.array(value, dtype=np.int64)


def _kind(value: object) -> str:
    return (
        "nothing (null)"
        if value is None
        else f"{value!r}"
        if isinstance(value, bool | int | float)
        else f"a {type(value).__name__}"
    )


def refuse_no_states(states: Iterable[_T]) -> Iterable[_T]:
    """Return states; raises StateError for what holds none: no row of them, or one alone."""
    if isinstance(states, str | bytes | Mapping) or not isinstance(states, Iterable):
        raise StateError("states", f"are {_kind(states)}", wanted="a row of states, one of every rank")
    return states


def read_options(value: object, name: str) -> TokenBatchOptions:
    """Read the options in a state. Raises StateError naming what is wrong."""
    given = StateFields(value, name, list(TokenBatchOptions.model_fields))
    try:
        return TokenBatchOptions(**{field: given.raw(field) for field in TokenBatchOptions.model_fields})
    except SpecError as error:
        raise given.error(error.where, error.found, error.wanted) from error
