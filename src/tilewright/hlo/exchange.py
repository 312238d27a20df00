"""A report in other tools' formats: findings for code review (SARIF 2.1.0), the program as a graph (Model Explorer).

Nothing here computes a figure of its own, and none of those tools is a dependency. Of SARIF there is one result for
each suggestion, and one for each line whose arrays hold more than a hundredth of all padding. Places are relative to
the folder that the code stands in, so that a review finds them.
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

from tilewright.hlo.program import Computation, Operation, Program
from tilewright.hlo.reporting.lines import movement_fields
from tilewright.hlo.reporting.types import MovementRow, PaddedTensor, ReportData, Suggestion
from tilewright.render import Field, bytes_text, percent_text, seconds_text
from tilewright.render.formats import format_value, ratio_text
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
    saves = f", saves {suggestion.saved}" if saved or suggestion.saved_bytes else ""
    words = f"{suggestion.what or suggestion.op}{number}{saves}"
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
    split = re.fullmatch(r"(.+):([1-9]\d{0,8})", result.source, re.S)  # model.py:47, or a file alone
    path, line = (split[1], int(split[2])) if split else (result.source, 0)
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


# A program as Model Explorer's graphs (ai-edge-model-explorer), with the report's figures on its nodes.
#
# One graph a computation; an operation that calls others leads to their graphs. Layers are the scopes of the
# framework's name for an operation (``jit(f)/encoder/layer_0/dot_general``), else its file and line. Figures that a
# viewer can sum and colour by are node data, in values of their own.

Rows = Mapping[tuple[str, str], list[MovementRow]]
_CALL = re.compile(r"(?:jit|pjit)\((?:main|<\w+>|\w+)\)")
_LONGEST = 1000
"""Characters of an attribute's value; a constant can have millions."""
_COLOURS = [{"stop": 0, "bgColor": "#fdeee7"}, {"stop": 1, "bgColor": "#f28e6b"}]


def model_explorer(report: ReportData, program: Program) -> dict[str, Any]:
    """The collection of graphs that Model Explorer opens; the entry comes first.

    >>> from tilewright.hlo import load, report
    >>> program = load("HloModule m\\nENTRY e {\\n p = f32[4,2] parameter(0)\\n ROOT n = f32[4,2] negate(p)\\n}")
    >>> graph = report(program).model_explorer(program)["graphs"][0]
    >>> [(node["id"], node["label"]) for node in graph["nodes"]], graph["nodes"][1]["incomingEdges"][0]["sourceNodeId"]
    ([('p', 'parameter'), ('n', 'negate')], 'p')
    """
    rows = _rows(program, report)
    ordered = sorted(program.computations, key=lambda computation: not computation.entry)
    fields = [*movement_fields(report)]
    graphs = [_graph(computation, program, report, rows, fields) for computation in ordered]
    return {"label": program.name or "program", "graphs": graphs, "graphSorting": "node_count_desc"}


def model_explorer_data(report: ReportData, program: Program) -> dict[str, dict[str, Any]]:
    """Name of a figure -> its node data: bytes moved, and microseconds where they are modelled or measured."""
    rows = _rows(program, report)
    figures = {"moved_bytes": [(row, float(row.total_bytes)) for row in report.rows if row.moved_bytes]}
    figures["modelled_us"] = [(row, row.modelled_us) for row in report.rows if row.modelled_us]
    figures["measured_us"] = [(row, row.measured_us) for row in report.rows if row.measured_us]
    written = {}
    for name, values in figures.items():
        value_of = dict(values)
        graphs: dict[str, dict[str, Any]] = defaultdict(dict)
        for (computation, node), about in rows.items():
            if total := sum(value_of.get(row, 0.0) for row in about):
                graphs[computation][node] = {"value": round(total, 3)}
        if graphs:
            label = name.replace("_us", " µs").replace("_", " ")
            written[name] = {
                graph: {"name": label, "results": results, "gradient": _COLOURS} for graph, results in graphs.items()
            }
    return written


def _rows(program: Program, report: ReportData) -> Rows:
    """(computation, operation) of the program -> the rows about it.

    A report on a normal form names operations by what they were made of: ``%6.2`` of ``%6``, ``_var/%3`` of ``%3`` in
    the function ``_var``.
    """
    known = {(computation.name, op.name) for computation, op in program.operations()}
    rows: dict[tuple[str, str], list[MovementRow]] = defaultdict(list)
    for row in report.rows:
        here = row.path.rpartition(" > ")[2]
        inlined, _, name = row.name.rpartition("/")
        places = [(here, row.name), (inlined.rpartition("/")[2] or here, name)]
        places += [(where, re.sub(r"\.\d+$", "", called)) for where, called in places]
        place = next((each for each in places if each in known), None)
        if place is not None:
            rows[place].append(row)
    return rows


def _graph(
    computation: Computation, program: Program, report: ReportData, rows: Rows, fields: Sequence[Field]
) -> dict[str, Any]:
    operations = computation.operations
    names = {op.name for op in operations if op.name}
    layers = [_scopes(op) for op in operations]
    if not any(layers):  # the framework named no layers: files and lines then
        layers = [_place(op) for op in operations]
    nodes = [_node(op, "/".join(map(_cut, layer)), names, program) for op, layer in zip(operations, layers)]
    for node, op in zip(nodes, operations):
        facts = _facts(op, fields, rows.get((computation.name, op.name), []))
        node["attrs"] = [{"key": name, "value": _cut(value)} for name, value in facts.items() if value]
    facts = {"computation": program.path(computation.name)}
    if computation.entry:
        facts |= {"program": report.program, "target": report.target or "", "moved": bytes_text(report.moved_bytes)}
        facts |= {"padding": bytes_text(report.wasted_bytes)}
        facts |= {"modelled step": seconds_text(report.time.device_us / 1e6)} if report.time is not None else {}
        facts |= {f"note {number}": note for number, note in enumerate(report.notes, 1)}
    return {"id": computation.name, "nodes": nodes, "groupNodeAttributes": {"": facts}}


def _node(op: Operation, layer: str, names: set[str], program: Program) -> dict[str, Any]:
    edges = [
        {"sourceNodeId": source, "sourceNodeOutputId": "0", "targetNodeInputId": str(number)}
        for number, operand in enumerate(op.operands)
        if (source := _made_by(operand, names))
    ]
    result = [{"key": "__tensor_tag", "value": _id(op)}, {"key": "tensor_shape", "value": _cut(op.shape)}]
    node: dict[str, Any] = {
        "id": _id(op),
        "label": op.opcode,
        "namespace": layer,
        "incomingEdges": edges,
        "outputsMetadata": [{"id": "0", "attrs": result}],
    }
    called = [name for name in dict.fromkeys(op.calls) if name in program.by_name]
    return node | ({"subgraphIds": called} if called else {})


def _id(op: Operation) -> str:
    """The node's id: the operation's name; its opcode and line where it has no result (``return``)."""
    return op.name or f"{op.opcode} in line {op.line}"


def _facts(op: Operation, fields: Sequence[Field], rows: list[MovementRow]) -> dict[str, str]:
    """What a node shows when it is selected; several rows about it are numbered."""
    facts = {"op_name": op.op_name, "source": str(op.source or "")}
    for number, row in enumerate(rows, 1):
        behind = f" ({number})" if len(rows) > 1 else ""
        facts |= {f"{name}{behind}": value for name, value in _figures(row, fields).items()}
    return facts | {name: value for name, value in op.attributes.items() if name != "metadata"}


def _figures(row: MovementRow, fields: Sequence[Field]) -> dict[str, str]:
    told = {field.heading: (field.of(row), field.kind) for field in fields}
    movement = {"movement": "bitcast (free)" if row.bitcast else row.category}
    return movement | {name: format_value(value, kind) for name, (value, kind) in told.items() if value}


def _scopes(op: Operation) -> list[str]:
    """The layers that the framework put an operation in, outermost first."""
    return [part.strip() for part in op.op_name.split("/")[:-1] if part.strip() and not _CALL.fullmatch(part)]


def _place(op: Operation) -> list[str]:
    if op.source is None:
        return []
    name = op.source.file.replace("\\", "/").rpartition("/")[2]
    line = f"line {op.source.line}" if op.source.line else ""
    return [part for part in (name, op.source.function.replace("/", " "), line) if part]


def _made_by(operand: str, names: set[str]) -> str:
    """The node that makes an operand; ``%5#1`` is the second result of ``%5``. "" where it is not in this graph."""
    return next((name for name in (operand, operand.partition("#")[0]) if name in names), "")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
