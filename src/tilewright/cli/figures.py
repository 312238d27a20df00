"""`tilewright diff` of two reports written as JSON: embedding plans, runs of a recommender, runs of a program.

Of runs of a program on a target (``tilewright run PROGRAM``) also layers, memory and checks are compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tilewright.cli.streams import read_text
from tilewright.errors import UsageError
from tilewright.render.deliver import Line, Output, deliver, remark
from tilewright.render.formats import Kind, format_value, place_text
from tilewright.render.markup import Sortable, escape
from tilewright.render.page import Page, Step, Tone, note, steps
from tilewright.render.tables import Better, Heading, Table, change_cell, change_text, table

Plain = Mapping[str, Any]
Find = Callable[[Plain], Any]


@dataclass(frozen=True)
class Quantity:
    """A number of both sides: its name, how it is written, which way is better, and where it stands in a report."""

    name: str
    kind: Kind
    better: Better
    of: Find


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

    @property
    def difference(self) -> float:
        """How much the two differ, with one that is missing taken for 0."""
        return abs((self.after or 0.0) - (self.before or 0.0))

    @property
    def text(self) -> str:
        """The difference with its sign and as a share; "" where a side is unknown."""
        return "" if self.before is None or self.after is None else change_text(self.before, self.after, self.kind)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        verdict = {"good": "better", "bad": "worse"}.get(self.tone, "neither")
        return {"name": self.name, "before": self.before, "after": self.after, "verdict": verdict}

    def line(self) -> tuple[object, ...]:
        """A row in the terminal."""
        before, after = (format_value(value, self.kind) for value in (self.before, self.after))
        return self.name, before, after, self.text, {"good": "better", "bad": "worse"}.get(self.tone, "")

    def cells(self) -> tuple[object, ...]:
        """A row of a page."""
        before, after = (Sortable(escape(format_value(v, self.kind)), v) for v in (self.before, self.after))
        return self.name, before, after, change_cell(self.before, self.after, self.kind, better=self.better)


@dataclass(frozen=True)
class Statement:
    """What is said of something before and after; None where a side says nothing of it."""

    of: str
    before: str | None
    after: str | None


_NAMES = {
    "run": ("a run", "Two runs"),
    "embedding_plan": ("an embedding plan", "Two embedding plans"),
    "program_run": ("a program's run on a target", "Two runs of programs"),
}


@dataclass(frozen=True)
class Compared:
    """Two reports of one kind: quantities, and rows (tables, stages, layers) that differ, of each the name in front.

    Of programs on a target also what is ``said`` differently, and ``notes`` on what the comparison is worth. The
    terminal shows at most ``top`` rows.
    """

    kind: str
    before: str
    after: str
    changes: tuple[Change, ...]
    rows: tuple[tuple[str, Change], ...]
    said: tuple[Statement, ...] = ()
    notes: tuple[str, ...] = ()
    top: int = 20

    @property
    def sentence(self) -> str:
        """How many quantities got better and worse."""
        tones = [change.tone for change in self.changes]
        same = sum(change.before == change.after for change in self.changes)
        return f"{tones.count('good')} better, {tones.count('bad')} worse, {same} the same"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        head = {"schema_version": 1, "kind": f"{self.kind}_diff", "before": self.before, "after": self.after}
        rows = [{"of": name, **change.to_json()} for name, change in self.rows]
        value = {**head, "changes": [change.to_json() for change in self.changes], "rows": rows}
        if self.kind == "program_run":
            value |= {"said": [asdict(each) for each in self.said], "notes": list(self.notes)}
        return value

    def lines(self) -> Iterator[Line]:
        """The quantities; of programs also what differs inside."""
        yield f"{self.sentence}\n"
        yield Table(("", "before", "after", "change", ""), [change.line() for change in self.changes])
        if self.kind != "program_run":
            return
        if self.rows:
            yield ""
            rows = [(of, *change.line()) for of, change in self.rows[: self.top]]
            yield Table(("figure", "layer", "before", "after", "change", ""), rows)
        for said in self.said[: self.top]:
            yield f"\n{said.of}\n  before: {said.before or '-'}\n  after:  {said.after or '-'}"
        if (most := max(len(self.rows), len(self.said))) > self.top:
            yield f"\nmore is different (--top {most} shows all)"

    def page(self) -> str:
        """What got worse first, then every quantity and what differs inside."""
        facts = [("before", place_text(self.before)), ("after", place_text(self.after))]
        page = Page(f"{_NAMES[self.kind][1]} beside each other", self.sentence, facts=facts)
        found = steps(self._steps()) or note("Nothing got better or worse.")
        page.section("look", "What to look at", *map(note, self.notes), found)
        columns: tuple[Heading, ...] = ("quantity", ("before", "number"), ("after", "number"), ("change", "number"))
        page.section("quantities", "Every quantity", table(columns, [change.cells() for change in self.changes]))
        if self.rows:
            first = ("figure", "layer") if self.kind == "program_run" else ("of", "quantity")
            rows = [(name, *change.cells()) for name, change in self.rows]
            page.section("rows", "What differs inside", table((*first, *columns[1:]), rows))
        if self.said:
            said = [(each.of, each.before, each.after) for each in self.said]
            page.section("said", "Memory, checks, places", table(("of", "before", "after"), said))
        page.data("diff", self.to_json())
        return page.html()

    def _steps(self) -> Iterator[Step]:
        """The five changes that matter most: those for the worse first, by their share of what was before."""

        def rank(change: Change) -> tuple[bool, float]:
            share = change.difference / abs(change.before) if change.before else float("inf")
            return change.tone != "bad", -share

        for change in sorted((each for each in self.changes if each.tone != "plain"), key=rank)[:5]:
            before, after = (format_value(value, change.kind) for value in (change.before, change.after))
            yield Step(f"{change.name}: {before} before, {after} after", worth=change.text, tone=change.tone)


def both_reports(before: str, after: str) -> tuple[Plain, Plain] | None:
    """The contents of two files that hold runs or plans; None where the first is something else."""
    first = _report(before)
    if first is None:
        return None
    second = _report(after)
    if second is None or first["kind"] != second["kind"]:
        problem = f"the one is {_NAMES[first['kind']][0]}, the other is not"
        raise UsageError(problem, where=after, how="compare two files of one kind")
    return first, second


def _report(path: str) -> Plain | None:
    if not path.endswith(".json"):
        return None
    try:
        value = json.loads(read_text(path))
    except ValueError:
        return None
    return value if isinstance(value, dict) and value.get("kind") in _NAMES else None


def compare_reports(
    sides: tuple[Plain, Plain], names: tuple[str, str], path: str | None, as_json: bool, top: int
) -> None:
    """Print the comparison, of its rows the first ``top``, or write it as a page or as JSON."""
    compared = _compared(sides, names, top)
    for text in compared.notes:
        remark(f"note: {text}")
    deliver(compared, Output(path, as_json, ".json", ".html"), said=[compared.sentence])


def _compared(sides: tuple[Plain, Plain], names: tuple[str, str], top: int) -> Compared:
    kind = sides[0]["kind"]
    if kind != "program_run":
        return Compared(kind, *names, tuple(_changes(kind, *sides)), _rows(kind, *sides), top=top)
    notes = tuple(_caveats(*sides))
    try:
        changes, rows = tuple(_changes(kind, *sides)), layers(*sides)
        return Compared(kind, *names, changes, rows, _statements(*sides), notes, top)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = "one of the two is no whole report of a run"
        raise UsageError(problem, where=" ".join(names), how="write it with tilewright run PROGRAM --json") from error


# Where a quantity stands in a report.


def _at(*path: str) -> Find:
    """The value at a path of keys; None where it ends before."""

    def value(side: Plain) -> Any:
        found: Any = side
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    return value


def _if_there(find: Find, then: Callable[[Any], Any]) -> Find:
    """``then`` of what is found, None where nothing is."""
    return lambda side: None if (value := find(side)) is None else then(value)


def _within(outer: str, quantities: tuple[Quantity, ...]) -> Iterator[Quantity]:
    """The quantities of the report that stands under a key of another."""
    for q in quantities:
        yield Quantity(q.name, q.kind, q.better, lambda side, find=q.of: find(_at(outer)(side) or {}))  # type: ignore[misc]


def _largest(table: str, key: str) -> Find:
    """The largest value in a column of a list of rows."""
    return lambda side: max((row[key] for row in side.get(table, ()) if row.get(key) is not None), default=None)


def _total(table: str, *path: str) -> Find:
    """The sum of a column of a list of rows."""
    return lambda side: sum(_at(*path)(row) or 0 for row in side[table]) if table in side else None


def _step_seconds(side: Plain) -> Any:
    parts = side.get("modelled_step") or {}
    return max(parts.get("dense_seconds") or 0.0, parts.get("sparse_seconds") or 0.0) or None


def _modelled(key: str) -> Find:
    """A figure of the modelled step; a matrix unit's step is drawn from its cycles and has no seconds of its own."""
    return lambda side: None if "machine" in side else _at("step", key)(side)


_PLAN = (
    Quantity("HBM a chip", "bytes", "less", _at("hbm_per_chip", "total_bytes")),
    Quantity("tables a chip", "bytes", "less", _at("hbm_per_chip", "tables_bytes")),
    Quantity("optimizer slots a chip", "bytes", "less", _at("hbm_per_chip", "slots_bytes")),
    Quantity("buffers of a batch, one device", "bytes", "less", _total("stacks", "buffer_bytes_per_device")),
    Quantity("max ids per partition, all stacks", "count", "less", _total("stacks", "limits", "max_ids_per_partition")),
    Quantity("imbalance, largest", "ratio", "less", _largest("stacks", "imbalance")),
    Quantity("entries dropped, largest share", "percent", "less", _largest("stacks", "drop_rate")),
    Quantity("batches over the limits", "percent", "less", _at("batches_over")),
    Quantity("bytes a step moves, a chip", "bytes", "less", _at("feeding", "step_bytes_per_chip")),
    Quantity("a step's lookups, at least", "seconds", "less", _at("feeding", "step_seconds_at_least")),
    Quantity("chips", "count", "neither", _at("topology", "chips")),
    Quantity("samples a batch", "count", "neither", _at("batch")),
)
_RUN = (
    Quantity("a step, modelled", "seconds", "less", _step_seconds),
    Quantity("TensorCore, modelled", "seconds", "less", _at("modelled_step", "dense_seconds")),
    Quantity("SparseCores, modelled", "seconds", "less", _at("modelled_step", "sparse_seconds")),
    Quantity("AUC after training", "number", "more", _at("auc_after")),
    Quantity("loss after training", "number", "less", _at("loss_after")),
    Quantity("largest difference of the proof", "number", "less", _at("max_difference")),
    Quantity("steps", "count", "neither", _at("steps")),
    Quantity("peak memory of this machine", "bytes", "less", _at("peak_rss_bytes")),
)
_LEVELS = (
    Quantity(
        f"bytes through {level.upper()}",
        "bytes",
        "less",
        _if_there(_at("machine", "bytes", level), lambda operands: sum(operands.values())),
    )
    for level in ("l1", "l2", "dram")
)
_PROGRAM_RUN = (
    Quantity("a step, cycles", "count", "less", _at("machine", "cycles")),
    Quantity("a step, modelled", "seconds", "less", _modelled("seconds")),
    Quantity("of it the call itself", "seconds", "less", _modelled("call_seconds")),
    Quantity("bytes through HBM", "bytes", "less", _modelled("bytes")),
    Quantity("math units busy", "percent", "more", _at("machine", "math_utilisation")),
    *_LEVELS,
    Quantity("energy, pJ", "number", "less", _at("machine", "energy_pj")),
    Quantity("left to XLA", "percent", "less", _at("machine", "fallback_share")),
    Quantity("moved, as written", "bytes", "less", _at("moved", "before")),
    Quantity("moved, as run", "bytes", "less", _at("moved", "after")),
    Quantity(
        "layers cut into slices",
        "count",
        "less",
        _if_there(_at("layers"), lambda layers: sum(each["cut"] is not None for each in layers)),
    ),
    Quantity("memory asked for at once", "bytes", "less", _at("memory", "need")),
    Quantity("memory there is", "bytes", "neither", _at("memory", "capacity")),
    Quantity("tensors or layers without room", "count", "less", _if_there(_at("memory", "misfits"), len)),
    Quantity(
        "checks that failed",
        "count",
        "less",
        _if_there(_at("verification"), lambda checks: sum(not check["ok"] for check in checks)),
    ),
    Quantity("loss after a step", "number", "less", _at("embeddings", "loss_after")),
    *_within("embeddings", tuple(_within("plan", _PLAN))),
)
_QUANTITIES = {"embedding_plan": _PLAN, "run": (*_RUN, *_within("plan", _PLAN)), "program_run": _PROGRAM_RUN}


def _changes(kind: str, before: Plain, after: Plain) -> Iterator[Change]:
    """Every quantity that a side has, and what was moved for layout, or rewritten, for each target."""
    of_targets = "rewrites" if kind == "program_run" else "moved"
    extra = [
        Quantity(f"rewrites for {target}", "count", "neither", _at("rewrites", target))
        if kind == "program_run"
        else Quantity(f"moved for layout on {target}", "bytes", "less", _at("moved", target, "moved_after"))
        for target in dict.fromkeys([*before.get(of_targets, {}), *after.get(of_targets, {})])
    ]
    for quantity in (*_QUANTITIES[kind], *extra):
        sides = quantity.of(before), quantity.of(after)
        if quantity in extra or any(side is not None for side in sides):
            yield Change(quantity.name, quantity.kind, quantity.better, *sides)


def _rows(kind: str, before: Plain, after: Plain) -> tuple[tuple[str, Change], ...]:
    """Tables whose memory differs, and the stages of a run."""
    plans = [side.get("plan") or side for side in (before, after)]
    tables = [{t["name"]: t["padded_bytes"] for t in plan.get("tables", ())} for plan in plans]
    parts: list[tuple[str, Kind, list[Any]]] = [("table", "bytes", tables)]
    if kind == "run":
        parts.append(("stage", "seconds", [side.get("stages", {}) for side in (before, after)]))
    rows = [
        (what, Change(name, unit, "less", old.get(name), new.get(name)))
        for what, unit, (old, new) in parts
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]
    return tuple(sorted(rows, key=lambda row: (row[0], -row[1].difference)))


# Runs of programs on targets.


def _caveats(before: Plain, after: Plain) -> Iterator[str]:
    """What to know of two sides that differ in program or chip; UsageError where nothing of them can be compared."""
    one, other = (_measured(side) for side in (before, after))
    targets = before.get("target"), after.get("target")
    if one != other:
        raise UsageError(
            f"{targets[0]} {one}, {targets[1]} {other}: times, layers, bytes and memory have no counterpart",
            how="run both programs on one target",
        )
    if targets[0] != targets[1]:
        yield f"two chips, {targets[0]} and {targets[1]}: what differs may be theirs, not the program's"
    if before.get("model") != after.get("model"):
        names = f"{before.get('model')} and {after.get('model')}"
        yield f"two programs, {names}: totals are of different work; layers are paired by what they compute"


def _measured(side: Plain) -> str:
    """What a report of this kind of target measures, in words."""
    if "machine" in side:
        return "counts cycles of layers and pages of L2"
    if "layers" in side:
        return "counts bytes in local memories and no time"
    return "models seconds of operations and HBM"


_FIGURES: dict[str, Kind] = {
    "cycles": "count", "time": "seconds", "bytes": "bytes", "memory": "bytes", "slices": "count"
}  # fmt: skip


@dataclass(frozen=True)
class _Layer:
    """A layer or operation: ``kind`` and ``work`` say what it computes, whatever number its name has."""

    name: str
    label: str
    kind: Hashable
    work: Hashable
    figures: dict[str, float] = field(compare=False)


def layers(before: Plain, after: Plain) -> tuple[tuple[str, Change], ...]:
    """The figures of layers that differ, those of time first, the largest change on top."""
    rows: list[tuple[str, Change]] = []
    for one, other in _paired(list(_layers(before)), list(_layers(after))):
        label = " now ".join(dict.fromkeys(each.label for each in (one, other) if each is not None))
        for name, kind in _FIGURES.items():
            sides = [None if each is None else each.figures.get(name) for each in (one, other)]
            if sides[0] != sides[1]:
                rows.append((name, Change(label, kind, "less", *sides)))
    order = list(_FIGURES)
    return tuple(sorted(rows, key=lambda row: (order.index(row[0]), -row[1].difference)))


def _layers(side: Plain) -> Iterator[_Layer]:
    memory = side.get("memory") or {}
    at_once = dict(zip(memory.get("steps", ()), memory.get("live", ())))
    if "machine" in side:
        for each in side["machine"].get("layers", ()):
            figures = {"cycles": each["cycles"], "bytes": sum(each["bytes"]["dram"].values())}
            if each["name"] in at_once:
                figures["memory"] = at_once[each["name"]]
            yield _Layer(each["name"], each["name"], _unnumbered(each["name"]), each["operations"], figures)
    elif "layers" in side:
        for each in side["layers"]:
            slices = 1 if each["cut"] is None else each["cut"]["slices"]
            figures = {"bytes": each["loads"] + each["stores"], "memory": each["need"], "slices": slices}
            yield _Layer(each["name"], each["name"], _unnumbered(each["name"]), each["alone"], figures)
    else:
        for each in _at("step", "rows")(side) or ():
            line = each["source"].replace("\\", "/").rpartition("/")[2]  # two checkouts of a program lie in two places
            label = f"{each['op']} {each['name']}" + (f", {line}" if line else "")
            figures = {"time": each["seconds"], "bytes": each["bytes"]}
            yield _Layer(each["name"], label, (each["op"], line), each["flops"], figures)


def _unnumbered(name: str) -> str:
    return re.sub(r"_\d+", "", name)


def _paired(before: list[_Layer], after: list[_Layer]) -> Iterator[tuple[_Layer | None, _Layer | None]]:
    """Layers that compute the same, in the order of the side after; last those that only the side before has.

    By name, kind and amount of work; what is left without the name, as numbers shift where a layer was added; then by
    name and kind, as another batch changes all amounts; then by kind.
    """
    partner: dict[int, int] = {}
    taken: set[int] = set()
    for key in (
        lambda each: (each.name, each.kind, each.work),
        lambda each: (each.kind, each.work),
        lambda each: (each.name, each.kind),
        lambda each: each.kind,
    ):
        waiting: dict[Hashable, list[int]] = {}
        for i in reversed(range(len(before))):
            if i not in taken:
                waiting.setdefault(key(before[i]), []).append(i)
        for j, each in enumerate(after):
            if j not in partner and waiting.get(key(each)):
                partner[j] = waiting[key(each)].pop()
                taken.add(partner[j])
    yield from ((before[partner[j]] if j in partner else None, each) for j, each in enumerate(after))
    yield from ((each, None) for i, each in enumerate(before) if i not in taken)


def _statements(before: Plain, after: Plain) -> tuple[Statement, ...]:
    """Bottleneck, whether everything fits, how each check went, where tensors stand: what is said otherwise."""
    sides = (before, after)
    found = [Statement("bottleneck", *(side.get("bottleneck") for side in sides))]
    found.append(Statement("memory", *(_at("memory", "sentence")(side) for side in sides)))
    own = before.get("target") != after.get("target")  # each side's own target stands in the names of its checks
    parts = [("check", [_checks(side, str(side.get("target")) if own else "") for side in sides])]
    parts.append(("no room", [{m["name"]: m["why"] for m in _at("memory", "misfits")(side) or ()} for side in sides]))
    if before.get("model") == after.get("model"):
        parts.append(("place", _places(*sides)))
    for what, (one, other) in parts:
        found += [
            Statement(f"{what}: {name}", one.get(name), other.get(name)) for name in dict.fromkeys([*one, *other])
        ]
    return tuple(each for each in found if each.before != each.after)


def _checks(side: Plain, target: str) -> dict[str, str]:
    """The outcome of each check, its ``target`` left out of the name."""
    outcomes = {}
    for check in side.get("verification", ()):
        name = check["what"].replace(target, "the side's own target") if target else check["what"]
        outcomes[name] = check["said"] if check["ok"] else f"FAILED: {check['said']}"
    return outcomes


def _places(*sides: Plain) -> list[dict[str, str]]:
    """Where the tensors stand that both sides name, and that have one shape."""
    one, other = ({t["name"]: t["place"] for t in _at("memory", "largest")(side) or ()} for side in sides)
    shapes = [{name: place.partition("{")[0] for name, place in side.items() if "{" in place} for side in (one, other)]
    shared = [name for name in one if name in other and shapes[0].get(name) == shapes[1].get(name)]
    return [{name: side[name] for name in shared} for side in (one, other)]
