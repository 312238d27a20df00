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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import ValidationError, convert

from tilewright.errors import TilewrightError, UsageError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.exchange import model_explorer, model_explorer_data, report_sarif
from tilewright.hlo.graphs.graph import collector_paused
from tilewright.hlo.program import Computation, Program
from tilewright.hlo.reporting import lines, page
from tilewright.hlo.reporting.buffers import buffers
from tilewright.hlo.reporting.profile import join_profile
from tilewright.hlo.reporting.rows import computing_row, fusion_row, operation_row
from tilewright.hlo.reporting.types import SCHEMA_VERSION, MovementRow, ReportData, Suggestion, TimeSummary
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.predicting import fused_along
from tilewright.hlo.timing.estimate import UNKNOWN_LOOPS, predict
from tilewright.targets import Target
from tilewright.targets import target as find_target

_HOW = "write it with: tilewright report X -o report.json"


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
    to_html, to_block, figures, _repr_html_ = page.to_html, page.to_block, page.figures, page.glance_html
    to_sarif, model_explorer, model_explorer_data = report_sarif, model_explorer, model_explorer_data

    def with_profile(self, program: Program, profile: str | Path) -> MovementReport:
        """With a profile's times (:func:`join_profile`): what the report finds itself saves what was measured."""
        joined = join_profile(self, program, profile)
        rows = [row if row.step_us is None else replace(row, modelled_us=row.step_us) for row in joined.rows]
        given = [each for each in self.suggestions if not each.own]
        return replace(joined, suggestions=with_changes(rows, program, self.time, given, {}))

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
            return convert(whole, cls)
        except (KeyError, TypeError, AttributeError, ValidationError) as error:
            reason = f"no field {error}" if isinstance(error, KeyError) else str(error)
            raise UsageError(f"not a whole movement report: {reason}", where=where, how=_HOW) from None


@collector_paused()
def report(
    program: Program,
    target: Target | str | None = None,
    suggestions: Sequence[Suggestion] = (),
    assume: Mapping[str, float] | None = None,
) -> MovementReport:
    """What ``program`` moves for layout's sake on ``target`` (a Target, or the name of one).

    An HLO program brings its own layouts; ``target`` then only names the chip and may be None. ``suggestions`` of rules
    are weighed and ranked with what the report finds itself (:attr:`MovementReport.suggestions`). Of StableHLO with
    shardings it is one device's part that is reported (:func:`tilewright.hlo.partition`). ``assume`` is what
    :func:`estimate` takes. Raises UsageError for
    StableHLO without a target, UnsupportedError for a target without a rule for whole programs, ParseError where an
    operation's shapes contradict each other.
    """
    chip = find_target(target) if isinstance(target, str) else target
    if program.kind == "stablehlo" and chip is None:
        raise UsageError(
            "a StableHLO program carries no layouts, so a target must predict them",
            how="name one, such as tpu-v5e or vector8x128",
        )
    step, context, form = predict(program, chip, assume)
    program, time, lines = context.program, None, defaultdict[str, float](float)
    if step is not None:
        notes = tuple(n for n in step.notes if not n.startswith(UNKNOWN_LOOPS) and n not in program.notes)
        exchange, exposed = step.exchange_seconds * 1e6, step.exposed_seconds * 1e6
        most = tuple(step.waits(3))
        time = TimeSummary(*(step.seconds * 1e6, step.call_seconds * 1e6, step.priced, notes), exchange, exposed, most)
        for timed in step.rows:
            lines[timed.source] += timed.seconds * 1e6
    along = context.fused_along or (fused_along(program) if context.predicted else ())
    tensors, peaks = buffers(context)
    rows = tuple(row for computation in program.computations for row in _rows(context, computation))
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


# What would pay: the changes that rules hand to a report, and those that its own rows tell; most time saved first.

_SMALL = 0.01
"""Share of the step, or of all bytes moved, below which a line of the program is not worth a word."""
_NAMES = frozenset({"bitcast", "copy", "copy-done", "copy-start", "get-tuple-element", "reshape", "transpose"})
"""Operations through which an argument is still that argument, in another order at most."""
_DEEPEST = 16

_INSTEAD = {
    "argument-order": "hand it over in the order it is wanted in, turned once outside and not at every call",
    "cut-by-tile": "leave the dims together, or split off multiples of the tile",
    "dims-order": "let what makes it write it in its readers' order (einsum's result dims), or drop the transpose",
    "repeated-in-memory": "let what reads it repeat it (einsum, plain broadcasting) instead of writing it out",
    "copied-argument": "donate the argument (donate_argnums) if nobody needs it after the call",
    "copied": "read the old array before the new one is written, so that it is updated in place",
}


def with_changes(
    rows: Sequence[MovementRow],
    program: Program,
    time: TimeSummary | None,
    given: Sequence[Suggestion],
    line_us: Mapping[str, float],
    along: Collection[tuple[str, str]] = (),
) -> tuple[Suggestion, ...]:
    """The suggestions of rules with what each saves, and findings about the other rows, most saved first.

    By modelled time where there is a model, then by bytes; what saves neither is left out, and so is a finding about
    rows that a rule takes up.
    ``line_us``: the modelled time of each line of the user's program; ``along``: (computation, operation) of what any
    compiler is expected to fuse, which is no finding, whatever it counts.
    """
    alone = [row for row in rows if (row.path.rpartition(" > ")[2], row.name) not in along]
    own = _findings([row for row in alone if not any(each.concerns(row) for each in given)], rows, program, time)
    suggestions = [*(_weighed(each, rows, line_us) for each in given), *own]
    worth = (each for each in suggestions if each.saved_us or each.saved_bytes)
    return tuple(sorted(worth, key=lambda each: (-(each.saved_us or 0.0), -each.saved_bytes)))


def _weighed(suggestion: Suggestion, rows: Sequence[MovementRow], line_us: Mapping[str, float]) -> Suggestion:
    """With the time and the bytes that its rows give, where it does not say itself; without an operation its line's."""
    about = [row for row in rows if suggestion.concerns(row)]
    saved, count = suggestion.saved_us, suggestion.saved_bytes
    timed = [row.modelled_us for row in about if row.modelled_us is not None]
    if not suggestion.op and suggestion.source in line_us:
        timed = [line_us[suggestion.source]]
    if saved is None and timed and suggestion.factor:
        saved = sum(timed) * (1 - 1 / suggestion.factor)
    source = suggestion.source or next((row.source for row in about if row.source), "")
    share = 1 - 1 / suggestion.factor if suggestion.factor else 1.0
    saved_bytes = count * _times(about, count) or round(sum(row.total_bytes for row in about) * share)
    return replace(suggestion, saved_us=saved, saved_bytes=saved_bytes, source=source)


def _times(rows: Sequence[MovementRow], count: int) -> int:
    """How often bytes that ``optimize`` counts once are saved: it puts calls in place, but not the trips of a loop."""
    runs = {row.runs for row in rows if row.moved_bytes}
    return runs.pop() if len(runs) == 1 and count <= sum(row.moved_bytes for row in rows) else 1


def _findings(
    rows: Sequence[MovementRow], everything: Sequence[MovementRow], program: Program, time: TimeSummary | None
) -> list[Suggestion]:
    """One for each line of the program and kind of movement that takes more than a hundredth."""
    groups, entry = defaultdict[tuple[str, str], list[MovementRow]](list), program.entry
    for row in rows:
        if row.moved_bytes and (rule := _rule(row, entry)):
            groups[row.source or row.name, rule].append(row)
    found = [_finding(rule, group, entry) for (_, rule), group in groups.items()]
    whole = time.device_us if time is not None else sum(row.total_bytes for row in everything)
    return [each for each in found if ((each.saved_us or 0.0) if time else each.saved_bytes) > _SMALL * whole]


def _rule(row: MovementRow, entry: Computation) -> str:
    """Which of the advices meets a row, "" for none: prefetches are the compiler's own, parts have to be taken."""
    if row.category == "relayout":
        if _argument_of(row, entry):
            return "argument-order"
        return "cut-by-tile" if " is cut by the tile " in row.reason or "are cut by" in row.reason else "dims-order"
    if row.category == "repeat" and not row.from_layout.partition("]")[0].endswith("["):  # a scalar has to be spread
        return "repeated-in-memory"
    if row.category == "duplicate":
        return "copied-argument" if _argument_of(row, entry) else "copied"
    return ""


def _finding(rule: str, rows: list[MovementRow], entry: Computation) -> Suggestion:
    dearest = max(rows, key=lambda row: (row.modelled_us or 0.0, row.total_bytes))
    timed = [row.modelled_us for row in rows if row.modelled_us is not None]
    moved = sum(row.total_bytes for row in rows)
    many = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    name = _argument_of(dearest, entry)
    of = f" of the argument {name}" if name else ""
    return Suggestion(
        dearest.name,
        rule,
        factor=None,
        kind="predicted" if dearest.predicted else "modelled",
        how=_INSTEAD[rule],
        source=dearest.source,
        what=f"{dearest.op} {dearest.name}{of}{many}",
        also=tuple(row.name for row in rows if row is not dearest),
        saved_us=sum(timed) if timed else None,
        saved_bytes=moved,
    )


def _argument_of(row: MovementRow, entry: Computation) -> str:
    """The argument of the program that an operation moves as it came in; "" if the row moves something else."""
    op = entry.named.get(row.name) if row.path == entry.name else None
    for _ in range(_DEEPEST):
        if op is None or not op.operands or not (op.name == row.name or plain_opcode(op.opcode) in _NAMES):
            return ""
        op = entry.named.get(op.operands[0])
        if op is not None and op.opcode == "parameter":
            return op.op_name or op.name
    return ""
