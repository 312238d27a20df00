"""Bytes an operation reads and writes where it touches only a part of an array, and at the border of a fusion."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.errors import UsageError
from tilewright.hlo._cost import FREE, Movement, array_layout, movement, plain_opcode
from tilewright.hlo._program import Computation, Operation
from tilewright.layout import TensorLayout

__all__ = ["ASYNC_RESULT", "border", "box", "slice_sizes", "traffic"]

_Layouts = Sequence[TensorLayout]
_LayoutOf = Callable[[str], TensorLayout | None]

#: Where the array that a started operation writes stands in its result; most put their operands first.
ASYNC_RESULT = {"copy-start": 0}


def traffic(
    name: str, op: Operation, operands: _Layouts, result: TensorLayout, dimensions: tuple[int, ...] | None
) -> Movement:
    """What ``op`` (by its plain name) reads and writes, padding included.

    A slice reads its box; a dynamic-update-slice writes its update into the array in place; gather and scatter touch
    the elements they take, without padding, and read their indices; the rest is :func:`movement`'s.
    """
    if name == "slice":
        return movement(name, [box(operands[0], slice_sizes(op, operands[0]))], result)
    if name == "dynamic-slice" and operands[0].rank == result.rank:
        return movement(name, [box(operands[0], result.shape)], result)
    if name == "dynamic-update-slice" and len(operands) > 1 and operands[1].rank == result.rank:
        return movement(name, [operands[1]], box(result, operands[1].shape))
    if name == "gather" and len(operands) > 1:
        return Movement(False, result.data_bytes + operands[1].size_bytes, result.size_bytes)
    if name == "scatter" and len(operands) > 2:
        inputs = len(operands) // 2
        updates = operands[inputs + 1 :]
        read = operands[inputs].size_bytes + sum(update.size_bytes for update in updates)
        return Movement(False, read, sum(update.data_bytes for update in updates))
    if name == "bitcast-convert" and _same_words(operands[0], result):
        return FREE
    return movement(name, operands, result, dimensions)


def _same_words(a: TensorLayout, b: TensorLayout) -> bool:
    """Only the element type's name changes: every word stays where it is."""
    before = (a.shape, a.minor_to_major, a.tiles, a.element_bits, a.memory_space)
    return before == (b.shape, b.minor_to_major, b.tiles, b.element_bits, b.memory_space)


def slice_sizes(op: Operation, operand: TensorLayout) -> tuple[int, ...]:
    """The box a slice reads of its operand: from the first element to the last, strides included."""
    numbers = op.attributes.get("slice", "").split("[")[1:]
    bounds = [part.partition("]")[0].split(":") for part in numbers]
    sizes = tuple(_size(bound) for bound in bounds)
    if len(sizes) != operand.rank or any(not 0 <= size <= whole for size, whole in zip(sizes, operand.shape)):
        raise UsageError(f"its bounds do not fit {operand}")
    return sizes


def _size(bound: list[str]) -> int:
    words = [word.strip() for word in bound[:2]]
    return (
        int(words[1]) - int(words[0]) if len(words) == 2 and all(w.isdecimal() and len(w) < 19 for w in words) else -1
    )


def box(layout: TensorLayout, sizes: Sequence[int]) -> TensorLayout:
    """An array of other sizes laid out as ``layout`` is."""
    if tuple(sizes) == layout.shape:
        return layout
    return array_layout(f"{layout.dtype}[{','.join(map(str, sizes))}]{str(layout).partition(']')[2]}")


def border(body: Computation, operands: Sequence[TensorLayout | None], result: int, layout_of: _LayoutOf) -> Movement:
    """What a fusion that only moves reads and writes: slices of its operands where it takes only these.

    ``result``: padded bytes of what it returns; a dynamic-update-slice at its end writes only the update.
    """
    users: dict[str, list[Operation]] = {}
    for op in body.operations:
        for name in op.operands:
            users.setdefault(name, []).append(op)
    read = 0
    for op in body.operations:
        number = op.attributes.get("literal", "").strip()
        if op.opcode == "parameter" and number.isdecimal() and int(number[:9]) < len(operands):
            whole = operands[int(number[:9])]
            if whole is not None:
                read += min(
                    whole.size_bytes, sum(_taken(op.name, user, whole, layout_of) for user in users.get(op.name, []))
                )
    return Movement(False, read, _written(body, result, layout_of))


def _taken(name: str, user: Operation, whole: TensorLayout, layout_of: _LayoutOf) -> int:
    """Bytes of ``whole`` that one use inside a fusion reads."""
    kind = plain_opcode(user.opcode)
    first = user.operands[:1] == (name,) and name not in user.operands[1:]
    found = layout_of(user.shape)
    if first and found is not None and found.rank == whole.rank:
        if kind in ("slice", "dynamic-slice"):
            return box(whole, slice_sizes(user, whole) if kind == "slice" else found.shape).size_bytes
        if kind == "dynamic-update-slice":
            return 0
    return found.data_bytes if first and kind == "gather" and found is not None else whole.size_bytes


def _written(body: Computation, result: int, layout_of: _LayoutOf) -> int:
    named = {op.name: op for op in body.operations}
    root = next((op for op in body.operations if op.root), body.operations[-1])
    while root.opcode == "bitcast" and root.operands and root.operands[0] in named:
        root = named[root.operands[0]]
    if root.opcode != "dynamic-update-slice" or len(root.operand_shapes) < 2:
        return result
    whole, update = layout_of(root.shape), layout_of(root.operand_shapes[1])
    if whole is None or update is None or whole.rank != update.rank:
        return result
    return min(result, box(whole, update.shape).size_bytes)
