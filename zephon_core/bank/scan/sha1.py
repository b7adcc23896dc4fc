"""SHA-1 (FIPS 180-4) of many texts at once, with the CPU's SHA instructions where it has them.

Each instruction waits for the one before it, so two texts side by side take little longer than one. The sequence is that of
Gulley et al., "Intel SHA Extensions" (2013).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

from zephon_core.bank.scan.arrays import Bytes, Ints
from zephon_core.bank.scan.simd import byte_at, instruction
from zephon_core.compiled import compiled

__all__ = ["hash_texts"]

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_LANES = ir.VectorType(_I32, 4)
_SIXTEEN = ir.VectorType(_I8, 16)
_BLOCK = ir.VectorType(_I8, 64)
_A, _B, _C, _D, _E = 0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0
_TAIL_BYTES = 128


@compiled
def hash_texts(data: Bytes, starts: Ints, lengths: Ints, digests: Bytes) -> None:
    """Write the SHA-1 of data[starts[i]:starts[i] + lengths[i]] to digests[i].

    data: PADDING readable bytes beyond the last text. digests: [n, 20], C order.
    """
    states = np.zeros((2, 8), np.uint32)
    tails = np.zeros(2 * _TAIL_BYTES, np.uint8)
    count = len(starts)
    for i in range(0, count, 2):
        j = min(i + 1, count - 1)
        for lane in range(2):
            # The order of the SHA instructions: d c b a, then e in the last place of a second vector.
            states[lane, 0], states[lane, 1], states[lane, 2], states[lane, 3], states[lane, 7] = _D, _C, _B, _A, _E
        _compress_both(states, data, starts[i], lengths[i] >> 6, starts[j], lengths[j] >> 6)
        blocks = _write_tail(tails, 0, data, starts[i], lengths[i])
        other_blocks = _write_tail(tails, _TAIL_BYTES, data, starts[j], lengths[j])
        _compress_both(states, tails, 0, blocks, _TAIL_BYTES, other_blocks)
        _write_digest(states, 0, digests, i)
        _write_digest(states, 1, digests, j)


def _compress_portable(states: npt.NDArray[np.uint32], lane: int, data: Bytes, at: int, blocks: int) -> None:
    words = np.empty(80, np.int64)
    for block in range(blocks):
        for t in range(16):
            byte = at + 64 * block + 4 * t
            words[t] = (
                byte_at(data, byte) << 24 | byte_at(data, byte + 1) << 16 | byte_at(data, byte + 2) << 8 | byte_at(data, byte + 3)
            )
        for t in range(16, 80):
            words[t] = _rotate(words[t - 3] ^ words[t - 8] ^ words[t - 14] ^ words[t - 16], 1)
        d, c, b, a = np.int64(states[lane, 0]), np.int64(states[lane, 1]), np.int64(states[lane, 2]), np.int64(states[lane, 3])
        e = np.int64(states[lane, 7])
        for t in range(80):
            if t < 20:
                mixed = (b & c | (b ^ 0xFFFFFFFF) & d) + 0x5A827999
            elif t < 40:
                mixed = (b ^ c ^ d) + 0x6ED9EBA1
            elif t < 60:
                mixed = (b & c | b & d | c & d) + 0x8F1BBCDC
            else:
                mixed = (b ^ c ^ d) + 0xCA62C1D6
            a, b, c, d, e = (_rotate(a, 5) + mixed + e + words[t]) & 0xFFFFFFFF, a, _rotate(b, 30), c, d
        states[lane, 0] += np.uint32(d)
        states[lane, 1] += np.uint32(c)
        states[lane, 2] += np.uint32(b)
        states[lane, 3] += np.uint32(a)
        states[lane, 7] += np.uint32(e)


def _compress_two_portable(states: npt.NDArray[np.uint32], data: Bytes, at: int, other_at: int, blocks: int) -> None:
    _compress_one(states, 0, data, at, blocks)
    _compress_one(states, 1, data, other_at, blocks)


@compiled
def _rotate(value: Any, count: int) -> Any:
    return (value << count | value >> (32 - count)) & 0xFFFFFFFF


@compiled
def _compress_both(states: npt.NDArray[np.uint32], data: Bytes, at: int, blocks: int, other_at: int, other_blocks: int) -> None:
    """Feed `blocks` blocks of 64 bytes from data[at] on to the first state, `other_blocks` from data[other_at] on to the second."""
    both = min(blocks, other_blocks)
    _compress_two(states, data, at, other_at, both)
    _compress_one(states, 0, data, at + 64 * both, blocks - both)
    _compress_one(states, 1, data, other_at + 64 * both, other_blocks - both)


@compiled
def _write_tail(tails: Bytes, at: int, data: Bytes, start: int, length: int) -> int:
    """Write what follows a text's last whole block: its last bytes, the mark, zeros and its length in bits; return the blocks."""
    rest = length & 63
    _copy_tail(tails, at, data, start + length - rest, rest)
    # All that is ever written to a second block is the length in its last place.
    blocks = 2 if rest > 55 else 1
    bits = length << 3
    for k in range(8):
        tails[at + 64 * blocks - 1 - k] = bits >> (8 * k) & 0xFF
    return blocks


@compiled
def _write_digest(states: npt.NDArray[np.uint32], lane: int, digests: Bytes, i: int) -> None:
    for word in range(5):
        value = states[lane, 3 - word] if word < 4 else states[lane, 7]
        for k in range(4):
            digests[i, 4 * word + k] = value >> (24 - 8 * k) & 0xFF


@instruction
def _compress_one(typing_context: Any, states: Any, lane: Any, data: Any, at: Any, blocks: Any) -> Any:
    """Feed `blocks` blocks from data[at] on to states[lane]."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not _has_sha(context):
            return context.compile_internal(builder, _compress_portable, signature, args)
        state = _at(context, builder, signature.args[0], args[0], builder.mul(args[1], ir.Constant(_I64, 32)))
        _Hardware(builder).feed([state], [_at(context, builder, signature.args[2], args[2], args[3])], args[4])
        return context.get_dummy_value()

    return types.void(states, types.int64, data, types.int64, types.int64), generate


@instruction
def _compress_two(typing_context: Any, states: Any, data: Any, at: Any, other_at: Any, blocks: Any) -> Any:
    """Feed `blocks` blocks from data[at] on to states[0], and as many from data[other_at] on to states[1]."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not _has_sha(context):
            return context.compile_internal(builder, _compress_two_portable, signature, args)
        lanes = [_at(context, builder, signature.args[0], args[0], ir.Constant(_I64, 32 * lane)) for lane in (0, 1)]
        sources = [_at(context, builder, signature.args[1], args[1], place) for place in args[2:4]]
        _Hardware(builder).feed(lanes, sources, args[4])
        return context.get_dummy_value()

    return types.void(states, data, types.int64, types.int64, types.int64), generate


@instruction
def _copy_tail(typing_context: Any, tails: Any, at: Any, data: Any, index: Any, length: Any) -> Any:
    """tails[at:at+64] = data[index:index+length], then the byte 0x80, then zeros; length is below 64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = _at(context, builder, signature.args[2], args[2], args[3])
        chunk = builder.load(builder.bitcast(source, _BLOCK.as_pointer()), align=1)
        undefined = ir.Constant(_BLOCK, ir.Undefined)
        count = builder.insert_element(undefined, builder.trunc(args[4], _I8), ir.Constant(_I32, 0))
        counts = builder.shuffle_vector(count, undefined, ir.Constant(ir.VectorType(_I32, 64), [0] * 64))
        places = ir.Constant(_BLOCK, list(range(64)))
        mark, zeros = ir.Constant(_BLOCK, [0x80] * 64), ir.Constant(_BLOCK, [0] * 64)
        rest = builder.select(builder.icmp_unsigned("==", places, counts), mark, zeros)
        block = builder.select(builder.icmp_unsigned("<", places, counts), chunk, rest)
        target = _at(context, builder, signature.args[0], args[0], args[1])
        builder.store(block, builder.bitcast(target, _BLOCK.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(tails, types.int64, data, types.int64, types.int64), generate


def _has_sha(context: Any) -> bool:
    """Tell whether the CPU that is compiled for has the instructions; part of the key of numba's cache."""
    triple, _, features = context.codegen().magic_tuple()
    return triple.startswith("x86_64") and "+sha" in features.split(",")


def _at(context: Any, builder: Any, array_type: Any, array: Any, offset_bytes: Any) -> Any:
    base = builder.bitcast(context.make_array(array_type)(context, builder, array).data, ir.IntType(8).as_pointer())
    return builder.gep(base, [offset_bytes])


class _Hardware:
    """Writes the SHA instructions, each a call that LLVM turns into one instruction."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def feed(self, states: list[Any], sources: list[Any], blocks: Any) -> None:
        """Write the loop that feeds blocks to one or more states, one block to each in turn."""
        build = self._builder
        tools: Any = cgutils
        places = [build.bitcast(state, _LANES.as_pointer()) for state in states]
        places += [build.gep(place, [ir.Constant(_I64, 1)]) for place in places]
        held = [tools.alloca_once_value(build, build.load(place, align=4)) for place in places]
        with tools.for_range(build, blocks) as loop:
            offset = build.mul(loop.index, ir.Constant(_I64, 64))
            before = [build.load(value) for value in held]
            after = self._block(before, [build.gep(source, [offset]) for source in sources])
            for value, place in zip(after, held, strict=True):
                build.store(value, place)
        for value, place in zip(held, places, strict=True):
            build.store(build.load(value), place, align=4)

    def _block(self, before: list[Any], blocks: list[Any]) -> list[Any]:
        """Write 80 rounds, four at a time, for all lanes side by side; before and the result: abcd of each lane, then e of each."""
        build = self._builder
        lanes = range(len(blocks))
        abcd, e = before[: len(blocks)], before[len(blocks) :]
        words = [[self._words(build.gep(block, [ir.Constant(_I64, 16 * k)])) for k in range(4)] for block in blocks]
        for step in range(20):
            for lane in lanes:
                if step >= 4:
                    w0, w1, w2, w3 = words[lane]
                    schedule = self._call("sha1msg1", w0, w1)
                    words[lane] = [w1, w2, w3, self._call("sha1msg2", build.xor(schedule, w2), w3)]
                message = words[lane][min(step, 3)]
                mixed = build.add(e[lane], message) if step == 0 else self._call("sha1nexte", e[lane], message)
                abcd[lane], e[lane] = self._call("sha1rnds4", abcd[lane], mixed, ir.Constant(_I8, step // 5)), abcd[lane]
        sums = [build.add(abcd[lane], before[lane]) for lane in lanes]
        return sums + [self._call("sha1nexte", e[lane], before[len(blocks) + lane]) for lane in lanes]

    def _words(self, pointer: Any) -> Any:
        """Load 16 bytes as four big-endian words, the first one highest."""
        build = self._builder
        raw = build.load(build.bitcast(pointer, _SIXTEEN.as_pointer()), align=1)
        backwards = ir.Constant(ir.VectorType(_I32, 16), list(range(15, -1, -1)))
        return build.bitcast(build.shuffle_vector(raw, ir.Constant(_SIXTEEN, ir.Undefined), backwards), _LANES)

    def _call(self, name: str, *operands: Any) -> Any:
        tools: Any = cgutils
        kind = ir.FunctionType(_LANES, [operand.type for operand in operands])
        return self._builder.call(tools.get_or_insert_function(self._builder.module, kind, f"llvm.x86.{name}"), operands)
