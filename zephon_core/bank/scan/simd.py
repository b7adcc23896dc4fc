"""Sixty-four bytes at a time: the few vector and memory operations that numba has no words for, as LLVM instructions.

They are plain LLVM vectors, so every CPU runs them (as AVX-512, AVX2, SSE2 or NEON instructions). None checks bounds: callers
read only buffers with `PADDING` spare bytes after the last one that matters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "PADDING",
    "big_endian_at",
    "byte_at",
    "copy_64",
    "half_at",
    "high_mask",
    "instruction",
    "newline_mask",
    "prefetch_row",
    "string_mask",
    "trailing_zeros",
    "word_at",
]

PADDING = 64
"""Bytes that must follow the last byte of a buffer that these functions read."""

_BYTES = ir.VectorType(ir.IntType(8), 64)
_I64 = ir.IntType(64)


def instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a numba intrinsic of a function (typing context, argument types) -> (signature, code generator)."""
    made: Callable[..., Any] = intrinsic(function)
    return made


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any, width: ir.Type | None = None) -> Any:
    base = builder.bitcast(context.make_array(array_type)(context, builder, array).data, cgutils.voidptr_t)
    pointer = builder.gep(base, [index])
    return builder.bitcast(pointer, (width or ir.IntType(8)).as_pointer())


def _load(context: Any, builder: Any, signature: Any, args: Any, width: ir.Type) -> Any:
    pointer = _pointer(context, builder, signature.args[0], args[0], args[1], width)
    return builder.load(pointer, align=1)


def _splat(value: int) -> ir.Constant:
    return ir.Constant(_BYTES, [value] * 64)


def _mask(builder: Any, flags: Any) -> Any:
    return builder.bitcast(flags, _I64)


def _integer_load(bits: int) -> Callable[..., Any]:
    def typed(typing_context: Any, data: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = _load(context, builder, signature, args, ir.IntType(bits))
            return value if bits == 64 else builder.zext(value, _I64)

        return types.int64(data, types.int64), generate

    return typed


@instruction
def byte_at(typing_context: Any, data: Any, index: Any) -> Any:
    """data[index] of a uint8 array as int64, without the sign and bounds handling of Python's indexing."""
    return _integer_load(8)(typing_context, data, index)


@instruction
def half_at(typing_context: Any, data: Any, index: Any) -> Any:
    """Load the four bytes from index on, as a little-endian unsigned number in an int64."""
    return _integer_load(32)(typing_context, data, index)


@instruction
def word_at(typing_context: Any, data: Any, index: Any) -> Any:
    """Load the eight bytes from index on, as the bits of a little-endian int64."""
    return _integer_load(64)(typing_context, data, index)


@instruction
def string_mask(typing_context: Any, data: Any, index: Any) -> Any:
    """Bit k is set where data[index + k] ends a run of plain string bytes: a quote, a backslash, or a control character."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        chunk = _load(context, builder, signature, args, _BYTES)
        quote = builder.icmp_unsigned("==", chunk, _splat(0x22))
        backslash = builder.icmp_unsigned("==", chunk, _splat(0x5C))
        control = builder.icmp_unsigned("<", chunk, _splat(0x20))
        return _mask(builder, builder.or_(builder.or_(quote, backslash), control))

    return types.int64(data, types.int64), generate


@instruction
def high_mask(typing_context: Any, data: Any, index: Any) -> Any:
    """Bit k is set where data[index + k] is no ASCII byte."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        chunk = _load(context, builder, signature, args, _BYTES)
        return _mask(builder, builder.icmp_signed("<", chunk, _splat(0)))

    return types.int64(data, types.int64), generate


@instruction
def newline_mask(typing_context: Any, data: Any, index: Any) -> Any:
    """Bit k is set where data[index + k] is a line feed."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        chunk = _load(context, builder, signature, args, _BYTES)
        return _mask(builder, builder.icmp_unsigned("==", chunk, _splat(0x0A)))

    return types.int64(data, types.int64), generate


@instruction
def copy_64(typing_context: Any, target: Any, at: Any, source: Any, index: Any) -> Any:
    """target[at:at+64] = source[index:index+64]."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        chunk = builder.load(_pointer(context, builder, signature.args[2], args[2], args[3], _BYTES), align=1)
        builder.store(chunk, _pointer(context, builder, signature.args[0], args[0], args[1], _BYTES), align=1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64), generate


@instruction
def trailing_zeros(typing_context: Any, mask: Any) -> Any:
    """Position of the lowest set bit; 64 if there is none."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), generate


@instruction
def big_endian_at(typing_context: Any, data: Any, index: Any) -> Any:
    """Load the eight bytes from index on, as the bits of a big-endian int64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bswap(_load(context, builder, signature, args, _I64))

    return types.int64(data, types.int64), generate


@instruction
def prefetch_row(typing_context: Any, table: Any, row: Any) -> Any:
    """Ask for the cache line of table[row] (first dimension, C order) to be there when it will be read."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        stride = builder.extract_value(array.strides, 0)
        pointer = _pointer(context, builder, signature.args[0], args[0], builder.mul(args[1], stride))
        i32 = ir.IntType(32)
        insert: Any = cgutils.get_or_insert_function
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32])
        function = insert(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, ir.Constant(i32, 1), ir.Constant(i32, 3), ir.Constant(i32, 1)])
        return context.get_dummy_value()

    return types.void(table, types.int64), generate
