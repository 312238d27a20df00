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

from tilewright.isa.kernels import records
from tilewright.isa.kernels.records import Layout
from tilewright.kernels.vectors import Word, emitted, intrinsic

tools: Any = cgutils
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


accounts_at = _record("accounts", records.ACCOUNTS)
block_at = _record("block", records.BLOCK)
cache_at = _record("cache", records.CACHE)
clock_at = _record("clock", records.CLOCK)
counts_at = _record("counts", records.COUNTS)
fill_at = _record("fill", records.FILL)
free_at = _record("free", records.FREE)
instruction_at = _record("instruction", records.INSTRUCTION)
math_at = _record("math", records.MATH)
memory_at = _record("memory", records.MEMORY)
mm_at = _record("mm", records.MM)
reach_at = _record("reach", records.REACH)
times_at = _record("times", records.TIMES)
timing_at = _record("timing", records.TIMING)
traffic_at = _record("traffic", records.TRAFFIC)
transfer_at = _record("transfer", records.TRANSFER)
walk_at = _record("walk", records.WALK)


def _at(builder: Any, table: Any, place: Any, kind: Any) -> Any:
    moved = builder.mul(place, ir.Constant(_CELL, kind.width // 8))
    return builder.inttoptr(builder.add(table, moved), ir.PointerType(kind))


def _reader(kind: Any, signed: bool) -> Any:
    @emitted
    def read(builder: Any, table: Word, place: Word) -> Word:
        value = builder.load(_at(builder, table, place, kind), align=kind.width // 8)
        if kind.width == 64:
            return value
        return builder.sext(value, _CELL) if signed else builder.zext(value, _CELL)

    return read


def _writer(kind: Any) -> Any:
    @emitted
    def write(builder: Any, table: Word, place: Word, value: Word) -> None:
        number = value if kind.width == 64 else builder.trunc(value, kind)
        builder.store(number, _at(builder, table, place, kind), align=kind.width // 8)

    return write


cell, word, byte = _reader(_CELL, True), _reader(_WORD, True), _reader(_BYTE, False)
put, put_word, put_byte = _writer(_CELL), _writer(_WORD), _writer(_BYTE)


@emitted
def copy_bytes(builder: Any, target: Word, source: Word, length: Word) -> None:
    """``length`` bytes from address ``source`` to address ``target``, which do not meet."""
    to, of = (builder.inttoptr(address, ir.PointerType(_BYTE)) for address in (target, source))
    tools.raw_memcpy(builder, to, of, length, 1)


@intrinsic  # type: ignore[untyped-decorator]
def sixteen_dots(typing: Any, a: Any, b: Any, depth: Any, rows: Any, columns: Any, sums: Any) -> Any:
    """sums[4 r + c] = a[rows[r]] . b[columns[c]], four rows and four columns of ``depth`` bytes, a multiple of 64.

    Neighbours are added first, in 32 bits: that is the multiply-and-add that processors have, which compilers find in
    no loop over k. Some have one for four bytes with a sign by four without: the rows are made 128 larger for it, and
    128 times the sum of a column is taken off again.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # Vectors of which the processor's registers hold sixteen sums and eight rows.
        features = context.codegen().magic_tuple()[2]
        fours = "+avx512vnni" in features
        lanes = 64 if fours else 32 if "+avx512bw" in features else 16
        group = 4 if fours else 2
        wide, sum_kind = ir.VectorType(_WORD, lanes), ir.VectorType(_WORD, lanes // group)
        numbers = ir.VectorType(_BYTE, lanes)
        arrays = [context.make_array(kind)(context, builder, value) for kind, value in zip((a, b), args, strict=False)]
        starts = []
        for array, which in zip(arrays, args[3:5], strict=True):
            pitch = tools.unpack_tuple(builder, array.strides)[0]
            data = builder.ptrtoint(array.data, _CELL)
            starts.append([builder.add(data, builder.mul(row, pitch)) for row in tools.unpack_tuple(builder, which)])
        # The loop: its counter and the sums so far (of columns too), then the next numbers of every row.
        before, loop = builder.block, builder.append_basic_block("numbers")
        builder.branch(loop)
        builder.position_at_end(loop)
        k, *held = (builder.phi(kind) for kind in (_CELL, *[sum_kind] * (20 if fours else 16)))
        for phi in (k, *held):
            phi.add_incoming(ir.Constant(phi.type, None), before)

        def loaded(start: Any) -> Any:
            return builder.load(builder.inttoptr(builder.add(start, k), numbers.as_pointer()), align=1)

        def in_fours(total: Any, without_sign: Any, with_sign: Any) -> Any:
            words = [builder.bitcast(each, sum_kind) for each in (without_sign, with_sign)]
            kind = ir.FunctionType(sum_kind, [sum_kind] * 3)
            dots = tools.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.vpdpbusd.512")
            return builder.call(dots, [total, *words])

        def in_pairs(total: Any, one: Any, other: Any) -> Any:
            products = builder.mul(one, other, flags=("nsw",))
            halves = (ir.Constant(sum_kind, list(range(first, lanes, 2))) for first in (0, 1))
            pair = (builder.shuffle_vector(products, ir.Constant(wide, ir.Undefined), half) for half in halves)
            return builder.add(total, builder.add(*pair, flags=("nsw",)))

        x, y = ([loaded(start) for start in side] for side in starts)
        if fours:
            x = [builder.xor(one, ir.Constant(numbers, [-128] * lanes)) for one in x]
        else:
            x, y = ([builder.sext(one, wide) for one in side] for side in (x, y))
        add = in_fours if fours else in_pairs
        added = [add(held[4 * c + r], x[r], y[c]) for c in range(4) for r in range(4)]
        if fours:
            added += [in_fours(held[16 + c], ir.Constant(numbers, [1] * lanes), y[c]) for c in range(4)]
        # To the next pass, or out of the loop.
        further = builder.add(k, ir.Constant(_CELL, lanes))
        for phi, value in zip((k, *held), (further, *added), strict=True):
            phi.add_incoming(value, loop)
        done = builder.append_basic_block("done")
        builder.cbranch(builder.icmp_signed("<", further, args[2]), loop, done)
        builder.position_at_end(done)
        # Sums of neighbours of two vectors become one, until each lane has one sum; they were made column by column.
        size = lanes // group

        def picked(pair: list[Any], lanes_of: list[int]) -> Any:
            return builder.shuffle_vector(*pair, ir.Constant(sum_kind, lanes_of))

        def folded(vectors: list[Any]) -> list[Any]:
            for _ in range(size.bit_length() - 1):
                pairs = [vectors[i : i + 2] if len(vectors) > 1 else vectors * 2 for i in range(0, len(vectors), 2)]
                vectors = [builder.add(*(picked(p, list(range(i, 2 * size, 2))) for i in (0, 1))) for p in pairs]
            return vectors

        totals, into = folded(added[:16]), context.make_array(sums)(context, builder, args[5]).data
        if fours:
            larger = picked(folded(added[16:]) * 2, [lane // 4 for lane in range(16)])
            totals = [builder.sub(totals[0], builder.shl(larger, ir.Constant(sum_kind, [7] * 16)))]
        turned = [4 * (n % 4) + n // 4 for n in range(16)]
        for at in range(0, 16, size):
            there = builder.bitcast(builder.gep(into, [ir.Constant(_CELL, at)]), sum_kind.as_pointer())
            builder.store(picked([totals[0], totals[-1]], turned[at : at + size]), there, align=4)
        return context.get_dummy_value()

    return types.none(a, b, types.int64, rows, columns, sums), generate
