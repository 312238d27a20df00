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

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from msgspec import ValidationError, convert

from tilewright.errors import TilewrightError, UnsupportedError, UsageError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.exchange.model_explorer import model_explorer, model_explorer_data
from tilewright.hlo.exchange.sarif import report_sarif
from tilewright.hlo.graphs.graph import collector_paused
from tilewright.hlo.program import Computation, Program
from tilewright.hlo.reporting import lines, page
from tilewright.hlo.reporting.buffers import buffers
from tilewright.hlo.reporting.changes import with_changes
from tilewright.hlo.reporting.predicting import fused_along, in_normal_form
from tilewright.hlo.reporting.profile import join_profile
from tilewright.hlo.reporting.rows import computing_row, fusion_row, operation_row
from tilewright.hlo.reporting.types import (
    SCHEMA_VERSION,
    MovementRow,
    PaddedTensor,
    Peak,
    ProfileSummary,
    ReportData,
    Suggestion,
    TimeSummary,
)
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.timing.chip import Chip, chip_of
from tilewright.hlo.timing.estimate import estimate_placed
from tilewright.hlo.timing.mechanisms import MEGA
from tilewright.targets import Target
from tilewright.targets import target as find_target

_HOW = "write it with: tilewright report X -o report.json"
_ADDED = frozenset({"modelled_us", "bound", "inside_us", "column", "basis"})
"""Fields of rows and suggestions that reports of this schema version, written earlier, lack."""


@dataclass(frozen=True)
class MovementReport(ReportData):
    """The rows in the order of the program, the tensors with buffers, and rankings of both.

    >>> from tilewright.hlo import load, report
    >>> text = "HloModule m\\nENTRY e {\\n p = f32[4,2]{1,0} parameter(0)\\n ROOT c = f32[4,2]{0,1} copy(p)\\n}"
    >>> result = report(load(text))
    >>> [(row.op, row.moved_bytes, row.reason) for row in result.rows]
    [('copy', 64, 'the order of the elements changes: dim 1 (2) was the fastest, dim 0 (4) is now')]
    """

    head_lines, change_lines, ranking_lines = lines.head_lines, lines.change_lines, lines.ranking_lines
    to_html, to_block, _repr_html_ = page.to_html, page.to_block, page.glance_html
    to_sarif, model_explorer, model_explorer_data = report_sarif, model_explorer, model_explorer_data
    with_profile = join_profile

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], where: str = "") -> MovementReport:
        """The report that :meth:`to_json` wrote. Raises UsageError for anything else, naming what is wrong.

        >>> from tilewright.hlo import MovementReport, load, report
        >>> written = report(load("HloModule m\\nENTRY e { ROOT p = f32[4,2]{1,0:T(8,128)} parameter(0) }"))
        >>> MovementReport.from_json(written.to_json()) == written
        True
        """
        if not isinstance(plain, Mapping) or plain.get("kind") != "movement_report":
            raise UsageError("this JSON is not a movement report", where=where, how=_HOW)
        version = plain.get("schema_version")
        if version != SCHEMA_VERSION:
            reason = f"schema_version {version!r}, but this version reads {SCHEMA_VERSION}"
            raise UsageError(reason, where=where, how=f"{_HOW} of this version")
        try:
            program = {"program": plain["program"]["name"], "kind": plain["program"]["kind"]}
            later = {"unoptimized": False, "time": None, "suggestions": (), "normal_form": 0, "not_understood": ()}
            whole = {**later, **plain, **program, "source": plain.get("input", "")}
            peaks = plain["peaks"]
            for record, values in (
                (MovementRow, plain["rows"]),
                (PaddedTensor, [*plain["tensors"], *(tensor for peak in peaks for tensor in peak["tensors"])]),
                (Peak, peaks),
                (ProfileSummary, [plain["profile"]] if plain["profile"] else ()),
                (TimeSummary, [whole["time"]] if whole["time"] else ()),
                (Suggestion, whole["suggestions"]),
                (cls, [whole]),
            ):
                _require(record, values)
            return convert(whole, cls)
        except (KeyError, TypeError, AttributeError, ValidationError) as error:
            reason = f"no field {error}" if isinstance(error, KeyError) else str(error)
            raise UsageError(f"not a whole movement report: {reason}", where=where, how=_HOW) from None


@collector_paused()
def report(
    program: Program, target: Target | str | None = None, suggestions: Sequence[Suggestion] = ()
) -> MovementReport:
    """What ``program`` moves for layout's sake on ``target`` (a Target, or the name of one).

    An HLO program brings its own layouts; ``target`` then only names the chip and may be None. ``suggestions`` of rules
    are weighed and ranked with what the report finds itself (:attr:`MovementReport.suggestions`). Raises UsageError for
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
    time, context.modelled = _price(context)
    lines = _times_of_lines(context) if suggestions else defaultdict(float)
    form = 0
    if context.predicted and chip is not None and chip.compiler_normalizes:
        normalised = in_normal_form(program)
        form = normalised.version
    if form:
        program = normalised.program
        context = Context(program, chip, normalised.times_of(context.modelled), fused_along(program))
    along = context.fused_along or (fused_along(program) if context.predicted else ())
    tensors, peaks = buffers(context)
    rows = tuple(row for computation in program.computations for row in _rows(context, computation))
    if time is not None and context.predicted:
        rows = _with_times_of_bitcasts(rows, context)
        if form and chip is not None:
            kernels, (rows, time) = rows, _with_lone_kernels(rows, time, chip)
            for row, had in zip(rows, kernels):
                lines[row.source] += (row.modelled_us or 0.0) - (had.modelled_us or 0.0)
    return MovementReport(
        *(program.name, program.kind, chip.name if chip else None),
        *(context.predicted, context.tiled, tuple(sorted(context.unsized | context.unknown))),
        rows=rows,
        tensors=tensors,
        peaks=peaks,
        unknown_loops=context.unknown_loops,
        register_bytes=context.register_bytes,
        unoptimized=program.kind == "hlo" and not context.tiled and _is_unoptimized(program),
        time=time,
        suggestions=with_changes(rows, program, time, suggestions, lines, along),
        normal_form=form,
        not_understood=program.notes,
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
            whole = op.opcode == "fusion" and not fused
            row = fusion_row(context, computation, op) if whole else operation_row(context, computation, op, fused)
            if row is None and not fused and (op.line, op.name) in context.modelled and not context.predicted:
                row = computing_row(context, computation, op)
        except TilewrightError as error:
            raise context.at(op, error) from None
        if row is not None:
            yield row


def _require(record: type[Any], values: Sequence[Mapping[str, Any]]) -> None:
    """KeyError for a field that one of the values lacks: those with a default are always written, too."""
    names = [field.name for field in fields(record) if field.name not in _ADDED]
    for value in values:
        for name in names:
            if name not in value:
                raise KeyError(name)


# Modelled times of the rows: those of the step that `timing` makes of the same program.

_Times = dict[tuple[int, str], tuple[float, str]]
"""(line of the text, name) of an operation -> the microseconds of all its runs, and what bounds it."""
_LOOPS = "loops of unknown length"
"""How a step's note on them begins; the report has its own."""


def _price(context: Context) -> tuple[TimeSummary | None, _Times]:
    """The modelled step, None for a target without a time model, and the times of its operations."""
    try:
        chip = chip_of(context.chip) if context.chip is not None else None
    except UnsupportedError:
        chip = None
    if chip is None:
        return None, {}
    step = estimate_placed(context, chip)
    starts, ends = {}, {}
    for _, op in context.program.operations():
        if op.opcode.endswith("-start"):
            starts[op.name] = op.line
        elif op.opcode.endswith("-done"):
            ends[op.line] = op
    times: _Times = {}
    for row in step.rows:
        if row.unpriced:
            continue
        key = row.line, row.name.rpartition("/")[2]
        end = ends.get(row.line)
        if end is not None and end.operands[:1] and end.operands[0] in starts:
            key = starts[end.operands[0]], end.operands[0]  # what a transfer takes is the wait for its end
        before, _ = times.get(key, (0.0, ""))
        times[key] = before + row.seconds * 1e6, row.bound
    notes = tuple(n for n in step.notes if not n.startswith(_LOOPS) and n not in context.program.notes)
    return TimeSummary(step.seconds * 1e6, step.call_seconds * 1e6, step.priced, notes), times


def _times_of_lines(context: Context) -> defaultdict[str, float]:
    """The modelled microseconds of each line of the user's program."""
    lines: defaultdict[str, float] = defaultdict(float)
    for computation, op in context.program.operations():
        if time := context.modelled.get((op.line, op.name)):
            lines[context.source(computation.name, op)] += time[0]
    return lines


def _with_times_of_bitcasts(rows: Sequence[MovementRow], context: Context) -> tuple[MovementRow, ...]:
    """The rows of a StableHLO program, the time of a bitcast with the operation beside it that moves instead.

    A predicted kernel stands at the transpose; by the predicted layouts its reshape may be what turns the data.
    """
    places = {(row.path.rpartition(" > ")[2], row.name): number for number, row in enumerate(rows)}
    given: dict[int, tuple[float, str]] = {}
    for computation in context.program.computations:
        near: dict[str, list[str]] = defaultdict(list)
        priced = []
        for op in computation.operations:
            for name in op.operands:
                near[op.name].append(name)
                near[name].append(op.name)
            time = context.modelled.get((op.line, op.name))
            place = places.get((computation.name, op.name))
            if time is not None and time[0] and place is not None and rows[place].bitcast:
                priced.append((op.name, time))
        for name, time in priced:
            beside = (places.get((computation.name, other), -1) for other in near[name])
            moving = [n for n in beside if n >= 0 and rows[n].moved_bytes and rows[n].modelled_us is None]
            if moving and moving[0] not in given:
                given[moving[0]] = time
    return tuple(
        replace(row, modelled_us=given[n][0], bound=given[n][1]) if n in given else row for n, row in enumerate(rows)
    )


def _with_lone_kernels(
    rows: Sequence[MovementRow], time: TimeSummary, chip: Target
) -> tuple[tuple[MovementRow, ...], TimeSummary]:
    """Rows of a normalised program that move, and that its step has no kernel for, get one; the step grows by them.

    The step's model lets every broadcast, slice and reshape flow into kernels; the report knows which stand alone.
    """
    priced, more, timed = chip_of(chip), 0.0, list[MovementRow]()
    for row in rows:
        has_kernel = plain_opcode(row.op) in ("transpose", "gather", "scatter", "dynamic-update-slice")
        if row.moved_bytes and row.modelled_us is None and not has_kernel:
            row = replace(row, modelled_us=_lone_kernel_us(row, priced), bound="hbm")
            more += row.modelled_us or 0.0
        timed.append(row)
    return tuple(timed), replace(time, step_us=time.step_us + more)


def _lone_kernel_us(row: MovementRow, chip: Chip) -> float:
    """Microseconds of all runs of a kernel that only moves this row's bytes."""
    moves = chip.stream_us(row.moved_bytes / MEGA, chip.kernel["mb_per_us"])
    return row.runs * (chip.kernel["near_launch_us"] + moves)
