"""What an operation costs in bytes moved for layout's sake: the one place where report and gate count them.

Source: the movement rules of the reshape and broadcast rewrites. A reshape or transpose is free iff it is a bitcast
under the layouts on both sides; else it reads its operand and writes its result, padding included. A copy, a broadcast
and a concatenate always read and write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tilewright.errors import UnsupportedError, UsageError
from tilewright.hlo.program import Operation
from tilewright.layout import TensorLayout, is_bitcast, parse, predict, preset, tiled
from tilewright.targets import Target, TileMemory

BOUNDS = re.compile(r"\[\s*([0-9]{1,18})\s*:\s*([0-9]{1,18})\s*[:\]]")
_REARRANGING = frozenset({"broadcast", "reshape", "transpose"})

_Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes one operation reads and writes, padding included; both 0 for a ``bitcast``."""

    bitcast: bool
    bytes_read: int
    bytes_written: int

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written together."""
        return self.bytes_read + self.bytes_written


FREE = Traffic(True, 0, 0)


@lru_cache(maxsize=1024)
def plain_opcode(opcode: str) -> str:
    """HLO's name of an operation: ``stablehlo.broadcast_in_dim`` -> ``broadcast``.

    >>> plain_opcode("stablehlo.dynamic_slice")
    'dynamic-slice'
    """
    name = opcode.rpartition(".")[2]
    return "broadcast" if name == "broadcast_in_dim" else name.replace("_", "-")


def movement(
    opcode: str, operands: Sequence[TensorLayout], result: TensorLayout, dimensions: Sequence[int] | None = None
) -> Traffic:
    """Bytes that ``opcode`` (HLO's or StableHLO's name) moves from ``operands`` to ``result``.

    ``dimensions`` is the operation's attribute: a transpose's permutation (as ``numpy.transpose`` reads it), or the
    dims of the result that a broadcast's operand becomes. A broadcast that repeats nothing is a reshape. Every opcode
    but reshape, transpose and bitcast is taken to read its operands and write its result. Raises UnsupportedError for
    layouts without a size (dynamic dims without a bound).

    >>> from tilewright.layout import parse
    >>> movement("reshape", [parse("f32[64,128]{1,0:T(8,128)}")], parse("f32[8,8,128]{2,1,0:T(8,128)}"))
    Traffic(bitcast=True, bytes_read=0, bytes_written=0)
    >>> movement("reshape", [parse("f32[64,128]{1,0:T(8,128)}")], parse("f32[64,2,64]{2,1,0:T(2,128)}")).moved_bytes
    98304
    """
    name = plain_opcode(opcode)
    if name == "bitcast":
        return FREE
    if name in _REARRANGING and operands and operands[0].memory_space == result.memory_space:
        repeats = name == "broadcast" and (dimensions is None or prod(operands[0].shape) != prod(result.shape))
        if not repeats and bitcasts(operands[0], result, permutation_of(name, dimensions)):
            return FREE
    return Traffic(False, sum(operand.size_bytes for operand in operands), result.size_bytes)


def permutation_of(name: str, dimensions: Sequence[int] | None) -> tuple[int, ...] | None:
    """The transpose in an operation: its own permutation, or the one hidden in a broadcast's unsorted dims.

    >>> permutation_of("broadcast", (2, 0)), permutation_of("broadcast", (0, 2)), permutation_of("reshape", ())
    ((1, 0), None, None)
    """
    if name == "transpose" and dimensions is not None:
        return tuple(dimensions)
    if name == "broadcast" and dimensions is not None and list(dimensions) != sorted(dimensions):
        return tuple(sorted(range(len(dimensions)), key=dimensions.__getitem__))
    return None


@lru_cache(maxsize=65536)
def bitcasts(a: TensorLayout, b: TensorLayout, permutation: tuple[int, ...] | None) -> bool:
    """is_bitcast, remembered: programs repeat the same pairs of layouts hundreds of times."""
    return is_bitcast(a, b, permutation)


@lru_cache(maxsize=65536)
def array_layout(text: str) -> TensorLayout:
    """The layout a shape's text describes, remembered by text. Raises ParseError, and UnsupportedError for a tuple."""
    layout = parse(text)
    if not isinstance(layout, TensorLayout):
        raise UnsupportedError(f"'{text}' is a tuple, not an array")
    return layout


@lru_cache(maxsize=65536)
def place(shape: tuple[int, ...], dtype: str, target: Target) -> TensorLayout:
    """Where ``target`` puts an array of ``shape`` and XLA ``dtype`` (``f32``, ``bf16``, ``pred``): its layout rule.

    ``tpu`` predicts the compiler's dim order and tiles; ``tpu_default_order`` keeps the dims in order and puts every
    matrix into whole tiles of the vector registers, never smaller ones; ``tile`` puts the last two dims of every array
    into the target's tiles; ``row_major`` gives every row a page; ``linear`` is row-major without padding. A type that
    the target has not is placed as the one it is stored as. Raises UnsupportedError for a target with another rule.

    >>> from tilewright.targets import target
    >>> str(place((256, 4, 8), "f32", target("vector8x128"))), str(place((256, 4, 8), "f32", target("tpu-v5e")))
    ('f32[256,4,8]{2,1,0:T(8,128)}', 'f32[256,4,8]{0,2,1:T(8,128)}')
    >>> str(place((4, 8), "pred", target("tenstorrent-wormhole")))
    'bf16[4,8]{1,0:T(32,32)(16,16)}'
    """
    dtype = dict(target.types).get(dtype, dtype)
    if target.layout_rule == "tpu":
        return predict("tpu", shape, dtype, sublanes=target.vector.sublanes if target.vector else 0)
    if target.layout_rule == "tpu_default_order":
        return _in_register_tiles(shape, dtype, target)
    if target.layout_rule == "linear":
        return array_layout(f"{dtype}[{','.join(map(str, shape))}]")
    if target.layout_rule in ("tile", "row_major") and target.tiles is not None:
        return _in_pages(shape, dtype, target.tiles, target.layout_rule == "tile")
    raise UnsupportedError(
        f"target {target.name} lays arrays out by the rule '{target.layout_rule}', which knows no whole programs",
        how="name a tpu, vector, tenstorrent or cpu target",
    )


def _in_register_tiles(shape: tuple[int, ...], dtype: str, target: Target) -> TensorLayout:
    """Dims in order under T(sublanes,lanes)(p,1), p values to a word; scalars and empty arrays as a TPU's.

    A vector lies in rows of lanes, its tile one row of words or two, four ... up to as many as there are sublanes:

        lanes = 4, sublanes = 1     f32[8]{0:T(4)} in place of f32[2,4]{1,0:T(1,4)}: no element moves
    """
    default = preset("tpu", shape, dtype)
    vector = target.vector
    if not shape or 0 in shape or vector is None:
        return default
    text, lanes = str(default), vector.lanes
    if len(shape) > 1:
        return array_layout(re.sub(r":T\(\d+,\d+\)", f":T({vector.sublanes},{lanes})", text, count=1))
    packed = re.search(r"\((\d+),1\)", text)
    length = lanes * (int(packed[1]) if packed else 1)
    while length < min(shape[0], vector.sublanes * lanes):
        length *= 2
    row = f"({lanes})" if packed else ""
    return array_layout(re.sub(r":T\(\d+\)(\(\d+\))?", f":T({length}){row}", text, count=1))


def _in_pages(shape: tuple[int, ...], dtype: str, memory: TileMemory, in_tiles: bool) -> TensorLayout:
    """A page is a tile, or a row rounded up to whole bursts; a vector is one row, and a scalar a row of one element."""
    faces = ((memory.rows, memory.columns), (memory.face_rows, memory.face_columns))
    bits = tiled(shape, dtype).element_bits
    return tiled(shape, dtype, tiles=faces if in_tiles else ((max(1, memory.row_bytes * 8 // bits),),))


# An operation of a program: its shapes are checked, and where it touches only a part of an array, that part counts.


def traffic(
    name: str, op: Operation, operands: Sequence[TensorLayout], result: TensorLayout, dimensions: _Shape | None
) -> Traffic:
    """What ``op`` (by its plain name) reads and writes, padding included. Raises as :func:`check_shapes` does.

    A slice reads its box; a dynamic-update-slice writes its update into the array in place; gather and scatter touch
    the elements they take, without padding, and read their indices; the rest is :func:`movement`'s.
    """
    check_shapes(name, operands, result, dimensions)
    if name == "slice":
        return movement(name, [_box(operands[0], _slice_sizes(op, operands[0]))], result)
    if name == "dynamic-slice" and operands[0].rank == result.rank:
        return movement(name, [_box(operands[0], result.shape)], result)
    if name == "dynamic-update-slice" and len(operands) > 1 and operands[1].rank == result.rank:
        return movement(name, [operands[1]], _box(result, operands[1].shape))
    if name == "gather" and len(operands) > 1:
        return Traffic(False, result.data_bytes + operands[1].size_bytes, result.size_bytes)
    if name == "scatter" and len(operands) > 2:
        inputs = len(operands) // 2
        updates = operands[inputs + 1 :]
        read = operands[inputs].size_bytes + sum(update.size_bytes for update in updates)
        return Traffic(False, read, sum(update.data_bytes for update in updates))
    if name == "bitcast-convert" and _same_words(operands[0], result):
        return FREE
    return movement(name, operands, result, dimensions)


def _same_words(a: TensorLayout, b: TensorLayout) -> bool:
    """Only the element type's name changes: every word stays where it is."""
    before = (a.shape, a.minor_to_major, a.tiles, a.element_bits, a.memory_space)
    return before == (b.shape, b.minor_to_major, b.tiles, b.element_bits, b.memory_space)


def _slice_sizes(op: Operation, operand: TensorLayout) -> tuple[int, ...]:
    """The box a slice reads of its operand: from the first element to the last, strides included."""
    sizes = tuple(int(end) - int(start) for start, end in BOUNDS.findall(op.attributes.get("slice", "")))
    if len(sizes) != operand.rank or any(not 0 <= size <= whole for size, whole in zip(sizes, operand.shape)):
        raise UsageError(f"its bounds do not fit {operand}")
    return sizes


def _box(layout: TensorLayout, sizes: Sequence[int]) -> TensorLayout:
    """An array of other sizes laid out as ``layout`` is."""
    if tuple(sizes) == layout.shape:
        return layout
    return array_layout(f"{layout.dtype}[{','.join(map(str, sizes))}]{str(layout).partition(']')[2]}")


def check_shapes(name: str, operands: Sequence[TensorLayout], result: TensorLayout, dimensions: _Shape | None) -> None:
    """Raise UsageError where operands, result and ``dimensions`` of a movement operation contradict each other.

    >>> from tilewright.layout import parse
    >>> check_shapes("transpose", [parse("f32[4,6]")], parse("f32[6,4]"), (1, 0))
    >>> check_shapes("transpose", [parse("f32[4,6]")], parse("f32[4,6]"), (1, 0))
    Traceback (most recent call last):
    tilewright.errors.UsageError: dims (1, 0) of [4,6] are [6,4], not [4,6]
    """
    shape, end, dims = operands[0].shape, result.shape, dimensions or ()
    if name == "transpose":
        if sorted(dims) != list(range(len(shape))):
            raise UsageError(f"dimensions {dims} are not an order of the {len(shape)} dims of {shape_text(shape)}")
        if (moved := tuple(shape[dim] for dim in dims)) != end:
            raise UsageError(f"dims {dims} of {shape_text(shape)} are {shape_text(moved)}, not {shape_text(end)}")
    elif name == "broadcast":
        if len(dims) != len(shape) or len(set(dims)) != len(dims):
            raise UsageError(f"dimensions {dims} do not name one dim of the result for each dim of {shape_text(shape)}")
        for size, dim in zip(shape, dims):
            if not 0 <= dim < len(end) or size not in (1, end[dim]):
                raise UsageError(f"a dim of size {size} cannot become dim {dim} of {shape_text(end)}")
    elif name == "concatenate":
        if len(dims) != 1 or not 0 <= dims[0] < len(end):
            raise UsageError(f"dimensions {dims} do not name the one dim to join along")
        shapes, [dim] = [operand.shape for operand in operands], dims
        rest = (*end[:dim], *end[dim + 1 :])
        if any(len(s) != len(end) or (*s[:dim], *s[dim + 1 :]) != rest for s in shapes):
            parts = ", ".join(map(shape_text, shapes))
            raise UsageError(f"arrays {parts} do not join to {shape_text(end)} along dim {dim}")
        if (joined := sum(s[dim] for s in shapes)) != end[dim]:
            raise UsageError(f"dim {dim} of the arrays adds up to {joined}, not {end[dim]}")
    elif name in ("copy", "copy-start", "convert") and shape != end:
        raise UsageError(f"the operand is {shape_text(shape)}, the result {shape_text(end)}")
    elif name in ("slice", "pad") and len(shape) != len(end):
        raise UsageError(f"the operand has {len(shape)} dims, the result {len(end)}")


def shape_text(shape: _Shape) -> str:
    return f"[{','.join(map(str, shape))}]"
