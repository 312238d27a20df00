"""The values of a movement report: rows, tensors, totals, rankings, the peak, measured time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import groupby
from typing import Any

from tilewright.errors import UsageError


@dataclass(frozen=True, slots=True)
class MovementRow:
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
                          ``fused`` (counts 0)
    ``measured_us``       measured microseconds of all its runs in a profile, None without; ``measured_runs`` of them
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

    @property
    def total_bytes(self) -> int:
        """Bytes of all its runs: ``moved_bytes * runs``."""
        return self.moved_bytes * self.runs

    @property
    def from_short(self) -> str:
        """``from_layout`` with a run of equal operands written once: ``(16 x f32[512,1,32]{2,1,0})``."""
        if not self.from_layout.startswith("("):
            return self.from_layout
        operands = re.split(r", (?=[a-z(])", self.from_layout[1:-1])
        runs = ((operand, len(list(same))) for operand, same in groupby(operands))
        return "(" + ", ".join(f"{n} x {operand}" if n > 1 else operand for operand, n in runs) + ")"

    @property
    def padding_ratio(self) -> float:
        """padded_bytes / logical_bytes, 1.0 for an empty array."""
        return self.padded_bytes / self.logical_bytes if self.logical_bytes else 1.0


@dataclass(frozen=True, slots=True)
class PaddedTensor:
    """An array that has a buffer of its own, and the bytes of it that hold no data."""

    name: str
    op: str
    source: str
    layout: str
    logical_bytes: int
    padded_bytes: int
    path: str
    memory_space: int = 0

    @property
    def wasted_bytes(self) -> int:
        """Padding, in bytes."""
        return self.padded_bytes - self.logical_bytes

    @property
    def padding_ratio(self) -> float:
        """padded_bytes / logical_bytes, 1.0 for an empty array."""
        return self.padded_bytes / self.logical_bytes if self.logical_bytes else 1.0


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes that live at once in one memory space, by a sequential reading of the program.

    Operations run one after the other in the order of the text. A buffer lives from the operation that writes it to
    the last one that reads it; arguments and results of the program live throughout. ``at`` is the operation during
    which the peak is reached, ``path`` its computations, ``tensors`` the largest buffers alive then.
    """

    memory_space: int
    padded_bytes: int
    logical_bytes: int
    at: str
    path: str
    tensors: tuple[PaddedTensor, ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileSummary:
    """What a joined profile holds. Times are microseconds, summed over its runs, containers (loops, calls) left out.

    ``matched_us`` belong to operations of this program, ``rows_us`` to rows of the report among them.
    """

    source: str
    total_us: float
    matched_us: float
    rows_us: float
    unmatched: tuple[str, ...] = ()

    @property
    def unmatched_share(self) -> float:
        """Share of the measured time that belongs to no operation of this program, 0 to 1."""
        return 1 - self.matched_us / self.total_us if self.total_us else 0.0


@dataclass(frozen=True)
class MovementReport:
    """The rows in the order of the program, the tensors with buffers, and rankings of both.

    ``predicted``: layouts are the target's predictions; ``tiled``: any of them has tiles; ``unsized``: shapes with
    unbounded dims, which have no bytes to count; ``peaks``: one :class:`Peak` per memory space, main memory first;
    ``unknown_loops``: loops whose trip count is not known, each counted once; ``profile``: joined measurements;
    ``unoptimized``: HLO from before the compiler's optimisations (no schedule, no fusion, no tile);
    ``source``: the file it was read from, "" where nobody said.

    >>> from tilewright.hlo import load, report
    >>> text = "HloModule m\\nENTRY e {\\n p = f32[4,2]{1,0} parameter(0)\\n ROOT c = f32[4,2]{0,1} copy(p)\\n}"
    >>> result = report(load(text))
    >>> [(row.op, row.moved_bytes, row.reason) for row in result.rows]
    [('copy', 64, 'the order of the elements changes: dim 1 (2) was the fastest, dim 0 (4) is now')]
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

    @cached_property
    def moved_bytes(self) -> int:
        """Bytes moved by all runs of all rows."""
        return sum(row.total_bytes for row in self.rows)

    @property
    def moved_by_op(self) -> dict[str, int]:
        """Operation -> the bytes its rows move in all their runs, most first."""
        totals: dict[str, int] = {}
        for row in self.rows:
            totals[row.op] = totals.get(row.op, 0) + row.total_bytes
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    @property
    def moved_by_category(self) -> dict[str, int]:
        """Category -> the bytes its rows move in all their runs, most first; those that move nothing are left out."""
        totals: dict[str, int] = {}
        for row in self.rows:
            if row.moved_bytes:
                totals[row.category] = totals.get(row.category, 0) + row.total_bytes
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

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
    def bitcasts(self) -> int:
        """How many rows are free."""
        return sum(row.bitcast for row in self.rows)

    @property
    def logical_bytes(self) -> int:
        """Bytes of the elements of all tensors."""
        return sum(tensor.logical_bytes for tensor in self.tensors)

    @property
    def padded_bytes(self) -> int:
        """Bytes of all tensors, padding included."""
        return sum(tensor.padded_bytes for tensor in self.tensors)

    @property
    def wasted_bytes(self) -> int:
        """Bytes of padding in all tensors."""
        return self.padded_bytes - self.logical_bytes

    def ranked(self, top: int | None = None) -> list[MovementRow]:
        """The rows that move bytes, most in all runs first; rows of equal weight stay in the program's order."""
        moving = [row for row in self.rows if row.moved_bytes]
        return sorted(moving, key=lambda row: -row.total_bytes)[:top]

    def slowest(self, top: int | None = None) -> list[MovementRow]:
        """The rows with measured time, most first."""
        timed = [row for row in self.rows if row.measured_us]
        return sorted(timed, key=lambda row: -(row.measured_us or 0.0))[:top]

    def wasteful(self, top: int | None = None) -> list[PaddedTensor]:
        """The tensors with padding, most wasted bytes first."""
        padded = [tensor for tensor in self.tensors if tensor.wasted_bytes]
        return sorted(padded, key=lambda tensor: -tensor.wasted_bytes)[:top]

    def to_json(self) -> dict[str, Any]:
        """The report as plain values; ``schema_version`` counts changes that break readers."""

        return to_json(self)

    def to_html(self) -> str:
        """One self-contained page."""
        from tilewright.hlo.reporting.page import to_html

        return to_html(self)


def _notes(report: MovementReport) -> Iterator[str]:
    if report.predicted:
        yield f"layouts are predicted by the rule of {report.target}; the compiler may choose others"
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
        joined = profile.rows_us / profile.total_us if profile.total_us else 0.0
        yield f"{joined:.1%} of the profile's time was joined to rows of this report; the rest computes, or is unknown"
        yield f"{profile.unmatched_share:.1%} of the profile's time belongs to no operation of this program"


# A movement report as plain values, and back: what `report --json` writes and `--baseline` reads.

#: Counts changes that break readers. 2: totals count loops by their trips; ``tensors`` has every tensor.
SCHEMA_VERSION = 2

_ROW = tuple(field.name for field in fields(MovementRow))
_TENSOR = tuple(field.name for field in fields(PaddedTensor))


def to_json(report: MovementReport) -> dict[str, Any]:
    """Plain values: the version, the input, totals, peaks, rows and tensors in the program's order."""
    from tilewright.version import __version__

    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "movement_report",
        "tilewright": __version__,
        "input": report.source,
        "program": {"name": report.program, "kind": report.kind},
        "target": report.target,
        "predicted": report.predicted,
        "tiled": report.tiled,
        "unoptimized": report.unoptimized,
        "register_bytes": report.register_bytes,
        "unsized": list(report.unsized),
        "unknown_loops": list(report.unknown_loops),
        "notes": list(report.notes),
        "totals": _totals(report),
        "profile": _profile_json(report.profile),
        "peaks": [_peak_json(peak) for peak in report.peaks],
        "rows": [row_json(row) for row in report.rows],
        "tensors": [_tensor_json(tensor) for tensor in report.tensors],
    }


def _totals(report: MovementReport) -> dict[str, Any]:
    before, after = report.registers
    return {
        "rows": len(report.rows),
        "bitcasts": report.bitcasts,
        "moved_bytes": report.moved_bytes,
        "moved_by_op": report.moved_by_op,
        "moved_by_category": report.moved_by_category,
        "hidden_bytes": report.hidden_bytes,
        "registers_before": before,
        "registers_after": after,
        "tensors": len(report.tensors),
        "logical_bytes": report.logical_bytes,
        "padded_bytes": report.padded_bytes,
        "wasted_bytes": report.wasted_bytes,
        "peak_bytes": report.peak.padded_bytes if report.peak else 0,
    }


def row_json(row: MovementRow) -> dict[str, Any]:
    """One row as plain values, with what is derived from them."""
    plain: dict[str, Any] = {name: getattr(row, name) for name in _ROW}
    plain["trips"] = list(row.trips)
    return {**plain, "total_bytes": row.total_bytes, "padding_ratio": row.padding_ratio}


def _tensor_json(tensor: PaddedTensor) -> dict[str, Any]:
    plain: dict[str, Any] = {name: getattr(tensor, name) for name in _TENSOR}
    return {**plain, "wasted_bytes": tensor.wasted_bytes, "padding_ratio": tensor.padding_ratio}


def _peak_json(peak: Peak) -> dict[str, Any]:
    return {
        "memory_space": peak.memory_space,
        "padded_bytes": peak.padded_bytes,
        "logical_bytes": peak.logical_bytes,
        "at": peak.at,
        "path": peak.path,
        "tensors": [_tensor_json(tensor) for tensor in peak.tensors],
    }


def _profile_json(profile: ProfileSummary | None) -> dict[str, Any] | None:
    if profile is None:
        return None
    return {
        "source": profile.source,
        "total_us": profile.total_us,
        "matched_us": profile.matched_us,
        "rows_us": profile.rows_us,
        "unmatched_share": profile.unmatched_share,
        "unmatched": list(profile.unmatched),
    }


def from_json(plain: Mapping[str, Any], where: str = "") -> MovementReport:
    """The report that :func:`to_json` wrote. Raises UsageError for anything else, naming what is wrong.

    >>> from tilewright.hlo import load, report
    >>> found = report(load("HloModule m\\nENTRY e { ROOT p = f32[4,2]{1,0:T(8,128)} parameter(0) }"))
    >>> from_json(to_json(found)) == found
    True
    """
    _check_head(plain, where)
    try:
        program, profile = plain["program"], plain["profile"]
        return MovementReport(
            *(str(program["name"]), str(program["kind"]), plain["target"]),
            *(bool(plain["predicted"]), bool(plain["tiled"]), tuple(plain["unsized"])),
            rows=tuple(_row(row) for row in plain["rows"]),
            tensors=tuple(_tensor(tensor) for tensor in plain["tensors"]),
            peaks=tuple(_peak(peak) for peak in plain["peaks"]),
            unknown_loops=tuple(plain["unknown_loops"]),
            register_bytes=plain["register_bytes"],
            profile=None if profile is None else _profile(profile),
            unoptimized=bool(plain.get("unoptimized", False)),
            source=str(plain.get("input", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(
            f"not a whole movement report: {what}", where=where, how="write it with: tilewright report X -o report.json"
        ) from None


def _check_head(plain: Mapping[str, Any], where: str) -> None:
    how = "write it with: tilewright report X -o report.json"
    if not isinstance(plain, Mapping) or plain.get("kind") != "movement_report":
        raise UsageError("this JSON is not a movement report", where=where, how=how)
    if plain.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(
            f"schema_version {plain.get('schema_version')!r}, but this version reads {SCHEMA_VERSION}",
            where=where,
            how=f"{how} of this version",
        )


def _row(plain: Mapping[str, Any]) -> MovementRow:
    found = {name: plain[name] for name in _ROW}
    return MovementRow(**{**found, "trips": tuple(found["trips"])})


def _tensor(plain: Mapping[str, Any]) -> PaddedTensor:
    return PaddedTensor(**{name: plain[name] for name in _TENSOR})


def _peak(plain: Mapping[str, Any]) -> Peak:
    names = ("memory_space", "padded_bytes", "logical_bytes", "at", "path")
    return Peak(**{name: plain[name] for name in names}, tensors=tuple(map(_tensor, plain["tensors"])))


def _profile(plain: Mapping[str, Any]) -> ProfileSummary:
    names = ("source", "total_us", "matched_us", "rows_us")
    return ProfileSummary(**{name: plain[name] for name in names}, unmatched=tuple(plain["unmatched"]))
