"""What would pay: the changes that rules hand to a report, and those that its own rows tell; most time saved first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.program import Operation, Program
from tilewright.hlo.reporting.types import MovementRow, Suggestion, TimeSummary

_SMALL = 0.01
"""Share of the step, or of all bytes moved, below which a line of the program is not worth a word."""
_NAMES = frozenset({"bitcast", "copy", "copy-done", "copy-start", "get-tuple-element", "reshape", "transpose"})
"""Operations through which an argument is still that argument, in another order at most."""
_DEEPEST = 16

_HOW = {
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
    groups: dict[tuple[str, str], list[MovementRow]] = defaultdict(list)
    arguments = _Arguments(program)
    for row in rows:
        if row.moved_bytes and (rule := _rule(row, arguments)):
            groups[row.source or row.name, rule].append(row)
    found = [_finding(rule, group, arguments) for (_, rule), group in groups.items()]
    whole = time.device_us if time is not None else sum(row.total_bytes for row in everything)
    return [each for each in found if ((each.saved_us or 0.0) if time else each.saved_bytes) > _SMALL * whole]


def _rule(row: MovementRow, arguments: _Arguments) -> str:
    """Which of the advices meets a row, "" for none: prefetches are the compiler's own, parts have to be taken."""
    if row.category == "relayout":
        if arguments.of(row):
            return "argument-order"
        return "cut-by-tile" if " is cut by the tile " in row.reason or "are cut by" in row.reason else "dims-order"
    if row.category == "repeat" and not row.from_layout.partition("]")[0].endswith("["):  # a scalar has to be spread
        return "repeated-in-memory"
    if row.category == "duplicate":
        return "copied-argument" if arguments.of(row) else "copied"
    return ""


def _finding(rule: str, rows: list[MovementRow], arguments: _Arguments) -> Suggestion:
    dearest = max(rows, key=lambda row: (row.modelled_us or 0.0, row.total_bytes))
    timed = [row.modelled_us for row in rows if row.modelled_us is not None]
    moved = sum(row.total_bytes for row in rows)
    many = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    name = arguments.of(dearest)
    of = f" of the argument {name}" if name else ""
    return Suggestion(
        dearest.name,
        rule,
        factor=None,
        kind="predicted" if dearest.predicted else "modelled",
        how=_HOW[rule],
        source=dearest.source,
        what=f"{dearest.op} {dearest.name}{of}{many}",
        also=tuple(row.name for row in rows if row is not dearest),
        saved_us=sum(timed) if timed else None,
        saved_bytes=moved,
    )


class _Arguments:
    """Which argument of the program an operation moves, if it moves one as it came in."""

    def __init__(self, program: Program) -> None:
        self.entry = program.entry.name
        self.named = {op.name: op for op in program.entry.operations}

    def of(self, row: MovementRow) -> str:
        """The argument's name, "" if the row moves something else."""
        op: Operation | None = self.named.get(row.name) if row.path == self.entry else None
        for _ in range(_DEEPEST):
            if op is None or not op.operands or not (op.name == row.name or plain_opcode(op.opcode) in _NAMES):
                return ""
            op = self.named.get(op.operands[0])
            if op is not None and op.opcode == "parameter":
                return op.op_name or op.name
        return ""
