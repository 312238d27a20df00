"""A profiler's planes from any file that it writes: an XSpace, trace-viewer JSON, or the newest of a folder's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tilewright.errors import UsageError
from tilewright.reading import read_bytes
from tilewright.trace.xspace import XEvent, XLine, XPlane, read_xspace

_ENDS = (".trace.json", ".trace.json.gz", ".xplane.pb")
"""How the names of a profiler's files end; of one run the last form is whole, JSON is cut at a million events."""
_HOW = "jax.profiler.trace(folder) writes plugins/profile/*/*.xplane.pb; XProf's trace viewer exports .trace.json.gz"


def is_profile(path: str | Path) -> bool:
    """Whether a path is a profile's: a file by its name, or a folder with such a file in it.

    >>> is_profile("plugins/profile/today/host.xplane.pb"), is_profile("counters.json")
    (True, False)
    """
    return str(path).endswith((".pb", *_ENDS)) or (Path(path).is_dir() and bool(_profiles_in(Path(path))))


def _profiles_in(folder: Path) -> list[Path]:
    """The profiles below a folder, the newest last; of two forms of one profile the whole one is the later."""
    found = [(path.parent.stat().st_mtime, number, path.stat().st_mtime, path)
             for number, end in enumerate(_ENDS) for path in folder.rglob(f"*{end}")]  # fmt: skip
    return [path for *_, path in sorted(found)]


def read_profile(path: str | Path, *, planes: str | tuple[str, ...] = "", stats: bool = True) -> list[XPlane]:
    """The planes of an ``.xplane.pb``, a ``.trace.json`` or ``.trace.json.gz``, or of the newest profile in a folder.

    ``planes``, ``stats``: as :func:`read_xspace` takes them; of JSON, whose events have their arguments as statistics,
    all is read. Events of JSON without a duration are left out.

    Raises :class:`UsageError` that names the file: none there, not such a file, cut off.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     size = Path(folder, "t.trace.json").write_text('[{"ph": "X", "name": "copy", "ts": 1, "dur": 2}]')
    ...     read_profile(folder)[0].lines[0].events[0].picoseconds
    2000000
    """
    file = Path(path)
    if file.is_dir():
        if not (found := _profiles_in(file)):
            raise UsageError("no .xplane.pb or .trace.json.gz in this folder", where=str(file), how=_HOW)
        file = found[-1]
    raw, where = read_bytes(file), str(file)
    if file.suffix != ".pb":
        return _viewer_planes(raw, where)
    try:
        return list(read_xspace(raw, where, planes=planes, stats=stats))
    except UsageError as error:
        raise UsageError(error.what, where=where, how=_HOW) from None


def _viewer_planes(raw: bytes, where: str) -> list[XPlane]:
    """Names of processes and threads are events of their own there; times are microseconds."""
    try:
        trace = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not trace-viewer JSON: {error}", where=where, how=_HOW) from None
    listed = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(listed, list):
        raise UsageError("this JSON has no traceEvents", where=where, how=_HOW)
    events = [event for event in listed if isinstance(event, dict)]
    threads = {(e.get("pid"), e.get("tid")): _named(e) for e in events if e.get("name") == "thread_name"}
    processes = {e.get("pid"): _named(e) for e in events if e.get("name") == "process_name"}
    found: dict[str, dict[str, list[XEvent]]] = {}
    for event in events:
        if event.get("ph") == "X":
            lines = found.setdefault(processes.get(event.get("pid"), ""), {})
            line = lines.setdefault(threads.get((event.get("pid"), event.get("tid")), ""), [])
            with suppress(KeyError, TypeError, ValueError, OverflowError):  # no duration, or none that is a number
                begin, length = (round(float(n) * 1e6) for n in (event.get("ts", 0), event["dur"]))
                line.append(XEvent(str(event.get("name", "")), "", begin, length, 1, _arguments(event)))
    return [XPlane(name, [XLine(line, "", of) for line, of in lines.items()]) for name, lines in found.items()]


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _named(event: Mapping[str, Any]) -> str:
    return str(_arguments(event).get("name", ""))
