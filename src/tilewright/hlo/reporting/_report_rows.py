"""The row of one operation outside and inside fusions: what it moves, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilewright.hlo._cost import Movement, permutation_of, plain_opcode
from tilewright.hlo._program import Computation, Operation
from tilewright.hlo.graphs._shape_rules import check_shapes
from tilewright.hlo.reporting._reason import relayout_reason, space_reason
from tilewright.hlo.reporting._report_context import Context, array_shapes
from tilewright.hlo.reporting._report_types import MovementRow
from tilewright.hlo.reporting._traffic import ASYNC_RESULT, traffic
from tilewright.layout import TensorLayout

__all__ = ["category_of", "finish", "operation_row", "written_by"]

_Layouts = Sequence[TensorLayout]
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
