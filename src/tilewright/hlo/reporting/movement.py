"""The movement report: one row per operation that moves data for layout's sake, and the tensors by wasted bytes.

What counts as traffic:

* An HLO dump carries the compiler's layouts: its figures are facts. StableHLO carries none: the target's layout rule
  places every array, and the report is labelled ``predicted``.
* A reshape, a transpose or a broadcast that repeats nothing is free iff it is a bitcast; a ``copy`` in a dump is there
  because the compiler had to copy, so it always counts, even between equal layouts.
* Inside a fusion nothing is written to memory: rows there are kept (``in_fusion``) with 0 moved bytes and what they
  would move as ``hidden_bytes``. A fusion that does nothing but move is a row of its own, with the traffic at its
  border, and so is one that computes and changes the order of its dims, with 0 moved bytes.
* Totals count every row as often as it runs: over all callers, times the trip counts of the loops around it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.errors import TilewrightError, UsageError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.graphs.collector import collector_paused
from tilewright.hlo.program import Computation, Operation, Program
from tilewright.hlo.reporting.context import Context
from tilewright.hlo.reporting.liveness import peaks
from tilewright.hlo.reporting.rows import fusion_row, operation_row
from tilewright.hlo.reporting.types import MovementReport, MovementRow, PaddedTensor
from tilewright.targets import Target
from tilewright.targets import target as find_target

_NO_BUFFER = frozenset(
    {"bitcast", "get-tuple-element", "tuple", "return", "while", "conditional", "case", "if", "call", "opt-barrier"}
    | {"optimization-barrier", "domain", "after-all", "send", "send-done"}
)


@collector_paused()
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
    context = Context(program, chip)
    tensors = tuple(tensor for computation in program.computations for tensor in _tensors(context, computation))
    rows = tuple(row for computation in program.computations for row in _rows(context, computation))
    return MovementReport(
        *(program.name, program.kind, chip.name if chip else None),
        *(context.predicted, context.tiled, tuple(sorted(context.unsized))),
        rows=rows,
        tensors=tensors,
        peaks=peaks(context),
        unknown_loops=context.unknown_loops,
        register_bytes=context.register_bytes,
        unoptimized=program.kind == "hlo" and not context.tiled and _is_unoptimized(program),
    )


def _is_unoptimized(program: Program) -> bool:
    """Whether a whole module has neither a schedule nor a fusion: what the compiler begins with."""
    if program.attributes.get("is_scheduled") == "true" or "HloModule" not in program.text[:4096]:
        return False
    return not any(op.opcode == "fusion" for _, op in program.operations())


def _rows(context: Context, computation: Computation) -> Iterator[MovementRow]:
    fused = computation.name in context.program.fused
    for op in computation.operations:
        try:
            row = _row(context, computation, op, fused)
        except TilewrightError as error:
            raise context.at(op, error) from None
        if row is not None:
            yield row


def _row(context: Context, computation: Computation, op: Operation, fused: bool) -> MovementRow | None:
    if op.opcode == "fusion" and not fused:
        return fusion_row(context, computation, op)
    return operation_row(context, computation, op, fused)


def _tensors(context: Context, computation: Computation) -> Iterator[PaddedTensor]:
    """Arrays that have a buffer of their own: not those inside fusions, nor other names for buffers."""
    if computation.name in context.program.fused:
        return
    for op in computation.operations:
        kind = plain_opcode(op.opcode)
        if kind in _NO_BUFFER or kind.endswith("-start") or (kind == "parameter" and not computation.entry):
            continue
        try:
            layouts = context.layouts(op.shape)
        except TilewrightError as error:
            raise context.at(op, error) from None
        several = op.shape.startswith("(")
        for number, layout in enumerate(layouts):
            if not layout.rank:
                continue
            name = f"{op.name}{{{number}}}" if several else op.name
            yield PaddedTensor(
                *(name, op.opcode, context.source(computation.name, op), context.text(layout)),
                *(layout.data_bytes, layout.size_bytes, context.path(computation.name), layout.memory_space),
            )
