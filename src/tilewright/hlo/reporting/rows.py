"""The row of one operation, outside and inside fusions: what it moves, and in words why it must."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from functools import lru_cache
from math import prod

from tilewright.hlo.cost import Traffic, permutation_of, plain_opcode, shape_text
from tilewright.hlo.graphs.dims import Run, runs
from tilewright.hlo.opcodes import CONTROL, PRODUCTS, REARRANGES, TAKES_NO_TIME, TAKES_PART, WRITES_IN_PLACE
from tilewright.hlo.program import Computation, Operation
from tilewright.hlo.reporting.types import MovementRow
from tilewright.hlo.semantics.context import Context, Placed, moved_by
from tilewright.layout import TensorLayout

_Layouts = Sequence[TensorLayout]
_Dims = tuple[int, ...] | None

_PARTS = TAKES_PART | WRITES_IN_PLACE.keys() | {"concatenate", "pad"}

#: Custom calls of XLA whose meaning is known: free ones, and ones that copy.
_FREE_CALLS = frozenset({"ConcatBitcast"})
_COPYING_CALLS = frozenset({"LayoutConstraint", "MoveToDevice", "MoveToHost"})


def operation_row(context: Context, computation: Computation, op: Operation, fused: bool) -> MovementRow | None:
    """The operation's row, or None if it moves nothing for layout's sake."""
    moved = moved_by(context, computation, op, fused)
    if moved is None:
        return None
    name, placed, operands, result, dimensions, cost, along, counted = moved
    if name == "custom-call":
        return _custom_call(context, placed, operands, result, fused)
    reason = _reason(op, name, operands, result, dimensions, cost)
    if along:
        reason = f"expected within a kernel that computes: {reason}"
    return _row(context, placed, operands, result, cost, reason, fused, counted=counted)


def computing_row(context: Context, computation: Computation, op: Operation) -> MovementRow | None:
    """The row of an operation that moves nothing for layout's sake; None for one that takes no time of its own."""
    silent = TAKES_NO_TIME | CONTROL | {"iota"}
    if plain_opcode(op.opcode) in silent or op.opcode.endswith("-start"):
        return None
    placed = context.placed(computation, op, op.operand_shapes)
    results = [layout for layout in placed.results if layout is not None]
    if not results:
        return None
    operands = [layout for layout in placed.operands if layout is not None]
    result = max(results, key=lambda layout: layout.size_bytes)
    reason = _what_it_computes(context, op)
    return _row(context, placed, operands or [result], result, _NOTHING, reason, False, category="compute")


def _what_it_computes(context: Context, op: Operation) -> str:
    """Its name, or what a fusion holds: products and reductions first."""
    body = context.program.body(op)
    if op.opcode != "fusion" or body is None:
        return f"computes: {op.opcode}"
    kinds = Counter(plain_opcode(inner.opcode) for inner in body.operations)
    kept = kinds.keys() - _STILL - {"fusion"}
    named = sorted(kept, key=lambda kind: (kind not in _GATHERING, -kinds[kind], kind))
    more = f" and {len(named) - _MOST_KINDS} more kinds" if len(named) > _MOST_KINDS else ""
    return f"computes, a fusion of {', '.join(named[:_MOST_KINDS])}{more}"


_MOST_KINDS = 4


def _custom_call(
    context: Context, placed: Placed, operands: _Layouts, result: TensorLayout, fused: bool
) -> MovementRow | None:
    """Calls that are known to move, and any whose result has an operand's dims in another layout."""
    target = placed.op.target
    if target in _FREE_CALLS:
        return _row(context, placed, operands, result, Traffic(True, 0, 0), f"{target}: joins in place", fused)
    same = [a for a in operands if (a.shape, a.dtype) == (result.shape, result.dtype)]
    changed = [a for a in same if a.minor_to_major != result.minor_to_major or a.tiles != result.tiles]
    if target in _COPYING_CALLS and same:
        cost = Traffic(False, same[0].size_bytes, result.size_bytes)
        reason = f"{target}: {_relaid(same[0], result, None, cost)}"
        return _row(context, placed, same[:1], result, cost, reason, fused)
    if not changed:
        return None
    cost = Traffic(False, changed[0].size_bytes, result.size_bytes)
    reason = f"the custom call {target} lays an operand out anew: {relayout_reason(changed[0], result, None, False)}"
    return _row(context, placed, changed[:1], result, cost, reason, fused, counted=False)


def _reason(op: Operation, name: str, operands: _Layouts, result: TensorLayout, dims: _Dims, cost: Traffic) -> str:
    a = operands[0]
    if plain := _plain_reason(name, op, operands, result):
        return plain
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


def _relaid(a: TensorLayout, result: TensorLayout, permutation: _Dims, cost: Traffic) -> str:
    if _same_place(a, result) and a.memory_space != result.memory_space:
        return space_reason(a, result)
    reason = relayout_reason(a, result, permutation, cost.bitcast)
    if a.memory_space != result.memory_space and "moves from" not in reason:
        reason += f"; also {space_reason(a, result)}"
    return reason


def _plain_reason(name: str, op: Operation, operands: _Layouts, result: TensorLayout) -> str:
    """What an operation does whose layouts are not the reason, "" for the others."""
    match name:
        case "bitcast":
            return "the compiler's own bitcast"
        case "concatenate":
            return f"joins {len(operands)} arrays along dim {next(iter(op.integers('dimensions')), 0)}"
        case "slice":
            return f"takes {op.attributes.get('slice', '').strip('{}') or 'a part'}"
        case "dynamic-slice":
            return f"takes a box of {shape_text(result.shape)} out of {shape_text(operands[0].shape)}"
        case "dynamic-update-slice":
            update = operands[min(1, len(operands) - 1)]
            return f"writes {shape_text(update.shape)} into {shape_text(result.shape)} in place"
        case "gather":
            sizes = op.integers("slice_sizes")
            slices = f"slices of [{','.join(map(str, sizes))}]" if sizes else "slices"
            return f"gathers {slices} out of {shape_text(operands[0].shape)}"
        case "scatter":
            updates = operands[len(operands) // 2 + 1] if len(operands) > 2 else operands[-1]
            return f"scatters {shape_text(updates.shape)} into {shape_text(result.shape)} in place"
        case "pad":
            return f"pads by {op.attributes['padding']}" if "padding" in op.attributes else "pads"
        case "reverse":
            return f"reverses dims {', '.join(map(str, op.integers('dimensions')))}".rstrip()
    return ""


def _repeats(a: TensorLayout, result: TensorLayout, dimensions: tuple[int, ...]) -> str:
    """Which dims of a broadcast's result are repetitions."""
    if not a.rank:
        return "fills the array with a scalar"
    kept = {dim: a.shape[place] for place, dim in enumerate(dimensions)}
    new = [f"dim {dim} ({size})" for dim, size in enumerate(result.shape) if size != kept.get(dim, 1)]
    return f"repeats the operand along {' and '.join(new)}"


def _same_place(a: TensorLayout, b: TensorLayout) -> bool:
    return (a.minor_to_major, a.tiles, a.dtype, a.shape) == (b.minor_to_major, b.tiles, b.dtype, b.shape)


def _category(opcodes: Collection[str], a: TensorLayout, result: TensorLayout, cost: Traffic) -> str:
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


def _row(
    context: Context,
    placed: Placed,
    operands: _Layouts,
    result: TensorLayout,
    cost: Traffic,
    reason: str,
    fused: bool,
    counted: bool = True,
    category: str = "",
) -> MovementRow:
    """The row; where it is not ``counted``, its traffic is hidden and it moves 0 bytes."""
    op, texts = placed.op, [str(layout) for layout in operands]
    modelled, bound = context.modelled.get((op.line, op.name), (None, ""))
    inside = None
    if fused:
        inside = context.time_of_fusion(placed.computation)
    elif cost.bitcast and context.modelled:
        modelled = 0.0
    register = context.register_bytes
    counted = counted and not fused
    if not counted:
        category = "bitcast" if cost.bitcast else "fused"
    return MovementRow(
        op=op.opcode,
        name=op.name,
        source=placed.source,
        from_layout=texts[0] if len(texts) == 1 else f"({', '.join(texts)})",
        to_layout=str(result),
        logical_bytes=result.data_bytes,
        padded_bytes=result.size_bytes,
        moved_bytes=cost.moved_bytes if counted else 0,
        bitcast=cost.bitcast,
        reason=reason,
        path=placed.path,
        op_name=op.op_name,
        in_fusion=fused,
        predicted=context.predicted,
        bytes_read=cost.bytes_read if counted else 0,
        bytes_written=cost.bytes_written if counted else 0,
        hidden_bytes=0 if counted else cost.moved_bytes,
        runs=placed.runs.count,
        runs_known=placed.runs.known,
        trips=placed.runs.trips,
        registers_before=None if register is None else sum(-(-layout.size_bytes // register) for layout in operands),
        registers_after=None if register is None else -(-result.size_bytes // register),
        from_space=operands[0].memory_space,
        to_space=result.memory_space,
        core=placed.core,
        category=category or _category([op.opcode], operands[0], result, cost),
        modelled_us=modelled,
        bound=bound,
        inside_us=inside,
        kernel=op.kernel,
    )


# The row of a fusion: one that only moves, and one that lays an operand out anew while it computes.

_NOTHING = Traffic(False, 0, 0)
_STILL = frozenset({"bitcast", "constant", "get-tuple-element", "iota", "parameter", "tuple"})
_GATHERING = (
    PRODUCTS
    | {"custom-call", "fft", "gather", "reduce", "reduce-window", "scatter", "select-and-scatter"}
    | {"sort", "triangular-solve", "cholesky", "rng", "while", "conditional", "call"}
)


def fusion_row(context: Context, computation: Computation, op: Operation) -> MovementRow | None:
    """The fusion's row, or None if it computes and keeps the order of its operands.

    A fusion that does nothing but move counts the traffic at its border. One that computes, and has a relayout inside
    or returns an operand's dims in another order, moves no bytes beyond its own and counts 0; its row names the reason.
    """
    placed = context.placed(computation, op, op.operand_shapes)
    body = context.program.body(op)
    results = [layout for layout in placed.results if layout is not None]
    if body is None or not results:
        return None
    operands = [layout for layout in placed.operands if layout is not None]
    arrays = [layout for layout in operands if layout.rank]
    kinds = {plain_opcode(inner.opcode) for inner in body.operations if not inner.shape.endswith("[]")} - _STILL
    if kinds <= REARRANGES | {"reverse"} and kinds and results[0].rank:
        cost = Traffic(False, *(round(sum(sizes)) for sizes in context.demand.border(op)))
        sources = arrays or operands or results[:1]
        reason = f"a fusion that only moves: {' and '.join(sorted(kinds))}"
        category = _category(kinds, sources[0], results[0], cost)
        return _row(context, placed, sources, results[0], cost, reason, False, category=category)
    moving = (op for op in body.operations if op.opcode in ("copy", "reshape", "transpose"))
    found = (operation_row(context, body, op, True) for op in moving)  # they carry the hidden bytes themselves
    if inside := [r for r in found if r is not None and not r.bitcast and r.from_layout != r.to_layout]:
        more = f", and {len(inside) - 1} more" if len(inside) > 1 else ""
        reason = f"computes; inside it {inside[0].op} {inside[0].name}{more}: {inside[0].reason}"
        return _row(context, placed, arrays or results[:1], results[0], _NOTHING, reason, False, counted=False)
    pairs = _turned(arrays, results)
    if kinds & _GATHERING or not pairs:
        return None
    before, after = max(pairs, key=lambda pair: pair[0].size_bytes)
    cost = Traffic(False, before.size_bytes, after.size_bytes)
    why = relayout_reason(before, after, None, False)
    reason = f"computes and lays out anew on the way, no bytes of its own: {why}"
    return _row(context, placed, [before], after, cost, reason, False, counted=False)


def _turned(arrays: Sequence[TensorLayout], results: Sequence[TensorLayout]) -> list[tuple[TensorLayout, TensorLayout]]:
    """For each result an operand of its shape whose dims stand in another order: the first of the largest."""
    largest: dict[tuple[int, ...], dict[tuple[int, ...], TensorLayout]] = defaultdict(dict)  # by shape, then by order
    for array in arrays:
        of_shape, order = largest[array.shape], _dim_order(array)
        if order not in of_shape or array.size_bytes > of_shape[order].size_bytes:
            of_shape.pop(order, None)  # so that they stay in the order of the operands
            of_shape[order] = array
    pairs = []
    for result in results:
        own = _dim_order(result)
        others = [array for order, array in largest.get(result.shape, {}).items() if order != own]
        if others:
            pairs.append((max(others, key=lambda array: array.size_bytes), result))
    return pairs


def _dim_order(layout: TensorLayout) -> tuple[int, ...]:
    return tuple(dim for dim in layout.minor_to_major if layout.shape[dim] != 1)


# Why an operation is, or is not, a bitcast, with the dims and tiles responsible. The decision is `layout.is_bitcast`,
# which is exact; the words are found afterwards: dims are matched by runs of equal product, and the first of these that
# differs is named: the order of the elements, a dim that is split or merged across a tile, the tiles.

_MOST_GROUPS = 2


@lru_cache(maxsize=16384)
def relayout_reason(a: TensorLayout, b: TensorLayout, permutation: tuple[int, ...] | None, bitcast: bool) -> str:
    """Why reshape(transpose(a, permutation)) to b is, or is not, a bitcast.

    >>> from tilewright.layout import parse
    >>> relayout_reason(parse("f32[336,50]{1,0:T(8,128)}"), parse("f32[16800]{0:T(1024)}"), None, False)
    'dims 0 (336) and 1 (50) merge into dim 0 (16800), but dim 1 (50) is cut by the tile 128'
    """
    if bitcast:
        return "a bitcast: every element keeps its offset"
    if 0 in a.shape or 0 in b.shape:
        return "an array without elements"
    groups = _groups(a.shape, b.shape, permutation)
    order = _order_reason(a, b, groups)
    if order:
        return order
    if regrouped := [group for group in groups if len(group.source) != 1 or len(group.target) != 1]:
        cut = [text for group in regrouped if (text := _cut_reason(a, b, group))]
        if cut:
            return "; ".join(cut[:_MOST_GROUPS])
    if a.tiles != b.tiles:
        return f"the tiles change from {_tiles(a)} to {_tiles(b)}"
    if a.size_bytes != b.size_bytes:
        return _padding_reason(a, b)
    if a.memory_space != b.memory_space:
        return space_reason(a, b)
    if not a.tiles:
        return "the same order: only dims of size 1 change places"
    return f"the same dims lie elsewhere under {_tiles(a)}: the tiles fall on other dims"


def space_reason(a: TensorLayout, b: TensorLayout) -> str:
    """Which memory space the array leaves and which it enters.

    >>> from tilewright.layout import parse
    >>> space_reason(parse("f32[8]{0}"), parse("f32[8]{0:S(1)}"))
    'moves from S(0) to S(1)'
    """
    return f"moves from S({a.memory_space}) to S({b.memory_space})"


def _groups(before: Sequence[int], after: Sequence[int], permutation: _Dims) -> list[Run]:
    """Dims of the operand (``source``) and of the result (``target``) that hold the same elements."""
    order = range(len(before)) if permutation is None else permutation
    matched = runs([before[dim] for dim in order], after) or ()
    return [Run(tuple(order[place] for place in run.source), run.target) for run in matched]


def _order_reason(a: TensorLayout, b: TensorLayout, groups: list[Run]) -> str:
    """The words for another order of the elements, tiles apart; "" where the order is the same."""
    before, after = _physical(a, [group.source for group in groups]), _physical(b, [group.target for group in groups])
    if before == after:
        return ""
    apart = [n for n in range(len(groups)) if (n, True) not in before or (n, True) not in after]
    if apart:
        side, layout = ("before", a) if (apart[0], True) not in before else ("after", b)
        regrouped, order = _regrouping(a, b, groups[apart[0]]), ",".join(map(str, layout.minor_to_major))
        return f"{regrouped}, which do not lie side by side in order in the layout {side}, {{{order}}}"
    fastest_a, fastest_b = _fastest(a), _fastest(b)
    if any(fastest_a == group.source[-1] and fastest_b == group.target[-1] for group in groups):
        return (
            f"the slower dims change places: {_named(before, groups)} from major to minor, {_named(after, groups)} now"
        )
    was, now = f"dim {fastest_a} ({a.shape[fastest_a]})", f"dim {fastest_b} ({b.shape[fastest_b]})"
    return f"the order of the elements changes: {was} was the fastest, {now} is now"


def _physical(layout: TensorLayout, groups: list[tuple[int, ...]]) -> list[tuple[int, bool]]:
    """The groups from major to minor, each with whether its dims stand in order and side by side."""
    places = {
        dim: place for place, dim in enumerate(d for d in reversed(layout.minor_to_major) if layout.shape[d] != 1)
    }
    standing = []
    for number, group in enumerate(groups):
        at = [places[dim] for dim in group]
        standing.append((at[0], number, at == list(range(at[0], at[0] + len(at)))))
    return [(number, whole) for _, number, whole in sorted(standing)]


def _named(order: list[tuple[int, bool]], groups: list[Run]) -> str:
    """The operand's dims in an order of groups."""
    return "dims " + ", ".join(str(dim) for number, _ in order for dim in groups[number].source)


def _fastest(layout: TensorLayout) -> int:
    return next((dim for dim in layout.minor_to_major if layout.shape[dim] != 1), 0)


def _padding_reason(a: TensorLayout, b: TensorLayout) -> str:
    """Sizes differ though order and tiles agree: name the dim that leaves most of its tile empty."""
    change = f"the padding changes: {a.size_bytes} bytes become {b.size_bytes}"
    larger, side = (a, "the operand") if a.size_bytes > b.size_bytes else (b, "the result")
    partial = [(larger.shape[d] / t, d, t) for d in range(larger.rank) if (t := _tile_of(larger, d)) > larger.shape[d]]
    if not partial:
        return change
    _, dim, tile = min(partial)
    return f"{change}; dim {dim} ({larger.shape[dim]}) of {side} fills part of the tile {tile}"


def _cut_reason(a: TensorLayout, b: TensorLayout, group: Run) -> str:
    """Which tile stands against the split or merge of this group, if one does."""
    cuts = [f"dim {d} ({a.shape[d]}) is cut by the tile {t}" for d in group.source[1:] if (t := _tile_of(a, d)) > 1]
    cuts += [
        f"dim {d} ({b.shape[d]}) of the result is cut by the tile {t}"
        for d in group.target[1:]
        if (t := _tile_of(b, d)) > 1
    ]
    if not cuts:
        cuts = [f"dim {d} ({a.shape[d]}) is cut by the tile {t}" for d in group.source if (t := _tile_of(a, d)) > 1]
    if not cuts:
        return ""
    return f"{_regrouping(a, b, group)}, but {' and '.join(cuts)}"


def _regrouping(a: TensorLayout, b: TensorLayout, group: Run) -> str:
    before, after = _dims(a, group.source), _dims(b, group.target)
    if len(group.target) == 1:
        return f"{before} merge into {after}"
    return f"{before} {'splits' if len(group.source) == 1 else 'regroup'} into {after}"


def _dims(layout: TensorLayout, dims: tuple[int, ...]) -> str:
    named = [f"{dim} ({layout.shape[dim]})" for dim in dims]
    if len(named) == 1:
        return f"dim {named[0]}"
    return f"dims {', '.join(named[:-1])} and {named[-1]}"


def _tile_of(layout: TensorLayout, dim: int) -> int:
    """The size of the first tile over a dim, 1 if none covers it (a combined dim counts as a tile of its size)."""
    if not layout.tiles:
        return 1
    tile = layout.tiles[0]
    place = layout.minor_to_major.index(dim)
    if place >= len(tile):
        return 1
    size = tile[len(tile) - 1 - place]
    return size if size > 0 else prod((layout.shape[dim],))


def _tiles(layout: TensorLayout) -> str:
    if not layout.tiles:
        return "no tiles"
    inside = ")(".join(",".join("*" if size < 0 else str(size) for size in tile) for tile in layout.tiles)
    return f"T({inside})"
