"""Lines zipped, unzipped and joined, single elements, and what threads need that share a move, as numba intrinsics.

``unit`` is an integer whose type gives the element's width.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from tilewright.kernels.vectors import ADDRESS, I32, I64, at, intrinsic, load, shuffle, types, vector
from tilewright.layout.move.words import LINE


def _store(builder: Any, value: Any, address: Any, streaming: bool) -> None:
    """A vector of any width in lines; a streaming store goes past the caches and wants an aligned address."""
    size = value.type.element.width // 8
    per_line = min(LINE // size, value.type.count)
    undefined = ir.Constant(value.type, ir.Undefined)
    for first in range(0, value.type.count, per_line):
        whole = per_line == value.type.count
        part = value if whole else shuffle(builder, value, undefined, list(range(first, first + per_line)))
        align = per_line * size if streaming else 1
        done = builder.store(part, at(builder, address, first * size, part.type), align=align)
        if streaming:
            done.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))


def _width(unit: Any) -> int:
    return int(unit.bitwidth) // 8


def _interleave(builder: Any, rows: list[Any], size: int) -> Any:
    """Elements of all rows in turn: row 0's first, row 1's first, ...; neighbours pair up, then pairs of pairs."""
    while len(rows) > 1:
        count = rows[0].type.count
        mask = [x for i in range(count) for x in (i, count + i)]
        pairs = [shuffle(builder, a, b, mask) for a, b in zip(rows[::2], rows[1::2], strict=True)]
        size *= 2
        rows = [builder.bitcast(pair, vector(count, size)) for pair in pairs] if len(pairs) > 1 else pairs
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
            cast = builder.bitcast(part, vector(count, wide))
            undefined = ir.Constant(cast.type, ir.Undefined)
            halves += [shuffle(builder, cast, undefined, list(range(k, count, 2))) for k in (0, 1)]
        parts = halves
    return parts


@intrinsic  # type: ignore[untyped-decorator]
def stream_line(typing: Any, target: Any, source: Any) -> Any:
    """A line from address ``source`` to address ``target``, which is aligned, past the caches."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _store(builder, load(builder, args[1], 0, vector(LINE, 1)), args[0], True)
        return context.get_dummy_value()

    return types.none(ADDRESS, ADDRESS), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def join_runs(typing: Any, target: Any, source: Any, pitch: Any, wide: Any, width: Any) -> Any:
    """A line streamed to ``target``: pairs of runs of ``width`` bytes (a literal), ``pitch`` apart, ``wide`` apart."""
    size = width.literal_value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target_, row, pitch_, wide_ = args[:4]
        parts = []
        for _ in range(LINE // (2 * size)):
            parts += [load(builder, at, 0, vector(size, 1)) for at in (row, builder.add(row, pitch_))]
            row = builder.add(row, wide_)
        while len(parts) > 1:
            both = list(range(2 * parts[0].type.count))
            parts = [shuffle(builder, a, b, both) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        _store(builder, parts[0], target_, True)
        return context.get_dummy_value()

    return types.none(*[ADDRESS] * 4, width), generate


@intrinsic  # type: ignore[untyped-decorator]
def copy_element(typing: Any, target: Any, source: Any, unit: Any) -> Any:
    """One element from address ``source`` to address ``target``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.IntType(8 * _width(unit))
        builder.store(load(builder, args[1], 0, kind), at(builder, args[0], 0, kind), align=1)
        return context.get_dummy_value()

    return types.none(ADDRESS, ADDRESS, unit), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_element(typing: Any, target: Any, value: Any, unit: Any) -> Any:
    """The low bytes of ``value`` as one element at address ``target``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.IntType(8 * _width(unit))
        narrow = args[1] if kind.width == 64 else builder.trunc(args[1], kind)
        builder.store(narrow, at(builder, args[0], 0, kind), align=1)
        return context.get_dummy_value()

    return types.none(ADDRESS, types.int64, unit), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def zip_vectors(typing: Any, target: Any, source: Any, pitch: Any, unit: Any, rows: Any, streaming: Any) -> Any:
    """One line from each of ``rows`` rows, ``pitch`` bytes apart, interleaved element by element into ``target``."""
    count, past_caches = rows.literal_value, streaming.literal_value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target_, source_, pitch_ = args[:3]
        size = _width(unit)
        loaded, row = [], source_
        for _ in range(count):
            loaded.append(load(builder, row, 0, vector(LINE // size, size)))
            row = builder.add(row, pitch_)
        _store(builder, _interleave(builder, loaded, size), target_, past_caches)
        return context.get_dummy_value()

    return types.none(ADDRESS, ADDRESS, ADDRESS, unit, rows, streaming), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def unzip_vectors(typing: Any, target: Any, pitch: Any, source: Any, unit: Any, rows: Any, streaming: Any) -> Any:
    """``rows`` interleaved lines at ``source`` taken apart into one line of each row, ``pitch`` bytes apart."""
    count, past_caches = rows.literal_value, streaming.literal_value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row, pitch_, source_ = args[:3]
        size = _width(unit)
        whole = load(builder, source_, 0, vector(count * LINE // size, size))
        for part in _part(builder, whole, count, size):
            _store(builder, part, row, past_caches)
            row = builder.add(row, pitch_)
        return context.get_dummy_value()

    return types.none(ADDRESS, ADDRESS, ADDRESS, unit, rows, streaming), generate


@intrinsic  # type: ignore[untyped-decorator]
def element_size(typing: Any, unit: Any) -> Any:
    """Bytes of an element."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(I64, _width(unit))

    return types.int64(unit), generate


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
        return builder.atomic_rmw("add", at(builder, args[0], 0, I64), ir.Constant(I64, step), "seq_cst")

    return types.int64(ADDRESS, more), generate


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
        kind = ir.FunctionType(ir.VoidType(), [I64] * 6)
        builder.call(builder.inttoptr(args[0], ir.PointerType(kind)), args[1:])
        return context.get_dummy_value()

    return types.none(*[types.int64] * 7), generate
