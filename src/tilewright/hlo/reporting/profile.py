"""Measured time of operations: trace-viewer JSON of jax.profiler or XProf, joined to a report by operation name.

Where an event's operation stands depends on who wrote it. CPU and GPU traces have ``hlo_op`` and ``hlo_module`` among
the arguments. TPU traces have the instruction's text as ``long_name``, or only a name, on the thread "XLA Ops" of a
device's process. Times are summed over runs and devices. Lines of asynchronous operations overlap the others and are
left out, and so are the events of loops, conditionals and calls, which contain those of their bodies.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.errors import UnsupportedError, UsageError
from tilewright.hlo.program import Program
from tilewright.hlo.reporting.movement import MovementReport
from tilewright.hlo.reporting.types import MovementRow, ProfileSummary

_LONG_NAME = re.compile(r"%?([\w.\-]+)\s*=\s")
_CONTAINERS = re.compile(r"(?:while|conditional|call|case)(?:[.\d]*)$")
_CONTAINER_OPS = frozenset({"while", "conditional", "call"})
_MOST_BYTES = 2**31
_HOW = "jax.profiler.trace(folder) writes plugins/profile/*/*.trace.json.gz; XProf's trace viewer exports the same"


@dataclass(frozen=True)
class MeasuredTimes:
    """(module, operation) -> (microseconds, events); the module is "" where the trace does not say."""

    source: str
    times: Mapping[tuple[str, str], tuple[float, int]]


def read_profile(path: str | Path) -> MeasuredTimes:
    """Read a ``.trace.json`` or ``.trace.json.gz``, or the newest one under a profiler's folder.

    Raises UsageError for a file that is no such trace or holds no operation, UnsupportedError for an XSpace (``.pb``).
    """
    file = _newest(Path(path)) if Path(path).is_dir() else Path(path)
    trace = _read(file)
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list):
        raise UsageError("this JSON has no traceEvents", where=str(file), how=_HOW)
    times: dict[tuple[str, str], tuple[float, int]] = {}
    for key, duration in _operations([event for event in events if isinstance(event, dict)]):
        total, count = times.get(key, (0.0, 0))
        times[key] = (total + duration, count + 1)
    if not times:
        raise UsageError("the trace holds no event of an XLA operation", where=str(file), how=_HOW)
    return MeasuredTimes(str(path), times)


def _newest(folder: Path) -> Path:
    traces = [p for pattern in ("*.trace.json.gz", "*.trace.json") for p in folder.rglob(pattern)]
    if not traces:
        raise UsageError("no .trace.json.gz in this folder", where=str(folder), how=_HOW)
    return max(traces, key=lambda p: p.stat().st_mtime)


def _read(file: Path) -> Any:
    if file.suffix == ".pb":
        raise UnsupportedError(
            "XSpace files (.pb) are not supported", where=str(file), how="take the .trace.json.gz beside it"
        )
    try:
        raw = file.read_bytes()
        if raw.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as stream:
                raw = stream.read(_MOST_BYTES)
        return json.loads(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"cannot read it: {getattr(error, 'strerror', None) or error}", where=str(file)) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not trace-viewer JSON: {error}", where=str(file), how=_HOW) from None


def _operations(events: list[dict[str, Any]]) -> Iterator[tuple[tuple[str, str], float]]:
    """((module, operation), microseconds) of every event that is one."""
    threads = {(e.get("pid"), e.get("tid")): _name(e) for e in events if e.get("name") == "thread_name"}
    devices = {e.get("pid") for e in events if e.get("name") == "process_name" and "/device:" in _name(e)}
    for event in events:
        if event.get("ph") != "X":
            continue
        arguments = event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        thread = threads.get((event.get("pid"), event.get("tid")), "")
        if "async" in thread.lower():
            continue
        name = arguments.get("hlo_op") or _from_long_name(arguments.get("long_name"))
        if not name and thread == "XLA Ops" and event.get("pid") in devices:
            name = event.get("name")
        duration = _microseconds(event, arguments)
        if name and duration is not None:
            yield (_module(arguments.get("hlo_module")), str(name).lstrip("%")), duration


def _name(event: Mapping[str, Any]) -> str:
    arguments = event.get("args")
    return str(arguments.get("name", "")) if isinstance(arguments, dict) else ""


def _from_long_name(text: object) -> str:
    match = _LONG_NAME.match(text) if isinstance(text, str) else None
    return match[1] if match else ""


def _module(text: object) -> str:
    """``jit_f(1234)`` is a run of ``jit_f``."""
    return text.partition("(")[0] if isinstance(text, str) else ""


def _microseconds(event: Mapping[str, Any], arguments: Mapping[str, Any]) -> float | None:
    try:
        if "device_duration_ps" in arguments:
            return float(arguments["device_duration_ps"]) / 1e6
        return float(event["dur"])
    except (KeyError, TypeError, ValueError):
        return None


def join_profile(report: MovementReport, program: Program, profile: MeasuredTimes) -> MovementReport:
    """The report with measured times; :attr:`MovementReport.profile` names the measurements that no operation matches.

    Raises UsageError for a StableHLO program, whose names no profile knows, and where no operation is the program's.
    """
    if program.kind != "hlo":
        raise UsageError(
            "a profile names the operations of a compiled program, and StableHLO has none of them",
            where=profile.source,
            how="report on the compiler's dump (--xla_dump_to, the file *after_optimizations.txt)",
        )
    times = _of_program(profile, program)
    opcodes = {op.name: op.opcode for _, op in program.operations()}
    rows = tuple(_timed(row, times) for row in report.rows)
    known = {name: time for name, time in times.items() if name in opcodes}
    if not known:
        some = ", ".join(sorted(times, key=lambda name: -times[name][0])[:3])
        raise UsageError(
            f"nothing to join: none of the operations that the profile times ({some}) is in {program.name}",
            where=profile.source,
            how="names are those of one build: profile a run of the very program whose dump this is",
        )
    summary = ProfileSummary(
        profile.source,
        total_us=sum(total for total, _ in times.values()),
        matched_us=sum(total for total, _ in known.values()),
        rows_us=sum(row.measured_us or 0.0 for row in rows),
        unmatched=tuple(sorted(times.keys() - known.keys(), key=lambda name: -times[name][0])),
    )
    return replace(report, rows=rows, profile=summary)


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
    containers = {op.name for _, op in program.operations() if op.opcode in _CONTAINER_OPS}
    times: dict[str, tuple[float, int]] = {}
    for (module, name), (total, count) in profile.times.items():
        if (named and module not in ("", program.name)) or name in containers or _CONTAINERS.match(name):
            continue
        before = times.get(name, (0.0, 0))
        times[name] = (before[0] + total, before[1] + count)
    return times


def _timed(row: MovementRow, times: Mapping[str, tuple[float, int]]) -> MovementRow:
    if row.in_fusion or row.name not in times:
        return row
    total, count = times[row.name]
    return replace(row, measured_us=total, measured_runs=count)
