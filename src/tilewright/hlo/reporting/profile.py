"""Measured time of operations: what jax.profiler or XProf wrote, joined to a report by operation name.

Two forms are read: the profiler's own ``.xplane.pb``, and trace-viewer JSON, which holds a part of it (it leaves
events out of long traces). Where an event's operation stands depends on who wrote it. CPU and GPU profiles have
``hlo_op`` and ``hlo_module`` among the arguments. TPU profiles have the instruction's text as ``long_name`` or as the
event's name, or only a name, on the line "XLA Ops" of a device. Times are summed over runs and devices. Lines of
asynchronous operations overlap the others and are left out, and so are the events of loops, conditionals and calls,
which contain those of their bodies.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tilewright.errors import UsageError
from tilewright.hlo.opcodes import CONTROL
from tilewright.hlo.program import Program
from tilewright.hlo.reporting.rows import computing_row
from tilewright.hlo.reporting.types import MovementRow, ProfileSummary, ReportData
from tilewright.hlo.semantics.context import Context
from tilewright.trace import XPlane
from tilewright.trace import read_profile as read_planes

_LONG_NAME = re.compile(r"%?([\w.\-]+)\s*=\s")
_CONTAINERS = re.compile(r"(?:while|conditional|call|case)(?:[.\d]*)$")
_HOW = "jax.profiler.trace(folder) writes plugins/profile/*/*.xplane.pb; XProf's trace viewer exports .trace.json.gz"
_Times = dict[tuple[str, str], tuple[float, int]]
_Report = TypeVar("_Report", bound=ReportData)


@dataclass(frozen=True)
class MeasuredTimes:
    """(module, operation) -> (microseconds, events); the module is "" where the profile does not say.

    ``holds``: what else there is in the profile, for the sentence that says why nothing could be joined.
    """

    source: str
    times: Mapping[tuple[str, str], tuple[float, int]]
    holds: str = ""


def read_profile(path: str | Path) -> MeasuredTimes:
    """Read an ``.xplane.pb``, a ``.trace.json`` or ``.trace.json.gz``, or the newest profile under a profiler's folder.

    Raises UsageError for a file that is no such profile or holds no operation.
    """
    times: _Times = {}
    others: Counter[str] = Counter()
    for place, key, microseconds, count in _timed(read_planes(path)):
        if key is None:
            others[place] += count
            continue
        total, before = times.get(key, (0.0, 0))
        times[key] = (total + microseconds, before + count)
    holds = ", ".join(f"{count:,} on {place or 'lines without a name'}" for place, count in others.most_common(3))
    if not times:
        what = f"; its events: {holds}" if holds else ""
        raise UsageError(f"the profile holds no event of an XLA operation{what}", where=str(path), how=_HOW)
    return MeasuredTimes(str(path), times, holds)


_Timed = tuple[str, tuple[str, str] | None, float, int]
"""(plane and line, (module, operation) or None for an event of anything else, microseconds, events)"""


def _timed(planes: Iterable[XPlane]) -> Iterator[_Timed]:
    for plane in planes:
        for line in plane.lines:
            called = line.name or line.display
            of_device = called == "XLA Ops" and "/device:" in plane.name
            for event in line.events if "async" not in called.lower() else ():
                own = event.display or _from_long_name(event.name) or event.name
                device = event.stats.get("device_duration_ps")
                picoseconds = int(str(device)) if str(device).isdecimal() else event.picoseconds
                key = _key(event.stats, own if of_device else "")
                yield f"{plane.name} {called}".strip(), key, picoseconds * event.count / 1e6, event.count


def _key(arguments: Mapping[str, Any], otherwise: object) -> tuple[str, str] | None:
    """(module, operation) that an event's arguments, or else its name, tell; ``jit_f(1234)`` is a run of ``jit_f``."""
    name = arguments.get("hlo_op") or _from_long_name(arguments.get("long_name")) or otherwise
    module = arguments.get("hlo_module")
    return (module.partition("(")[0] if isinstance(module, str) else "", str(name).lstrip("%")) if name else None


def _from_long_name(text: object) -> str:
    match = _LONG_NAME.match(text) if isinstance(text, str) else None
    return match[1] if match else ""


def join_profile(report: _Report, program: Program, profile: str | Path) -> _Report:
    """The report with the times that a profile has measured: a file or folder as :func:`read_profile` takes it.

    ``program`` is the compiled one that ran; ``.profile`` names the measurements that no operation of it matches.
    Measured operations that move nothing for layout's sake get rows, too (``compute``). Raises UsageError for a
    StableHLO program, whose names no profile knows, and where no operation is the program's: then it says what the
    profile holds.
    """
    measured = read_profile(profile)
    if program.kind != "hlo":
        raise UsageError(
            "a profile names the operations of a compiled program, and StableHLO has none of them",
            where=measured.source,
            how="report on the compiler's dump (--xla_dump_to, the file *after_optimizations.txt)",
        )
    times = _of_program(measured, program)
    opcodes = {op.name: op.opcode for _, op in program.operations()}
    known = {name: time for name, time in times.items() if name in opcodes}
    if not known:
        some = ", ".join(sorted(times, key=lambda name: -times[name][0])[:3])
        others = f"; its other events: {measured.holds}" if measured.holds else ""
        raise UsageError(
            f"nothing to join: none of the operations that the profile times ({some}) is in {program.name}{others}",
            where=measured.source,
            how="names are those of one build: profile a run of the very program whose dump this is",
        )
    rows = tuple(
        replace(row, measured_us=times[row.name][0], measured_runs=times[row.name][1])
        if row.name in times and not row.in_fusion
        else row
        for row in _with_measured(report.rows, program, known)
    )
    summary = ProfileSummary(
        measured.source,
        total_us=sum(total for total, _ in times.values()),
        matched_us=sum(total for total, _ in known.values()),
        rows_us=sum(row.measured_us or 0.0 for row in rows if row.category != "compute"),
        unmatched=tuple(sorted(times.keys() - known.keys(), key=lambda name: -times[name][0])),
    )
    return replace(report, rows=rows, profile=summary)


def _with_measured(
    rows: Sequence[MovementRow], program: Program, measured: Mapping[str, tuple[float, int]]
) -> list[MovementRow]:
    """The rows, and one for each measured operation that has none, in the program's order."""
    context = Context(program, None)
    have = {row.name for row in rows if not row.in_fusion}
    order = {op.name: place for place, (_, op) in enumerate(program.operations())}
    more = [
        row
        for computation, op in program.operations()
        if op.name in measured and op.name not in have and computation.name not in program.fused
        if (row := computing_row(context, computation, op)) is not None
    ]
    return sorted([*rows, *more], key=lambda row: order.get(row.name, 0)) if more else list(rows)


def _of_program(profile: MeasuredTimes, program: Program) -> dict[str, tuple[float, int]]:
    """Operation -> its time, containers left out; of this program's module alone where the trace names modules."""
    modules = {module for module, _ in profile.times}
    named = program.name in modules
    if not named and modules and "" not in modules:
        raise UsageError(
            f"the profile times {', '.join(sorted(modules)[:5])}, not {program.name}",
            where=profile.source,
            how="profile a run of this program, or report on the dump of the one that ran",
        )
    containers = {op.name for _, op in program.operations() if op.opcode in CONTROL}
    times: dict[str, tuple[float, int]] = {}
    for (module, name), (total, count) in profile.times.items():
        if (named and module not in ("", program.name)) or name in containers or _CONTAINERS.match(name):
            continue
        before = times.get(name, (0.0, 0))
        times[name] = (before[0] + total, before[1] + count)
    return times
