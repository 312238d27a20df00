"""Two runs, or two embedding plans, written as JSON: what `tilewright diff` says of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.cli.streams import emit_json, emit_text, read_text, remark, show_table, write_file, writer_of
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.render import Better, Html, Kind, Tone

Plain = Mapping[str, Any]


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
    return value if isinstance(value, dict) and value.get("kind") in _KINDS else None


def compare_figures(sides: tuple[Plain, Plain], names: tuple[str, str], output: str | None, as_json: bool) -> None:
    """Print the comparison, or write it as a page or as JSON."""
    kind = sides[0]["kind"]
    compared = Compared(kind, *names, tuple(_changes(kind, *sides)), _rows(kind, *sides))
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
        _print(compared)


@dataclass(frozen=True)
class Quantity:
    """A number of both sides: what it is called, how it is written, which way is better, and where it stands."""

    name: str
    kind: Kind
    better: Better
    of: Callable[[Plain], Any]


@dataclass(frozen=True)
class Change:
    """A quantity before and after; None where a side does not have it."""

    name: str
    kind: Kind
    better: Better
    before: float | None
    after: float | None

    @property
    def tone(self) -> Tone:
        """Whether the change is for the better."""
        if self.before is None or self.after is None or self.before == self.after or self.better == "neither":
            return "plain"
        return "good" if (self.after < self.before) == (self.better == "less") else "bad"


@dataclass(frozen=True)
class Compared:
    """Two files of one kind: the quantities, and rows (tables, stages) that differ, of each the name in front."""

    kind: str
    before: str
    after: str
    changes: tuple[Change, ...]
    rows: tuple[tuple[str, Change], ...]

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
        return {**head, "changes": values, "rows": rows}


def _value(change: Change) -> dict[str, Any]:
    verdict = {"good": "better", "bad": "worse"}.get(change.tone, "neither")
    return {"name": change.name, "before": change.before, "after": change.after, "verdict": verdict}


def _at(*path: str) -> Callable[[Plain], Any]:
    """The value at a path of keys; None where it ends before."""

    def value(side: Plain) -> Any:
        found: Any = side
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    return value


def _within(outer: str, find: Callable[[Plain], Any]) -> Callable[[Plain], Any]:
    return lambda side: find(side.get(outer) or {})


def _most(table: str, key: str) -> Callable[[Plain], Any]:
    return lambda side: max((row[key] for row in side.get(table, ()) if row.get(key) is not None), default=None)


def _sum(table: str, *path: str) -> Callable[[Plain], Any]:
    value = _at(*path)
    return lambda side: sum(value(row) or 0 for row in side[table]) if table in side else None


def _step(side: Plain) -> Any:
    parts = side.get("modelled_step") or {}
    return max(parts.get("dense_seconds") or 0.0, parts.get("sparse_seconds") or 0.0) or None


_PLAN = (
    Quantity("HBM a chip", "bytes", "less", _at("hbm_per_chip", "total_bytes")),
    Quantity("tables a chip", "bytes", "less", _at("hbm_per_chip", "tables_bytes")),
    Quantity("optimizer slots a chip", "bytes", "less", _at("hbm_per_chip", "slots_bytes")),
    Quantity("buffers of a batch, one device", "bytes", "less", _sum("stacks", "buffer_bytes_per_device")),
    Quantity("max ids per partition, all stacks", "count", "less", _sum("stacks", "limits", "max_ids_per_partition")),
    Quantity("imbalance, largest", "ratio", "less", _most("stacks", "imbalance")),
    Quantity("entries dropped, largest share", "percent", "less", _most("stacks", "drop_rate")),
    Quantity("batches over the limits", "percent", "less", _at("batches_over")),
    Quantity("bytes a step moves, a chip", "bytes", "less", _at("feeding", "step_bytes_per_chip")),
    Quantity("a step's lookups, at least", "seconds", "less", _at("feeding", "step_seconds_at_least")),
    Quantity("chips", "count", "neither", _at("topology", "chips")),
    Quantity("samples a batch", "count", "neither", _at("batch")),
)
_RUN = (
    Quantity("a step, modelled", "seconds", "less", _step),
    Quantity("TensorCore, modelled", "seconds", "less", _at("modelled_step", "dense_seconds")),
    Quantity("SparseCores, modelled", "seconds", "less", _at("modelled_step", "sparse_seconds")),
    Quantity("AUC after training", "number", "more", _at("auc_after")),
    Quantity("loss after training", "number", "less", _at("loss_after")),
    Quantity("largest difference of the proof", "number", "less", _at("max_difference")),
    Quantity("steps", "count", "neither", _at("steps")),
    Quantity("peak memory of this machine", "bytes", "less", _at("peak_rss_bytes")),
)
_WORDS = {"run": "a run", "embedding_plan": "an embedding plan"}
_KINDS: dict[str, tuple[Quantity, ...]] = {
    "embedding_plan": _PLAN,
    "run": (*_RUN, *(Quantity(q.name, q.kind, q.better, _within("plan", q.of)) for q in _PLAN)),
}


def _changes(kind: str, before: Plain, after: Plain) -> Iterator[Change]:
    for quantity in _KINDS[kind]:
        sides = quantity.of(before), quantity.of(after)
        if any(side is not None for side in sides):
            yield Change(quantity.name, quantity.kind, quantity.better, *sides)
    for target in dict.fromkeys([*before.get("moved", {}), *after.get("moved", {})]):
        find = _at("moved", target, "moved_after")
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


def _print(compared: Compared) -> None:
    from tilewright.render import change_text, format_value

    def line(change: Change) -> tuple[object, ...]:
        known = change.before is not None and change.after is not None
        text = change_text(change.before, change.after, change.kind) if known else ""  # type: ignore[arg-type]
        word = {"good": "better", "bad": "worse"}.get(change.tone, "")
        return (change.name, *(format_value(v, change.kind) for v in (change.before, change.after)), text, word)

    emit_text(compared.sentence + "\n")
    show_table(("", "before", "after", "change", ""), [line(change) for change in compared.changes])


def _page(compared: Compared) -> str:
    from tilewright.render import Column, Page, Step, change_text, format_value, note, place_text, steps, table

    names = {"run": "Two runs", "embedding_plan": "Two embedding plans"}
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
    page.section("look", "What to look at", steps(look) if look else note("Nothing got better or worse."))
    columns = (Column("quantity"), Column("before", "number"), Column("after", "number"), Column("change", "number"))
    page.section("quantities", "Every quantity", table(columns, [_cells(change) for change in compared.changes]))
    if compared.rows:
        wide = (Column("of"), *columns)
        rows = [(name, *_cells(change)) for name, change in compared.rows]
        page.section("rows", "What differs inside", table(wide, rows))
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
