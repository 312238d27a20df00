"""Two runs, or two embedding plans, written as JSON: what `tilewright diff` says of them.

A run of a recommender (kind ``run``) and of a program on a target (``program_run``) are two kinds of report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tilewright.cli import program_runs
from tilewright.cli.quantities import PLAN, Change, Plain, Quantity, Sentence, at, within
from tilewright.cli.streams import emit_json, emit_text, read_text, remark, show_table, write_file, writer_of
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.render import Html


def both_figures(before: str, after: str) -> tuple[Plain, Plain] | None:
    """The contents of two files that hold runs or plans; None where the first is something else."""
    first = _figures(before)
    if first is None:
        return None
    second = _figures(after)
    if second is None or first["kind"] != second["kind"]:
        kind = _WORDS[first["kind"]]
        raise UsageError(f"the one is {kind}, the other is not", where=after, how="compare two files of one kind")
    return first, second


def _figures(path: str) -> Plain | None:
    if not path.endswith(".json"):
        return None
    try:
        value = json.loads(read_text(path))
    except ValueError:
        return None
    return value if isinstance(value, dict) and value.get("kind") in _WORDS else None


def compare_figures(
    sides: tuple[Plain, Plain], names: tuple[str, str], output: str | None, as_json: bool, top: int
) -> None:
    """Print the comparison, of its rows the first ``top``, or write it as a page or as JSON."""
    compared = _compared(sides, names)
    for text in compared.notes:
        remark(f"note: {text}")
    suffix = writer_of(output, ".json", ".html", as_json=as_json)
    if output and output != "-":
        if suffix == ".json":
            emit_json(compared.to_json(), output)
        else:
            write_file(output, _page(compared))
        remark(compared.sentence)
        remark(f"wrote {output}")
    if as_json or output == "-":
        emit_json(compared.to_json())
    elif not output:
        _print(compared, top)


def _compared(sides: tuple[Plain, Plain], names: tuple[str, str]) -> Compared:
    kind = sides[0]["kind"]
    if kind != "program_run":
        return Compared(kind, *names, tuple(_changes(kind, *sides)), _rows(kind, *sides))
    notes = tuple(program_runs.comparable(*sides))
    try:
        changes, rows = tuple(program_runs.totals(*sides)), program_runs.layers(*sides)
        return Compared(kind, *names, changes, rows, program_runs.sentences(*sides), notes)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = "one of the two is no whole report of a run"
        raise UsageError(problem, where=" ".join(names), how="write it with tilewright run PROGRAM --json") from error


@dataclass(frozen=True)
class Compared:
    """Two files of one kind: the quantities, and rows (tables, stages, layers) that differ, of each the name in front.

    Of programs on a target also what is ``said`` differently, and ``notes`` on what the comparison is worth.
    """

    kind: str
    before: str
    after: str
    changes: tuple[Change, ...]
    rows: tuple[tuple[str, Change], ...]
    said: tuple[Sentence, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """How many quantities got better and worse."""
        tones = [change.tone for change in self.changes]
        same = sum(change.before == change.after for change in self.changes)
        return f"{tones.count('good')} better, {tones.count('bad')} worse, {same} the same"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        values = [{**_value(change)} for change in self.changes]
        rows = [{"of": name, **_value(change)} for name, change in self.rows]
        head = {"schema_version": 1, "kind": f"{self.kind}_diff", "before": self.before, "after": self.after}
        more = {"said": [asdict(each) for each in self.said], "notes": list(self.notes)}
        return {**head, "changes": values, "rows": rows, **(more if self.kind == "program_run" else {})}


def _value(change: Change) -> dict[str, Any]:
    verdict = {"good": "better", "bad": "worse"}.get(change.tone, "neither")
    return {"name": change.name, "before": change.before, "after": change.after, "verdict": verdict}


def _step(side: Plain) -> Any:
    parts = side.get("modelled_step") or {}
    return max(parts.get("dense_seconds") or 0.0, parts.get("sparse_seconds") or 0.0) or None


_RUN = (
    Quantity("a step, modelled", "seconds", "less", _step),
    Quantity("TensorCore, modelled", "seconds", "less", at("modelled_step", "dense_seconds")),
    Quantity("SparseCores, modelled", "seconds", "less", at("modelled_step", "sparse_seconds")),
    Quantity("AUC after training", "number", "more", at("auc_after")),
    Quantity("loss after training", "number", "less", at("loss_after")),
    Quantity("largest difference of the proof", "number", "less", at("max_difference")),
    Quantity("steps", "count", "neither", at("steps")),
    Quantity("peak memory of this machine", "bytes", "less", at("peak_rss_bytes")),
)
_WORDS = {
    "run": "a run",
    "embedding_plan": "an embedding plan",
    "program_run": "a program's run on a target",
}
_KINDS: dict[str, tuple[Quantity, ...]] = {
    "embedding_plan": PLAN,
    "run": (*_RUN, *(Quantity(q.name, q.kind, q.better, within("plan", q.of)) for q in PLAN)),
}


def _changes(kind: str, before: Plain, after: Plain) -> Iterator[Change]:
    for quantity in _KINDS[kind]:
        sides = quantity.of(before), quantity.of(after)
        if any(side is not None for side in sides):
            yield Change(quantity.name, quantity.kind, quantity.better, *sides)
    for target in dict.fromkeys([*before.get("moved", {}), *after.get("moved", {})]):
        find = at("moved", target, "moved_after")
        yield Change(f"moved for layout on {target}", "bytes", "less", find(before), find(after))


def _rows(kind: str, before: Plain, after: Plain) -> tuple[tuple[str, Change], ...]:
    """Tables whose memory differs, and the stages of a run."""
    plans = [side.get("plan") or side for side in (before, after)]
    parts = [("table", "bytes", [{t["name"]: t["padded_bytes"] for t in plan.get("tables", ())} for plan in plans])]
    if kind == "run":
        parts.append(("stage", "seconds", [side.get("stages", {}) for side in (before, after)]))
    rows = []
    for what, unit, (old, new) in parts:
        for name in dict.fromkeys([*old, *new]):
            if old.get(name) != new.get(name):
                rows.append((what, Change(name, unit, "less", old.get(name), new.get(name))))  # type: ignore[arg-type]
    return tuple(sorted(rows, key=lambda row: (row[0], -abs((row[1].after or 0) - (row[1].before or 0)))))


def _print(compared: Compared, top: int) -> None:
    from tilewright.render import change_text, format_value

    def line(change: Change) -> tuple[object, ...]:
        known = change.before is not None and change.after is not None
        text = change_text(change.before, change.after, change.kind) if known else ""  # type: ignore[arg-type]
        word = {"good": "better", "bad": "worse"}.get(change.tone, "")
        return (change.name, *(format_value(v, change.kind) for v in (change.before, change.after)), text, word)

    emit_text(compared.sentence + "\n")
    show_table(("", "before", "after", "change", ""), [line(change) for change in compared.changes])
    if compared.kind != "program_run":
        return
    if compared.rows:
        emit_text("")
        rows = [(of, *line(change)) for of, change in compared.rows[:top]]
        show_table(("figure", "layer", "before", "after", "change", ""), rows)
    for said in compared.said[:top]:
        emit_text(f"\n{said.of}\n  before: {said.before or '-'}\n  after:  {said.after or '-'}")
    if (most := max(len(compared.rows), len(compared.said))) > top:
        emit_text(f"\nmore is different (--top {most} shows all)")


def _page(compared: Compared) -> str:
    from tilewright.render import Column, Page, Step, change_text, format_value, note, place_text, steps, table

    names = {"run": "Two runs", "embedding_plan": "Two embedding plans", "program_run": "Two runs of programs"}
    facts = [("before", place_text(compared.before)), ("after", place_text(compared.after))]
    page = Page(f"{names[compared.kind]} beside each other", compared.sentence, facts=facts)
    judged = [change for change in compared.changes if change.tone != "plain"]
    judged.sort(key=lambda change: (change.tone != "bad", -_share(change)))
    look = [
        Step(
            f"{change.name}: {format_value(change.before, change.kind)} before, "
            f"{format_value(change.after, change.kind)} after",
            worth=change_text(change.before or 0, change.after or 0, change.kind),
            tone=change.tone,
        )
        for change in judged[:5]
    ]
    found = steps(look) if look else note("Nothing got better or worse.")
    page.section("look", "What to look at", *map(note, compared.notes), found)
    columns = (Column("quantity"), Column("before", "number"), Column("after", "number"), Column("change", "number"))
    page.section("quantities", "Every quantity", table(columns, [_cells(change) for change in compared.changes]))
    if compared.rows:
        first = (Column("figure"), Column("layer")) if compared.kind == "program_run" else (Column("of"), columns[0])
        wide = (*first, *columns[1:])
        rows = [(name, *_cells(change)) for name, change in compared.rows]
        page.section("rows", "What differs inside", table(wide, rows))
    if compared.said:
        said = [(each.of, each.before, each.after) for each in compared.said]
        page.section("said", "Memory, checks, places", table((Column("of"), Column("before"), Column("after")), said))
    page.data("diff", compared.to_json())
    return page.html()


def _share(change: Change) -> float:
    """How large a change is beside what was before."""
    old, new = change.before or 0.0, change.after or 0.0
    return abs(new - old) / abs(old) if old else float("inf")


def _cells(change: Change) -> tuple[object, ...]:
    from tilewright.render import Sortable, change_cell, escape, format_value

    def value(number: float | None) -> Html:
        return Sortable(escape(format_value(number, change.kind)), number)

    cell = change_cell(change.before, change.after, change.kind, better=change.better)
    return change.name, value(change.before), value(change.after), cell
