"""A program on a chip with a time model: HBM over time, what the compiler would move, the modelled step."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright import hlo
from tilewright.machine.model import Subject
from tilewright.machine.results import Change, Check, Held, Memory, Misfit, Moved, Studied, ranked
from tilewright.machine.stages import REWRITING_TARGET
from tilewright.render import bytes_text, percent_text, seconds_text
from tilewright.targets import Target

_MOST_RECOMPUTED = 8
_MOST_GIVEN_UP = 16
_LESS = 0.99
_HOST = 16e9
"""Bytes a second between a chip and its host, each way: assumed, half of what PCIe 4.0 with 16 lanes can do."""
_LARGEST = 12
_MOST_CHANGES = 3
_MOST_VERIFIED = 1 << 30
"""Bytes alive at once up to which a program is also run, to be verified."""


def study_on_tpu(subject: Subject, chip: Target) -> Studied:
    """The modelled step of ``subject`` on ``chip``, with memory, movement and the proof of what was rewritten."""
    program = subject.program
    step, moves = hlo.estimate(program, chip), hlo.report(program, chip, hlo.suggest(program, chip))
    names = () if program.kind == "hlo" else dict.fromkeys((chip.name, REWRITING_TARGET))
    optimized = {name: hlo.optimize(program, name) for name in names}
    memory = hbm(subject, chip, step)
    moved = _moved(moves, optimized, chip.name)
    bottleneck = _bottleneck(step)
    checks = _checks(subject, optimized, memory.need)
    advice = (*(f"saves {each.saved}: {each.words}" for each in moves.suggestions[:_MOST_CHANGES]), *step.waits())
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
    capacity = size.usable - taken if size is not None else 0
    peak, at = lives.peak, lives.at
    # StableHLO numbers its values: without the operation, %155 tells a reader nothing.
    steps = tuple(f"{op.opcode} {op.name}" if "%" in op.name else op.name or op.opcode for op in lives.operations)
    alive = sorted((b for b in lives.buffers if b.born <= at <= b.dead), key=lambda b: -b.bytes)
    largest = tuple(Held(b.name, b.bytes, b.born, b.dead, b.layout) for b in alive[:_LARGEST])
    misfits: tuple[Misfit, ...] = ()
    if peak - lives.again > capacity:
        misfits = (Misfit("the program", peak, capacity, f"{bytes_text(peak - capacity)} too much during {steps[at]}"),)

    def change(what: str, runs: int, program: hlo.Program) -> Change:
        tried = hlo.lifetimes(program, chip)
        need = tried.peak
        return Change(
            what, peak, need, need - tried.again <= capacity, runs * hlo.estimate(program, chip).device_seconds
        )

    changes = [*subject.try_changes(change), *_from_outside(lives, capacity, step)]
    rate = (chip.links.host_bytes_per_second if chip.links else 0) or _HOST
    changes += [c for how in (False, True) if (c := _given_up(lives, capacity, step, rate if how else 0.0)) is not None]
    return Memory(
        "HBM beside the tables" if taken else "HBM",
        capacity,
        peak,
        steps[at],
        steps,
        tuple(count + lives.lost + lives.again for count in lives.live),  # what is lost, throughout
        (),
        largest,
        misfits,
        ranked(changes),
    )


def _from_outside(lives: hlo.Lifetimes, capacity: int, step: hlo.StepTime) -> Iterator[Change]:
    """Arguments given away, the optimizer's moments in bfloat16, and both: nothing else of the program changes."""
    donated, narrowed = lives.donated(), lives.narrowed()
    both = donated.narrowed() if donated is not None else None
    give = "donate the arguments that results can be written over (donate_argnums)"
    narrow = "the optimizer's moments in bfloat16"
    for what, tried, asks in ((give, donated, 0), (narrow, narrowed, 2), (f"{give}, {narrow}", both, 2)):
        if tried is not None and tried.peak < _LESS * lives.peak:
            need = tried.peak - tried.again
            yield Change(what, lives.peak, tried.peak, need <= capacity, step.device_seconds, asks=asks)


def _given_up(lives: hlo.Lifetimes, capacity: int, step: hlo.StepTime, host: float) -> Change | None:
    """Buffers given up before the peak, the one that brings it down most first, until it fits or nothing helps.

    They are computed again behind it, or come back from the host, where ``host`` bytes a second travel.
    """
    times = {row.name: row.seconds for row in step.rows}
    now, names, seconds, moved, offloaded = lives, list[str](), step.device_seconds, 0, host > 0
    while not names or (now.peak - now.again > capacity and len(names) < _MOST_GIVEN_UP):
        at = now.at
        alive = sorted((b for b in now.buffers if b.born < at < b.dead and b.op != "parameter"), key=lambda b: -b.bytes)
        tried = ((b, now.recomputed(b.name, offloaded)) for b in alive[:_MOST_RECOMPUTED])
        better = [(again.peak, b.name, b.bytes, again) for b, again in tried if again is not None]
        best = min(better, key=lambda each: each[0], default=None)
        if best is None or best[0] >= now.peak:
            break
        _, name, size, now = best
        names.append(name)
        moved += size
        seconds += 2 * size / host if host else times.get(name, 0.0)
    if not names:
        return None
    first = next(b for b in lives.buffers if b.name == names[0]) if len(names) == 1 else None
    what = f"{names[0]} ({first.layout})" if first else f"{len(names)} arrays ({bytes_text(moved)}), {names[0]} first,"
    how = "keep {} on the host until behind the peak" if offloaded else "compute {} again behind the peak"
    instead = "" if offloaded else " instead of keeping " + ("it" if first else "them")
    need = now.peak - now.again
    return Change(f"{how.format(what)}{instead}", lives.peak, now.peak, need <= capacity, seconds, asks=1)


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
