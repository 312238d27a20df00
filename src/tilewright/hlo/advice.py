"""What to change in a partitioned program, and which shardings of its arguments are best.

Every proposal is put into the program's text, partitioned again and timed. Of changes only those are told that make the
modelled step shorter, or a device's memory smaller at the same time; of candidate shardings the best that fits memory.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import log, prod
from typing import Any

from tilewright.errors import TilewrightError, UnsupportedError, UsageError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.inlining import dims_of
from tilewright.hlo.program import Operation, Program, Source, aliases
from tilewright.hlo.reading.mlir_reader import read_stablehlo
from tilewright.hlo.reading.sharded import MESH, Place, cuts_text, mesh_in, places, sharded
from tilewright.hlo.reporting.types import Suggestion
from tilewright.hlo.semantics.collectives import Groups
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.dims import devices_of
from tilewright.hlo.semantics.partitioning import by_shardy, devices_in
from tilewright.hlo.semantics.tiles import Tiles
from tilewright.hlo.slices import Partition, partition
from tilewright.hlo.timing.links import Torus
from tilewright.layout import Mesh, reshard, shard
from tilewright.layout.meshes.mesh import Sharding
from tilewright.layout.meshes.text import mesh_of, sharding_of
from tilewright.render import bytes_text, seconds_text
from tilewright.render.tables import Table
from tilewright.targets import Target
from tilewright.targets import target as find_target

_SMALL = 0.01
"""Share of the step, or of a device's arguments, from which a change is worth a word."""
_TYPE = re.compile(r"(tensor<[^<>]*(?:<[^<>]*>)?>)\s*(?:loc\(.*\)\s*)?$")
_FUNCTION = re.compile(r"^\s*func\.func\b", re.M)
_SAME = frozenset({"convert", "copy", "reshape", "transpose"})
"""Operations whose result is an array as it came in, in another form."""
_EXCHANGES = 256
"""Of one kind and group that are looked at."""
_MOST = 3
"""Sums over devices, and places where arrays are put whole, that are tried."""


def sharding_advice(program: Program, target: Target | str, every: bool = True) -> list[Suggestion]:
    """Changes to a StableHLO program with Shardy's shardings that pay, most modelled time saved first.

    Where an array is put whole on every device for want of a way between two shardings: the sharding to write between
    them, and where Shardy's own passes send less, those that they go through. Where a sum over devices leaves copies:
    that each keeps its part. Arrays that are given away and lie in copies over an axis: that they are cut over it. The
    axes of the mesh in another order on the torus. What was tried and did not pay is not told; without Shardy's
    shardings nothing is tried. ``every=False``: only the first of these. What a loop gathers anew at each trip, though
    it stays the same, and small exchanges that could be one are told without a trial, with what the time model says of
    them; the last of dumps, too.
    """
    machine = find_target(target) if isinstance(target, str) else target
    if program.kind == "hlo":
        return [*_joined(Partition(program, devices_of(program), machine, ()))]
    if devices_in(program) <= 1 or not (found := mesh_in(program.text)):
        return []
    now, mesh = partition(program, machine), found[1]
    tried = list(_between(program, mesh, now))
    if every:
        for told, way in _as_shardy(program, mesh, now):  # where it is one of these, what Shardy sends is said there
            same = next((k for k, (_, changed) in enumerate(tried) if changed.text == way.text), len(tried))
            first = replace(tried[same][0], how=f"{tried[same][0].how}; {told.what}") if same < len(tried) else told
            tried[same : same + 1] = [(first, way)]
        tried += [*_orders(program, mesh, now), *_states(program, mesh), *_scattered(program, mesh, now)]
    judged = (_judged(suggestion, changed, now, machine) for suggestion, changed in tried)
    kept = [*filter(None, judged), *_in_loops(now), *_joined(now)]
    best = dict[tuple[str, str, str], Suggestion]()
    for each in sorted(kept, key=lambda each: -(each.saved_us or 0.0)):
        best.setdefault((each.rule, each.source, each.what), each)
    return list(best.values())


_Tried = Iterator[tuple[Suggestion, Program]]


def _judged(suggestion: Suggestion, changed: Program, now: Partition, target: Target | str) -> Suggestion | None:
    """With what partitioning again shows; None where it does not pay."""
    try:
        then = partition(changed, target)
        before, after = now.step.device_seconds, then.step.device_seconds
    except TilewrightError:
        return None
    lighter = now.arguments_bytes - then.arguments_bytes
    if before - after < _SMALL * before and not (after <= before and lighter > _SMALL * now.arguments_bytes):
        return None
    facts = [f"a step {seconds_text(before)} -> {seconds_text(after)}"]
    if len(then.replicated) < len(now.replicated):
        facts.append(f"arrays put whole on every device {len(now.replicated)} -> {len(then.replicated)}")
    sent = [sum(each.bytes for each in part.collectives) for part in (now, then)]
    facts += [f"sent by a device {bytes_text(sent[0])} -> {bytes_text(sent[1])}"] * (sent[0] != sent[1])
    if lighter:
        facts.append(f"arguments {bytes_text(now.arguments_bytes)} -> {bytes_text(then.arguments_bytes)} a device")
    how = f"{suggestion.how} (partitioned again: {', '.join(facts)})"
    return replace(suggestion, how=how, factor=before / after, saved_us=max(0.0, before - after) * 1e6)


def _suggestion(rule: str, what: str, how: str, source: Source | None = None) -> Suggestion:
    column = source.column if source is not None else 0
    return Suggestion("", rule, None, "predicted", how, str(source or ""), what, column=column)


# -- proposals ---------------------------------------------------------------------------------------------------------


def _between(program: Program, mesh: Mesh, now: Partition) -> _Tried:
    """Where an array was put whole on every device: the shardings on the cheapest way from the one to the other."""
    for each in now.replicated[:_MOST]:
        try:
            was, becomes = sharding_of(each.was, mesh), sharding_of(each.becomes, mesh)
            dims = [size * was.count(k) for k, size in enumerate(dims_of(each.shape))]
            whole = f"{each.shape.split('[')[0]}[{','.join(map(str, dims))}]"
            way = reshard(shard(whole, mesh, was), shard(whole, mesh, becomes))
            middle = [step.after.sharding for step in way.steps[:-1] if step.op != "slice" or len(way.steps) == 2]
            changed = _constrained(program, _origin(program, each.op_name, whole), middle)
        except TilewrightError:
            continue
        name = each.op_name.rpartition("/")[2] or each.op
        on = f"on the argument {name}" if each.op == "parameter" else f"on the result of {name}"
        specs = [f"x = jax.lax.with_sharding_constraint(x, {spec_text(sharding)})" for sharding in middle]
        what = f"{each.op} {each.name} ({whole}) is put whole on every device to get from {spec_text(was)} to "
        how = f"write {', then '.join(specs)} {on}, before that"
        if changed is not None and middle:
            yield _suggestion("put-whole", what + spec_text(becomes), how, each.source), changed


def _as_shardy(program: Program, mesh: Mesh, now: Partition) -> _Tried:
    """Where Shardy's own passes send less: the shardings that an array goes through there, if there are any between."""
    with suppress(TilewrightError):  # those passes refuse some programs, and some shardings have no PartitionSpec
        cut, before = by_shardy(program)
        less = Partition(cut, now.devices, now.target, ()).sent_bytes
        lines, named = before.text.split("\n"), before.entry.named
        ways = dict[str, tuple[str, list[Sharding]]]()  # exchanged array -> what it comes from, shardings on the way
        for op in before.entry.operations if less < (1 - _SMALL) * now.sent_bytes else ():
            if op.opcode.startswith("sdy.") and (out := re.search(r"out_sharding=(<@.*?\]>)", lines[op.line - 1])):
                begin, way = ways.pop(op.operands[0], (op.operands[0], []))
                ways[op.name] = begin, [*way, sharding_of(f"#sdy.sharding{out[1]}", mesh)]
        for op, way in ((named[begin], way[:-1]) for begin, way in ways.values() if way[1:] and begin in named):
            specs = ", then ".join(f"x = jax.lax.with_sharding_constraint(x, {spec_text(each)})" for each in way)
            own, xlas = bytes_text(less), bytes_text(now.sent_bytes)
            what = f"Shardy's own passes send {own} a device, XLA's partitioner {xlas}"
            how = f"write {specs} on the result of {op.op_name.rpartition('/')[2] or op.opcode}"
            if (changed := _constrained(program, _origin(program, op.op_name, op.shape), way)) is not None:
                yield _suggestion("shardys-way", what, how, op.source), changed


def spec_text(sharding: Sharding) -> str:
    """``P('d', ('a', 'b'))``."""
    return f"P({', '.join('P.UNCONSTRAINED' if k in sharding.open else repr(e) for k, e in enumerate(sharding.spec))})"


def _origin(program: Program, op_name: str, whole: str) -> Operation | None:
    known = (op for _, op in program.operations() if op.op_name == op_name and op.shape.startswith(whole))
    return next(known, None) if op_name else None


def _constrained(program: Program, op: Operation | None, shardings: Sequence[Sharding]) -> Program | None:
    """The program with a result of one of its operations, or an argument, taken through these shardings."""
    found, lines = mesh_in(program.text), program.text.split("\n")
    if op is None or found is None or not op.line:
        return None
    at, name = op.line - 1, op.name if op.name.startswith("%") else f"%{op.name}"
    if op.opcode == "parameter":
        place = next((place for place in places(program) if place.argument and place.called(op.name.strip("%"))), None)
        kind = place and re.search(r"tensor<[^<>]*(?:<[^<>]*>)?>$", program.text[: place.ends])
        if not kind or not _FUNCTION.match(lines[at]):
            return None
        type_ = kind[0]
    elif not (type_found := _TYPE.search(lines[at])) or not re.match(rf"\s*{re.escape(name)} =", lines[at]):
        return None
    else:
        type_ = type_found[1]
    made, last = list[str](), name
    for number, sharding in enumerate(shardings):
        new = f"%tilewright{number}"
        cuts = cuts_text(sharding, len(re.findall(r"\d+x", type_)))
        made.append(f"    {new} = sdy.sharding_constraint {last} <@{found[0]}, [{cuts}]> : {type_}")
        last = new
    end = next((k for k in range(at + 1, len(lines)) if _FUNCTION.match(lines[k])), len(lines))
    used = re.compile(rf"{re.escape(name)}(?![\w#:])")
    rest = [used.sub(last, line) for line in lines[at + 1 : end]]
    return _again(program, "\n".join([*lines[: at + 1], *made, *rest, *lines[end:]]))


def _again(program: Program, text: str) -> Program:
    made = read_stablehlo(text)
    kept = {key: program.attributes[key] for key in ("num_partitions", "topology") if key in program.attributes}
    return replace(made, attributes={**made.attributes, **kept})


def _orders(program: Program, mesh: Mesh, now: Partition) -> _Tried:
    """The axes of the mesh in another order: which of them run over which dims of the torus."""
    names = [name for name, size in mesh.axes.items() if size > 1]
    for order in [*permutations(names)][1:] if 1 < len(names) < 4 and mesh.devices is None else ():
        axes = ", ".join(f'"{name}"={mesh.axes[name]}' for name in order)
        text = MESH.sub(lambda m: f"  sdy.mesh @{m[1]} = <[{axes}]>" if "=" in m[2] else m[0], program.text)  # noqa: B023
        text = re.sub(r"(sdy\.mesh[^\n]*?>) \{stablehlo\.mesh[^\n]*?\}\]?\}\}?(?= loc|$)", r"\1", text, flags=re.M)
        what = f"the mesh lies on the torus in the order {', '.join(names)}"
        if now.slice is not None and len({chip[0] for chip in now.slice.chips}) > 1:
            what += f", and {next(iter(mesh.axes))} crosses slices"
        try:
            how = f"make the mesh with its axes as {', '.join(order)}"
            yield _suggestion("mesh-order", what, how), _again(program, text)
        except TilewrightError:
            continue


def _states(program: Program, mesh: Mesh) -> _Tried:
    """Arrays that are given away, as parameters and an optimizer's state are, and lie in copies over an axis."""
    known = places(program)
    results = {place.number: place for place in known if not place.argument}
    over = {
        number: results.get(element or 0)
        for element, number, _ in aliases(program.attributes.get("input_output_alias", ""))
    }
    for axis, size in mesh.axes.items():
        cut, said = dict[str, Any](), program.text
        for place in (place for place in known if place.argument and place.number in over):
            own = re.search(r"#sdy\.sharding<@[\w.$-]+, (\[[^<>]*?\])", said[slice(*(place.braces or (0, 0)))])
            dims = [re.findall(r'"(\w+)"', dim) for dim in re.findall(r"\{([^}]*)\}", own[1])] if own else []
            dims += [[] for _ in range(len(place.shape) - len(dims))]
            free = [k for k, n in enumerate(place.shape) if not dims[k] and n % size == 0 and n >= 8 * size]
            if size > 1 and free and not any(axis in dim for dim in dims):
                dims[max(free, key=lambda k: place.shape[k])].append(axis)
                cut[place.name] = dims
                if (result := over[place.number]) is not None and result.shape == place.shape:
                    cut[result.name] = dims
        if cut:
            first = next(iter(cut))
            what = f"{first} and what else is given away ({len(cut)} arrays) lie in copies over {axis}"
            how = f"cut them over it, such as {first} by {spec_text(sharding_of(cut[first], mesh))}"
            yield _suggestion("copies-of-state", what, how), _again(program, sharded(program, mesh, cut).text)


def _in_loops(now: Partition) -> Iterator[Suggestion]:
    """Gathers of what a loop's trips all have alike: one before the loop would do."""
    step = now.step
    seconds = {(row.line, row.name.rpartition("/")[2]): row.seconds for row in step.rows}
    for each in now.collectives:
        body, runs = now.program.by_name[each.computation], now.runs[each.computation].count
        named, op, root = body.named, None, body.operations[-1]
        if each.op == "all-gather" and runs > 1:
            op = gather = named[each.name]
            while op is not None and (op is gather or plain_opcode(op.opcode) in _SAME) and op.operands:
                op = named.get(op.operands[0])
        carried = [op.name for op in body.operations if op.opcode == "parameter"]
        saved = seconds.get((each.line, each.name), 0.0) * (1 - 1 / max(1, runs))
        if op is None or op.name not in carried or saved < _SMALL * step.device_seconds:
            continue
        if root.operands[carried.index(op.name) :][:1] == (op.name,):
            what = f"all-gather {each.name} of {each.shape} is the same in each of {runs} trips of a loop"
            how = "gather it once, by a with_sharding_constraint before the loop, where it fits"
            found = _suggestion("gather-in-loop", what, how, each.source)
            yield replace(found, saved_us=saved * 1e6, factor=step.device_seconds / (step.device_seconds - saved))


def _joined(now: Partition) -> Iterator[Suggestion]:
    """Small exchanges of one kind over the same devices, none of which waits for another: one would begin once.

    From source no sums are told, as the TPU's compiler joins them, and nothing that runs beside other work is.
    """
    links, context = Torus.of(now.target), Context(now.program, now.target)
    alike = defaultdict[tuple[str, str, Groups], set[str]](set)
    for each in now.collectives if links is not None else ():
        if each.op in ("all-gather", "reduce-scatter") or (each.op == "all-reduce" and now.program.kind == "hlo"):
            alike[each.computation, each.op, each.groups].add(each.name)

    def microseconds(several: Sequence[Operation]) -> float:
        given = [layout for op in several for shape in op.operand_shapes for layout in context.layouts(shape)]
        made = [layout for op in several for layout in context.layouts(op.shape)]
        before, behind = ([Tiles.of(layout) for layout in some] for some in (given, made))
        return links.exchange_us(several[0], before, behind, now.devices, now.slice)[0] if links is not None else 0.0

    found, all_us = list[tuple[float, str, list[Operation]]](), 0.0
    for (computation, kind, _), names in alike.items():
        bits = {name: 1 << k for k, name in enumerate(sorted(names)[:_EXCHANGES])}
        waits, apart, kept = dict[str, int](), list[Operation](), 0  # operation -> those it waits for, as bits
        for op in now.program.by_name[computation].operations:
            before = 0
            for name in op.operands:
                before |= waits.get(name.partition("#")[0], 0)
            if op.name in bits and not op.opcode.endswith("-start") and not before & kept:
                apart.append(op)
                kept |= bits[op.name]
            waits[op.name] = before | bits.get(op.name, 0)
        one_by_one, runs = sum(microseconds([op]) for op in apart), now.runs[computation].count
        all_us += one_by_one * runs
        if len(apart) > 1:
            found.append(((one_by_one - microseconds(apart)) * runs, kind, apart))
    for saved, kind, apart in found:
        step = max(all_us, now.step.device_seconds * 1e6 if saved > _SMALL * all_us else 0.0)
        if saved > _SMALL * step:
            what = f"{len(apart)} {kind}s ({', '.join(op.shape for op in apart[:3])}) over the same devices, one by one"
            how = "put them together before (jnp.stack, other types by jax.lax.bitcast_convert_type) and exchange that"
            made = _suggestion("small-exchanges", what, how, apart[0].source)
            yield replace(made, saved_us=saved, factor=step / (step - saved))


def _scattered(program: Program, mesh: Mesh, now: Partition) -> _Tried:
    """Sums over devices of which each could keep a part (a reduce-scatter), where the result is used in parts."""
    sums = defaultdict[str, int](int)
    for each in now.collectives:
        if each.op == "all-reduce" and each.op_name:
            sums[each.op_name] += each.bytes
    for op_name in sorted(sums, key=lambda name: -sums[name])[:_MOST]:
        each = next(each for each in now.collectives if each.op_name == op_name)
        op = next((op for _, op in program.operations() if op.op_name == op_name and op.shape.endswith("]")), None)
        axis = next((name for name in mesh.names if set(mesh.groups([name])) == set(each.groups)), None)
        sizes = dims_of(op.shape) if op else ()
        for dim in [k for k, size in enumerate(sizes) if axis and size % mesh.axes[axis] == 0 and size > 1][:2]:
            cut = replace(
                sharding_of([[axis] if k == dim else None for k in range(len(sizes))], mesh),
                open=frozenset({*range(len(sizes))} - {dim}),
            )
            if (changed := _constrained(program, op, [cut])) is not None:
                how = f"write x = jax.lax.with_sharding_constraint(x, {spec_text(cut)}) on its result"
                what = f"the sum over {axis} of {op_name.rpartition('/')[2]} leaves a copy on every device"
                yield _suggestion("sum-in-copies", what, how, each.source), changed


# Which shardings of a program's arguments are best: candidates are partitioned for real, timed, and held to memory.

MOST = 200
"""Candidates that are partitioned."""
_NUMBERS = re.compile(r"(?<=[\[_])\d+")
"""Of layers: ``[3]``, ``['Dense_3']``."""
_PER_ARRAY = 24
"""Ways to cut one array that are tried, those into most parts first."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One candidate: ``shardings`` of its arguments, as ``--shard`` takes them, and what a step of it is.

    ``peak_bytes`` of a device's memory, ``fits`` whether it has them; ``error``: why it cannot be partitioned.
    """

    shardings: Mapping[str, str]
    seconds: float = 0.0
    exposed_seconds: float = 0.0
    peak_bytes: int = 0
    fits: bool = False
    error: str = ""

    @property
    def rank(self) -> tuple[bool, float, float]:
        """What fits first, by its step, and of steps within a hundredth by its memory; what does not by its memory."""
        step = round(100 * log(self.seconds)) if self.fits and self.seconds else 0
        return not self.fits, step, float("inf") if self.error else self.peak_bytes

    def __str__(self) -> str:
        return "  ".join(f"{name}={axes}" for name, axes in self.shardings.items() if axes) or "as the program says"


@dataclass(frozen=True)
class Search:
    """What was tried, in order; the first is what was given. Times and peaks are modelled."""

    program: str
    target: str
    memory: int
    tried: tuple[Tried, ...]

    @property
    def best(self) -> Tried:
        """The shortest step that fits a device's memory."""
        return min(self.tried, key=lambda each: each.rank)

    def options(self) -> list[str]:
        """The best one, for the command line."""
        return [f'--shard "{name}={axes}"' for name, axes in self.best.shardings.items() if axes]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        rows = [{key: getattr(each, key) for key in Tried.__slots__} for each in self.tried]
        head = {"schema": "tilewright.shardings/1", "program": self.program, "target": self.target}
        return {**head, "memory": self.memory, "best": dict(self.best.shardings), "tried": rows}

    def lines(self, top: int = 12) -> Iterator[str | Table]:
        """The best, and a table of the best ones and what was given."""
        best, first = self.best, self.tried[0]
        failed = sum(bool(each.error) for each in self.tried)
        yield f"best of {len(self.tried)} shardings tried for {self.program} on {self.target}: {best}"
        was = f"given {seconds_text(first.seconds)}" if not first.error else "what was given cannot be partitioned"
        yield f"a step {seconds_text(best.seconds)} ({was}), {bytes_text(best.peak_bytes)} of {bytes_text(self.memory)}"
        if not best.fits:
            yield "nothing that was tried fits a device's memory: this one needs least"
        if failed:
            yield f"{failed} could not be partitioned"
        shown = sorted((each for each in self.tried if not each.error), key=lambda each: each.rank)[:top]
        columns = ("", ("step", "seconds"), ("exposed", "seconds"), ("a device", "bytes"), "fits", "shardings")
        rows = list[tuple[object, ...]]()
        for e in ([] if first in shown or first.error else [first]) + shown:
            fits = "yes" if e.fits else "no"
            rows.append(("given" if e is first else "", e.seconds, e.exposed_seconds, e.peak_bytes, fits, str(e)))
        yield ""
        yield Table(columns, rows)  # type: ignore[arg-type]


def search_shardings(
    program: Program,
    target: Target | str,
    mesh: Mesh | Mapping[str, int] | str,
    most: int = MOST,
    told: Callable[[int], None] | None = None,
) -> Search:
    """The shardings of a program's arguments over a mesh with the shortest modelled step that fits a device's memory.

    Arguments of one shape and of one place in their trees but for numbers (``params['w']``, ``state[0].mu['w']``, all
    layers) are cut alike. From what the program says and from inputs cut along their first dim, the largest arrays
    first, every way to cut one is partitioned while the others stay, until nothing gets better or ``most`` were tried.
    ``told`` is called with how many are done. Raises UsageError for a chip without HBM.
    """
    machine, over = find_target(target) if isinstance(target, str) else target, mesh_of(mesh)
    hbm = machine.memory("hbm")
    if hbm is None:
        raise UsageError(f"{machine.name} has no HBM", where="--search")
    groups = groups_of([place for place in places(program) if place.argument and place.shape])
    titles = Counter(map(title_of, groups))  # of two groups alike but for shapes, each array is named
    names = {
        several[0].name: [title_of(several)] if titles[title_of(several)] == 1 else [place.name for place in several]
        for several in groups
    }
    done = dict[tuple[str, ...], Tried]()

    def tried(choice: tuple[str, ...]) -> Tried:
        pairs = [(several, axes) for several, axes in zip(groups, choice, strict=True) if axes != "given"]
        shown = {name: axes for several, axes in pairs for name in names[several[0].name]}
        try:
            cut = {place.name: axes for several, axes in pairs for place in several}
            part = partition(sharded(program, over, cut), machine)
            step, peak = part.step, part.peak_bytes
        except TilewrightError as error:
            return Tried(shown, error=error.what)
        return Tried(shown, step.device_seconds, step.exposed_seconds, peak, peak <= hbm.usable)

    def all_of(choices: Sequence[tuple[str, ...]]) -> None:
        new = list(dict.fromkeys(choice for choice in choices if choice not in done))[: most - len(done)]
        for choice, one in zip(new, pool.map(tried, new)):
            done[choice] = one
            if told is not None:
                told(len(done))

    ways = [_ways(several[0].shape, over) for several in groups]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        first = ("given",) * len(groups)
        all_of([first, *_begins(groups, over)])
        best, before = min(done, key=lambda choice: done[choice].rank), None
        while best != before and len(done) < most:
            before = best
            for k, way in enumerate(ways):
                all_of([(*best[:k], axes, *best[k + 1 :]) for axes in way])
                better = min(done, key=lambda choice: done[choice].rank)
                best = better if done[better].rank < done[best].rank else best
    if all(each.error for each in done.values()):
        raise UnsupportedError(f"it cannot be partitioned: {done[first].error}")
    return Search(program.name, machine.name, hbm.usable, tuple(done.values()))


def groups_of(arguments: Sequence[Place]) -> list[list[Place]]:
    """Arguments that are cut alike, the largest arrays first."""
    found = dict[tuple[str, tuple[int, ...]], list[Place]]()
    for place in arguments:
        key = _NUMBERS.sub("0", _inside(place.name) or place.name)
        found.setdefault((key, place.shape), []).append(place)
    return sorted(found.values(), key=lambda several: -prod(several[0].shape) * len(several))


def _inside(name: str) -> str:
    """Where an array is in its tree: ``['w']`` of ``params['w']`` and of an optimizer's ``state[0].mu['w']``."""
    inside = re.search(r"\['.*", name) or re.search(r"[\[.].*", name)
    return inside[0] if inside else ""


def title_of(several: Sequence[Place]) -> str:
    """The name that means all of them: ``*['layers'][*]['w']``."""
    inside = _inside(several[0].name)
    return several[0].name if len(several) == 1 or not inside else "*" + _NUMBERS.sub("*", inside)


def _begins(groups: Sequence[Sequence[Place]], mesh: Mesh) -> list[tuple[str, ...]]:
    """Where the search begins: nothing cut, and for every split of the axes what comes in alone cut along its first dim
    by the one part, what comes in trees (parameters, states, layers) not at all, along its largest by the other, or by
    both."""
    names = [name for name, size in mesh.axes.items() if size > 1]
    found = [("-",) * len(groups)]
    for chosen in product((True, False), repeat=len(names)):
        batch = [name for name, yes in zip(names, chosen) if yes]
        rest = [name for name in names if name not in batch]
        for kept, also in ((rest, []), (rest, batch), ([], [])):
            choice = []
            for place, *_ in groups:
                alone = re.search(r"[\[.]", place.name) is None
                large = max(range(len(place.shape)), key=lambda k: place.shape[k])
                other = next((k for k in range(len(place.shape)) if k != large), large)
                cut = {0: batch} if alone else {other: also, large: kept + (also if other == large else [])}
                way = ",".join("+".join(cut.get(k, [])) or "-" for k in range(len(place.shape)))
                choice.append(way if way in _ways(place.shape, mesh) else "-")
            found.append(tuple(choice))
    return found


def _ways(shape: tuple[int, ...], mesh: Mesh) -> list[str]:
    """The ways to cut an array: every axis over one dim that it divides, or none, as ``data+model,-``."""
    names = [name for name, size in mesh.axes.items() if size > 1]
    found = dict[str, int]()
    for dims in product(range(-1, len(shape)), repeat=len(names)):
        cut = [[name for name, dim in zip(names, dims) if dim == k] for k in range(len(shape))]
        parts = [prod(mesh.axes[name] for name in some) for some in cut]
        if all(size % count == 0 and size >= count for size, count in zip(shape, parts)):
            found[",".join("+".join(some) or "-" for some in cut)] = -prod(parts)
    return sorted(found, key=lambda way: found[way])[:_PER_ARRAY]
