"""Records and tables by their addresses, as numba intrinsics.

An array handed from kernel to kernel is seven numbers and is counted as it comes and goes, with locked instructions
that cost more than the few cells a touch of a cache looks at; a kernel of forty of them takes most of a minute to
compile. An address is one number. Whoever takes one keeps the array alive, and has looked at its type.

``cell``, ``word`` and ``byte`` read 64-bit numbers, signed 32-bit numbers and bytes of a table; ``put`` and its kin
write them. ``mm_at`` and its kin make an address a record, whose fields are read and written by name.
``sixteen_dots`` is arithmetic in vectors.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
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

tools: Any = cgutils
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


@intrinsic  # type: ignore[untyped-decorator]
def sixteen_dots(typing: Any, a: Any, b: Any, rows: Any, columns: Any, sums: Any) -> Any:
    """sums[4 r + c] = a[rows[r]] . b[columns[c]] for four rows and four columns, of a multiple of 32 numbers each.

    Numbers are of 8 or 16 bits, those of 16 no larger than bytes are. Neighbours are added first, in 32 bits: that is
    the multiply-and-add that processors have, which compilers find in no loop over k.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # Vectors of which the processor's registers hold sixteen sums and eight rows.
        lanes = 32 if "+avx512bw" in context.codegen().magic_tuple()[2] else 16
        wide, half = (ir.VectorType(_WORD, n) for n in (lanes, lanes // 2))
        numbers = ir.VectorType(ir.IntType(a.dtype.bitwidth), lanes)
        even, odd = (ir.Constant(half, list(range(first, lanes, 2))) for first in (0, 1))
        arrays = [context.make_array(kind)(context, builder, value) for kind, value in zip((a, b), args, strict=False)]
        depth = tools.unpack_tuple(builder, arrays[0].shape)[1]
        starts = []
        for array, which in zip(arrays, args[2:4], strict=True):
            pitch = tools.unpack_tuple(builder, array.strides)[0]
            data = builder.ptrtoint(array.data, _CELL)
            starts.append([builder.add(data, builder.mul(row, pitch)) for row in tools.unpack_tuple(builder, which)])
        # The loop: its counter and the sums so far, then the next numbers of every row.
        before, loop = builder.block, builder.append_basic_block("numbers")
        builder.branch(loop)
        builder.position_at_end(loop)
        k, *held = (builder.phi(kind) for kind in (_CELL, *[half] * 16))
        for phi in (k, *held):
            phi.add_incoming(ir.Constant(phi.type, None), before)

        def loaded(start: Any) -> Any:
            place = builder.add(start, builder.mul(k, ir.Constant(_CELL, a.dtype.bitwidth // 8)))
            return builder.sext(builder.load(builder.inttoptr(place, numbers.as_pointer()), align=1), wide)

        x = [loaded(start) for start in starts[0]]
        added: list[Any] = []
        for y in map(loaded, starts[1]):
            for one in x:
                products = builder.mul(one, y, flags=("nsw",))
                pair = (builder.shuffle_vector(products, ir.Constant(wide, ir.Undefined), at) for at in (even, odd))
                added.append(builder.add(held[len(added)], builder.add(*pair, flags=("nsw",))))
        # To the next pass, or out of the loop.
        further = builder.add(k, ir.Constant(_CELL, lanes))
        for phi, value in zip((k, *held), (further, *added), strict=True):
            phi.add_incoming(value, loop)
        done = builder.append_basic_block("done")
        builder.cbranch(builder.icmp_signed("<", further, depth), loop, done)
        builder.position_at_end(done)
        # Each vector of sums becomes one sum; they were made column by column.
        total = tools.get_or_insert_function(
            builder.module, ir.FunctionType(_WORD, [half]), f"llvm.vector.reduce.add.v{lanes // 2}i32"
        )
        into = context.make_array(sums)(context, builder, args[4]).data
        for n, value in enumerate(added):
            place = ir.Constant(_CELL, n % 4 * 4 + n // 4)
            builder.store(builder.call(total, [value]), builder.gep(into, [place]))
        return context.get_dummy_value()

    return types.none(a, b, rows, columns, sums), generate
