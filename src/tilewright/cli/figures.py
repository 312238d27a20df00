"""`tilewright diff` of two reports written as JSON: embedding plans, runs of a recommender, runs of a program.

Of runs of a program on a target (``tilewright run PROGRAM``) also layers, memory and checks are compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.cli.streams import read_text
from tilewright.errors import UsageError
from tilewright.render.compare import Change, Comparison, Quantity, Statement, changes, matched, value_at
from tilewright.render.delivery import Output, deliver, remark
from tilewright.render.formats import Kind

Plain = Mapping[str, Any]

_NAMES = {
    "run": ("a run", "Two runs"),
    "embedding_plan": ("an embedding plan", "Two embedding plans"),
    "program_run": ("a program's run on a target", "Two runs of programs"),
}


def _sum_of(key: str) -> Any:
    """The sum of a column of rows."""
    return lambda rows: sum(value_at(row, key) or 0 for row in rows)


def _largest(key: str) -> Any:
    """The largest value in a column of rows."""
    return lambda rows: max((row[key] for row in rows if row.get(key) is not None), default=None)


PLAN = (
    Quantity("HBM a chip", "bytes", "less", "hbm_per_chip.total_bytes"),
    Quantity("tables a chip", "bytes", "less", "hbm_per_chip.tables_bytes"),
    Quantity("optimizer slots a chip", "bytes", "less", "hbm_per_chip.slots_bytes"),
    Quantity("buffers of a batch, one device", "bytes", "less", "stacks", _sum_of("buffer_bytes_per_device")),
    Quantity("max ids per partition, all stacks", "count", "less", "stacks", _sum_of("limits.max_ids_per_partition")),
    Quantity("wait, largest", "ratio", "less", "stacks", _largest("wait")),
    Quantity("imbalance, largest", "ratio", "less", "stacks", _largest("imbalance")),
    Quantity("entries dropped, largest share", "percent", "less", "stacks", _largest("drop_rate")),
    Quantity("batches over the limits", "percent", "less", "batches_over"),
    Quantity("bytes a step moves, a chip", "bytes", "less", "feeding.step_bytes_per_chip"),
    Quantity("a step's lookups and updates, modelled", "seconds", "less", "step_per_chip.waited"),
    Quantity("chips", "count", "neither", "topology.chips"),
    Quantity("samples a batch", "count", "neither", "batch"),
)


def _plan_within(path: str) -> tuple[Quantity, ...]:
    """The quantities of a plan that stands at a path of another report."""
    return tuple(replace(quantity, path=f"{path}.{quantity.path}") for quantity in PLAN)


def _step_seconds(parts: Plain) -> float | None:
    return max(parts.get("dense_seconds") or 0.0, parts.get("sparse_seconds") or 0.0) or None


_RUN = (
    Quantity("a step, modelled", "seconds", "less", "modelled_step", _step_seconds),
    Quantity("TensorCore, modelled", "seconds", "less", "modelled_step.dense_seconds"),
    Quantity("SparseCores, modelled", "seconds", "less", "modelled_step.sparse_seconds"),
    Quantity("AUC after training", "number", "more", "auc_after"),
    Quantity("loss after training", "number", "less", "loss_after"),
    Quantity("largest difference of the proof", "number", "less", "max_difference"),
    Quantity("steps", "count", "neither", "steps"),
    Quantity("peak memory of this machine", "bytes", "less", "peak_rss_bytes"),
    *_plan_within("plan"),
)


_MODELLED = (
    Quantity("a step, modelled", "seconds", "less", "step.device_seconds"),
    Quantity("the call beside it", "seconds", "less", "step.call_seconds"),
    Quantity("bytes through HBM", "bytes", "less", "step.bytes"),
)
_PROGRAM_RUN = (
    Quantity("a step, cycles", "count", "less", "machine.cycles"),
    *_MODELLED,
    Quantity("math units busy", "percent", "more", "machine.math_utilisation"),
    Quantity("bytes through L1", "bytes", "less", "machine.bytes.l1", lambda of: sum(of.values())),
    Quantity("bytes through L2", "bytes", "less", "machine.bytes.l2", lambda of: sum(of.values())),
    Quantity("bytes through DRAM", "bytes", "less", "machine.bytes.dram", lambda of: sum(of.values())),
    Quantity("energy, pJ", "number", "less", "machine.energy_pj"),
    Quantity("left to XLA", "percent", "less", "machine.fallback_share"),
    Quantity("moved, as written", "bytes", "less", "moved.before"),
    Quantity("moved, as run", "bytes", "less", "moved.after"),
    Quantity(
        "layers cut into slices", "count", "less", "layers", lambda of: sum(layer["cut"] is not None for layer in of)
    ),
    Quantity("memory asked for at once", "bytes", "less", "memory.need"),
    Quantity("memory there is", "bytes", "neither", "memory.capacity"),
    Quantity("tensors or layers without room", "count", "less", "memory.misfits", len),
    Quantity("checks that failed", "count", "less", "verification", lambda of: sum(not check["ok"] for check in of)),
    Quantity("loss after a step", "number", "less", "embeddings.loss_after"),
    *_plan_within("embeddings.plan"),
)
_QUANTITIES = {"embedding_plan": PLAN, "run": _RUN, "program_run": _PROGRAM_RUN}


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
    kind, notes = sides[0]["kind"], tuple[str, ...]()
    if kind != "program_run":
        compared = Comparison(kind, _NAMES[kind][1], *names, _changes(kind, *sides), _rows(kind, *sides))
    else:
        notes = tuple(_caveats(*sides))
        try:
            found, rows, said = _changes(kind, *sides), layers(*sides), _statements(*sides)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem, how = "one of the two is no whole report of a run", "write it with tilewright run PROGRAM --json"
            raise UsageError(problem, where=" ".join(names), how=how) from error
        compared = Comparison(kind, _NAMES[kind][1], *names, found, rows, ("figure", "layer"), said, notes, top)
    for text in notes:
        remark(f"note: {text}")
    deliver(compared, Output(path, as_json, ".json", ".html"), said=[compared.sentence])


def _changes(kind: str, *sides: Plain) -> tuple[Change, ...]:
    """Every quantity that a side has, and what was moved for layout, or rewritten, for each target."""
    if kind == "program_run":
        # A matrix unit's step is drawn from its cycles and has no seconds of its own.
        sides = tuple({k: v for k, v in side.items() if k != "step" or "machine" not in side} for side in sides)
    key = "rewrites" if kind == "program_run" else "moved"
    found = list(changes(_QUANTITIES[kind], *sides))
    for target in dict.fromkeys(name for side in sides for name in side.get(key, {})):
        of = [side.get(key, {}).get(target) for side in sides]
        if kind == "program_run":
            found.append(Change(f"rewrites for {target}", "count", "neither", *of))
        else:
            moved = [value_at(each, "moved_after") for each in of]
            found.append(Change(f"moved by reshapes and transposes on {target}", "bytes", "less", *moved))
    return tuple(found)


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


_KEYS: tuple[Callable[[_Layer], Hashable], ...] = (
    lambda each: (each.name, each.kind, each.work),
    lambda each: (each.kind, each.work),
    lambda each: (each.name, each.kind),
    lambda each: each.kind,
)


def layers(before: Plain, after: Plain) -> tuple[tuple[str, Change], ...]:
    """The figures of layers that differ, those of time first, the largest change on top.

    Layers pair by name, kind and amount of work; what is left without the name, as numbers shift where a layer was
    added; then by name and kind, as another batch changes all amounts; then by kind.
    """
    rows: list[tuple[str, Change]] = []
    for one, other in matched(list(_layers(before)), list(_layers(after)), _KEYS):
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
        for each in value_at(side, "step.rows") or ():
            line = each["source"].replace("\\", "/").rpartition("/")[2]  # two checkouts of a program lie in two places
            label = f"{each['op']} {each['name']}" + (f", {line}" if line else "")
            figures = {"time": each["seconds"], "bytes": each["bytes"]}
            yield _Layer(each["name"], label, (each["op"], line), each["flops"], figures)


def _unnumbered(name: str) -> str:
    return re.sub(r"_\d+", "", name)


def _statements(before: Plain, after: Plain) -> tuple[Statement, ...]:
    """Bottleneck, whether everything fits, how each check went, where tensors stand: what is said otherwise."""
    sides = (before, after)
    found = [Statement("bottleneck", *(side.get("bottleneck") for side in sides))]
    found.append(Statement("memory", *(value_at(side, "memory.sentence") for side in sides)))
    own = before.get("target") != after.get("target")  # each side's own target stands in the names of its checks
    parts = [("check", [_checks(side, str(side.get("target")) if own else "") for side in sides])]
    parts.append(("no room", [{m["name"]: m["why"] for m in value_at(side, "memory.misfits") or ()} for side in sides]))
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
    one, other = ({t["name"]: t["place"] for t in value_at(side, "memory.largest") or ()} for side in sides)
    shapes = [{name: place.partition("{")[0] for name, place in side.items() if "{" in place} for side in (one, other)]
    shared = [name for name in one if name in other and shapes[0].get(name) == shapes[1].get(name)]
    return [{name: side[name] for name in shared} for side in (one, other)]
