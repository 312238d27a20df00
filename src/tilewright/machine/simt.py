"""A program on the matrix unit: compiled whole, run with its values, every layer held against XLA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from tilewright.hlo import Program, StepTime, TimeRow, XlaValues, optimize, report
from tilewright.isa import Compiled, MachineReport, MatrixUnitConfig, compile, roofline
from tilewright.machine.model import Subject
from tilewright.machine.results import Change, Check, Held, Memory, Misfit, Moved, Studied, ranked
from tilewright.machine.stages import largest_difference
from tilewright.render import bytes_text, count_text, percent_text, table

NANOSECOND = 1e-9
"""Seconds drawn for a cycle: the text names no clock."""
_LARGEST = 12
_QUICK = 500_000
"""Cycles of a run up to which those of changed programs are counted, too: no clock is asked, so the answer is one."""
_DOUBLINGS = 8

_COMMANDS = (
    ("See the programs of every layer.", "tilewright isa compile PROGRAM --listing"),
    ("Run it again on another machine, and compare the pages.", "tilewright run PROGRAM --target simt --set pes=4"),
)

Watch = Callable[[int, int, str], None]


@dataclass(frozen=True)
class _Run:
    """A compiled model and what its run counted; ``bounds``: what each layer waits for most."""

    compiled: Compiled
    run: MachineReport
    bounds: tuple[str, ...]


def study_on_matrix_unit(subject: Subject, config: MatrixUnitConfig, watch: Watch | None = None) -> tuple[Studied, Any]:
    """Compile ``subject``, run it, hold every layer against XLA, and plan L2 for other ways to run it.

    Returns what it returned, too.

    Raises :class:`CheckFailed` that names the first layer whose values are not XLA's.
    """
    program = subject.program
    compiled = compile(program, config=config)
    args, kwargs = subject.given()
    outputs, run = compiled.run(*args, verify=True, watch=watch, **kwargs)
    done = _Run(compiled, run, tuple(_bounds(run, config)))
    step = _step(program.name, done)
    slow = roofline(run, config, program.name)
    idle = max(0.0, 1 - slow.limit.cycles / max(1, run.cycles))
    bottleneck = (
        f"busiest is the {slow.limit.name}, {percent_text(1 - idle)} of the cycles; the math units multiply in "
        f"{percent_text(run.math_utilisation)}"
    )
    advice = (*slow.advice[:2], *_slowest(done))
    checks = (*_checks(run), _outputs_check(program, subject, outputs))
    studied = Studied(
        *(step, bottleneck, advice, _memory(subject, done), _moved(program, run), checks),
        clocked=False,
        details={"machine": {**run.to_json(), "bounds": list(done.bounds)}},
        cards=run.figures,
        layers=(table(*run.table()),),
        movement=(run.levels,),
        commands=_COMMANDS,
    )
    return studied, outputs


def _bounds(run: MachineReport, config: MatrixUnitConfig) -> Iterator[str]:
    """For each layer the unit that is busy for most of its cycles; "latency" where none is for half of them."""
    for layer in run.layers:
        limit = roofline(layer, config).limit if layer.cycles else None
        yield "" if limit is None else limit.name if 2 * limit.cycles >= layer.cycles else "latency"


def _step(name: str, done: _Run) -> StepTime:
    """Layers and transfers as lanes; a cycle is a nanosecond."""
    rows, at = [], 0
    for layer, bound in zip(done.run.layers, done.bounds, strict=True):
        moved = sum(layer.bytes["dram"].values())
        took, begin = layer.cycles * NANOSECOND, at * NANOSECOND
        rows.append(TimeRow(layer.name, layer.unit, took, bound, moved, layer.operations, "", begin, layer.unit))
        at += layer.cycles
    for page in done.run.transfers:
        begin, took = page.start * NANOSECOND, (page.end - page.start) * NANOSECOND
        what = f"{page.storage} page {page.page} {page.direction}"
        rows.append(TimeRow(what, "dma", 0.0, "", page.bytes, 0, "", begin, "dma", begun=begin, beside=took))
    config = done.run.config
    return StepTime(
        *(name, "simt", done.run.cycles * NANOSECOND, 0.0, tuple(rows), False),
        hbm_peak=config.dram_bytes_per_cycle / NANOSECOND,
        notes=("one cycle is drawn as one nanosecond: the text names no clock",),
    )


def _slowest(done: _Run) -> Iterator[str]:
    """The layers that take most cycles, by their kind."""
    run = done.run
    most = sorted(zip(run.layers, done.bounds, strict=True), key=lambda pair: -pair[0].cycles)[:3]
    for layer, bound in most:
        if layer.cycles > 0.03 * run.cycles:
            yield (
                f"{count_text(layer.cycles)} cycles ({percent_text(layer.cycles / run.cycles)}): {layer.name}, "
                f"bound by {bound}, math units busy {percent_text(layer.math_utilisation)}"
            )
    for layer in sorted((each for each in run.layers if each.fallback), key=lambda each: -each.operations)[:2]:
        yield f"on the host: {layer.name}, {count_text(layer.operations)} operations: {layer.fallback}"


# What stands in L2, what has no place there, and what would have.


def _memory(subject: Subject, done: _Run) -> Memory:
    (plan,) = done.compiled.l2_plan()
    asked = plan.asked
    need = max(asked, default=0)
    at = asked.index(need) if asked else 0
    alive = [name for name, (first, last) in plan.spans.items() if first <= at <= last]
    alive.sort(key=lambda name: -plan.sizes[name])
    stays = {stay.table: stay for stay in plan.stays}
    names = _names(done.compiled)
    largest = [
        Held(
            names[name],
            plan.sizes[name],
            *plan.spans[name],
            f"L2 bytes {stays[name].begin:,} on" if name in stays else "device memory, through the caches",
        )
        for name in alive[:_LARGEST]
    ]
    large, late = "larger than the pages' share of L2", "no gap in L2 for as long as it is used"
    passes = {True: f"{large}: it passes the caches, line by line", False: f"{late}: it passes the caches"}
    misfits = [Misfit(names[n], size, plan.room, passes[size > plan.room]) for n, size in plan.left.items()]
    at_name = plan.steps[at] if plan.steps else ""
    return Memory(
        *("L2's pages", plan.room, need, at_name, plan.steps, asked, plan.live, tuple(largest)),
        *(tuple(misfits), ranked(tuple(_changes(subject, done)))),
        counts="bytes without a place" if misfits else "bytes asked for at once",
    )


def _names(compiled: Compiled) -> dict[str, str]:
    """Tables by what makes them: ``dot_3: f32[256,128]``."""
    lowering = compiled.lowering
    made: dict[str, str] = {}
    for step in lowering.steps:
        for name in step.writes:
            made.setdefault(lowering.tables[name].base or name, step.name)
    arguments = {value: f"argument {k}" for k, value in enumerate(lowering.reading.block.arguments)}
    names = {}
    for name, each in lowering.tables.items():
        held = None if each.held is None else arguments.get(lowering.reading.root(each.held[0]), "constant")
        names[name] = f"{held or made.get(name, name)}: {each.dtype}[{','.join(map(str, each.shape))}]"
    return names


def _changes(subject: Subject, done: _Run) -> Iterator[Change]:
    """The function on other arguments, compiled anew, and the smallest doubled L2 in which everything has a place."""
    (now,) = done.compiled.l2_plan()
    left = sum(now.left.values())
    before = left or max(now.asked, default=0)
    config, quick = done.compiled.config, done.run.cycles < _QUICK

    def cycles(compiled: Compiled) -> float | None:
        return compiled.estimate().cycles * NANOSECOND if quick else None

    def change(what: str, runs: int, program: Program) -> Change:
        changed = compile(program, config=config)
        plan, took = changed.l2_plan()[0], cycles(changed)
        after = sum(plan.left.values()) if left else max(plan.asked, default=0)
        return Change(what, before, after, not plan.left, None if took is None else runs * took)

    yield from subject.try_changes(change)
    if not left:
        return
    sizes = [config.l2_bytes << doubled for doubled in range(1, _DOUBLINGS + 1)]
    for size, plan in zip(sizes, done.compiled.l2_plan(*sizes), strict=True):
        if not plan.left:
            took = cycles(compile(subject.program, config=replace(config, l2_bytes=size)))
            yield Change(f"an L2 of {bytes_text(size)} (--set l2_bytes={size})", left, 0, True, took)
            return


def _moved(program: Program, run: MachineReport) -> Moved:
    """What reshapes, transposes and copies move: as written, every one by itself; as compiled, the copies there are."""
    copies = [layer for layer in run.layers if layer.unit == "copy"]
    after = sum(sum(layer.bytes["l1"].values()) for layer in copies)
    gate = optimize(program, "simt")
    how = f"{len(copies)} of {len(run.layers)} layers are copies, the rest reads memory as it stands"
    if gate.rewrites or gate.refusals:
        how += f"; the gate would rewrite {len(gate.rewrites)} regions and leave {len(gate.refusals)} alone"
    return Moved(report(program, "simt").moved_bytes, after, "by what only moves elements", how)


def _checks(run: MachineReport) -> tuple[Check, ...]:
    here = [layer for layer in run.layers if not layer.fallback]
    said = f"{len(here)} layers: integers equal, floats within the rounding of each layer's depth"
    if len(here) < len(run.layers):
        said += (
            f"; XLA itself computed {len(run.layers) - len(here)}, {percent_text(run.fallback_share)} of the arithmetic"
        )
    return (Check("layers, against XLA on their inputs", True, said),)


def _outputs_check(program: Program, subject: Subject, outputs: Any) -> Check:
    """The results after all layers beside XLA's own; roundings add up, so the size of the difference is only told."""
    made = [np.asarray(each) for each in jax.tree.leaves(outputs)]
    taken = subject.arrays
    inputs, results = ([(each.shape, each.dtype) for each in arrays] for arrays in (taken, made))
    wanted = XlaValues().run_text(program.text, inputs, results, taken)
    floats, integers, finite = 0.0, 0.0, True
    for have, want in zip(made, wanted, strict=True):
        apart, size = largest_difference(have, want)
        finite &= apart < float("inf")
        if have.dtype.kind in "iub":
            integers = max(integers, apart)
        else:
            floats = max(floats, apart / max(size, 1e-30))
    said = [f"integers at most {integers:,.0f} apart"] if integers else []
    said += [f"floats at most {floats:.1e} of an output's size apart"] if floats else []
    many = f"{len(made)} outputs" if len(made) > 1 else "output"
    told = " and ".join(said) or "equal"
    return Check(f"{many}, against XLA", finite, told)
