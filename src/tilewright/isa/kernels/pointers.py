"""Records and tables by their addresses, as numba intrinsics.

An array handed from kernel to kernel is seven numbers and is counted as it comes and goes, with locked instructions
that cost more than the few cells a touch of a cache looks at; a kernel of forty of them takes most of a minute to
compile. An address is one number. Whoever takes one keeps the array alive, and has looked at its type.

``cell``, ``word`` and ``byte`` read 64-bit numbers, signed 32-bit numbers and bytes of a table; ``put`` and its kin
write them. ``mm_at`` and its kin make an address a record, whose fields are read and written by name.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import extending, types
from numba.core.datamodel import models

from tilewright.isa.kernels.records import (
    ACCOUNTS,
    CACHE,
    CLOCK,
    COUNTS,
    FILL,
    FREE,
    INSTRUCTION,
    LOOP,
    MATH,
    MEMORY,
    MM,
    REACH,
    TIMES,
    TIMING,
    TRAFFIC,
    TRANSFER,
    Layout,
)

intrinsic: Any = extending.intrinsic  # it changes signatures (the first parameter goes), which types cannot say
_CELL, _WORD, _BYTE = (ir.IntType(bits) for bits in (64, 32, 8))


class _RecordType(types.Record):
    """A record under a short name: numba's own has all fields in it, and every symbol of a kernel has that."""

    def __init__(self, name: str, layout: Layout) -> None:
        plain: Any = numba.from_dtype(layout.dtype)
        members: Any = [(field, {"type": info.type, "offset": info.offset}) for field, info in plain.fields.items()]
        super().__init__(members, plain.size, True)
        self.name = f"tilewright.{name}"


extending.register_model(_RecordType)(models.RecordModel)


def _record(name: str, layout: Layout) -> Any:
    kind = _RecordType(name, layout)

    def at(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(kind))

        return kind(types.int64), generate

    return intrinsic(at)


accounts_at = _record("accounts", ACCOUNTS)
cache_at = _record("cache", CACHE)
clock_at = _record("clock", CLOCK)
counts_at = _record("counts", COUNTS)
fill_at = _record("fill", FILL)
free_at = _record("free", FREE)
instruction_at = _record("instruction", INSTRUCTION)
loop_at = _record("loop", LOOP)
math_at = _record("math", MATH)
memory_at = _record("memory", MEMORY)
mm_at = _record("mm", MM)
reach_at = _record("reach", REACH)
times_at = _record("times", TIMES)
timing_at = _record("timing", TIMING)
traffic_at = _record("traffic", TRAFFIC)
transfer_at = _record("transfer", TRANSFER)


def _at(builder: Any, table: Any, place: Any, kind: Any) -> Any:
    moved = builder.mul(place, ir.Constant(_CELL, kind.width // 8))
    return builder.inttoptr(builder.add(table, moved), ir.PointerType(kind))


def _reader(kind: Any, signed: bool) -> Any:
    def read(typing: Any, table: Any, place: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(_at(builder, args[0], args[1], kind), align=kind.width // 8)
            if kind.width == 64:
                return value
            return builder.sext(value, _CELL) if signed else builder.zext(value, _CELL)

        return types.int64(types.int64, types.int64), generate

    return intrinsic(read)


def _writer(kind: Any) -> Any:
    def write(typing: Any, table: Any, place: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            number = args[2] if kind.width == 64 else builder.trunc(args[2], kind)
            builder.store(number, _at(builder, args[0], args[1], kind), align=kind.width // 8)
            return context.get_dummy_value()

        return types.none(types.int64, types.int64, types.int64), generate

    return intrinsic(write)


cell, word, byte = _reader(_CELL, True), _reader(_WORD, True), _reader(_BYTE, False)
put, put_word, put_byte = _writer(_CELL), _writer(_WORD), _writer(_BYTE)


@intrinsic  # type: ignore[untyped-decorator]
def copy(typing: Any, target: Any, source: Any) -> Any:
    """Eight bytes from address ``source`` to address ``target``, aligned or not."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, of = (builder.inttoptr(address, ir.PointerType(_CELL)) for address in args)
        builder.store(builder.load(of, align=1), to, align=1)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), generate
