"""The row of a fusion: one that only moves, and one that lays an operand out anew while it computes."""

from __future__ import annotations

from tilewright.hlo._cost import Movement, plain_opcode
from tilewright.hlo._program import Computation, Operation
from tilewright.hlo.reporting._reason import relayout_reason
from tilewright.hlo.reporting._report_context import Context
from tilewright.hlo.reporting._report_rows import category_of, finish, operation_row
from tilewright.hlo.reporting._report_types import MovementRow
from tilewright.hlo.reporting._traffic import border
from tilewright.layout import TensorLayout

__all__ = ["fusion_row"]

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
    pair = _relaid(arrays, results)
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


def _relaid(operands: list[TensorLayout], results: list[TensorLayout]) -> tuple[TensorLayout, TensorLayout] | None:
    """The largest operand whose dims come back in another order."""
    pairs = [(a, b) for b in results for a in operands if a.shape == b.shape and _order(a) != _order(b)]
    return max(pairs, key=lambda pair: pair[0].size_bytes) if pairs else None


def _order(layout: TensorLayout) -> list[int]:
    return [dim for dim in layout.minor_to_major if layout.shape[dim] != 1]
