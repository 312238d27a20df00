"""The row of one operation outside and inside fusions: what it moves, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tilewright.errors import UsageError
from tilewright.hlo.cost import FREE, Movement, array_layout, movement, permutation_of, plain_opcode
from tilewright.hlo.graphs.shape_rules import check_shapes
from tilewright.hlo.program import Computation, Operation
from tilewright.hlo.reporting.context import Context, array_shapes
from tilewright.hlo.reporting.reasons import relayout_reason, space_reason
from tilewright.hlo.reporting.types import MovementRow
from tilewright.layout import TensorLayout

# Bytes an operation reads and writes where it touches only a part of an array, and at the border of a fusion.

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


_Dims = tuple[int, ...] | None

#: Operations whose work is to move data; the value says whether a row names all their operands.
_MOVERS = {
    "bitcast": False,
    "bitcast-convert": False,
    "broadcast": False,
    "concatenate": True,
    "convert": False,
    "copy": False,
    "custom-call": True,
    "dynamic-slice": False,
    "dynamic-update-slice": True,
    "gather": True,
    "pad": False,
    "reshape": False,
    "reverse": False,
    "scatter": True,
    "slice": False,
    "transpose": False,
}

_PARTS = frozenset({"concatenate", "dynamic-slice", "dynamic-update-slice", "gather", "pad", "scatter", "slice"})

#: Custom calls of XLA whose meaning is known: free ones, and ones that copy.
_FREE_CALLS = frozenset({"ConcatBitcast"})
_COPYING_CALLS = frozenset({"LayoutConstraint", "MoveToDevice", "MoveToHost"})


def operation_row(context: Context, computation: Computation, op: Operation, fused: bool) -> MovementRow | None:
    """The operation's row, or None if it moves nothing for layout's sake."""
    name = plain_opcode(op.opcode).removesuffix("-start")
    if name not in _MOVERS:
        return None
    result = written_by(context, op)
    shapes = op.operand_shapes if _MOVERS[name] else op.operand_shapes[:1]
    operands = [layout for shape in shapes if (layout := context.layout(shape)) is not None]
    if result is None or not operands:
        return None
    if name == "convert" and not result.rank:
        return None
    if name == "custom-call":
        return _custom_call(context, computation, op, operands, result, fused)
    dimensions = op.integers("dimensions") if "dimensions" in op.attributes else None
    check_shapes(name, operands, result, dimensions)
    cost = traffic(name, op, operands, result, dimensions)
    reason = _reason(op, name, operands, result, dimensions, cost)
    in_place = name == "convert" and operands[0].minor_to_major == result.minor_to_major
    return finish(context, computation, op, operands, result, cost, reason, fused, counted=not (fused or in_place))


def written_by(context: Context, op: Operation) -> TensorLayout | None:
    """The array an operation writes; a started one has it in its tuple."""
    if not op.shape.startswith("("):
        return context.layout(op.shape)
    if not op.opcode.endswith("-start"):
        return None
    number = ASYNC_RESULT.get(op.opcode, len(op.operands))
    shapes = array_shapes(op.shape)
    return context.layout(shapes[number]) if number < len(shapes) else None


def _custom_call(
    context: Context, computation: Computation, op: Operation, operands: _Layouts, result: TensorLayout, fused: bool
) -> MovementRow | None:
    """Calls that are known to move, and any whose result has an operand's dims in another layout."""
    target = op.attributes.get("custom_call_target", "").strip('"')
    if target in _FREE_CALLS:
        cost = Movement(True, 0, 0)
        return finish(context, computation, op, operands, result, cost, f"{target}: joins in place", fused)
    same = [a for a in operands if (a.shape, a.dtype) == (result.shape, result.dtype)]
    changed = [a for a in same if a.minor_to_major != result.minor_to_major or a.tiles != result.tiles]
    if target in _COPYING_CALLS and same:
        cost = Movement(False, same[0].size_bytes, result.size_bytes)
        reason = f"{target}: {_relaid(same[0], result, None, cost)}"
        return finish(context, computation, op, same[:1], result, cost, reason, fused)
    if not changed:
        return None
    cost = Movement(False, changed[0].size_bytes, result.size_bytes)
    reason = f"the custom call {target} lays an operand out anew: {relayout_reason(changed[0], result, None, False)}"
    return finish(context, computation, op, changed[:1], result, cost, reason, fused, counted=False)


def _reason(op: Operation, name: str, operands: _Layouts, result: TensorLayout, dims: _Dims, cost: Movement) -> str:
    """Why the row costs what it costs."""
    a = operands[0]
    if name in _PLAIN_REASONS:
        return _PLAIN_REASONS[name](op, operands, result)
    if name == "broadcast" and not cost.bitcast and a.num_elements != result.num_elements:
        return _repeats(a, result, dims or ())
    if name == "bitcast-convert" and a.shape != result.shape:
        return f"{a.dtype} read as {result.dtype}: the dims change with the width of an element"
    if name == "convert" and a.minor_to_major == result.minor_to_major:
        return f"converts {a.dtype} to {result.dtype} in place of order; elementwise, counts 0 bytes"
    if name == "copy" and _same_place(a, result):
        moves = a.memory_space != result.memory_space
        return space_reason(a, result) if moves else "duplicates the buffer as it is"
    return _relaid(a, result, permutation_of(name, dims), cost)


def _relaid(a: TensorLayout, result: TensorLayout, permutation: _Dims, cost: Movement) -> str:
    if _same_place(a, result) and a.memory_space != result.memory_space:
        return space_reason(a, result)
    reason = relayout_reason(a, result, permutation, cost.bitcast)
    if a.memory_space != result.memory_space and "moves from" not in reason:
        reason += f"; also {space_reason(a, result)}"
    return reason


def _bitcast(op: Operation, operands: _Layouts, result: TensorLayout) -> str:
    return "the compiler's own bitcast"


def _concatenate(op: Operation, operands: _Layouts, result: TensorLayout) -> str:
    return f"joins {len(operands)} arrays along dim {next(iter(op.integers('dimensions')), 0)}"


def _slice(op: Operation, operands: _Layouts, result: TensorLayout) -> str:
    return f"takes {op.attributes.get('slice', '').strip('{}') or 'a part'}"


def _dynamic_slice(op: Operation, operands: _Layouts, result: TensorLayout) -> str:
    return f"takes a box of {_text(result)} out of {_text(operands[0])}"


def _update(op: Operation, operands: _Layouts, result: TensorLayout) -> str:
    update = operands[1] if len(operands) > 1 else operands[0]
    return f"writes {_text(update)} into {_text(result)} in place"


def _gather(op: Operation, operands: _Layouts, result: TensorLayout) -> str:
    sizes = op.integers("slice_sizes")
    what = f"slices of [{','.join(map(str, sizes))}]" if sizes else "slices"
    return f"gathers {what} out of {_text(operands[0])}"


def _scatter(op: Operation, operands: _Layouts, result: TensorLayout) -> str:
    updates = operands[len(operands) // 2 + 1] if len(operands) > 2 else operands[-1]
    return f"scatters {_text(updates)} into {_text(result)} in place"


def _pad(op: Operation, operands: _Layouts, result: TensorLayout) -> str:
    return f"pads by {op.attributes['padding']}" if "padding" in op.attributes else "pads"


def _reverse(op: Operation, operands: _Layouts, result: TensorLayout) -> str:
    dims = op.integers("dimensions")
    return f"reverses dims {', '.join(map(str, dims))}" if dims else "reverses dims"


_PLAIN_REASONS = {
    "bitcast": _bitcast,
    "concatenate": _concatenate,
    "slice": _slice,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _update,
    "gather": _gather,
    "scatter": _scatter,
    "pad": _pad,
    "reverse": _reverse,
}


def _repeats(a: TensorLayout, result: TensorLayout, dimensions: tuple[int, ...]) -> str:
    """Which dims of a broadcast's result are repetitions."""
    if not a.rank:
        return "fills the array with a scalar"
    kept = {dim: a.shape[place] for place, dim in enumerate(dimensions)}
    new = [f"dim {dim} ({size})" for dim, size in enumerate(result.shape) if size != kept.get(dim, 1)]
    return f"repeats the operand along {' and '.join(new)}"


def _same_place(a: TensorLayout, b: TensorLayout) -> bool:
    return (a.minor_to_major, a.tiles, a.dtype, a.shape) == (b.minor_to_major, b.tiles, b.dtype, b.shape)


def _text(layout: TensorLayout) -> str:
    return f"[{','.join(map(str, layout.shape))}]"


def category_of(opcodes: Collection[str], a: TensorLayout, result: TensorLayout, cost: Movement) -> str:
    """What kind of movement it is, by the operations in it (one, or those of a fusion) and its layouts."""
    kinds = {plain_opcode(opcode).removesuffix("-start") for opcode in opcodes}
    if cost.bitcast:
        return "bitcast"
    if "slice-start" in opcodes and a.memory_space != result.memory_space and a.minor_to_major == result.minor_to_major:
        return "transfer"
    if kinds & _PARTS:
        return "part"
    if "broadcast" in kinds and a.num_elements != result.num_elements:
        return "repeat"
    if _same_place(a, result) and not kinds & {"broadcast", "reverse", "transpose"}:  # those turn a square in its place
        return "transfer" if a.memory_space != result.memory_space else "duplicate"
    return "relayout"


def _uncounted(cost: Movement) -> str:
    return "bitcast" if cost.bitcast else "fused"


def finish(
    context: Context,
    computation: Computation,
    op: Operation,
    operands: _Layouts,
    result: TensorLayout,
    cost: Movement,
    reason: str,
    fused: bool,
    counted: bool = True,
    category: str = "",
) -> MovementRow:
    """The row; where it is not ``counted``, its traffic is hidden and it moves 0 bytes."""
    texts = [context.text(layout) for layout in operands]
    runs = context.runs_of(computation.name)
    counted = counted and not fused
    return MovementRow(
        op=op.opcode,
        name=op.name,
        source=context.source(computation.name, op),
        from_layout=texts[0] if len(texts) == 1 else f"({', '.join(texts)})",
        to_layout=context.text(result),
        logical_bytes=result.data_bytes,
        padded_bytes=result.size_bytes,
        moved_bytes=cost.moved_bytes if counted else 0,
        bitcast=cost.bitcast,
        reason=reason,
        path=context.path(computation.name),
        op_name=op.op_name,
        in_fusion=fused,
        predicted=context.predicted,
        bytes_read=cost.bytes_read if counted else 0,
        bytes_written=cost.bytes_written if counted else 0,
        hidden_bytes=0 if counted else cost.moved_bytes,
        runs=runs.count,
        runs_known=runs.known,
        trips=runs.trips,
        registers_before=context.registers(operands),
        registers_after=context.registers([result]),
        from_space=operands[0].memory_space,
        to_space=result.memory_space,
        core=context.core(computation.name, op),
        category=(category or category_of([op.opcode], operands[0], result, cost)) if counted else _uncounted(cost),
    )


# The row of a fusion: one that only moves, and one that lays an operand out anew while it computes.

_NOTHING = Movement(False, 0, 0)
_STILL = frozenset({"bitcast", "constant", "get-tuple-element", "iota", "parameter", "tuple"})
_MOVING = frozenset(
    {"broadcast", "concatenate", "copy", "dynamic-slice", "dynamic-update-slice", "gather", "pad", "reshape"}
    | {"reverse", "slice", "transpose"}
)
_GATHERING = frozenset(
    {"convolution", "custom-call", "dot", "fft", "gather", "reduce", "reduce-window", "scatter", "select-and-scatter"}
    | {"sort", "triangular-solve", "cholesky", "rng", "while", "conditional", "call"}
)


def fusion_row(context: Context, computation: Computation, op: Operation) -> MovementRow | None:
    """The fusion's row, or None if it computes and keeps the order of its operands.

    A fusion that does nothing but move counts the traffic at its border. One that computes, and has a relayout inside
    or returns an operand's dims in another order, moves no bytes beyond its own and counts 0; its row names the reason.
    """
    body = context.body(op)
    results = context.layouts(op.shape)
    operands = [context.layout(shape) for shape in op.operand_shapes]
    arrays = [layout for layout in operands if layout is not None and layout.rank]
    if body is None or not results:
        return None
    kinds = {plain_opcode(inner.opcode) for inner in body.operations if not inner.shape.endswith("[]")} - _STILL
    if kinds <= _MOVING and kinds and results[0].rank:
        whole = sum(layout.size_bytes for layout in results)
        cost = border(body, operands, whole, context.layout)
        given = arrays or [layout for layout in operands if layout is not None] or results[:1]
        reason = f"a fusion that only moves: {' and '.join(sorted(kinds))}"
        category = category_of(kinds, given[0], results[0], cost)
        return finish(context, computation, op, given, results[0], cost, reason, False, category=category)
    if inside := _relayouts_inside(context, body):
        more = f", and {len(inside) - 1} more" if len(inside) > 1 else ""
        reason = f"computes; inside it {inside[0].op} {inside[0].name}{more}: {inside[0].reason}"
        return finish(
            context, computation, op, arrays or results[:1], results[0], _NOTHING, reason, False, counted=False
        )
    if kinds & _GATHERING:
        return None
    pair = _relaid_fusion(arrays, results)
    if pair is None:
        return None
    before, after = pair
    cost = Movement(False, before.size_bytes, after.size_bytes)
    reason = (
        f"computes and lays out anew on the way, no bytes of its own: {relayout_reason(before, after, None, False)}"
    )
    return finish(context, computation, op, [before], after, cost, reason, False, counted=False)


def _relayouts_inside(context: Context, body: Computation) -> list[MovementRow]:
    """Rows of the body that change the order of an array's elements; they carry the hidden bytes themselves."""
    kinds = ("copy", "reshape", "transpose")
    rows = [operation_row(context, body, op, True) for op in body.operations if op.opcode in kinds]
    return [row for row in rows if row is not None and not row.bitcast and row.from_layout != row.to_layout]


def _relaid_fusion(
    operands: list[TensorLayout], results: list[TensorLayout]
) -> tuple[TensorLayout, TensorLayout] | None:
    """The largest operand whose dims come back in another order."""
    pairs = [(a, b) for b in results for a in operands if a.shape == b.shape and _order(a) != _order(b)]
    return max(pairs, key=lambda pair: pair[0].size_bytes) if pairs else None


def _order(layout: TensorLayout) -> list[int]:
    return [dim for dim in layout.minor_to_major if layout.shape[dim] != 1]
