"""A program on a chip with a time model: HBM over time, what the compiler would move, the modelled step."""

from __future__ import annotations

from tilewright import hlo
from tilewright.machine.results import Change, Check, Held, Memory, Misfit, Moved, Studied, ranked
from tilewright.machine.stages import REWRITING_TARGET
from tilewright.machine.subject import Subject
from tilewright.render import bytes_text, percent_text, seconds_text
from tilewright.targets import Target

_MOST_RECOMPUTED = 8
_LARGEST = 12
_MOST_VERIFIED = 1 << 30
"""Bytes alive at once up to which a program is also run, to be verified."""


def study_on_tpu(subject: Subject, chip: Target) -> Studied:
    """The modelled step of ``subject`` on ``chip``, with memory, movement and the proof of what was rewritten."""
    program = subject.program
    step, moves = hlo.estimate(program, chip), hlo.report(program, chip)
    names = () if program.kind == "hlo" else dict.fromkeys((chip.name, REWRITING_TARGET))
    optimized = {name: hlo.optimize(program, name) for name in names}
    memory = hbm(subject, chip, step)
    moved = _moved(moves, optimized, chip.name)
    bottleneck = _bottleneck(step)
    checks = _checks(subject, optimized, memory.need)
    advice = tuple(step.advice())
    details = {"rewrites": {name: len(done.rewrites) for name, done in optimized.items()}}
    return Studied(
        step, bottleneck, advice, memory, moved, checks, details=details, report=moves, commands=_commands(chip.name)
    )


def _moved(moves: hlo.MovementReport, optimized: dict[str, hlo.Optimized], chip: str) -> Moved:
    """Before and after the gate's rewrites; of a dump, which is the compiler's own result, what it moves."""
    if not optimized:
        how = "the program is the compiler's own result, nothing is rewritten"
        return Moved(moves.moved_bytes, moves.moved_bytes, "for layout's sake", how)
    own = optimized[chip]
    how = f"{len(own.rewrites)} regions rewritten, {len(own.refusals)} left alone"
    return Moved(*own.moved_bytes, f"for layout's sake on {chip}", how)


def _bottleneck(step: hlo.StepTime) -> str:
    """What bounds most of the step."""
    parts = step.by_bound()
    if not step.device_seconds or not parts:
        return "nothing in it takes time"
    most = next(iter(parts))
    share = percent_text(parts[most] / step.device_seconds)
    return f"{seconds_text(parts[most])} of it, {share}, is bound by {most}"


def hbm(subject: Subject, chip: Target, step: hlo.StepTime, taken: int = 0) -> Memory:
    """Main memory over time, and what other ways to run the program would need; ``taken``: bytes tables have of it."""
    lives, size = hlo.lifetimes(subject.program, chip), chip.memory("hbm")
    capacity = size.bytes - taken if size is not None else 0
    peak, at = lives.peak, lives.at
    # StableHLO numbers its values: without the operation, %155 tells a reader nothing.
    steps = tuple(f"{op.opcode} {op.name}" if "%" in op.name else op.name or op.opcode for op in lives.operations)
    alive = sorted((b for b in lives.buffers if b.born <= at <= b.dead), key=lambda b: -b.bytes)
    largest = tuple(Held(b.name, b.bytes, b.born, b.dead, b.layout) for b in alive[:_LARGEST])
    misfits: tuple[Misfit, ...] = ()
    if peak > capacity:
        misfits = (Misfit("the program", peak, capacity, f"{bytes_text(peak - capacity)} too much during {steps[at]}"),)

    def change(what: str, runs: int, program: hlo.Program) -> Change:
        need = hlo.lifetimes(program, chip).peak
        return Change(what, peak, need, need <= capacity, runs * hlo.estimate(program, chip).device_seconds)

    changes = [*subject.try_changes(change), *_recomputed(lives, capacity, step)]
    return Memory(
        "HBM beside the tables" if taken else "HBM",
        capacity,
        peak,
        steps[at],
        steps,
        lives.live,
        (),
        largest,
        misfits,
        ranked(changes),
    )


def _recomputed(lives: hlo.Lifetimes, capacity: int, step: hlo.StepTime) -> list[Change]:
    """The buffer that brings the peak down most when it is given up before it and computed again behind it."""
    at, best, name = lives.at, lives.peak, ""
    alive = sorted((b for b in lives.buffers if b.born < at < b.dead), key=lambda b: -b.bytes)
    for buffer in alive[:_MOST_RECOMPUTED]:
        again = lives.recomputed(buffer.name)
        if again is not None and again.peak < best:
            best, name = again.peak, buffer.name
    if not name:
        return []
    own = next((row.seconds for row in step.rows if row.name == name), None)
    buffer = next(b for b in alive if b.name == name)
    what = f"compute {name} ({buffer.layout}) again behind the peak instead of keeping it"
    return [Change(what, lives.peak, best, best <= capacity, None if own is None else step.device_seconds + own)]


def _checks(subject: Subject, optimized: dict[str, hlo.Optimized], need: int) -> tuple[Check, ...]:
    """What was rewritten for each target, against the original; targets with one program share one run."""
    known: dict[str, tuple[bool, str]] = {}
    for done in optimized.values():
        if done.program.text not in known:
            known[done.program.text] = _outcome(subject, done, need)
    what = "rewritten for {}, against the original"
    return tuple(Check(what.format(name), *known[done.program.text]) for name, done in optimized.items())


def _outcome(subject: Subject, done: hlo.Optimized, need: int) -> tuple[bool, str]:
    """Whether the rewritten program is the original within rounding, and that in a sentence."""
    if not done.rewrites:
        return True, "nothing was rewritten"
    if need > _MOST_VERIFIED:
        return True, f"not run: it needs {bytes_text(need)}"
    found = hlo.verify(done.original, done.program, subject.arrays, eager=False)
    said = f"run on its arguments, largest difference {found.max_difference:.1e}"
    if found.error_after is not None and found.error_before is not None:
        said += f"; error against {found.reference} {found.error_after:.1e}, {found.error_before:.1e} before"
    return found.ok, said if found.ok else found.reason


def _commands(chip: str) -> tuple[tuple[str, str], ...]:
    return (
        (
            "See every operation's time, and what another chip would take.",
            f"tilewright time PROGRAM -t {chip} -t tpu-v6e",
        ),
        ("Have the rewrites written, and proved on every kind of input.", f"tilewright optimize PROGRAM -t {chip}"),
    )
