"""`tilewright time --calibrate`: a chip's constants refitted on times that its user has measured, and kept in a file.

What the units and the memories take is scaled, each by one factor: of every row the model says how long it waits for
which of them. A factor stays near 1 where few rows say otherwise. Of six rows and more every third is held back. What
two steps of one model still take longer, or less, is kept beside the factors, and taken for its steps of other sizes;
of fewer than six rows that is all.
"""

from __future__ import annotations

import csv
import json
import re
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.cli.programs.program import load_program
from tilewright.cli.programs.report import make_report
from tilewright.cli.streams import read_text
from tilewright.errors import UsageError
from tilewright.render import percent_text
from tilewright.render.delivery import Line
from tilewright.render.tables import Heading, Table

if TYPE_CHECKING:
    from tilewright.hlo import Program, StepTime
    from tilewright.targets import Target

_BOUNDS = ("hbm", "matrix", "vector", "vmem", "latency")
"""What a row waits for, each with a factor."""
_ROUNDS, _STEPS = 5, 20
_PRIOR = 0.02
"""Weight of a factor's distance from 1 against one row."""
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


def _of_rows(path: str, chip: Target) -> list[_Point]:
    from tilewright.hlo import estimate

    points = []
    for number, row in enumerate(csv.DictReader(read_text(path).splitlines()), 2):
        try:
            program, measured = (row["program"] or "").strip(), float(row["us"] or "")
        except (KeyError, ValueError):
            raise UsageError("no row of a program and its microseconds", where=f"{path}:{number}", how=_HOW) from None
        if not 0 < measured < float("inf"):
            raise UsageError(f"{measured:g} us is no time", where=f"{path}:{number}")
        place = str(Path(path).parent / program) if not Path(program).is_absolute() else program
        loaded = load_program(place, (row.get("args") or "").split() or None)
        parts = {bound: 1e6 * s for bound, s in estimate(loaded, chip).by_bound().items() if s}
        points.append(_Point(program, measured, parts, _kinds(loaded)))
    return points


def _of_profile(profile: str, program: str, chip: Target) -> list[_Point]:
    loaded = load_program(program)
    rows = make_report(loaded, chip, program).with_profile(loaded, profile).rows
    return [
        _Point(row.name, row.measured_us / row.measured_runs, {row.bound: row.modelled_us / row.runs})
        for row in rows
        if row.measured_us and row.measured_runs and row.modelled_us and row.bound
    ]


def _kinds(program: Program) -> frozenset[str]:
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
    steps: Sequence[tuple[float, float]] = next((m["steps"] for m in models if _same_model(m, kinds)), ())
    if not steps or modelled <= 0:
        return 1.0
    at = bisect([us for us, _ in steps], modelled)
    (low, one), (high, other) = steps[max(0, at - 1)], steps[min(at, len(steps) - 1)]
    share = log(modelled / low) / log(high / low) if high > low else 0.0
    return exp(log(one) + share * (log(other) - log(one)))


def with_residual(step: StepTime, program: Program, path: str) -> StepTime:
    """The step as much longer as measured steps of its model were than modelled; none is below its bytes at the peak.

    Raises UsageError for a file that is no calibration.
    """
    try:
        models = json.loads(read_text(path)).get("models", [])
        factor = _residual(models, _kinds(program), 1e6 * step.device_seconds)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError("no calibration", where=path) from None
    if factor == 1.0:
        return step
    rows = []
    for row in step.rows:
        least = max(row.bytes / (step.hbm_peak or 1e30), row.flops / (step.matrix_peak or 1e30))
        rows.append(replace(row, seconds=max(factor * row.seconds, min(least, row.seconds))))
    whole = step.device_seconds + sum(row.seconds for row in rows) - sum(row.seconds for row in step.rows)
    note = f"taken {factor:.2f} times as long as modelled: so measured steps of this model were, next in size"
    return replace(step, rows=tuple(rows), device_seconds=whole, notes=(*step.notes, note))


def calibrate(measured: str, program: str | None, chip: Target) -> tuple[dict[str, Any], Iterator[Line]]:
    """What a calibration's file holds, and what is said of it.

    Raises UsageError for rows that are none, and where fewer than two were measured.
    """

    def points(machine: Target) -> list[_Point]:
        if measured.lower().endswith(".csv"):
            return _of_rows(measured, machine)
        if program is None:
            raise UsageError("a profile is of a program", where="--calibrate", how="name the dump of what ran first")
        return _of_profile(measured, program, machine)

    before = now = points(chip)
    if len(before) < 2:
        raise UsageError(f"{len(before)} measured rows fit no constant", where=measured, how="measure at least two")
    fitted = [len(before) < _HELD or k % 3 != 2 for k in range(len(before))]
    factors = dict.fromkeys(_BOUNDS, 1.0)
    few = len(before) < _HELD and _models(before)  # what two steps of a model took says nothing of the units
    for _ in range(0 if few else _ROUNDS):
        more = _factors([point for point, on in zip(now, fitted) if on])
        factors = {bound: factor * more[bound] for bound, factor in factors.items()}
        now = points(_changed(chip, factors, f"your {sum(fitted)} rows of {measured}"))
    models = _models([point for point, on in zip(now, fitted) if on])
    for k, point in enumerate(now):
        more_us = _residual(models, point.kinds, point.modelled)
        now[k] = point._replace(parts={bound: us * more_us for bound, us in point.parts.items()})
    judged = [k for k, on in enumerate(fitted) if not on] or range(len(before))
    errors = [mean(some[k].error for k in judged) for some in (before, now)]
    plain = {"schema": _SCHEMA, "target": chip.name, "factors": factors, "rows": sum(fitted)}
    plain |= {"from": measured, "held_back": fitted.count(False), "error_before": errors[0], "error_after": errors[1]}
    plain |= {"models": models}
    return plain, _lines(before, now, fitted, errors, factors, models)


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


def _changed(chip: Target, factors: Mapping[str, float], fitted_on: str) -> Target:
    from tilewright.hlo import what_if

    return what_if(chip, {f"scale.{bound}": factor for bound, factor in factors.items()}, fitted_on)


def calibrated(chip: Target, path: str) -> Target:
    """The chip with the constants of a calibration's file. Raises UsageError for another file, or another chip's."""
    try:
        plain = json.loads(read_text(path))
        factors, name = {bound: float(plain["factors"][bound]) for bound in _BOUNDS}, plain["target"]
    except (ValueError, KeyError, TypeError, AttributeError):
        how = f"tilewright time --calibrate rows.csv -t {chip.name} -o FILE.json writes one"
        raise UsageError("no calibration", where=path, how=how) from None
    if name != chip.name:
        raise UsageError(f"it is of {name}, not of {chip.name}", where=path, how=f"take -t {name}")
    return _changed(chip, factors, f"your {plain.get('rows', 0)} rows of {plain.get('from', path)}")


def _lines(
    before: Sequence[_Point],
    now: Sequence[_Point],
    fitted: Sequence[bool],
    errors: Sequence[float],
    factors: Mapping[str, float],
    models: Sequence[Mapping[str, Any]],
) -> Iterator[Line]:
    said = ", ".join(f"{bound} {factor:.2f}" for bound, factor in factors.items())
    yield f"how much longer each takes than modelled before: {said}"
    held = fitted.count(False)
    which = f"{held} rows that were not fitted" if held else f"{len(fitted)} rows, too few to hold any back"
    yield f"mean error of {which}: {percent_text(errors[0])} before, {percent_text(errors[1])} after"
    if counts := [len(model["steps"]) for model in models]:
        yield f"{', '.join(map(str, counts))} steps of a model each: what they took besides is taken for its neighbours"
    yield ""
    times: list[Heading] = [(name, "seconds") for name in ("measured", "before", "after")]
    heads = ["row", *times, ("error", "percent"), ("now", "percent"), ""]
    marks = ("" if on else "held back" for on in fitted)
    yield Table(heads, [
        (a.name, a.measured / 1e6, a.modelled / 1e6, b.modelled / 1e6, a.error, b.error, mark)
        for a, b, mark in zip(before, now, marks)
    ])  # fmt: skip
