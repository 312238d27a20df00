"""Two runs of programs on targets (`tilewright run PROGRAM`), side by side: totals, layers, memory and checks."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilewright.cli.quantities import PLAN, Change, Find, Plain, Quantity, Sentence, at, held, within
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.render import Kind


def comparable(before: Plain, after: Plain) -> Iterator[str]:
    """What to know of two sides that differ in program or chip; UsageError where nothing of them can be compared."""
    one, other = (_measure(side) for side in (before, after))
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


def _measure(side: Plain) -> str:
    """What a kind of target gives, in words."""
    if "machine" in side:
        return "counts cycles of layers and pages of L2"
    if "layers" in side:
        return "counts bytes in local memories and no time"
    return "models seconds of operations and HBM"


# Totals.


def _levels(level: str) -> Quantity:
    return Quantity(f"bytes through {level.upper()}", "bytes", "less", lambda side: _total(side, level))


def _total(side: Plain, level: str) -> Any:
    return held(at("machine", "bytes", level)(side), lambda operands: sum(operands.values()))


def _modelled(key: str) -> Find:
    """A figure of the modelled step; a matrix unit's step is drawn from its cycles and has no seconds of its own."""
    return lambda side: None if "machine" in side else at("step", key)(side)


def _cut(side: Plain) -> Any:
    return held(side.get("layers"), lambda layers: sum(each["cut"] is not None for each in layers))


def _failed(checks: list[Plain]) -> int:
    return sum(not check["ok"] for check in checks)


_TOTALS = (
    Quantity("a step, cycles", "count", "less", at("machine", "cycles")),
    Quantity("a step, modelled", "seconds", "less", _modelled("seconds")),
    Quantity("of it the call itself", "seconds", "less", _modelled("call_seconds")),
    Quantity("bytes through HBM", "bytes", "less", _modelled("bytes")),
    Quantity("math units busy", "percent", "more", at("machine", "math_utilisation")),
    *(_levels(level) for level in ("l1", "l2", "dram")),
    Quantity("energy, pJ", "number", "less", at("machine", "energy_pj")),
    Quantity("left to XLA", "percent", "less", at("machine", "fallback_share")),
    Quantity("moved, as written", "bytes", "less", at("moved", "before")),
    Quantity("moved, as run", "bytes", "less", at("moved", "after")),
    Quantity("layers cut into slices", "count", "less", _cut),
    Quantity("memory asked for at once", "bytes", "less", at("memory", "need")),
    Quantity("memory there is", "bytes", "neither", at("memory", "capacity")),
    Quantity("tensors or layers without room", "count", "less", lambda side: held(at("memory", "misfits")(side), len)),
    Quantity("checks that failed", "count", "less", lambda side: held(side.get("verification"), _failed)),
    Quantity("loss after a step", "number", "less", at("embeddings", "loss_after")),
    *(
        Quantity(q.name, q.kind, q.better, within("embeddings", within("plan", q.of)))
        for q in PLAN
    ),
)  # fmt: skip


def totals(before: Plain, after: Plain) -> Iterator[Change]:
    """Every figure that a side has, and the rewrites of each target."""
    for quantity in _TOTALS:
        sides = quantity.of(before), quantity.of(after)
        if any(side is not None for side in sides):
            yield Change(quantity.name, quantity.kind, quantity.better, *sides)
    for target in dict.fromkeys([*before.get("rewrites", {}), *after.get("rewrites", {})]):
        find = at("rewrites", target)
        yield Change(f"rewrites for {target}", "count", "neither", find(before), find(after))


# Layers.

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
    return tuple(sorted(rows, key=lambda row: (order.index(row[0]), -abs((row[1].after or 0) - (row[1].before or 0)))))


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
        for each in at("step", "rows")(side) or ():
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


# What is said.


def sentences(before: Plain, after: Plain) -> tuple[Sentence, ...]:
    """Bottleneck, whether everything fits, how each check went, where tensors stand: what is said otherwise."""
    sides = (before, after)
    found = [Sentence("bottleneck", *(side.get("bottleneck") for side in sides))]
    found.append(Sentence("memory", *(at("memory", "sentence")(side) for side in sides)))
    own = before.get("target") != after.get("target")  # each side's own target stands in the names of its checks
    names = [str(side.get("target")) if own else "" for side in sides]
    checks = [{_named(c["what"], name): _outcome(c) for c in side.get("verification", ())}
              for side, name in zip(sides, names)]  # fmt: skip
    found += _each("check", checks)
    found += _each("no room", [{m["name"]: m["why"] for m in at("memory", "misfits")(side) or ()} for side in sides])
    if before.get("model") == after.get("model"):
        found += _each("place", _places(*sides))
    return tuple(each for each in found if each.before != each.after)


def _named(check: str, target: str) -> str:
    return check.replace(target, "the side's own target") if target else check


def _places(*sides: Plain) -> list[dict[str, str]]:
    """Where the tensors stand that both sides name, and that have one shape."""
    one, other = ({t["name"]: t["place"] for t in at("memory", "largest")(side) or ()} for side in sides)
    shapes = [{name: place.partition("{")[0] for name, place in side.items() if "{" in place} for side in (one, other)]
    shared = [name for name in one if name in other and shapes[0].get(name) == shapes[1].get(name)]
    return [{name: side[name] for name in shared} for side in (one, other)]


def _each(what: str, sides: list[dict[str, str]]) -> Iterator[Sentence]:
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        yield Sentence(f"{what}: {name}", sides[0].get(name), sides[1].get(name))


def _outcome(check: Plain) -> str:
    return check["said"] if check["ok"] else f"FAILED: {check['said']}"
