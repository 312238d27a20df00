"""A profile of a run on TPUs as counters: jax.profiler's XSpace (``.xplane.pb``) or trace-viewer JSON.

Both have planes (processes) of lines (threads) of events. A TPU's plane is ``/device:TPU:N``, a SparseCore's
``/device:TPU:N SparseCore M``. What is busy is the union of a line's operations within the measured steps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tilewright.embed.planning.counters import Counters, Seconds
from tilewright.errors import UsageError
from tilewright.reading import read_bytes

Event: TypeAlias = tuple[int, int, str]
"""Begin and end in picoseconds, and the name."""
Planes: TypeAlias = dict[str, dict[str, list[Event]]]
"""Plane -> line -> events."""

TRACES = (".pb", ".trace.json", ".trace.json.gz")
_CHIP = re.compile(r"/device:TPU:\d+$")
_SPARSECORE = re.compile(r"(/device:TPU:\d+) SparseCore \d+$")
_PREPROCESSING = re.compile(r"(^|[ .:])(preprocess|preprocess_sparse_dense_matmul\w*)$")
_SECOND = 10**12
_HOW = "jax.profiler.trace(folder) around some steps on a TPU writes plugins/profile/*/*.xplane.pb"


def is_trace(path: str | Path) -> bool:
    """Whether a path is a trace's: a file by its name, or a folder with such a file in it.

    >>> is_trace("plugins/profile/today/host.xplane.pb"), is_trace("counters.json")
    (True, False)
    """
    return str(path).endswith(TRACES) or (Path(path).is_dir() and any(_traces(Path(path))))


def read_trace(path: str | Path) -> Counters:
    """Steps and seconds of a trace, or of the newest one under a profiler's folder.

    =================  ===========================================================================================
    ``step``           from the first step's begin to the last one's end, over their number ("Steps", else modules)
    ``tensorcore``     operations of the busiest TensorCore ("XLA Ops"), overlaps counted once
    ``sparsecore``     operations of the busiest SparseCore lane ("Sparse Core Ops", else its modules)
    ``wait``           the most that a chip had nothing to do on either
    ``host``           preprocessing, where the trace has its calls (jax.profiler's Python tracer)
    =================  ===========================================================================================

    Raises :class:`UsageError` for a file that is no trace, is cut off, or has no TPU's steps.
    """
    file = _newest(Path(path)) if Path(path).is_dir() else Path(path)
    where = str(file)
    try:
        data = read_bytes(file)
        planes = _from_json(json.loads(data)) if ".json" in file.name else dict(_from_xspace(memoryview(data)))
    except (ValueError, OverflowError, RecursionError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"not a profiler's trace: {error}", where=where, how=_HOW) from None
    return _counters(planes, where)


def _traces(folder: Path) -> Iterator[Path]:
    return (path for end in TRACES for path in folder.rglob(f"*{end}"))


def _newest(folder: Path) -> Path:
    traces = list(_traces(folder))
    if not traces:
        raise UsageError("no .xplane.pb or .trace.json.gz in this folder", where=str(folder), how=_HOW)
    # Of one run both are written; the XSpace is whole, trace-viewer JSON is cut at a million events.
    return max(traces, key=lambda p: (p.parent.stat().st_mtime, p.suffix == ".pb", p.stat().st_mtime))


def _counters(planes: Planes, where: str) -> Counters:
    chips = {name: lines for name, lines in planes.items() if _CHIP.fullmatch(name)}
    windows = {name: steps for name, lines in chips.items() if (steps := _steps(lines))}
    if not windows:
        raise UsageError("no TPU's steps in it", where=where, how=_HOW)
    longest: dict[str, float] = {}
    count = 0
    for name, steps in windows.items():
        begin, end = min(step[0] for step in steps), max(step[1] for step in steps)
        count = max(count, len(steps))
        work = _within(chips[name].get("XLA Ops", ()), begin, end)
        lanes = [
            _within(lines.get("Sparse Core Ops") or lines.get("Sparse Core Modules") or (), begin, end)
            for plane, lines in planes.items()
            if (match := _SPARSECORE.fullmatch(plane)) and match[1] == name
        ]
        seconds = {"step": end - begin, "tensorcore": _covered([work])}
        if lanes:
            seconds["sparsecore"] = max(_covered([lane]) for lane in lanes)
        seconds["wait"] = end - begin - _covered([work, *lanes])
        for kind, value in seconds.items():
            longest[kind] = max(longest.get(kind, 0.0), value / len(steps) / _SECOND)
    host = [line for name, lines in planes.items() if name.startswith("/host:") for line in lines.values()]
    calls = [event for line in host for event in line if _PREPROCESSING.search(event[2])]
    if calls:
        begin, end = min(call[0] for call in calls), max(call[1] for call in calls)
        longest["host"] = _covered([_within(calls, begin, end)]) / count / _SECOND
    return Counters(steps=count, seconds=Seconds(**longest))


def _steps(lines: dict[str, list[Event]]) -> list[Event]:
    """The marked steps; else the runs of the module that ran longest."""
    if steps := lines.get("Steps"):
        return steps
    runs: dict[str, list[Event]] = {}
    for event in lines.get("XLA Modules", ()):
        runs.setdefault(event[2].partition("(")[0], []).append(event)
    return max(runs.values(), key=lambda events: sum(end - begin for begin, end, _ in events), default=[])


def _within(events: Iterable[Event], begin: int, end: int) -> Any:
    """int64[n, 2]: what lies inside, from ``begin`` on; picoseconds since 1970 would not fit."""
    spans = np.array([(first - begin, last - begin) for first, last, _ in events], np.int64)
    spans = spans.reshape(-1, 2).clip(0, end - begin)
    return spans[spans[:, 1] > spans[:, 0]]


def _covered(spans: list[Any]) -> int:
    """Length of the union of spans [begin, end]."""
    every = np.concatenate(spans)
    every = every[np.argsort(every[:, 0], kind="stable")]
    if not len(every):
        return 0
    reached = np.maximum.accumulate(every[:, 1])
    fresh = np.maximum(every[1:, 1] - np.maximum(every[1:, 0], reached[:-1]), 0)
    return int(every[0, 1] - every[0, 0] + fresh.sum())


# Trace-viewer JSON: names of processes and threads are events of their own, times are microseconds.


def _from_json(value: Any) -> Planes:
    events = value["traceEvents"] if isinstance(value, dict) else value
    processes, threads = {}, {}
    for event in events:
        if event.get("name") == "process_name":
            processes[event["pid"]] = str(event["args"]["name"])
        elif event.get("name") == "thread_name":
            threads[event["pid"], event["tid"]] = str(event["args"]["name"])
    planes: Planes = {}
    for event in events:
        if event.get("ph") == "X":
            plane = processes.get(event["pid"], "")
            line = threads.get((event["pid"], event.get("tid")), "")
            begin = round(float(event["ts"]) * 1e6)
            span = begin, begin + round(float(event.get("dur", 0)) * 1e6), str(event.get("name", ""))
            planes.setdefault(plane, {}).setdefault(line, []).append(span)
    return planes


# XSpace: a protocol buffer, read field by field (tsl/profiler/protobuf/xplane.proto). Times are picoseconds.


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """(number, value) of a message's fields: a number, or the bytes of a text or message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif kind == 2:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError(f"{at + size - len(data)} bytes are missing at its end")
            yield key >> 3, data[at : at + size]
            at += size
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"no protocol buffer: a field of kind {kind}")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        if at >= len(data):
            raise ValueError("it ends in the middle of a number")
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("no protocol buffer: a number without end")


def _from_xspace(data: memoryview) -> Iterator[tuple[str, dict[str, list[Event]]]]:
    for number, plane in _fields(data):
        if number == 1:
            parts = list(_fields(plane))
            name = _text(parts, 2)
            if name.startswith(("/device:TPU:", "/host:")):
                names = dict(_metadata(value) for kind, value in parts if kind == 4)
                yield name, _lines([value for kind, value in parts if kind == 3], names)


def _metadata(entry: memoryview) -> tuple[int, str]:
    """An entry of the map from an event's number to its name."""
    fields = dict(_fields(entry))
    inside = list(_fields(fields[2]))
    return fields.get(1, 0), _text(inside, 4) or _text(inside, 2)


def _lines(lines: list[memoryview], names: dict[int, str]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for line in lines:
        parts = list(_fields(line))
        start = next((value for kind, value in parts if kind == 3), 0) * 1000
        events = found.setdefault(_text(parts, 11) or _text(parts, 2), [])
        for kind, value in parts:
            if kind == 4:
                event = {number: part for number, part in _fields(value) if number < 4}
                begin = start + event.get(2, 0)
                events.append((begin, begin + event.get(3, 0), names.get(event.get(1, 0), "")))
    return found


def _text(parts: list[tuple[int, Any]], number: int) -> str:
    return next((bytes(value).decode("utf-8", "replace") for kind, value in parts if kind == number), "")
