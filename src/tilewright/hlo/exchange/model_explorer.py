"""A program as Model Explorer's graphs (ai-edge-model-explorer), with the report's figures on its nodes.

One graph a computation; an operation that calls others leads to their graphs. Layers are the scopes of the framework's
name for an operation (``jit(f)/encoder/layer_0/dot_general``), else its file and line. Figures that a viewer can sum
and colour by are node data, in values of their own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tilewright.hlo.program import Computation, Operation, Program
from tilewright.hlo.reporting.types import MovementRow, ReportData
from tilewright.render import bytes_text, count_text, seconds_text
from tilewright.render.formats import ratio_text

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
    graphs = [_graph(computation, program, report, rows) for computation in ordered]
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


def _graph(computation: Computation, program: Program, report: ReportData, rows: Rows) -> dict[str, Any]:
    operations = computation.operations
    names = {op.name for op in operations if op.name}
    layers = [_scopes(op) for op in operations]
    if not any(layers):  # the framework named no layers: files and lines then
        layers = [_place(op) for op in operations]
    nodes = [_node(op, "/".join(map(_cut, layer)), names, program) for op, layer in zip(operations, layers)]
    for node, op in zip(nodes, operations):
        facts = _facts(op, report, rows.get((computation.name, op.name), []))
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


def _facts(op: Operation, report: ReportData, rows: list[MovementRow]) -> dict[str, str]:
    """What a node shows when it is selected; several rows about it are numbered."""
    facts = {"op_name": op.op_name, "source": str(op.source or "")}
    for number, row in enumerate(rows, 1):
        behind = f" ({number})" if len(rows) > 1 else ""
        facts |= {f"{name}{behind}": value for name, value in _figures(row, report).items()}
    return facts | {name: value for name, value in op.attributes.items() if name != "metadata"}


def _figures(row: MovementRow, report: ReportData) -> dict[str, str]:
    change = report.suggestion_of(row)
    return {
        "movement": "bitcast (free)" if row.bitcast else row.category,
        "moved": bytes_text(row.moved_bytes) if row.moved_bytes else "",
        "runs": count_text(row.runs) if row.runs != 1 else "",
        "moved by all runs": bytes_text(row.total_bytes) if row.runs != 1 and row.moved_bytes else "",
        "padding": ratio_text(row.padding_ratio),
        "from": row.from_short,
        "to": row.to_layout,
        "why": row.reason,
        "modelled": seconds_text(row.modelled_us / 1e6) if row.modelled_us else "",
        "measured": seconds_text(row.measured_us / 1e6) if row.measured_us else "",
        "waits for": row.bound,
        "what to do": change.how if change is not None else "",
    }


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
