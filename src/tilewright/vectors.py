"""Vector loads, shuffles and streaming stores for kernels, as numba intrinsics over raw addresses.

LLVM turns plain loops over interleaved rows into byte-by-byte code, several times slower than memory. These few
primitives say what is meant: copy a vector, interleave rows, take rows apart. ``unit`` is an integer whose type
gives the element's width; widths, row counts and the store kind are literals, so that each use is straight code.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils as numba_code

cgutils: Any = numba_code  # its functions have no types
intrinsic: Any = extending.intrinsic  # it changes signatures (the first parameter goes), which types cannot say
LINE = 64  # bytes of a cache line; one load or store
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_ADDRESS = types.int64


def _vector(count: int, size: int) -> Any:
    return ir.VectorType(ir.IntType(8 * size), count)


def _at(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    moved = builder.add(address, ir.Constant(_I64, offset)) if offset else address
    return builder.inttoptr(moved, ir.PointerType(kind))


def _load(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    return builder.load(_at(builder, address, offset, kind), align=1)


def _shuffle(builder: Any, a: Any, b: Any, mask: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(mask)), mask))


def _store(builder: Any, value: Any, address: Any, streaming: bool) -> None:
    """A vector of any width in lines; a streaming store goes past the caches and wants an aligned address."""
    size = value.type.element.width // 8
    per_line = min(LINE // size, value.type.count)
    undefined = ir.Constant(value.type, ir.Undefined)
    for first in range(0, value.type.count, per_line):
        whole = per_line == value.type.count
        part = value if whole else _shuffle(builder, value, undefined, list(range(first, first + per_line)))
        align = per_line * size if streaming else 1
        done = builder.store(part, _at(builder, address, first * size, part.type), align=align)
        if streaming:
            done.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_I32, 1)]))


def _width(unit: Any) -> int:
    return int(unit.bitwidth) // 8


def _interleave(builder: Any, rows: list[Any], size: int) -> Any:
    """Elements of all rows in turn: row 0's first, row 1's first, ...; neighbours pair up, then pairs of pairs."""
    while len(rows) > 1:
        count = rows[0].type.count
        mask = [x for i in range(count) for x in (i, count + i)]
        pairs = [_shuffle(builder, a, b, mask) for a, b in zip(rows[::2], rows[1::2], strict=True)]
        size *= 2
        rows = [builder.bitcast(pair, _vector(count, size)) for pair in pairs] if len(pairs) > 1 else pairs
    return rows[0]


def _part(builder: Any, whole: Any, rows: int, size: int) -> list[Any]:
    """The inverse of :func:`_interleave`: widest pairs first."""
    bytes_all = whole.type.count * whole.type.element.width // 8
    parts = [whole]
    while len(parts) < rows:
        wide = size * rows // (2 * len(parts))
        count = bytes_all // len(parts) // wide
        halves = []
        for part in parts:
            cast = builder.bitcast(part, _vector(count, wide))
            undefined = ir.Constant(cast.type, ir.Undefined)
            halves += [_shuffle(builder, cast, undefined, list(range(k, count, 2))) for k in (0, 1)]
        parts = halves
    return parts


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def copy_vector(typing: Any, target: Any, source: Any, width: Any, streaming: Any) -> Any:
    """``width`` bytes (a literal) from address ``source`` to address ``target``."""
    size, past_caches = width.literal_value, streaming.literal_value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _store(builder, _load(builder, args[1], 0, _vector(size, 1)), args[0], past_caches)
        return context.get_dummy_value()

    return types.none(_ADDRESS, _ADDRESS, width, streaming), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def join_runs(typing: Any, target: Any, source: Any, pitch: Any, wide: Any, width: Any) -> Any:
    """A line streamed to ``target``: pairs of runs of ``width`` bytes (a literal), ``pitch`` apart, ``wide`` apart."""
    size = width.literal_value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target_, row, pitch_, wide_ = args[:4]
        parts = []
        for _ in range(LINE // (2 * size)):
            parts += [_load(builder, at, 0, _vector(size, 1)) for at in (row, builder.add(row, pitch_))]
            row = builder.add(row, wide_)
        while len(parts) > 1:
            both = list(range(2 * parts[0].type.count))
            parts = [_shuffle(builder, a, b, both) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        _store(builder, parts[0], target_, True)
        return context.get_dummy_value()

    return types.none(*[_ADDRESS] * 4, width), generate


@intrinsic  # type: ignore[untyped-decorator]
def copy_element(typing: Any, target: Any, source: Any, unit: Any) -> Any:
    """One element from address ``source`` to address ``target``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.IntType(8 * _width(unit))
        builder.store(_load(builder, args[1], 0, kind), _at(builder, args[0], 0, kind), align=1)
        return context.get_dummy_value()

    return types.none(_ADDRESS, _ADDRESS, unit), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_element(typing: Any, target: Any, value: Any, unit: Any) -> Any:
    """The low bytes of ``value`` as one element at address ``target``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.IntType(8 * _width(unit))
        narrow = args[1] if kind.width == 64 else builder.trunc(args[1], kind)
        builder.store(narrow, _at(builder, args[0], 0, kind), align=1)
        return context.get_dummy_value()

    return types.none(_ADDRESS, types.int64, unit), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def zip_vectors(typing: Any, target: Any, source: Any, pitch: Any, unit: Any, rows: Any, streaming: Any) -> Any:
    """One line from each of ``rows`` rows, ``pitch`` bytes apart, interleaved element by element into ``target``."""
    count, past_caches = rows.literal_value, streaming.literal_value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target_, source_, pitch_ = args[:3]
        size = _width(unit)
        loaded, row = [], source_
        for _ in range(count):
            loaded.append(_load(builder, row, 0, _vector(LINE // size, size)))
            row = builder.add(row, pitch_)
        _store(builder, _interleave(builder, loaded, size), target_, past_caches)
        return context.get_dummy_value()

    return types.none(_ADDRESS, _ADDRESS, _ADDRESS, unit, rows, streaming), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def unzip_vectors(typing: Any, target: Any, pitch: Any, source: Any, unit: Any, rows: Any, streaming: Any) -> Any:
    """``rows`` interleaved lines at ``source`` taken apart into one line of each row, ``pitch`` bytes apart."""
    count, past_caches = rows.literal_value, streaming.literal_value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row, pitch_, source_ = args[:3]
        size = _width(unit)
        whole = _load(builder, source_, 0, _vector(count * LINE // size, size))
        for part in _part(builder, whole, count, size):
            _store(builder, part, row, past_caches)
            row = builder.add(row, pitch_)
        return context.get_dummy_value()

    return types.none(_ADDRESS, _ADDRESS, _ADDRESS, unit, rows, streaming), generate


@intrinsic  # type: ignore[untyped-decorator]
def element_size(typing: Any, unit: Any) -> Any:
    """Bytes of an element."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(_I64, _width(unit))

    return types.int64(unit), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def prefetch_line(typing: Any, address: Any, level: Any) -> Any:
    """Fetch the line at ``address`` into the cache of ``level`` 1 or 2, or, 0, for writing; any address will do."""
    for_write, near = int(level.literal_value == 0), 2 if level.literal_value == 2 else 3

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.PointerType(ir.IntType(8))
        kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        call = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        how = (ir.Constant(_I32, n) for n in (for_write, near, 1))
        builder.call(call, [_at(builder, args[0], 0, ir.IntType(8)), *how])
        return context.get_dummy_value()

    return types.none(_ADDRESS, level), generate


@intrinsic  # type: ignore[untyped-decorator]
def load_word(typing: Any, address: Any, place: Any) -> Any:
    """Word ``place`` of the int64 table at ``address``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = builder.add(args[0], builder.mul(args[1], ir.Constant(_I64, 8)))
        return builder.load(_at(builder, at, 0, _I64))

    return types.int64(_ADDRESS, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def fence(typing: Any) -> Any:
    """Streaming stores before it are seen by every thread after it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def take_number(typing: Any, address: Any, more: Any) -> Any:
    """The int64 at ``address``, which other threads use too, before ``more`` (a literal) is added to it."""
    step = int(more.literal_value)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _at(builder, args[0], 0, _I64), ir.Constant(_I64, step), "seq_cst")

    return types.int64(_ADDRESS, more), generate


@intrinsic  # type: ignore[untyped-decorator]
def wait_a_moment(typing: Any) -> Any:
    """What a loop does that waits for another thread: some tens of cycles of nothing, on processors that know how."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if str(builder.module.triple).startswith(("x86_64", "i386")):
            builder.call(
                builder.module.declare_intrinsic("llvm.x86.sse2.pause", [], ir.FunctionType(ir.VoidType(), [])), []
            )
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic  # type: ignore[untyped-decorator]
def call_address(typing: Any, address: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
    """Call the function at ``address``, which takes six int64s and gives nothing."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64] * 6)
        builder.call(builder.inttoptr(args[0], ir.PointerType(kind)), args[1:])
        return context.get_dummy_value()

    return types.none(*[types.int64] * 7), generate


def _scaled(add: bool) -> Any:
    def scaled(typing: Any, target: Any, source: Any, factor: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.VectorType(ir.FloatType(), 8)
            first = builder.insert_element(ir.Constant(kind, ir.Undefined), args[2], ir.Constant(_I32, 0))
            factors = _shuffle(builder, first, ir.Constant(kind, ir.Undefined), [0] * 8)
            value = builder.fmul(factors, _load(builder, args[1], 0, kind))
            if add:
                value = builder.fadd(_load(builder, args[0], 0, kind), value)
            builder.store(value, _at(builder, args[0], 0, kind), align=1)
            return context.get_dummy_value()

        return types.none(_ADDRESS, _ADDRESS, types.float32), generate

    return intrinsic(scaled)


add_scaled = _scaled(add=True)
"""(target, source, factor): ``factor`` times the eight floats at ``source``, rounded, is added to those at ``target``.
"""

store_scaled = _scaled(add=False)
"""The same, put in their place."""


def _summing(vectors: int) -> Any:
    def summed(typing: Any, target: Any, table: Any, stride: Any, rows: Any, gains: Any, begin: Any, end: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            target, table, stride, rows, gains, begin, end = args
            kind, undefined = (
                ir.VectorType(ir.FloatType(), 8),
                ir.Constant(ir.VectorType(ir.FloatType(), 8), ir.Undefined),
            )
            sums = [cgutils.alloca_once_value(builder, ir.Constant(kind, None)) for _ in range(vectors)]
            for total in sums:  # the slot is made once a function, so it is cleared once a call
                builder.store(ir.Constant(kind, None), total)
            with cgutils.for_range_slice(builder, begin, end, ir.Constant(_I64, 1), _I64) as (k, _):
                word = builder.mul(k, ir.Constant(_I64, 4))
                row = builder.sext(builder.load(_at(builder, builder.add(rows, word), 0, _I32)), _I64)
                gain = builder.load(_at(builder, builder.add(gains, word), 0, ir.FloatType()))
                source = builder.add(table, builder.mul(stride, row))
                factors = _shuffle(
                    builder, builder.insert_element(undefined, gain, ir.Constant(_I32, 0)), undefined, [0] * 8
                )
                for v, total in enumerate(sums):
                    product = builder.fmul(factors, _load(builder, source, 32 * v, kind))
                    builder.store(builder.fadd(builder.load(total), product), total)
            for v, total in enumerate(sums):
                builder.store(builder.load(total), _at(builder, target, 32 * v, kind), align=1)
            return context.get_dummy_value()

        return types.none(*[_ADDRESS] * 7), generate

    return intrinsic(summed)


sum_8, sum_16, sum_32 = _summing(1), _summing(2), _summing(4)
"""(target, table, stride, rows, gains, begin, end): so many floats at ``target`` become the sum over the entries
``begin .. end`` of gain times the row, ``stride`` bytes each, that the int32 ``rows`` names; kept in registers."""
