"""SHA-1 (FIPS 180-4) of many texts at once, with the CPU's SHA instructions where it has them.

The instruction sequence is that of Intel's "New Instructions Supporting the Secure Hash Algorithm" (Gulley et al., 2013).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from zephon_core.bank.scan_compile import compiled
from zephon_core.bank.scan_simd import byte_at

__all__ = ["hash_texts"]

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_LANES = ir.VectorType(_I32, 4)
_SIXTEEN = ir.VectorType(_I8, 16)
_BLOCK = ir.VectorType(_I8, 64)
_START = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0)


def _bytes_pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    base = builder.bitcast(context.make_array(array_type)(context, builder, array).data, cgutils.voidptr_t)
    return builder.gep(base, [index])


class _Rounds:
    """The SHA-1 instructions, as calls that LLVM lowers to one instruction each."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def call(self, name: str, *operands: Any) -> Any:
        kind = ir.FunctionType(_LANES, [operand.type for operand in operands])
        function = cgutils.get_or_insert_function(self._builder.module, kind, f"llvm.x86.{name}")
        return self._builder.call(function, operands)

    def load_reversed(self, pointer: Any) -> Any:
        builder = self._builder
        raw = builder.load(builder.bitcast(pointer, _SIXTEEN.as_pointer()), align=1)
        turned = builder.shuffle_vector(raw, ir.Constant(_SIXTEEN, ir.Undefined), ir.Constant(ir.VectorType(_I32, 16), list(range(15, -1, -1))))
        return builder.bitcast(turned, _LANES)

    def compress(self, abcd: Any, e: Any, block: Any) -> tuple[Any, Any]:
        """Feed the 64 bytes at `block` to the state (lanes a b c d, highest first; lane e highest)."""
        builder = self._builder
        words = [self.load_reversed(builder.gep(block, [ir.Constant(_I64, 16 * k)])) for k in range(4)]
        start_abcd, start_e = abcd, e
        for step in range(20):
            if step >= 4:
                schedule = self.call("sha1msg1", words[0], words[1])
                schedule = self.call("sha1msg2", builder.xor(schedule, words[2]), words[3])
                words = [*words[1:], schedule]
            message = words[min(step, 3)]
            e = builder.add(e, message) if step == 0 else self.call("sha1nexte", e, message)
            abcd, e = self.call("sha1rnds4", abcd, e, ir.Constant(_I8, step // 5)), abcd
        return builder.add(abcd, start_abcd), self.call("sha1nexte", e, start_e)


@intrinsic
def _copy_tail(typing_context: Any, tail: Any, data: Any, index: Any, length: Any) -> Any:
    """tail[:64] = data[index:index+length], then the byte 0x80, then zeros; length is below 64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.bitcast(_bytes_pointer(context, builder, signature.args[1], args[1], args[2]), _BLOCK.as_pointer())
        chunk = builder.load(pointer, align=1)
        count = builder.insert_element(ir.Constant(_BLOCK, ir.Undefined), builder.trunc(args[3], _I8), ir.Constant(_I32, 0))
        counts = builder.shuffle_vector(count, ir.Constant(_BLOCK, ir.Undefined), ir.Constant(ir.VectorType(_I32, 64), [0] * 64))
        places = ir.Constant(_BLOCK, list(range(64)))
        end = builder.select(
            builder.icmp_unsigned("==", places, counts), ir.Constant(_BLOCK, [0x80] * 64), ir.Constant(_BLOCK, [0] * 64)
        )
        block = builder.select(builder.icmp_unsigned("<", places, counts), chunk, end)
        target = _bytes_pointer(context, builder, signature.args[0], args[0], ir.Constant(_I64, 0))
        builder.store(block, builder.bitcast(target, _BLOCK.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(tail, data, types.int64, types.int64), generate


@compiled
def _rotate(value: int, count: int) -> int:
    return (value << count | value >> (32 - count)) & 0xFFFFFFFF


def _compress_portable(state: np.ndarray[Any, Any], data: np.ndarray[Any, Any], index: int, blocks: int) -> None:
    words = np.empty(80, np.int64)
    for block in range(blocks):
        at = index + 64 * block
        for t in range(16):
            words[t] = (
                byte_at(data, at + 4 * t) << 24
                | byte_at(data, at + 4 * t + 1) << 16
                | byte_at(data, at + 4 * t + 2) << 8
                | byte_at(data, at + 4 * t + 3)
            )
        for t in range(16, 80):
            words[t] = _rotate(words[t - 3] ^ words[t - 8] ^ words[t - 14] ^ words[t - 16], 1)
        a, b, c, d, e = np.int64(state[3]), np.int64(state[2]), np.int64(state[1]), np.int64(state[0]), np.int64(state[7])
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
        state[3] += np.uint32(a)
        state[2] += np.uint32(b)
        state[1] += np.uint32(c)
        state[0] += np.uint32(d)
        state[7] += np.uint32(e)


@intrinsic
def _compress(typing_context: Any, state: Any, data: Any, index: Any, blocks: Any) -> Any:
    """Feed `blocks` blocks of 64 bytes from data[index] on to a state of uint32 [8]: d c b a, then e in the last."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        triple, _, features = context.codegen().magic_tuple()
        if not triple.startswith("x86_64") or "+sha" not in features.split(","):
            return context.compile_internal(builder, _compress_portable, signature, args)
        rounds = _Rounds(builder)
        state_at = _bytes_pointer(context, builder, signature.args[0], args[0], ir.Constant(_I64, 0))
        abcd_at = builder.bitcast(state_at, _LANES.as_pointer())
        e_at = builder.gep(abcd_at, [ir.Constant(_I64, 1)])
        abcd = cgutils.alloca_once_value(builder, builder.load(abcd_at, align=4))
        e = cgutils.alloca_once_value(builder, builder.load(e_at, align=4))
        source = _bytes_pointer(context, builder, signature.args[1], args[1], args[2])
        with cgutils.for_range(builder, args[3]) as loop:
            block = builder.gep(source, [builder.mul(loop.index, ir.Constant(_I64, 64))])
            next_abcd, next_e = rounds.compress(builder.load(abcd), builder.load(e), block)
            builder.store(next_abcd, abcd)
            builder.store(next_e, e)
        builder.store(builder.load(abcd), abcd_at, align=4)
        builder.store(builder.load(e), e_at, align=4)
        return context.get_dummy_value()

    return types.void(state, data, types.int64, types.int64), generate


@compiled
def hash_texts(data: np.ndarray[Any, Any], starts: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any], digests: np.ndarray[Any, Any]) -> None:
    """Write the SHA-1 of data[starts[i]:starts[i] + lengths[i]] to digests[i].

    data: uint8, PADDING readable bytes beyond the last text. starts, lengths: int64. digests: uint8 [n, 20], C order.
    """
    state = np.zeros(8, np.uint32)
    tail = np.zeros(128, np.uint8)
    for i in range(len(starts)):
        state[0], state[1], state[2], state[3], state[7] = _START[3], _START[2], _START[1], _START[0], _START[4]
        start = starts[i]
        length = lengths[i]
        whole = length >> 6
        rest = length & 63
        _compress(state, data, start, whole)
        _copy_tail(tail, data, start + (whole << 6), rest)
        size = 128 if rest > 55 else 64
        bits = length << 3
        for k in range(8):
            tail[size - 1 - k] = bits >> (8 * k) & 0xFF
        _compress(state, tail, 0, size >> 6)
        if size == 128:
            tail[64:] = 0
        for word in range(5):
            value = state[3 - word] if word < 4 else state[7]
            digests[i, 4 * word] = value >> 24
            digests[i, 4 * word + 1] = value >> 16 & 0xFF
            digests[i, 4 * word + 2] = value >> 8 & 0xFF
            digests[i, 4 * word + 3] = value & 0xFF
