"""What every target's stage hands to the report: the step, memory over time, what does not fit, changes, checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tilewright.embed import Plan
from tilewright.hlo import MovementReport, StepTime
from tilewright.render import Card, Html, bytes_text, count_text, seconds_text


@dataclass(frozen=True)
class Held:
    """A tensor in memory from step ``first`` to ``last``; ``place``: its layout, or where it stands there."""

    name: str
    bytes: int
    first: int
    last: int
    place: str


@dataclass(frozen=True)
class Misfit:
    """What has no room: ``bytes`` of it where ``room`` are; ``why``, and what becomes of it."""

    name: str
    bytes: int
    room: int
    why: str


_NOTHING = (
    "What was tried brings nothing: donated arguments, moments in bfloat16, arrays computed again or kept on the host. "
    "Arguments alone fill it: shard them over more devices."
)


@dataclass(frozen=True)
class Change:
    """Something else that could be run, and what it needs then, computed anew.

    ``before`` and ``after``: bytes of what :attr:`Memory.counts` says; ``seconds`` for the work of one step, modelled,
    where that is known; ``fits``: whether everything has room then. ``name``: what it concerns, "" for the whole.
    ``asks``: 0 where only how the program is called changes, 1 where its text does, 2 where its
    moments do, 3 where all its numbers do.
    """

    what: str
    before: int
    after: int
    fits: bool
    seconds: float | None = None
    moved: int | None = None
    name: str = ""
    asks: int = 0


@dataclass(frozen=True)
class Memory:
    """Memory over time.

    ===============  ========================================================================================
    ``where``        which memory: ``HBM``, ``L2``, ``local memory of an NPU``
    ``capacity``     bytes there are for the program
    ``need``         bytes it asks for at once, at most; ``at``: the step that does
    ``steps``        names of the steps; ``live``: bytes asked for during each of them
    ``standing``     bytes that have their place there, where that is less than what is asked for, else ()
    ``largest``      the largest tensors of the fullest step
    ``misfits``      what has no room, the largest first
    ``changes``      what would need less, the cheapest that fits first
    ``counts``       which bytes the changes count
    ``noun``         what ``misfits`` are; ``remedy``: what is done about them, where each has a change of its own
    ===============  ========================================================================================
    """

    where: str
    capacity: int
    need: int
    at: str
    steps: tuple[str, ...]
    live: tuple[int, ...]
    standing: tuple[int, ...] = ()
    largest: tuple[Held, ...] = ()
    misfits: tuple[Misfit, ...] = ()
    changes: tuple[Change, ...] = ()
    counts: str = "bytes at the peak"
    noun: str = "tensors"
    remedy: str = ""

    @property
    def fits(self) -> bool:
        return not self.misfits

    def to_json(self) -> dict[str, Any]:
        """Plain values, with what is derived from them."""
        return {**asdict(self), "fits": self.fits, "sentence": self.sentence}

    @property
    def cheapest(self) -> Change | None:
        """The first change with which everything has room."""
        return next((change for change in self.changes if change.fits and not change.name), None)

    @property
    def sentence(self) -> str:
        """Whether it fits; if not, what does not and the cheapest change that would."""
        asked = f"{bytes_text(self.need)} asked for at once (while {self.at} runs), of {bytes_text(self.capacity)}"
        if self.fits:
            return f"{self.where}: everything fits, {asked}."
        many = f"{len(self.misfits)} {self.noun} do not fit" if len(self.misfits) > 1 else "it does not fit"
        said = f"{self.where}: {many}, {asked}."
        if self.remedy:
            return f"{said} {self.remedy}"
        if (best := self.cheapest) is not None:
            return f"{said} The cheapest change that fits: {best.what}."
        if self.changes:
            first = self.changes[0]
            less = f"{bytes_text(first.before)} -> {bytes_text(first.after)}"
            return f"{said} No change tried is enough; the best is {first.what} ({self.counts}: {less})."
        return f"{said} {_NOTHING}"


@dataclass(frozen=True)
class Check:
    """What was held against what; ``said``: the outcome in a sentence."""

    what: str
    ok: bool
    said: str


@dataclass(frozen=True)
class Moved:
    """Data movement before and after, in bytes: of what, and how the second came about."""

    before: int
    after: int
    what: str
    how: str


@dataclass(frozen=True)
class Studied:
    """What a stage found out about a program on its target.

    ==============  ========================================================================================
    ``step``        the modelled step with its lanes, None where no time is modelled
    ``bottleneck``  what it waits for most, in a sentence
    ``advice``      what to do, the most urgent first
    ``clocked``     its seconds are seconds; else a cycle stands for a nanosecond
    ``details``     what only this kind of target has, under this name in JSON
    ``cards``, ``layers``, ``movement``  the same on the page
    ``commands``    what leads on, for PROGRAM
    ==============  ========================================================================================
    """

    step: StepTime | None
    bottleneck: str
    advice: tuple[str, ...]
    memory: Memory
    moved: Moved
    checks: tuple[Check, ...]
    clocked: bool = True
    details: dict[str, Any] = field(default_factory=dict)
    cards: tuple[Card, ...] = ()
    layers: tuple[Html, ...] = ()
    movement: tuple[Html, ...] = ()
    report: MovementReport | None = None
    commands: tuple[tuple[str, str], ...] = ()

    def time_text(self, seconds: float) -> str:
        """A time as the target has it."""
        return seconds_text(seconds) if self.clocked else f"{count_text(round(seconds * 1e9))} cycles"

    @property
    def headline(self) -> str:
        if self.step is None:
            return f"{self.bottleneck}."
        return f"A step takes {self.time_text(self.step.device_seconds)} (modelled, not measured): {self.bottleneck}."


def ranked(changes: Sequence[Change]) -> tuple[Change, ...]:
    """What fits first; of those that do, or do not, what asks least, then time, traffic and bytes."""

    def key(change: Change) -> tuple[bool, int, float, int, int]:
        seconds = float("inf") if change.seconds is None else change.seconds
        return not change.fits, change.asks, seconds, change.moved or 0, change.after

    return tuple(sorted(changes, key=key))


@dataclass(frozen=True)
class Sparse:
    """A recommender's embeddings on the SparseCores of ``chip``: their plan, and the losses around one training step.

    The losses are of one batch, before and after an update by the gradients that the target computed; None where it
    computes nothing.
    """

    chip: str
    plan: Plan
    loss_before: float | None = None
    loss_after: float | None = None

    @property
    def sentence(self) -> str:
        """What was planned, and what was learnt."""
        said = f"Lookups and updates are planned for the SparseCores of a {self.chip}; this target has none."
        said += f" They take {seconds_text(self.plan.traffic.waited)} of a step there (modelled)."
        if self.loss_before is None or self.loss_after is None:
            return said
        return (
            f"{said} One step trained with the gradients that the target computed: the batch's loss goes from "
            f"{self.loss_before:.4f} to {self.loss_after:.4f}."
        )
