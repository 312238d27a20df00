"""`tilewright time` and `shard`: how long a step takes on a chip or on each device of a slice, and what changes it.

`time --calibrate` refits a chip's constants on times that its user has measured, and keeps them in a file: what the
units and the memories take is scaled, each by one factor, since of every row the model says how long it waits for which
of them. A factor stays near 1 where few rows say otherwise. Of six rows and more every third is held back. What two
steps of one model still take longer, or less, is kept beside the factors, and taken for its steps of other sizes; of
fewer than six rows that is all.
"""

from __future__ import annotations

import csv
import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, NamedTuple

from typer import Argument, Option

from tilewright import hlo, targets, trace
from tilewright.cli.options import Files, numbered, swept
from tilewright.cli.programs import program as programs
from tilewright.cli.programs.report import make_report, terminal_width
from tilewright.cli.streams import progress, read_text
from tilewright.errors import UsageError
from tilewright.reading import parse
from tilewright.render import Html, bytes_text, percent_text, table
from tilewright.render.delivery import Answer, Form, Line, Output, deliver, remark
from tilewright.render.drawing import Curve, line_chart
from tilewright.render.tables import Heading, Table


def time(
    program: Annotated[str | None, Argument(help=programs.PROGRAM_HELP)] = None,
    target: Annotated[list[str] | None, "--target", "-t", "The chip, or several beside each other."] = None,
    top: Annotated[int, Option(min=1, help="How many operations to print.")] = 15,
    changes: Annotated[list[str] | None, "--set", "What if: CHIP.KEY=VALUE, as tpu-v6e.hbm_bandwidth=2e12."] = None,
    sweep: Annotated[str | None, "NAME=1,8,32: the word NAME in --arg takes each value in turn."] = None,
    largest: Annotated[str | None, "NAME: find the largest number for the word NAME in --arg that still fits."] = None,
    measured: Annotated[
        str | None, "--calibrate", "Refit constants on rows.csv, or a profile of PROGRAM's dump."
    ] = None,
    calibration: Annotated[str | None, "Take the constants that --calibrate has kept in this file."] = None,
    compiled: Annotated[bool, "--compile", "Price what an installed TPU compiler (libtpu) makes of StableHLO."] = False,
    assume: programs.AssumeOption = None,
    *,
    of: programs.ProgramOptions,
    to: Annotated[Output, Files(".json", ".html", ".pftrace")],
) -> None:
    """Model how long one step takes: the operations by time, what bounds each, and what a change would bring."""
    assumed = programs.assumptions(assume)
    if not target:
        raise UsageError("a time needs a chip", where=program or "", how="add --target, such as --target tpu-v6e")
    chips = [targets.target(name) for name in target]
    if measured is not None:
        to.must_end_in(".json")
        if len(chips) > 1:
            raise UsageError("constants are of one chip", where="--calibrate", how="name the one that was measured")
        deliver(_calibrated(measured, program, chips[0]), to)
        return
    if program is None:
        raise UsageError("no program given", how="name a file of HLO or StableHLO, or model.py:function")
    models: list[dict[str, Any]] = []
    if calibration is not None:
        chips, models = _kept(calibration, chips)
    changed = _changed(chips, changes or [])
    named, points = list[tuple[str, hlo.StepTime]](), defaultdict[str, list[tuple[str, float]]](list)
    moved: hlo.MovementReport | None = None

    if largest is not None:
        sweep = f"{largest}={_largest(largest, program, chips[0], of)}"
    for label, texts in _swept(sweep, of.arg):
        loaded = of.load(program, texts)
        for chip in chips:  # every changed one beside the plain one
            ready = hlo.compile_for_tpu(loaded, chip.name) if compiled and loaded.kind != "hlo" else loaded
            for what_if, machine in [("", chip), *changed.get(chip.name, [])]:
                step = _with_residual(hlo.estimate(ready, machine, assumed), ready, models)
                on = ", ".join(filter(None, (chip.name, what_if)))
                named.append((", ".join(filter(None, (label, on))), step))
                points[on].append((label, step.device_seconds))
                moved = moved or make_report(ready, machine, program, assumed)
    assert moved is not None
    first, pays = named[0][1], moved
    beside = [{"name": name, "device_seconds": step.device_seconds, "seconds": step.seconds} for name, step in named]
    plain = first.to_json() | {"changes": pays.to_json()["suggestions"]}
    plain |= {"beside": beside} if len(named) > 1 else {}

    def lines() -> Iterator[Line]:
        head: list[Line] = [*first.lines(), "", *pays.change_lines(width=terminal_width()), ""]
        yield from (*head, first.slowest_table(top))
        if len(named) > 1:
            yield from ("", _beside(named))

    def page() -> str:
        saves, both = [f"saves {each.saved}: {each.words}" for each in pays.suggestions[:3]], _beside(named)
        compared = [table(both.columns, both.rows), *_curves(points)] if len(named) > 1 else []
        return first.to_html(named, saves, compared)

    forms: dict[str, Form] = {".html": page, ".pftrace": lambda: trace.perfetto_bytes(first.events())}
    deliver(Answer(lambda: plain, lines), to, forms, notes=first.notes)


def _beside(steps: Sequence[tuple[str, hlo.StepTime]]) -> Table:
    """Several steps beside each other, each against the first."""
    first = steps[0][1].device_seconds or 1.0
    shares: Sequence[Heading] = ("of the first", "ratio"), ("matrix", "percent"), ("HBM", "percent")
    rows = []
    for name, step in steps:
        reached = step.device_seconds / first, step.matrix_utilisation, step.hbm_utilisation
        rows.append((name, step.device_seconds, *reached, next(iter(step.by_bound()), ""), step.priced))
    return Table((("step", "code"), ("time", "seconds"), *shares, "most of it", ("priced", "percent")), rows)


def _curves(points: Mapping[str, Sequence[tuple[str, float]]]) -> Iterator[Html]:
    """A step's seconds over a sweep's numbers, and for each of them; ``points``: by chip (``batch 8``, seconds)."""
    word = next(label for some in points.values() for label, _ in some).partition(" ")[0]
    curves = list[tuple[str, list[tuple[float, float]]]]()
    for on, some in points.items():
        numbers = [(label.partition(" ")[2], seconds) for label, seconds in some]
        curves.append((on, sorted((float(x), seconds) for x, seconds in numbers if x.replace(".", "", 1).isdecimal())))
    if all(len({x for x, _ in line}) < 2 for _, line in curves):
        return
    for title, each in ((f"time of a step over {word}", False), (f"time of a step for each {word}", True)):
        lines = [Curve(on, [x for x, _ in line], [y / x if each and x else y for x, y in line]) for on, line in curves]
        yield line_chart(lines, title=title, x_label=word, kind="seconds")


def _changed(chips: Sequence[targets.Target], changes: Sequence[str]) -> dict[str, list[tuple[str, targets.Target]]]:
    by_name = {chip.name: chip for chip in chips}
    settings: dict[str, dict[str, float]] = {}
    for place, number in numbered(changes, "--set", "CHIP.KEY=VALUE, as tpu-v6e.hbm_bandwidth=2e12").items():
        chip, _, key = place.partition(".")
        if chip not in by_name or not key:
            raise UsageError(f"{chip} is not among the targets", where="--set", how=f"there is {', '.join(by_name)}")
        settings.setdefault(chip, {})[key] = number
    return {
        chip: [(", ".join(f"{k} = {v:g}" for k, v in values.items()), hlo.what_if(by_name[chip], values))]
        for chip, values in settings.items()
    }


def _swept(sweep: str | None, arguments: list[str] | None) -> list[tuple[str, list[str] | None]]:
    """The arguments for every value of the sweep, with a label; without one, the arguments as they are."""
    if sweep is None:
        return [("", arguments)]
    ((name, values),) = swept([sweep], "--sweep", "NAME=1,8,32").items()
    word = re.compile(rf"\b{re.escape(name)}\b")
    if not any(word.search(text) for text in arguments or ()):
        how = f"write it where the value belongs: --arg 'f32[{name},128]'"
        raise UsageError(f"no --arg has the word {name}", where="--sweep", how=how)
    return [(f"{name} {value}", [word.sub(value, text) for text in arguments or ()]) for value in values]


_MOST = 1 << 24
"""The largest number that is tried."""


def _largest(name: str, program: str, chip: targets.Target, of: programs.ProgramOptions) -> int:
    """The largest number for a word of the arguments with which the program fits, by tracing it anew for each."""
    memory = chip.memory("hbm")
    if memory is None:
        raise UsageError(f"{chip.name} has no HBM", where="--largest")

    def need(number: int) -> int:
        ((_, texts),) = _swept(f"{name}={number}", of.arg)
        peak = hlo.lifetimes(of.load(program, texts), chip).peak
        remark(f"note: {name} {number} needs {bytes_text(peak)} of {bytes_text(memory.usable)}")
        return peak

    if need(1) > memory.usable:
        what = f"nothing fits {chip.name}, not even {name} 1"
        raise UsageError(what, where="--largest", how="run says what to change")
    fits, over = 1, 2
    while over <= _MOST and need(over) <= memory.usable:
        fits, over = over, 2 * over
    while over - fits > 1:
        middle = (fits + over) // 2
        fits, over = (middle, over) if need(middle) <= memory.usable else (fits, middle)
    return fits


def shard(
    program: programs.ProgramArgument,
    target: Annotated[str, "--target", "-t", "The chip."] = "tpu-v5e",
    search: Annotated[bool, "Search the shardings of the arguments with the shortest step that fits."] = False,
    most: Annotated[int, Option(min=3, help="How many shardings --search tries.")] = 200,
    top: Annotated[int, Option(min=1, help="How many entries to print.")] = 10,
    compiled: Annotated[bool, "--compile", "Ask an installed TPU compiler (libtpu) for the slice, too."] = False,
    *,
    of: programs.ProgramOptions,
    to: Annotated[Output, Files(".json", ".html a page, not with --search")],
) -> None:
    """Partition a program over a mesh: the step, what a device holds and sends, the changes that pay most."""
    chip = targets.target(target)
    if search:
        to.must_end_in(".json")
        if (mesh := of.over()) is None:
            raise UsageError("--search needs a mesh", how="add --mesh, as --mesh data=8,model=4")
        with progress("shardings tried", most) as advance:
            found = hlo.search_shardings(of.load(program), chip, mesh, most=most, told=advance)
        lines = [*found.lines(top), "", " ".join(["take it:", *found.options()])]
        deliver(Answer(found.to_json, lambda: iter(lines)), to)
        return
    loaded = of.load(program)
    part, changes = hlo.partition(loaded, chip), hlo.sharding_advice(loaded, chip)
    told = part.opinions(compiled)
    keys = ("rule", "what", "how", "source", "saved_us")
    plain = {key: getattr(part, key) for key in ("devices", "arguments_bytes", "outputs_bytes", "peak_bytes")}
    plain |= {"step": part.step.device_seconds, "exposed": part.step.exposed_seconds, "slice": str(part.slice or "")}
    plain["changes"] = [{key: getattr(each, key) for key in keys} for each in changes]
    plain["opinions"] = told
    plain["collectives"] = [
        {"op": each.op, "bytes": each.bytes, "groups": each.groups, "source": str(each.source or "")}
        for each in part.collectives
    ]
    if part.devices == 1:
        remark("note: nothing of it is cut; with --mesh, add --shard NAME=AXES,.. or --search, which finds the best")
    answer = Answer(lambda: plain, lambda: part.lines(changes, top, told))
    deliver(answer, to, {".html": lambda: part.to_html(changes, told)}, notes=part.step.notes)


# Constants refitted on measured times.

_BOUNDS = ("hbm", "matrix", "vector", "vmem", "latency")
"""What a row waits for, each with a factor."""
_ROUNDS, _STEPS = 5, 20
_PRIOR = 0.02
"""Weight of a factor's distance from 1 against one row."""
_APART = 300
"""How many times shorter or longer than modelled no step is: its time is in another unit, or of another program."""
_HELD = 6
_ALIKE = 0.9
"""Share of their kinds of operations that two steps of one model have in common."""
_SIZE = re.compile(r"(?<=[\[,])\d+")
_SCHEMA = "tilewright.calibration/1"
_HOW = "columns program,us: a file of HLO or StableHLO, or model.py:function with its arguments in a column args"


class _Point(NamedTuple):
    name: str
    measured: float  # microseconds
    parts: Mapping[str, float]  # what it waits for -> microseconds, modelled
    kinds: frozenset[str] = frozenset()  # of its program's operations

    @property
    def modelled(self) -> float:
        return sum(self.parts.values())

    @property
    def error(self) -> float:
        return abs(self.modelled / self.measured - 1)


def _points(measured: str, program: str | None, chip: targets.Target) -> Iterator[_Point]:
    """The measured rows of a table of programs, or of a profile of ``program``."""
    if not measured.lower().endswith(".csv"):
        if program is None:
            raise UsageError("a profile is of a program", where="--calibrate", how="name the dump of what ran first")
        loaded = programs.load_program(program)
        for each in make_report(loaded, chip, program).with_profile(loaded, measured).rows:
            if each.measured_us and each.measured_runs and each.modelled_us and each.bound:
                waits = {each.bound: each.modelled_us / each.runs}
                yield _Point(each.name, each.measured_us / each.measured_runs, waits)
        return
    text = read_text(measured).removeprefix("\ufeff")  # as spreadsheets begin their files
    for number, row in enumerate(csv.DictReader(text.splitlines(), skipinitialspace=True), 2):
        where = f"{measured}:{number}"
        try:
            name, us = (row["program"] or "").strip(), float(row["us"] or "")
        except (KeyError, ValueError):
            name, us = "", 0.0
        if not name:
            raise UsageError("no row of a program and its microseconds", where=where, how=_HOW)
        loaded = programs.load_program(str(Path(measured).parent / name), (row.get("args") or "").split() or None)
        parts = {bound: 1e6 * s for bound, s in hlo.estimate(loaded, chip).by_bound().items() if s}
        point = _Point(name, us, parts, _kinds(loaded))
        if not point.modelled / _APART < us < point.modelled * _APART:
            what = f"{us:g} us of {name}, which is modelled as {point.modelled:.3g} us on {chip.name}"
            raise UsageError(what, where=where, how="give microseconds of the device, measured on this chip")
        yield point


def _kinds(program: hlo.Program) -> frozenset[str]:
    """What a model's steps of other batches, lengths and layers have in common: operations by type and rank."""
    shapes = ((op.opcode, op.shape.partition("{")[0]) for _, op in program.operations())
    return frozenset(f"{opcode} {_SIZE.sub('n', shape)}" for opcode, shape in shapes)


def _models(points: Sequence[_Point]) -> list[dict[str, Any]]:
    """Models of which two steps and more were measured: their kinds, each step's modelled time and what it took."""
    models: list[dict[str, Any]] = []
    for point in points:
        mine = next((model for model in models if _same_model(model, point.kinds)), None)
        if mine is None and point.kinds:
            models.append(mine := {"kinds": sorted(point.kinds), "steps": []})
        if mine is not None:
            mine["steps"] = sorted([*mine["steps"], [point.modelled, point.measured / point.modelled]])
    return [model for model in models if len(model["steps"]) > 1]


def _same_model(model: Mapping[str, Any], kinds: frozenset[str]) -> bool:
    return len(kinds & {*model["kinds"]}) >= _ALIKE * len(kinds | {*model["kinds"]})


def _residual(models: Sequence[Mapping[str, Any]], kinds: frozenset[str], modelled: float) -> float:
    """How much longer than modelled a step takes, between the two measured ones of its model that are next in time."""
    steps: list[Any] = next((model["steps"] for model in models if _same_model(model, kinds)), [])
    if not steps or modelled <= 0:
        return 1.0
    at = bisect([us for us, _ in steps], modelled)
    (low, one), (high, other) = steps[max(0, at - 1)], steps[min(at, len(steps) - 1)]
    share = log(modelled / low) / log(high / low) if high > low else 0.0
    return exp(log(one) + share * (log(other) - log(one)))


def _with_residual(step: hlo.StepTime, program: hlo.Program, models: Sequence[Mapping[str, Any]]) -> hlo.StepTime:
    """The step as much longer as measured ones of its model were than modelled; none is below its bytes at the peak."""
    factor = _residual(models, _kinds(program), 1e6 * step.device_seconds)
    if factor == 1.0:
        return step
    rows = []
    for row in step.rows:
        least = max(row.bytes / (step.hbm_peak or 1e30), row.flops / (step.matrix_peak or 1e30))
        rows.append(replace(row, seconds=max(factor * row.seconds, min(least, row.seconds))))
    whole = step.device_seconds + sum(row.seconds for row in rows) - sum(row.seconds for row in step.rows)
    note = f"taken {factor:.2f} times as long as modelled: so measured steps of this model were, next in size"
    return replace(step, rows=tuple(rows), device_seconds=whole, notes=(*step.notes, note))


def _kept(path: str, chips: Sequence[targets.Target]) -> tuple[list[targets.Target], list[dict[str, Any]]]:
    """The chips with the constants of a calibration's file, and its models. UsageError for another file or chip."""
    try:
        plain = parse(read_text(path), "JSON", path)
        name, factors = plain["target"], {bound: float(plain["factors"][bound]) for bound in _BOUNDS}
        models = [
            {"kinds": model["kinds"], "steps": [(float(us), float(more)) for us, more in model["steps"]]}
            for model in plain.get("models", [])
        ]
    except (ValueError, KeyError, TypeError, AttributeError, UsageError):
        how = f"tilewright time --calibrate rows.csv -t {chips[0].name} -o FILE.json writes one"
        raise UsageError("no calibration", where=path, how=how) from None
    if other := next((chip for chip in chips if chip.name != name), None):
        raise UsageError(f"it is of {name}, not of {other.name}", where=path, how=f"take -t {name}")
    fitted_on = f"your {plain.get('rows', 0)} rows of {plain.get('from', path)}"
    return [_scaled(chip, factors, fitted_on) for chip in chips], models


def _calibrated(measured: str, program: str | None, chip: targets.Target) -> Answer:
    """A calibration's file, and what is said of it. UsageError for rows that are none, and for fewer than two."""
    before = list(_points(measured, program, chip))
    now = before.copy()
    if len(before) < 2:
        raise UsageError(f"{len(before)} measured rows fit no constant", where=measured, how="measure at least two")
    fitted = [len(before) < _HELD or k % 3 != 2 for k in range(len(before))]
    factors = dict.fromkeys(_BOUNDS, 1.0)
    few = len(before) < _HELD and _models(before)  # what two steps of a model took says nothing of the units
    for _ in range(0 if few else _ROUNDS):
        more = _factors([point for point, on in zip(now, fitted) if on])
        factors = {bound: factor * more[bound] for bound, factor in factors.items()}
        now = list(_points(measured, program, _scaled(chip, factors, f"your {sum(fitted)} rows of {measured}")))
    models = _models([point for point, on in zip(now, fitted) if on])
    for k, point in enumerate(now):
        more_us = _residual(models, point.kinds, point.modelled)
        now[k] = point._replace(parts={bound: us * more_us for bound, us in point.parts.items()})
    judged = [k for k, on in enumerate(fitted) if not on] or range(len(before))
    errors = [mean(some[k].error for k in judged) for some in (before, now)]
    plain = {"schema": _SCHEMA, "target": chip.name, "factors": factors, "rows": sum(fitted)}
    plain |= {"from": measured, "held_back": fitted.count(False), "error_before": errors[0], "error_after": errors[1]}
    plain |= {"models": models}

    def lines() -> Iterator[Line]:
        said = ", ".join(f"{bound} {factor:.2f}" for bound, factor in factors.items())
        yield f"how much longer each takes than modelled before: {said}"
        held = fitted.count(False)
        which = f"{held} rows that were not fitted" if held else f"{len(fitted)} rows, too few to hold any back"
        yield f"mean error of {which}: {percent_text(errors[0])} before, {percent_text(errors[1])} after"
        if counts := ", ".join(str(len(model["steps"])) for model in models):
            yield f"{counts} steps of a model each: what they took besides is taken for its neighbours"
        times: list[Heading] = [(name, "seconds") for name in ("measured", "before", "after")]
        yield from ("", Table(["row", *times, ("error", "percent"), ("now", "percent"), ""], [
            (a.name, a.measured / 1e6, a.modelled / 1e6, b.modelled / 1e6, a.error, b.error, "" if on else "held back")
            for a, b, on in zip(before, now, fitted)
        ]))  # fmt: skip

    return Answer(lambda: plain, lines)


def _factors(points: Sequence[_Point]) -> dict[str, float]:
    """By how much longer each unit and memory takes than modelled: least squares of the logarithms, misses softened."""
    import numpy as np

    parts = np.array([[point.parts.get(bound, 0.0) for bound in _BOUNDS] for point in points])
    rest = np.array([sum(us for bound, us in point.parts.items() if bound not in _BOUNDS) for point in points])
    measured, moved = np.array([point.measured for point in points]), np.zeros(len(_BOUNDS))
    for _ in range(_STEPS):
        each = parts * np.exp(moved)
        whole = each.sum(1) + rest
        off, slope = np.log(whole / measured), each / whole[:, None]
        weight = 1 / (1 + np.abs(off) / 0.3)
        normal = (slope * weight[:, None]).T @ slope + _PRIOR * np.eye(len(moved))
        moved -= np.linalg.solve(normal, (slope * weight[:, None]).T @ off + _PRIOR * moved)
    return {bound: float(np.exp(np.clip(x, -2, 2))) for bound, x in zip(_BOUNDS, moved)}


def _scaled(chip: targets.Target, factors: Mapping[str, float], fitted_on: str) -> targets.Target:
    return hlo.what_if(chip, {f"scale.{bound}": factor for bound, factor in factors.items()}, fitted_on)
