"""`tilewright time`: how long a step takes on a chip, what bounds it, and what a change would bring."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from typer import Argument, Option

from tilewright import hlo, targets, trace
from tilewright.cli.programs.calibrate import calibrate, calibrated, with_residual
from tilewright.cli.programs.program import (
    PROGRAM_HELP,
    ArgOption,
    AssumeOption,
    FramesOption,
    MeshOptions,
    ModuleOption,
    assumptions,
    load_program,
)
from tilewright.cli.programs.report import make_report, terminal_width
from tilewright.cli.streams import Json
from tilewright.errors import UsageError
from tilewright.render import bytes_text
from tilewright.render.delivery import Answer, Form, Line, Output, deliver, remark

_SETTING = re.compile(r"([\w-]+)\.([\w.]+)=(.+)")
_SWEEP = re.compile(r"([A-Za-z_]\w*)=([\w,.\s-]+)")


def time(
    program: Annotated[str | None, Argument(metavar="PROGRAM", help=PROGRAM_HELP, show_default=False)] = None,
    target: Annotated[
        list[str] | None, "--target", "-t", "The chip; repeat it to see several beside each other."
    ] = None,
    output: Annotated[str | None, "--output", "-o", "Write a .html, .json or .pftrace (Perfetto) file."] = None,
    as_json: Json = False,
    top: Annotated[int, Option(min=1, help="How many operations to print.")] = 15,
    changes: Annotated[
        list[str] | None, "--set", "What if: CHIP.KEY=VALUE, such as tpu-v6e.hbm_bandwidth=2e12; repeat it."
    ] = None,
    sweep: Annotated[str | None, "NAME=1,8,32: the word NAME in --arg takes each value in turn."] = None,
    largest: Annotated[str | None, "NAME: find the largest number for the word NAME in --arg that still fits."] = None,
    measured: Annotated[
        str | None,
        "--calibrate",
        "Refit the chip's constants on rows.csv (program,us), or on an XProf profile of PROGRAM's dump; -o keeps them.",
    ] = None,
    calibration: Annotated[str | None, "Take the constants that --calibrate has kept in this file."] = None,
    compiled: Annotated[bool, "--compile", "Price what an installed TPU compiler (libtpu) makes of StableHLO."] = False,
    *,
    meshed: MeshOptions,
    assume: AssumeOption = None,
    arg: ArgOption = None,
    module: ModuleOption = None,
    frames: FramesOption = None,
) -> None:
    """Model how long one step takes: the operations by time, what bounds each, and what a change would bring."""
    where = Output(output, as_json, ".json", ".html", ".htm", ".pftrace")
    assumed = assumptions(assume)
    if not target:
        raise UsageError("a time needs a chip", where=program or "", how="add --target, such as --target tpu-v6e")
    chips = [targets.target(name) for name in target]
    if measured is not None:
        refitted, said = calibrate(measured, program, chips[0])
        deliver(Answer(lambda: refitted, lambda: said), Output(output, as_json, ".json"), {".json": lambda: refitted})
        return
    if program is None:
        raise UsageError("no program given", how="name a file of HLO or StableHLO, or model.py:function")
    if calibration is not None:
        chips = [calibrated(chip, calibration) for chip in chips]
    changed = _changed(chips, changes or [])
    named: list[tuple[str, hlo.StepTime]] = []
    moved: hlo.MovementReport | None = None

    def loading(texts: list[str] | None) -> hlo.Program:
        return load_program(program, texts, module, frames, meshed)

    if largest is not None:
        sweep = f"{largest}={_largest(largest, arg, chips[0], loading)}"
    for label, texts in _swept(sweep, arg):
        loaded = loading(texts)
        for chip in chips:  # every changed one beside the plain one
            for what_if, machine in [("", chip), *changed.get(chip.name, [])]:
                ready = hlo.compile_for_tpu(loaded, chip.name) if compiled and loaded.kind != "hlo" else loaded
                name = ", ".join(part for part in (label, chip.name, what_if) if part)
                step = hlo.estimate(ready, machine, assumed)
                named.append((name, with_residual(step, ready, calibration) if calibration else step))
                moved = moved or make_report(ready, machine, program, assumed)
    assert moved is not None
    first = named[0][1]
    beside = [{"name": name, "device_seconds": step.device_seconds, "seconds": step.seconds} for name, step in named]
    pays: list[Line] = [*moved.change_lines(width=terminal_width())]
    plain = first.to_json() | {"changes": moved.to_json()["suggestions"]}
    answer = Answer(lambda: plain | ({"beside": beside} if len(named) > 1 else {}), lambda: _lines(named, top, pays))
    forms: dict[str, Form] = {
        ".json": lambda: plain,
        ".html": lambda: first.to_html(named, [f"saves {each.saved}: {each.words}" for each in moved.suggestions[:3]]),
        ".pftrace": lambda: trace.perfetto_bytes(first.events()),
    }
    deliver(answer, where, forms, notes=first.notes)


def _changed(chips: Sequence[targets.Target], changes: Sequence[str]) -> dict[str, list[tuple[str, targets.Target]]]:
    by_name = {chip.name: chip for chip in chips}
    settings: dict[str, dict[str, float]] = {}
    for change in changes:
        match = _SETTING.fullmatch(change.strip())
        if match is None:
            raise UsageError(f"'{change}' is no setting", where="--set", how="write CHIP.KEY=VALUE")
        chip, key, text = match.groups()
        if chip not in by_name:
            raise UsageError(f"{chip} is not among the targets", where="--set", how=f"there is {', '.join(by_name)}")
        try:
            settings.setdefault(chip, {})[key] = float(text)
        except ValueError:
            raise UsageError(f"'{text}' is no number", where=f"--set {chip}.{key}", how="write it like 2e12") from None
    return {
        chip: [(", ".join(f"{k} = {v:g}" for k, v in values.items()), hlo.what_if(by_name[chip], values))]
        for chip, values in settings.items()
    }


def _swept(sweep: str | None, arguments: list[str] | None) -> list[tuple[str, list[str] | None]]:
    """The arguments for every value of the sweep, with a label; without one, the arguments as they are."""
    if sweep is None:
        return [("", arguments)]
    match = _SWEEP.fullmatch(sweep.strip())
    if match is None:
        raise UsageError(f"'{sweep}' is no sweep", where="--sweep", how="write NAME=1,8,32")
    word = re.compile(rf"\b{match[1]}\b")
    if not any(word.search(text) for text in arguments or ()):
        how = f"write it where the value belongs: --arg 'f32[{match[1]},128]'"
        raise UsageError(f"no --arg has the word {match[1]}", where="--sweep", how=how)
    values = [value.strip() for value in match[2].split(",") if value.strip()]
    return [(f"{match[1]} {value}", [word.sub(value, text) for text in arguments or ()]) for value in values]


_MOST = 1 << 24
"""The largest number that is tried."""


def _largest(
    name: str, arguments: list[str] | None, chip: targets.Target, load: Callable[[list[str] | None], hlo.Program]
) -> int:
    """The largest number for a word of the arguments with which the program fits, by tracing it anew for each."""
    memory = chip.memory("hbm")
    if memory is None:
        raise UsageError(f"{chip.name} has no HBM", where="--largest")

    def need(number: int) -> int:
        ((_, texts),) = _swept(f"{name}={number}", arguments)
        peak = hlo.lifetimes(load(texts), chip).peak
        remark(f"note: {name} {number} needs {bytes_text(peak)} of {bytes_text(memory.usable)}")
        return peak

    if need(1) > memory.usable:
        raise UsageError(
            f"nothing fits {chip.name}, not even {name} 1", where="--largest", how="run says what to change"
        )
    fits, over = 1, 2
    while over <= _MOST and need(over) <= memory.usable:
        fits, over = over, 2 * over
    while over - fits > 1:
        middle = (fits + over) // 2
        fits, over = (middle, over) if need(middle) <= memory.usable else (fits, middle)
    return fits


def _lines(named: Sequence[tuple[str, hlo.StepTime]], top: int, changes: Sequence[Line]) -> Iterator[Line]:
    first = named[0][1]
    yield from (*first.lines(), "", *changes, "")
    yield first.slowest_table(top)
    if len(named) > 1:
        yield ""
        yield first.comparison(named)
