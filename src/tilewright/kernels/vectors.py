"""Vector loads and stores for kernels, as numba intrinsics over raw addresses, and what more of them are written with.

LLVM turns plain loops over interleaved rows into byte-by-byte code, several times slower than memory. Intrinsics say
what is meant: copy a vector, interleave rows, sum rows in registers. Widths and the like are literals, so that each use
is straight code.
"""

from __future__ import annotations

import functools
import inspect
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


Word = Any
Element = Any
Literal = Any
"""What :func:`emitted` lets the arguments of an intrinsic be."""


def emitted(build: Any) -> Any:
    """A numba intrinsic of the function that builds its code, from annotations that say what its arguments are.

    ``Word``: a number of 64 bits, such as an address, of which it gets the value; ``Literal``: a number that is known,
    which it gets; ``Element``: a number whose type has as many bytes as it gets. It gives a ``Word``, or None.
    """
    (_, *names), kinds = inspect.signature(build).parameters, build.__annotations__

    def typed(typing: Any, *given: Any) -> Any:
        known: list[Any] = [None] * len(given)
        for k, (name, kind) in enumerate(zip(names, given, strict=True)):
            if kinds[name] != "Word":
                known[k] = kind.literal_value if kinds[name] == "Literal" else kind.bitwidth // 8

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            own = (arg if number is None else number for arg, number in zip(args, known, strict=True))
            made = build(builder, *own)
            return context.get_dummy_value() if made is None else made

        result = types.none if kinds["return"] == "None" else types.int64
        own = (ADDRESS if kinds[name] == "Word" else kind for name, kind in zip(names, given, strict=True))
        return result(*own), generate

    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
    wrapped: Any = functools.wraps(build)(typed)
    wrapped.__signature__ = inspect.Signature([inspect.Parameter(name, plain) for name in ("typing", *names)])
    return intrinsic(prefer_literal="Literal" in kinds.values())(wrapped)


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


@emitted
def copy_vector(builder: Any, target: Word, source: Word, width: Literal) -> None:
    """``width`` bytes from address ``source`` to address ``target``."""
    kind = vector(width, 1)
    builder.store(load(builder, source, 0, kind), at(builder, target, 0, kind), align=1)


@emitted
def prefetch_line(builder: Any, address: Word, level: Literal) -> None:
    """Fetch the line at ``address`` into the cache of ``level`` 1 or 2, or, 0, for writing; any address will do."""
    byte = ir.PointerType(ir.IntType(8))
    kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
    call = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    how = (ir.Constant(I32, n) for n in (int(level == 0), 2 if level == 2 else 3, 1))
    builder.call(call, [at(builder, address, 0, ir.IntType(8)), *how])


@emitted
def load_word(builder: Any, address: Word, place: Word) -> Word:
    """Word ``place`` of the int64 table at ``address``."""
    word = builder.add(address, builder.mul(place, ir.Constant(I64, 8)))
    return builder.load(at(builder, word, 0, I64))


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
