"""Vector loads and stores for kernels, as numba intrinsics over raw addresses, and what more of them are written with.

LLVM turns plain loops over interleaved rows into byte-by-byte code, several times slower than memory. Intrinsics say
what is meant: copy a vector, interleave rows, sum rows in registers. Widths and the like are literals, so that each use
is straight code.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import extending
from numba import types as numba_types

types: Any = numba_types  # called as signatures, which its annotations do not know
carray: Any = numba.carray  # type: ignore[attr-defined]
intrinsic: Any = extending.intrinsic  # it changes signatures (the first parameter goes), which types cannot say
I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
ADDRESS = types.int64


def vector(count: int, size: int) -> Any:
    """The type of a vector of ``count`` integers of ``size`` bytes."""
    return ir.VectorType(ir.IntType(8 * size), count)


def at(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    """``address`` plus ``offset`` bytes as a pointer to ``kind``."""
    moved = builder.add(address, ir.Constant(I64, offset)) if offset else address
    return builder.inttoptr(moved, ir.PointerType(kind))


def load(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    """The ``kind`` at ``address`` plus ``offset`` bytes, aligned or not."""
    return builder.load(at(builder, address, offset, kind), align=1)


def shuffle(builder: Any, a: Any, b: Any, mask: list[int]) -> Any:
    """Lanes of ``a`` and ``b``, one behind the other, picked by number."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(mask)), mask))


def spread(builder: Any, value: Any, lanes: int) -> Any:
    """A vector of ``lanes`` times the value."""
    undefined = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    return shuffle(builder, first, undefined, [0] * lanes)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def copy_vector(typing: Any, target: Any, source: Any, width: Any) -> Any:
    """``width`` bytes (a literal) from address ``source`` to address ``target``."""
    kind = vector(width.literal_value, 1)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(load(builder, args[1], 0, kind), at(builder, args[0], 0, kind), align=1)
        return context.get_dummy_value()

    return types.none(ADDRESS, ADDRESS, width), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def prefetch_line(typing: Any, address: Any, level: Any) -> Any:
    """Fetch the line at ``address`` into the cache of ``level`` 1 or 2, or, 0, for writing; any address will do."""
    for_write, near = int(level.literal_value == 0), 2 if level.literal_value == 2 else 3

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.PointerType(ir.IntType(8))
        kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
        call = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        how = (ir.Constant(I32, n) for n in (for_write, near, 1))
        builder.call(call, [at(builder, args[0], 0, ir.IntType(8)), *how])
        return context.get_dummy_value()

    return types.none(ADDRESS, level), generate


@intrinsic  # type: ignore[untyped-decorator]
def load_word(typing: Any, address: Any, place: Any) -> Any:
    """Word ``place`` of the int64 table at ``address``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = builder.add(args[0], builder.mul(args[1], ir.Constant(I64, 8)))
        return builder.load(at(builder, word, 0, I64))

    return types.int64(ADDRESS, types.int64), generate


def _pointer(kind: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def cast(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(types.CPointer(kind)))

        return types.CPointer(kind)(types.int64), generate

    return cast


to_floats, to_ints, to_longs = _pointer(types.float32), _pointer(types.int32), _pointer(types.int64)
to_bytes = _pointer(types.uint8)
"""An address as a pointer, of which ``carray`` makes an array."""
