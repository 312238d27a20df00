"""The values of a movement report: rows, tensors, totals, rankings, the peak, measured time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

from msgspec import to_builtins

from tilewright.hlo.program import joined
from tilewright.render import bytes_text, percent_text, seconds_text
from tilewright.render.formats import place_text
from tilewright.version import __version__

#: Counts changes of the JSON that break readers. 2: totals count loops by their trips; ``tensors`` has every tensor.
SCHEMA_VERSION = 2


class _Value:
    """A part of a report; its JSON has its fields, and the properties that ``derived`` names."""

    __slots__ = ()
    derived: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values, with what is derived from them."""
        plain = {**to_builtins(self), **{name: getattr(self, name) for name in self.derived}}
        if not plain.get("also"):
            plain.pop("also", None)
        return plain


class _Padded(_Value):
    """Something with bytes of data, and bytes with padding."""

    __slots__ = ()
    logical_bytes: int
    padded_bytes: int

    @property
    def wasted_bytes(self) -> int:
        """Padding, in bytes."""
        return self.padded_bytes - self.logical_bytes

    @property
    def padding_ratio(self) -> float:
        """padded_bytes / logical_bytes, 1.0 for an empty array."""
        return self.padded_bytes / self.logical_bytes if self.logical_bytes else 1.0

    @property
    def padding_share(self) -> float:
        """The part of the bytes that is padding, 0 to 1."""
        return self.wasted_bytes / self.padded_bytes if self.padded_bytes else 0.0


@dataclass(frozen=True, slots=True)
class MovementRow(_Padded):
    """One operation. Bytes are of one run of it; ``moved_bytes`` are read and written together.

    ====================  ======================================================================================
    ``op``, ``name``      what it is (``reshape``) and what it is called (``reshape.12``)
    ``source``            the user's line, ``model.py:47``, or ""
    ``from_layout``       its operand's shape and layout, ``(a, b)`` for several; ``to_layout`` its result's
    ``logical_bytes``     bytes of the result's elements; ``padded_bytes`` with padding
    ``moved_bytes``       bytes read and written, padding included; 0 for a bitcast and inside a fusion
    ``bitcast``           every element keeps its address
    ``reason``            why it is, or is not, a bitcast
    ``path``              the computations from the entry to the one it is in
    ``op_name``           the framework's name for it
    ``in_fusion``         it is part of a fusion and writes nothing to memory by itself
    ``predicted``         its layouts are predictions
    ``bytes_read``        the two parts of ``moved_bytes``, with ``bytes_written``
    ``hidden_bytes``      what it would move by itself, where it counts 0 without being a bitcast (inside a fusion)
    ``runs``              how often it runs in one run of the program, over all callers; ``runs_known``: no loop
                          among them has an unknown trip count (such a loop counts as one trip)
    ``trips``             trip counts of the loops on ``path``, outermost first, None where unknown
    ``registers_before``  vector registers of the target its operands and (``_after``) its result fill, None
                          where the target has no vector registers
    ``from_space``        memory spaces of operand and (``to_space``) result: 0 main memory, 1 vector memory, 5 host
    ``core``              "sparsecore" or "host" where it is offloaded to one, else ""
    ``category``          ``bitcast`` (free), ``relayout``, ``transfer`` (to another memory space, as it is),
                          ``duplicate`` (as it is), ``repeat`` (broadcast), ``part`` (slices, joins, gathers ...),
                          ``fused`` (counts 0), ``compute`` (moves nothing for layout's sake, but takes time)
    ``measured_us``       measured microseconds of all its runs in a profile, None without; ``measured_runs`` of them
    ``modelled_us``       modelled microseconds of all its runs in one run of the program; None where the target has no
                          time model, and for what takes no time of its own (inside a fusion)
    ``bound``             what it waits for by that model: ``hbm``, ``vmem``, ``vector``, ``relayout``, ``latency`` ...
    ``inside_us``         inside a fusion: the modelled time of all runs of that fusion
    ``kernel``            what a custom kernel's maker called it, where ``name`` is no such name
    ``also``              of several equal rows shown as one, the names of the others; () in a report's own rows
    ====================  ======================================================================================
    """

    op: str
    name: str
    source: str
    from_layout: str
    to_layout: str
    logical_bytes: int
    padded_bytes: int
    moved_bytes: int
    bitcast: bool
    reason: str
    path: str
    op_name: str = ""
    in_fusion: bool = False
    predicted: bool = False
    bytes_read: int = 0
    bytes_written: int = 0
    hidden_bytes: int = 0
    runs: int = 1
    runs_known: bool = True
    trips: tuple[int | None, ...] = ()
    registers_before: int | None = None
    registers_after: int | None = None
    from_space: int = 0
    to_space: int = 0
    core: str = ""
    category: str = ""
    measured_us: float | None = None
    measured_runs: int = 0
    modelled_us: float | None = None
    bound: str = ""
    inside_us: float | None = None
    kernel: str = ""
    also: tuple[str, ...] = ()
    derived: ClassVar[tuple[str, ...]] = ("total_bytes", "padding_ratio")

    @property
    def total_bytes(self) -> int:
        """Bytes of all its runs: ``moved_bytes * runs``."""
        return self.moved_bytes * self.runs

    @property
    def step_us(self) -> float | None:
        """Measured microseconds of all its runs in one step: a profile may hold several."""
        return None if self.measured_us is None else self.measured_us * self.runs / max(1, self.measured_runs)

    @property
    def from_short(self) -> str:
        """``from_layout`` with a run of equal operands written once: ``(16 x f32[512,1,32]{2,1,0})``."""
        if not self.from_layout.startswith("("):
            return self.from_layout
        operands = re.split(r", (?=[a-z(])", self.from_layout[1:-1])
        runs = ((operand, len(list(same))) for operand, same in groupby(operands))
        return "(" + ", ".join(f"{n} x {operand}" if n > 1 else operand for operand, n in runs) + ")"

    @property
    def layouts(self) -> str:
        """Both layouts in a line."""
        return f"{self.from_short} -> {self.to_layout}"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change to the program that pays: what a rule of ``optimize``, or an advice, says about operations of it.

    ===============  ==========================================================================================
    ``op``           the operation's name, as the report's rows have it (``reshape.12``, ``%3``); "": all that move on
                     the line ``source``
    ``rule``         the rule's name, or the advice's
    ``factor``       time of the operations it is about before over after, or None where that is not known
    ``kind``         what kind of number that is: ``predicted`` (the time model), ``confirmed`` (by the compiler's own
                     estimate or a clock, at the rule's example), ``counted`` (padded bytes) or ``unpriced``
    ``how``          what to do: ``write q.reshape(...) (line 41), or run tilewright optimize``
    ``source``       the user's line, ``model.py:41``, or ""
    ``what``         what costs now, in words: ``repeats the keys 8 times in memory``
    ``path``         the computations from the entry to the one it is in, as rows have it; "": any of that name
    ``also``         further operations that it is about
    ``lines``        further lines, whose relayouts it takes away (without an ``op``)
    ``saved_us``     modelled microseconds of one run of the program that it saves; None: the report takes the modelled
                     time of its operations (or of all on its line) and the factor
    ``saved_bytes``  bytes moved that it saves, which rank where there is no time; 0: those of ``op`` and ``also``
    ``column``       the column of the user's line, 0 where it is not known
    ``basis``        at which shapes a ``confirmed`` factor was found, and what the time model says of these operations
    ===============  ==========================================================================================
    """

    op: str
    rule: str
    factor: float | None
    kind: str
    how: str
    source: str = ""
    what: str = ""
    path: str = ""
    also: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    saved_us: float | None = None
    saved_bytes: int = 0
    column: int = 0
    basis: str = ""

    @property
    def own(self) -> bool:
        """Whether the report found it by itself; a rule has a factor, or says that it has none."""
        return self.factor is None and self.kind != "unpriced"

    @property
    def saved(self) -> str:
        """What it saves, as text: modelled time, or bytes moved where no time is known; a dash where neither is."""
        bytes_saved = bytes_text(self.saved_bytes) if self.saved_bytes else "–"
        return seconds_text(self.saved_us / 1e6) if self.saved_us else bytes_saved

    @property
    def words(self) -> str:
        """Where, what costs now, and what to do."""
        return f"{place_text(self.source)} {self.what or self.op}: {self.how}".lstrip()

    def concerns(self, row: MovementRow) -> bool:
        """Whether it is about this row's operation."""
        if not self.op:
            here = row.source == self.source or (row.category == "relayout" and row.source in self.lines)
            return bool(row.source and row.moved_bytes and here)
        return row.name in (self.op, *self.also) and self.path in ("", row.path)


@dataclass(frozen=True, slots=True)
class PaddedTensor(_Padded):
    """An array that has a buffer of its own, and the bytes of it that hold no data."""

    name: str
    op: str
    source: str
    layout: str
    logical_bytes: int
    padded_bytes: int
    path: str
    memory_space: int = 0
    also: tuple[str, ...] = ()
    derived: ClassVar[tuple[str, ...]] = ("wasted_bytes", "padding_ratio")
    kernel: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Peak(_Padded):
    """The most bytes that live at once in one memory space, by a sequential reading of the program.

    Operations run one after the other in the order of the text. A buffer lives from the operation that writes it to
    the last one that reads it; arguments and results of the program live throughout. ``at`` is the operation during
    which the peak is reached, ``path`` its computations, ``tensors`` the largest buffers alive then, equal ones as one.
    ``lost_bytes`` of ``padded_bytes`` are in no buffer: what the compiler's allocator loses between them.
    """

    memory_space: int
    padded_bytes: int
    logical_bytes: int
    at: str
    path: str
    tensors: tuple[PaddedTensor, ...] = ()
    lost_bytes: int = 0

    @property
    def wasted_bytes(self) -> int:
        """Padding, in bytes: of buffers, not what lies between them."""
        return self.padded_bytes - self.lost_bytes - self.logical_bytes

    @property
    def shares(self) -> str:
        """Which part is padding, and which is lost between buffers, where any is."""
        lost = f", {percent_text(self.lost_bytes / self.padded_bytes)} lost between buffers" if self.lost_bytes else ""
        return f"{percent_text(self.padding_share)} of it padding{lost}"

    def to_json(self) -> dict[str, Any]:
        """Plain values, with what is derived from them."""
        return {**to_builtins(self), "tensors": [tensor.to_json() for tensor in self.tensors]}


@dataclass(frozen=True, slots=True)
class ProfileSummary(_Value):
    """What a joined profile holds. Times are microseconds, summed over its runs, containers (loops, calls) left out.

    ``matched_us`` belong to operations of this program, ``rows_us`` to those among them that move.
    """

    source: str
    total_us: float
    matched_us: float
    rows_us: float
    unmatched: tuple[str, ...] = ()
    derived: ClassVar[tuple[str, ...]] = ("unmatched_share",)

    @property
    def unmatched_share(self) -> float:
        """Share of the measured time that belongs to no operation of this program, 0 to 1."""
        return 1 - self.matched_us / self.total_us if self.total_us else 0.0


@dataclass(frozen=True, slots=True)
class TimeSummary(_Value):
    """How long one run of the program takes on the report's target, modelled, in microseconds.

    ``device_us``: on the device, which is what is shown; ``call_us``: the call beside it; ``step_us``: both.
    ``priced``: the share of its flops or bytes, the lesser, that has a time; ``notes``: where the constants are from;
    ``exchange_us``: exchanges between chips, ``exposed_us`` of them waited for; ``advice``: what it waits for, in
    sentences, the most first.
    """

    step_us: float
    call_us: float
    priced: float
    notes: tuple[str, ...] = ()
    exchange_us: float = 0.0
    exposed_us: float = 0.0
    advice: tuple[str, ...] = ()
    derived: ClassVar[tuple[str, ...]] = ("device_us",)

    @property
    def device_us(self) -> float:
        """The step without the call, what shares of time are taken of."""
        return self.step_us - self.call_us


@dataclass(frozen=True)
class ReportData(_Padded):
    """What a movement report holds, without its page: rows in the program's order, tensors with buffers, rankings.

    ``predicted``: layouts are the target's predictions; ``tiled``: any of them has tiles; ``unsized``: shapes with
    unbounded dims or of forms that are not known, which have no bytes to count; ``peaks``: one :class:`Peak` per memory
    space, main memory first; ``unknown_loops``: loops whose trip count is not known, each counted once; ``profile``:
    joined measurements; ``unoptimized``: HLO from before the compiler's optimisations (no schedule, fusion or tile);
    ``source``: the file it was read from, "" where it is not known; ``time``: the modelled step, None without a model;
    ``suggestions``: changes that pay, most first; ``normal_form``: the version of what the target's compiler does by
    itself that has been done before the prediction, 0 where the program is as it was written; ``not_understood``: what
    of the text was not, in sentences.
    """

    program: str
    kind: str
    target: str | None
    predicted: bool
    tiled: bool
    unsized: tuple[str, ...]
    rows: tuple[MovementRow, ...]
    tensors: tuple[PaddedTensor, ...]
    peaks: tuple[Peak, ...] = ()
    unknown_loops: tuple[str, ...] = ()
    register_bytes: int | None = None
    profile: ProfileSummary | None = None
    unoptimized: bool = False
    source: str = ""
    time: TimeSummary | None = None
    suggestions: tuple[Suggestion, ...] = ()
    normal_form: int = 0
    not_understood: tuple[str, ...] = ()

    @cached_property
    def alike(self) -> ReportData:
        """The report with equal rows, and equal tensors, of unrolled layers as one: what is shown of it."""
        same = ("op", "source", "from_layout", "to_layout", "moved_bytes", "runs", "category", "trips", "bound", "core")
        rows = joined(self.rows, same, ("runs", "measured_us", "measured_runs", "modelled_us", "inside_us"))
        tensors = joined(self.tensors, ("op", "source", "layout"), ("logical_bytes", "padded_bytes"))
        return replace(self, rows=tuple(rows), tensors=tuple(tensors))

    @cached_property
    def moved_bytes(self) -> int:
        """Bytes moved by all runs of all rows."""
        return sum(row.total_bytes for row in self.rows)

    @property
    def moved_by_op(self) -> dict[str, int]:
        """Operation -> the bytes its rows move in all their runs, most first."""
        return self._moved_by("op", self.rows)

    @property
    def moved_by_category(self) -> dict[str, int]:
        """Category -> the bytes its rows move in all their runs, most first; those that move nothing are left out."""
        return self._moved_by("category", [row for row in self.rows if row.moved_bytes])

    def _moved_by(self, field: str, rows: Sequence[MovementRow]) -> dict[str, int]:
        totals: Counter[str] = Counter()
        for row in rows:
            totals[getattr(row, field)] += row.total_bytes
        return dict(totals.most_common())

    @property
    def hidden_bytes(self) -> int:
        """Bytes that rows inside fusions would move by themselves, over all runs."""
        return sum(row.hidden_bytes * row.runs for row in self.rows)

    @property
    def registers(self) -> tuple[int, int]:
        """Vector registers that operands and results of the moving rows fill, over all runs: before, after."""
        moving = [row for row in self.rows if row.moved_bytes and row.registers_after is not None]
        before = sum((row.registers_before or 0) * row.runs for row in moving)
        return before, sum((row.registers_after or 0) * row.runs for row in moving)

    @property
    def peak(self) -> Peak | None:
        """The peak of main memory, or of the first memory space that holds anything."""
        return self.peaks[0] if self.peaks else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of these figures must know."""
        return tuple(_notes(self))

    @property
    def transfers(self) -> list[MovementRow]:
        """Prefetches and write-backs: arrays brought to another memory space as they are."""
        return [row for row in self.rows if row.category == "transfer"]

    @property
    def bitcasts(self) -> int:
        """How many rows are free."""
        return sum(row.bitcast for row in self.rows)

    @property
    def logical_bytes(self) -> int:  # type: ignore[override]
        """Bytes of the elements of all tensors."""
        return sum(tensor.logical_bytes for tensor in self.tensors)

    @property
    def padded_bytes(self) -> int:  # type: ignore[override]
        """Bytes of all tensors, padding included."""
        return sum(tensor.padded_bytes for tensor in self.tensors)

    def ranked(self, top: int | None = None) -> list[MovementRow]:
        """The rows that move bytes, most in all runs first; rows of equal weight stay in the program's order."""
        moving = [row for row in self.rows if row.moved_bytes]
        return sorted(moving, key=lambda row: -row.total_bytes)[:top]

    def slowest(self, top: int | None = None) -> list[MovementRow]:
        """By time: with a profile the rows that it has measured, most first; else by the model, computing ones too.

        Rows that move and that the model gives no time of their own come last, by their bytes.
        """
        if self.profile is None:
            rows = [row for row in self.rows if row.moved_bytes or row.modelled_us]
            return sorted(rows, key=lambda row: (-(row.modelled_us or 0.0), -row.total_bytes))[:top]
        timed = [row for row in self.rows if row.measured_us]
        return sorted(timed, key=lambda row: -(row.measured_us or 0.0))[:top]

    @cached_property
    def modelled_us(self) -> float:
        """Modelled microseconds of the rows that move bytes, in one run of the program."""
        return sum(row.modelled_us or 0.0 for row in self.ranked())

    @property
    def measured_us(self) -> float:
        """Microseconds of a step, as far as a profile's operations are the program's; 0 without a profile."""
        return sum(row.step_us or 0.0 for row in self.rows)

    def suggestion_of(self, row: MovementRow) -> Suggestion | None:
        """The change that concerns a row and pays most, or None."""
        found = (*self._suggestions_at.get(row.source, ()), *self._suggestions_at.get(row.name, ()))
        return next((each for each in found if each.concerns(row)), None)

    @cached_property
    def _suggestions_at(self) -> dict[str, list[Suggestion]]:
        """By the names of their operations, or their line."""
        found: dict[str, list[Suggestion]] = {}
        for each in self.suggestions:
            for name in (each.op, *each.also) if each.op else (each.source, *each.lines):
                found.setdefault(name, []).append(each)
        return found

    def wasteful(self) -> list[PaddedTensor]:
        """The tensors with padding, most wasted bytes first."""
        padded = [tensor for tensor in self.tensors if tensor.wasted_bytes]
        return sorted(padded, key=lambda tensor: -tensor.wasted_bytes)

    def to_json(self) -> dict[str, Any]:
        """Plain values: the version, the input, totals, peaks, rows and tensors in the program's order.

        ``schema_version`` counts changes that break readers.
        """
        own = ("target", "predicted", "tiled", "unoptimized", "normal_form", "register_bytes")
        texts = ("unsized", "not_understood", "unknown_loops", "notes")
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "movement_report",
            "tilewright": __version__,
            "input": self.source,
            "program": {"name": self.program, "kind": self.kind},
            **{name: getattr(self, name) for name in own},
            **{name: list(getattr(self, name)) for name in texts},
            "totals": self._totals(),
            "profile": self.profile and self.profile.to_json(),
            "time": self.time and self.time.to_json(),
            "suggestions": [to_builtins(suggestion) for suggestion in self.suggestions],
            **{name: [each.to_json() for each in getattr(self, name)] for name in ("peaks", "rows", "tensors")},
        }

    def _totals(self) -> dict[str, Any]:
        moved = ("bitcasts", "moved_bytes", "moved_by_op", "moved_by_category", "hidden_bytes")
        return {
            "rows": len(self.rows),
            **{name: getattr(self, name) for name in moved},
            **dict(zip(("registers_before", "registers_after"), self.registers)),
            "tensors": len(self.tensors),
            **{name: getattr(self, name) for name in ("logical_bytes", "padded_bytes", "wasted_bytes")},
            "peak_bytes": self.peak.padded_bytes if self.peak else 0,
        }


def _notes(report: ReportData) -> Iterator[str]:
    yield from report.not_understood
    if report.predicted:
        yield f"layouts are predicted by the rule of {report.target}; the compiler may choose others"
        if report.normal_form:
            yield (
                f"what the compiler does by itself is done first (normal form {report.normal_form}); broadcasts, "
                "slices and joins beside operations that compute are expected in their kernels and count 0 bytes"
            )
        else:
            yield "each operation is counted by itself; a compiler fuses most broadcasts into their users"
    elif report.unoptimized:
        yield (
            "before optimisation: fusion and layout assignment have not run on this dump, so these are not yet the "
            "bytes that will move; take the file *after_optimizations.txt of --xla_dump_to, or the folder"
        )
    elif not report.tiled:
        yield "no shape of this dump carries tiles: bytes are those of linear arrays, without padding"
    if report.unknown_loops:
        loops = ", ".join(report.unknown_loops[:5])
        yield f"loops without a known trip count are counted once: {loops}"
    if any(row.in_fusion for row in report.rows):
        yield "rows inside fusions write nothing to memory and count 0 bytes"
    if report.unsized:
        yield f"shapes without a size are left out: {', '.join(report.unsized[:5])}"
    if report.profile is not None:
        profile = report.profile
        share = profile.rows_us / profile.total_us if profile.total_us else 0.0
        nothing = "no operation that moves has a measured time: all that the profile times computes"
        yield f"{share:.1%} of the profile's time is in operations that move" if profile.rows_us else nothing
        yield f"{profile.unmatched_share:.1%} of the profile's time belongs to no operation of this program"
    if report.time is not None:
        yield f"times are modelled: {'; '.join(report.time.notes)}"
