"""Findings as SARIF 2.1.0, the format of code scanning: what costs on which line of the user's program, and what to do.

One result for each suggestion, and one for each line whose arrays hold more than a hundredth of all padding. Places are
relative to the folder that the code stands in, so that a review finds them.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from tilewright.hlo.reporting.types import MovementRow, PaddedTensor, ReportData, Suggestion
from tilewright.render import bytes_text, percent_text, seconds_text
from tilewright.render.formats import ratio_text
from tilewright.version import __version__

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_SMALL = 0.01
"""Share of all padding below which a line gets no result."""
_WASTEFUL = 1.5
"""Padded over data bytes from which padding is a warning; below it is a note."""
_WORTH_IT = 1.05
"""The factor from which a suggestion is a warning, as for `tilewright lint`."""

_PADDING = "An array is stored with padding, which is read and written as well"
_PADDING_HOW = "merge small trailing dims, put the large dims last, or choose sizes that the tile divides"


@dataclass(frozen=True)
class _Result:
    """A finding: its rule, a level of SARIF, its message, what to do, its line (``file:line`` or ""), its figures."""

    rule: str
    level: str
    message: str
    how: str
    source: str
    op: str
    properties: Mapping[str, Any]
    column: int = 0


def report_sarif(report: ReportData, root: Path | None = None) -> dict[str, Any]:
    """A movement report as a SARIF log: its suggestions, and the lines that pad most.

    ``root``: the folder that places are relative to, the working directory by default. A finding without a line of the
    user's program is placed at the file that the report was read from.

    >>> from tilewright.hlo import load, report
    >>> text = "HloModule m\\nENTRY e {\\n p = f32[4,2]{1,0} parameter(0)\\n ROOT c = f32[4,2]{0,1} copy(p)\\n}"
    >>> [result["ruleId"] for result in report(load(text)).to_sarif()["runs"][0]["results"]]
    ['copied-argument']
    """
    rows = {(row.path, row.name): row for row in reversed(report.rows)} | {("", row.name): row for row in report.rows}
    results = [_of_suggestion(each, rows.get((each.path, each.op))) for each in report.suggestions]
    results += _paddings(report)
    return _log(results, report.target, root, report.source, report.notes)


def suggestions_sarif(found: Iterable[Suggestion], target: str, root: Path | None = None) -> dict[str, Any]:
    """Suggestions, as `tilewright lint` finds them, as a SARIF log."""
    return _log([_of_suggestion(each) for each in found], target, root)


def _of_suggestion(suggestion: Suggestion, row: MovementRow | None = None) -> _Result:
    """``row``: of the operation that it is about, where a report has it."""
    factor, saved = suggestion.factor, suggestion.saved_us
    number = f" ({ratio_text(factor)} {suggestion.kind})" if factor is not None else ""
    saves = seconds_text(saved / 1e6) if saved else bytes_text(suggestion.saved_bytes) if suggestion.saved_bytes else ""
    words = f"{suggestion.what or suggestion.op}{number}{f', saves {saves}' if saves else ''}"
    known: dict[str, Any] = {
        "factor": factor,
        "kind": suggestion.kind,
        "savedMicroseconds": saved,
        "savedBytes": suggestion.saved_bytes or None,
    }
    if row is not None:
        known |= {"movedBytes": row.total_bytes, "runs": row.runs, "paddingRatio": row.padding_ratio}
        known |= {"modelledMicroseconds": row.modelled_us, "measuredMicroseconds": row.measured_us}
        known |= {"fromLayout": row.from_short, "toLayout": row.to_layout, "reason": row.reason}
    properties = {name: value for name, value in known.items() if value is not None}
    level = "warning" if suggestion.own or (factor or 0.0) >= _WORTH_IT else "note"
    how, place = suggestion.how, (suggestion.source, suggestion.op)
    return _Result(suggestion.rule, level, f"{words}: {how}", how, *place, properties, suggestion.column)


def _paddings(report: ReportData) -> Iterator[_Result]:
    """Lines whose arrays hold more than a hundredth of all padding; an array without a line stands for itself."""
    lines: dict[tuple[str, str], list[PaddedTensor]] = defaultdict(list)
    for tensor in report.wasteful():
        lines[tensor.source, "" if tensor.source else f"{tensor.path}/{tensor.name}"].append(tensor)
    for (source, _), tensors in lines.items():
        wasted, stored = (sum(getattr(each, name) for each in tensors) for name in ("wasted_bytes", "padded_bytes"))
        if wasted <= _SMALL * report.wasted_bytes:
            continue
        largest, many = tensors[0], f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
        ratio = stored / (stored - wasted) if stored > wasted else float(stored)
        words = f"{largest.op} {largest.name}{many}: {bytes_text(wasted)} of {bytes_text(stored)} are padding"
        words += f" ({percent_text(wasted / stored)}), {largest.layout}: {_PADDING_HOW}"
        properties = {
            "wastedBytes": wasted,
            "storedBytes": stored,
            "paddingRatio": ratio,
            "tensors": len(tensors),
            "layout": largest.layout,
        }
        level = "warning" if ratio >= _WASTEFUL else "note"
        yield _Result("padding", level, words, _PADDING_HOW, source, largest.name, properties)


# -- as SARIF has it ---------------------------------------------------------------------------------------------------


def _log(
    results: Sequence[_Result], target: str | None, root: Path | None, source: str = "", notes: Sequence[str] = ()
) -> dict[str, Any]:
    folder = Path(os.path.realpath(root or os.curdir))
    rules = list(dict.fromkeys(result.rule for result in results))
    descriptors = [_rule(name, next(each for each in results if each.rule == name)) for name in rules]
    driver = {"name": "tilewright", "semanticVersion": __version__, "rules": descriptors}
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_plain(each, rules.index(each.rule), source, folder) for each in results],
    }
    known = {"target": target or "", "notes": list(notes)}
    run["properties"] = {name: value for name, value in known.items() if value}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(name: str, first: _Result) -> dict[str, Any]:
    """A rule as the list of a code scanning tool shows it."""
    words = name.replace("-", " ")
    what = _PADDING if name == "padding" else f"{words[:1].upper()}{words[1:]}"
    return {
        "id": name,
        "shortDescription": {"text": what},
        "help": {"text": first.how},
        "defaultConfiguration": {"level": first.level},
        "properties": {"tags": ["performance"]},
    }


def _plain(result: _Result, rule: int, source: str, folder: Path) -> dict[str, Any]:
    path, line = _path_and_line(result.source)
    if not path or path.startswith(("-", "<")):  # what a program read from stdin calls its file
        path, line = "" if source == "-" else source, 0
    shown = _shown_path(path, folder)
    region = {"startLine": line or 1}
    if line and result.column:
        region["startColumn"] = result.column + 1  # Python's tools count columns from 0
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": shown, "region": region}} if shown else {}
    if result.op:
        location["logicalLocations"] = [{"name": result.op, "kind": "element"}]
    layouts = [str(result.properties.get(name, "")) for name in ("fromLayout", "toLayout", "layout")]
    mark = sha256("\n".join((result.rule, shown.get("uri", ""), *layouts)).encode("utf-8", "replace")).hexdigest()[:16]
    return {
        "ruleId": result.rule,
        "ruleIndex": rule,
        "level": result.level,
        "message": {"text": result.message},
        "locations": [location] if location else [],
        "partialFingerprints": {"tilewright/v1": mark},
        "properties": dict(result.properties),
    }


def _path_and_line(source: str) -> tuple[str, int]:
    """``model.py:47`` in its two parts; line 0 where there is none."""
    match = re.fullmatch(r"(.+):([1-9]\d{0,8})", source, re.S)
    return (match[1], int(match[2])) if match else (source, 0)


def _shown_path(path: str, folder: Path) -> dict[str, str]:
    """A path as SARIF wants it: relative to the folder where it lies in it or where its end does, else absolute.

    A dump made in another checkout, or in a container, has paths of there: ``/home/ci/app/model.py`` is
    ``app/model.py`` or ``model.py`` where the folder has such a file.
    """
    if not path:
        return {}
    given = PurePosixPath(path)
    parts = [part for part in given.parts if part not in ("/", ".", "..")]
    if given.is_absolute() and given.is_relative_to(folder):
        return _relative(given.relative_to(folder))
    if not given.is_absolute():
        return _relative(PurePosixPath(*parts))
    for first in range(len(parts)):
        end = PurePosixPath(*parts[first:])
        if os.path.isfile(folder / end):  # False for a name that no file can have
            return _relative(end)
    return {"uri": f"file://{_quoted(given)}"}


def _relative(path: PurePosixPath) -> dict[str, str]:
    return {"uri": _quoted(path), "uriBaseId": "%SRCROOT%"}


def _quoted(path: PurePosixPath) -> str:
    return quote(str(path), errors="replace")
