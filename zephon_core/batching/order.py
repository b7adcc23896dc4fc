"""The order of an epoch: a permutation that can be entered anywhere.

Position p of the order is sent to its example by a keyed bijection of 0 .. count - 1, so that nothing has to be shuffled, held
or replayed: any stretch of the order, or every W-th position of it, costs only its own length. The bijection is a generalized
Feistel network (Black & Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): a position is split into a high part below
`rows` and a low part of `low_bits` bits; rounds add to each part in turn a hash of the other part and a key; what comes out
beyond the last example is sent through again ("cycle walking"; rows x 2**low_bits is barely more than count, so this is
rare). Twelve rounds, 24 for fewer than 65,536 examples, as small domains need more of them; keys are drawn with SHAKE-256 from
(seed, epoch, count, version). Integers only, so the order is the same on every machine.

It takes the place of `numpy.random.Generator.permutation`, whose stream isn't promised to stay the same from one release to
the next.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.batching.options import LARGEST
from zephon_core.compiled import compiled
from zephon_core.errors import SpecError
from zephon_core.fingerprint import canonical_json

__all__ = ["ORDER_VERSION", "EpochOrder", "epoch_order", "index_dtype"]

ORDER_VERSION = 1
"""Changes with the order that a seed gives."""

_BLOCK = 2048
_SMALL = 1 << 16
_PROBES = 64

Indices = npt.NDArray[Any]


class EpochOrder:
    """The order of one epoch's examples: a pure function of (count, seed, epoch, `ORDER_VERSION`), computed where it is looked at.

    seed None: the order of the source, 0 .. count - 1, in every epoch.
    """

    def __init__(self, count: int, *, seed: int | None, epoch: int) -> None:
        _check_number("count", count)
        _check_number("epoch", epoch)
        if seed is not None:
            _check_number("seed", seed)
        self.count = count
        self.seed = seed
        self.epoch = epoch
        self.dtype = index_dtype(count)

    @cached_property
    def _low_bits(self) -> int:
        return (max(self.count - 1, 0).bit_length() + 1) // 2

    @cached_property
    def _keys(self) -> npt.NDArray[np.uint32]:
        recipe = canonical_json(["zephon epoch order", ORDER_VERSION, self.count, self.seed, self.epoch])
        rounds = 24 if self.count < _SMALL else 12
        return np.frombuffer(hashlib.shake_256(recipe).digest(4 * rounds), dtype="<u4").astype(np.uint32)

    def stretch(self, start: int, length: int, *, stride: int = 1) -> Indices:
        """Return the examples at positions start, start + stride, …: `length` of them, in the dtype of `index_dtype(count)`."""
        if start < 0 or length < 0 or stride < 1 or (length and start + (length - 1) * stride >= self.count):
            raise IndexError(f"positions {start} + {stride} k, k < {length}, of an order of {self.count}")
        return self._sent(np.arange(start, start + length * stride, stride, dtype=self.dtype))

    def fill(self, start: int, out: Indices) -> None:
        """Write the examples at positions start, start + 1, … to `out`, an array in the dtype of `index_dtype(count)`."""
        if start < 0 or start + len(out) > self.count:
            raise IndexError(f"positions {start} to {start + len(out) - 1} of an order of {self.count}")
        _count_up(out, start)
        self._sent(out)

    def at(self, positions: Indices) -> Indices:
        """Return the examples at the given positions (any integers [n], each in 0 .. count - 1)."""
        if len(positions) and (int(positions.min()) < 0 or int(positions.max()) >= self.count):
            raise IndexError(f"positions {positions.min()} to {positions.max()} of an order of {self.count}")
        return self._sent(positions.astype(self.dtype))

    def _sent(self, positions: Indices) -> Indices:
        """Replace positions by the examples there, in place."""
        if self.seed is not None:
            _permute(positions, self.count, self._low_bits, self._keys)
        return positions

    @cached_property
    def digest(self) -> str:
        """64 hex digits by which two orders can be told apart: SHA-256 over up to 64 positions spread over it, not over all."""
        last = max(self.count - 1, 0)
        probes = np.array(sorted({last * k // (_PROBES - 1) for k in range(_PROBES)})[: self.count], np.int64)
        content = canonical_json([ORDER_VERSION, self.count, self.at(probes).tolist()])
        return hashlib.sha256(content).hexdigest()


def epoch_order(count: int, *, seed: int | None, epoch: int) -> Indices:
    """Return the whole order of an epoch: the numbers 0 .. count - 1, each once, uint32 up to 2**31 examples, int64 beyond."""
    return EpochOrder(count, seed=seed, epoch=epoch).stretch(0, count)


def index_dtype(count: int) -> np.dtype[Any]:
    """Return the dtype in which examples 0 .. count - 1 are numbered: uint32 up to 2**31 of them, else int64."""
    return np.dtype(np.uint32) if count <= 2**31 else np.dtype(np.int64)  # what is walked on from is a little beyond count


def _check_number(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise SpecError(name, f"is {value!r}", wanted=f"a whole number from 0 to {LARGEST}")


@compiled
def _count_up(out: Any, start: int) -> None:
    for k in range(np.uint64(len(out))):
        out[k] = np.uint64(start) + k


@compiled
def _permute(out: Any, count: int, low_bits: int, keys: Any) -> None:
    """Replace positions by the examples there, block by block; in `out`'s own type, so that most fit into a vector."""
    high, low = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.uint32)
    kind, wide = out.dtype.type, np.uint64(low_bits)
    shift, last = kind(low_bits), kind(count - 1)
    rows = np.uint32((np.uint64(count) + (np.uint64(1) << wide) - np.uint64(1)) >> wide)
    mask = np.uint32((1 << low_bits) - 1)
    for begin in range(0, len(out), _BLOCK):
        block = out[begin : begin + _BLOCK]
        size = len(block)
        for k in range(size):
            high[k] = block[k] >> shift
        for k in range(size):
            low[k] = np.uint32(block[k]) & mask
        _rounds(high, low, size, rows, mask, keys)
        furthest = kind(0)
        for k in range(size):
            block[k] = (kind(high[k]) << shift) | kind(low[k])
            furthest = max(furthest, block[k])
        if furthest <= last:
            continue
        for k in range(size):
            while block[k] > last:
                high[0], low[0] = block[k] >> shift, np.uint32(block[k]) & mask
                _rounds(high, low, 1, rows, mask, keys)
                block[k] = (kind(high[0]) << shift) | kind(low[0])


@compiled
def _rounds(high: Any, low: Any, size: int, rows: Any, mask: Any, keys: Any) -> None:
    """All rounds on `size` positions; one part after the other for the whole block, so that each loop is vectorized."""
    for pair in range(0, len(keys), 2):
        for k in range(size):
            added = np.uint32((np.uint64(_hash(low[k], keys[pair])) * np.uint64(rows)) >> np.uint64(32))
            total = np.uint32(high[k] + added)
            high[k] = total if total < rows else np.uint32(total - rows)
        for k in range(size):
            low[k] = np.uint32(low[k] + _hash(high[k], keys[pair + 1])) & mask


@compiled
def _hash(value: int, key: int) -> int:
    """Mix 32 bits with a key (the multipliers are primes of xxHash32; Collet)."""
    mixed = np.uint32(np.uint32(value + key) * np.uint32(0x9E3779B1))
    mixed = np.uint32(mixed ^ (mixed >> np.uint32(15)))
    mixed = np.uint32(mixed * np.uint32(0x85EBCA77))
    mixed = np.uint32(mixed ^ (mixed >> np.uint32(13)))
    mixed = np.uint32(mixed * np.uint32(0xC2B2AE3D))
    return np.uint32(mixed ^ (mixed >> np.uint32(16)))  # type: ignore[return-value]
