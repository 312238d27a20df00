"""The movement report: one row per operation that moves data for layout's sake, and the tensors by wasted bytes.

What counts as traffic:

* An HLO dump carries the compiler's layouts: its figures are facts. StableHLO carries none: the target's layout rule
  places every array, and the report is labelled ``predicted``.
* A reshape, a transpose or a broadcast that repeats nothing is free iff it is a bitcast; a ``copy`` in a dump is there
  because the compiler had to copy, so it always counts, even between equal layouts.
* Inside a fusion nothing is written to memory: rows there are kept (``in_fusion``) with 0 moved bytes. A fusion that
  does nothing but move is a row of its own, with the traffic at its border.
* Every computation counts once, however often it is called.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tilewright.errors import ParseError, TilewrightError, UnsupportedError, UsageError
from tilewright.hlo._cost import MOVEMENT_OPS, Movement, array_layout, movement, permutation_of, place, plain_opcode
from tilewright.hlo._program import Computation, Operation, Program
from tilewright.hlo._reason import relayout_reason, space_reason
from tilewright.hlo._report_types import MovementReport, MovementRow, PaddedTensor
from tilewright.hlo._shape_rules import check_shapes
from tilewright.layout import TensorLayout, TupleLayout, parse
from tilewright.targets import Target
from tilewright.targets import target as find_target

__all__ = ["report"]

_MOVERS_IN_FUSIONS = frozenset({"bitcast", "broadcast", "concatenate", "constant", "copy", "parameter"})
_REAL_MOVERS = frozenset({"concatenate", "copy", "reshape", "transpose"})
_NO_BUFFER = frozenset(
    {"bitcast", "get-tuple-element", "tuple", "return", "while", "conditional", "case", "if", "call", "opt-barrier"}
    | {"optimization-barrier", "domain", "after-all"}
)


def report(program: Program, target: Target | str | None = None) -> MovementReport:
    """What ``program`` moves for layout's sake on ``target`` (a Target, or the name of one).

    An HLO program brings its own layouts; ``target`` then only names the chip and may be None. Raises UsageError for
    StableHLO without a target, UnsupportedError for a target without a rule for whole programs, ParseError where an
    operation's shapes contradict each other.
    """
    chip = find_target(target) if isinstance(target, str) else target
    if program.kind == "stablehlo" and chip is None:
        raise UsageError(
            "a StableHLO program carries no layouts, so a target must predict them",
            how="name one, such as tpu-v5e or vector8x128",
        )
    builder = _Builder(program, chip)
    rows = tuple(row for computation in program.computations for row in builder.rows(computation))
    tensors = tuple(tensor for computation in program.computations for tensor in builder.tensors(computation))
    name = chip.name if chip else None
    facts = (builder.predicted, builder.tiled, tuple(sorted(builder.unsized)))
    return MovementReport(program.name, program.kind, name, *facts, rows, tensors)


class _Builder:
    """Rows and tensors of one program under one target."""

    def __init__(self, program: Program, chip: Target | None) -> None:
        self.program, self.chip = program, chip
        self.predicted = program.kind == "stablehlo"
        self.tiled = False
        self.unsized: set[str] = set()
        self.paths: dict[str, str] = {}
        self.by_name = {computation.name: computation for computation in program.computations}

    def layout(self, shape: str) -> TensorLayout | None:
        """Where an array lives; None for what is no array (tuples, tokens) or has no size."""
        if shape.startswith(("(", "token", "opaque")):
            return None
        layout = array_layout(shape)
        if "?" in shape:
            self.unsized.add(shape)
            return None
        if self.predicted and self.chip is not None:
            layout = place(layout.shape, layout.dtype, self.chip)
        self.tiled = self.tiled or bool(layout.tiles)
        return layout

    def rows(self, computation: Computation) -> Iterator[MovementRow]:
        fused = computation.name in self.program.fused
        for op in computation.operations:
            try:
                row = self.row(computation, op, fused)
            except UnsupportedError:
                raise
            except TilewrightError as error:
                raise self.at(op, error) from None
            if row is not None:
                yield row

    def at(self, op: Operation, error: TilewrightError) -> ParseError:
        """An error of a shape at its column, any other at its operation's line."""
        text, start = self.program.text, 0
        for _ in range(op.line - 1):
            start = text.find("\n", start) + 1
        if isinstance(error, ParseError) and (place := text.find(error.text, start)) >= 0:
            start = place + error.column
        return ParseError(f"{op.opcode} {op.name}: {error.what}", text=text, column=start, how=error.how)

    def row(self, computation: Computation, op: Operation, fused: bool) -> MovementRow | None:
        """The operation's row, or None if it moves nothing for layout's sake."""
        name = plain_opcode(op.opcode)
        if name == "fusion":
            return self.fusion_row(computation, op)
        if name not in MOVEMENT_OPS and name not in ("convert", "copy-start"):
            return None
        result = self.copied(op) if name == "copy-start" else self.layout(op.shape)
        operands = self.operands(op, everything=name == "concatenate")
        if result is None or not operands:
            return None
        if name == "convert" and operands[0].minor_to_major == result.minor_to_major:
            return None  # an elementwise operation in place
        dimensions = op.integers("dimensions") if "dimensions" in op.attributes else None
        check_shapes(name, operands, result, dimensions)
        read = [_sliced(op, operands[0])] if name == "slice" else operands
        cost = movement(name, read, result, dimensions)
        reason = self.reason(op, name, operands, result, dimensions, cost)
        return self.finish(computation, op, operands, result, cost, reason, fused)

    def operands(self, op: Operation, everything: bool) -> list[TensorLayout]:
        """The arrays an operation reads: all that a concatenate joins, the first of any other."""
        shapes = op.operand_shapes if everything else op.operand_shapes[:1]
        return [layout for shape in shapes if (layout := self.layout(shape)) is not None]

    def copied(self, op: Operation) -> TensorLayout | None:
        """The array a copy-start writes: the first element of its result."""
        whole = parse(op.shape)
        first = whole.elements[0] if isinstance(whole, TupleLayout) and whole.elements else whole
        return first if isinstance(first, TensorLayout) else None

    def reason(
        self,
        op: Operation,
        name: str,
        operands: Sequence[TensorLayout],
        result: TensorLayout,
        dimensions: tuple[int, ...] | None,
        cost: Movement,
    ) -> str:
        """Why the row costs what it costs."""
        a = operands[0]
        if name == "bitcast":
            return "the compiler's own bitcast"
        if name == "concatenate":
            return f"joins {len(operands)} arrays along dim {dimensions[0] if dimensions else 0}"
        if name == "slice":
            return f"takes {op.attributes.get('slice', '').strip('{}') or 'a part'}"
        if name == "pad":
            return f"pads by {op.attributes['padding']}" if "padding" in op.attributes else "pads"
        if name == "broadcast" and not cost.bitcast and a.num_elements != result.num_elements:
            return _repeats(a, result, dimensions or ())
        if name in ("copy", "copy-start") and _same_place(a, result):
            moves = a.memory_space != result.memory_space
            return space_reason(a, result) if moves else "duplicates the buffer as it is"
        reason = relayout_reason(a, result, permutation_of(name, dimensions), cost.bitcast)
        if a.memory_space != result.memory_space and "moves from" not in reason:
            reason += f"; also {space_reason(a, result)}"
        return reason

    def fusion_row(self, computation: Computation, op: Operation) -> MovementRow | None:
        """A fusion that does nothing but move data."""
        body = [inner for callee in op.calls for inner in self.by_name[callee].operations]
        kinds = [inner.opcode for inner in body]
        if not set(kinds) <= _MOVERS_IN_FUSIONS | _REAL_MOVERS or not set(kinds) & _REAL_MOVERS:
            return None
        result = self.layout(op.shape)
        operands = self.operands(op, everything=True)
        if result is None or not operands:
            return None
        deeds = " and ".join(sorted(set(kinds) & (_REAL_MOVERS | {"broadcast"})))
        cost = movement("fusion", operands, result)
        return self.finish(computation, op, operands, result, cost, f"a fusion that only moves: {deeds}", False)

    def finish(
        self,
        computation: Computation,
        op: Operation,
        operands: Sequence[TensorLayout],
        result: TensorLayout,
        cost: Movement,
        reason: str,
        fused: bool,
    ) -> MovementRow:
        texts = [str(layout) for layout in operands]
        return MovementRow(
            op=op.opcode,
            name=op.name,
            source=self.source(computation.name, op),
            from_layout=texts[0] if len(texts) == 1 else f"({', '.join(texts)})",
            to_layout=str(result),
            logical_bytes=result.data_bytes,
            padded_bytes=result.size_bytes,
            moved_bytes=0 if fused else cost.moved_bytes,
            bitcast=cost.bitcast,
            reason=reason,
            path=self.path(computation.name),
            op_name=op.op_name,
            in_fusion=fused,
            predicted=self.predicted,
        )

    def path(self, computation: str) -> str:
        if computation not in self.paths:
            self.paths[computation] = self.program.path(computation)
        return self.paths[computation]

    def source(self, computation: str, op: Operation) -> str:
        """The operation's own line, or that of the nearest caller that has one."""
        seen: set[str] = set()
        while op.source is None and computation not in seen:
            seen.add(computation)
            calls = self.program.callers[computation]
            if not calls:
                return ""
            computation, op = calls[0]
        return str(op.source) if op.source is not None else ""

    def tensors(self, computation: Computation) -> Iterator[PaddedTensor]:
        """Arrays that have a buffer of their own: not those inside fusions, nor other names for buffers."""
        if computation.name in self.program.fused:
            return
        for op in computation.operations:
            name = plain_opcode(op.opcode)
            if name in _NO_BUFFER or name.endswith("-start") or (name == "parameter" and not computation.entry):
                continue
            try:
                layout = self.layout(op.shape)
            except TilewrightError as error:
                raise self.at(op, error) from None
            if layout is None or not layout.rank:
                continue
            yield PaddedTensor(
                *(op.name, op.opcode, self.source(computation.name, op), str(layout)),
                *(layout.data_bytes, layout.size_bytes, self.path(computation.name)),
            )


_BOUNDS = re.compile(r"\[\s*(\d{1,18})\s*:\s*(\d{1,18})")


def _sliced(op: Operation, operand: TensorLayout) -> TensorLayout:
    """The part of its operand that a slice reads: from the first element to the last, strides included."""
    box = [int(high) - int(low) for low, high in _BOUNDS.findall(op.attributes.get("slice", ""))]
    if len(box) != operand.rank or any(not 0 <= size <= whole for size, whole in zip(box, operand.shape)):
        raise UsageError(f"its bounds do not fit {operand}")
    return array_layout(f"{operand.dtype}[{','.join(map(str, box))}]{str(operand).partition(']')[2]}")


def _repeats(a: TensorLayout, result: TensorLayout, dimensions: tuple[int, ...]) -> str:
    """Which dims of a broadcast's result are repetitions."""
    if not a.rank:
        return "fills the array with a scalar"
    kept = {dim: a.shape[place] for place, dim in enumerate(dimensions)}
    new = [f"dim {dim} ({size})" for dim, size in enumerate(result.shape) if size != kept.get(dim, 1)]
    return f"repeats the operand along {' and '.join(new)}"


def _same_place(a: TensorLayout, b: TensorLayout) -> bool:
    return (a.minor_to_major, a.tiles, a.dtype, a.shape) == (b.minor_to_major, b.tiles, b.dtype, b.shape)
