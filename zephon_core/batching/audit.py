"""Proof of what was consumed: a digest of (epoch, example) pairs that doesn't depend on their order or on who consumed them.

Each pair is hashed to two 64-bit numbers, and the numbers are added up (an additive multiset hash; Clarke et al. 2003, without
a secret). So digests of ranks add up to the run's, whatever the world; an example that was left out, or consumed twice, shows.
It guards against mistakes, not against someone who looks for collisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from zephon_core.batching.options import is_whole
from zephon_core.batching.state_fields import StateFields, sealed
from zephon_core.compiled import compiled
from zephon_core.errors import SpecError, StateError

__all__ = ["AUDIT_VERSION", "ConsumptionAudit"]

AUDIT_VERSION = 1

_FORMAT = "zephon-consumption-audit"
_WORD = 1 << 64
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class ConsumptionAudit:
    """A set of consumed (epoch, example) pairs, as its size and its digest; equal audits, equal sets.

    count: pairs, repeated ones each time. first, second: sums of the pairs' hashes, modulo 2**64.
    """

    count: int = 0
    first: int = 0
    second: int = 0

    def add(self, epoch: int, indices: npt.ArrayLike) -> ConsumptionAudit:
        """Return the audit with the examples `indices` (integers [n]) of an epoch added."""
        if not is_whole(epoch, 0):
            raise SpecError("epoch", f"is {epoch!r}", wanted="a whole number from 0 on")
        try:
            examples = np.asarray(indices)
        except (ValueError, OverflowError) as error:
            raise SpecError("indices", f"are no row ({error})", wanted="one row of whole numbers") from error
        if examples.ndim == 1 and not len(examples):
            return self
        if examples.ndim != 1 or examples.dtype.kind not in "iu":
            raise SpecError("indices", f"are {examples.dtype} {list(examples.shape)}", wanted="one row of whole numbers")
        if examples.dtype.kind == "i" and int(examples.min()) < 0:
            raise SpecError("indices", f"hold {examples.min()}", wanted="numbers of examples, from 0 on")
        first, second = _hash_sums(examples, np.uint64(epoch))
        return self + ConsumptionAudit(len(examples), int(first), int(second))

    def __add__(self, other: ConsumptionAudit) -> ConsumptionAudit:
        """Return the audit of both, such as of two ranks, or of a run before and after it was interrupted."""
        return ConsumptionAudit(self.count + other.count, (self.first + other.first) % _WORD, (self.second + other.second) % _WORD)

    @classmethod
    def of_epoch(cls, epoch: int, source_length: int) -> ConsumptionAudit:
        """Return the audit of every example of an epoch, each once: what a whole epoch must come to."""
        audit = cls()
        for begin in range(0, source_length, _AT_ONCE):
            audit = audit.add(epoch, np.arange(begin, min(source_length, begin + _AT_ONCE)))
        return audit

    @property
    def digest(self) -> str:
        """The sums as 32 hex digits."""
        return f"{self.first:016x}{self.second:016x}"

    def to_json(self) -> dict[str, Any]:
        """Write the audit as a plain document."""
        return sealed({"format": _FORMAT, "version": AUDIT_VERSION, "count": self.count, "digest": self.digest})

    @classmethod
    def of(cls, value: Mapping[str, Any] | str | bytes) -> Self:
        """Read an audit from its document or the document's JSON text; raises StateError."""
        read = StateFields.of_document(value, _FORMAT, AUDIT_VERSION, ["count", "digest"])
        digest = read.text("digest")
        if len(digest) != 32 or set(digest) - set("0123456789abcdef"):
            raise StateError(f"{_FORMAT}.digest", f"is {digest!r}", wanted="32 hex digits")
        read.check_seal()
        return cls(read.integer("count"), int(digest[:16], 16), int(digest[16:], 16))


@compiled
def _hash_sums(examples: Any, epoch: Any) -> Any:
    one = _mixed(epoch + np.uint64(0x9E3779B97F4A7C15))
    other = _mixed(one + np.uint64(0x9E3779B97F4A7C15))
    first, second = np.uint64(0), np.uint64(0)
    for k in range(len(examples)):
        example = np.uint64(examples[k])
        first += _mixed(_mixed(example) ^ one)
        second += _mixed(_mixed(example ^ other))
    return first, second


@compiled
def _mixed(value: Any) -> Any:
    """Mix 64 bits (the finalizer of SplitMix64; Steele, Lea & Flood 2014)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
