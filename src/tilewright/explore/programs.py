"""What the page asks about programs: the report's figures and rows, operations folded into a graph, one operation."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tilewright import hlo
from tilewright.errors import TilewrightError, UsageError
from tilewright.explore.worker import Question
from tilewright.reading import open_bytes, read_stream
from tilewright.render import bytes_text, seconds_text
from tilewright.render.formats import counted, place_text, ratio_text
from tilewright.render.markup import Html, element, join, shared_asset
from tilewright.targets import target as find_target
from tilewright.targets import target_names

_USUAL = "tpu-v5e"
_KEPT = 3
_MOST_NODES = 60
_MOST_ROWS = 100
_MOST_CHANGES = 3
_AROUND = 9
_WIDEST_LINE = 300

#: Operations that stand for no work: arrows go through them.
_SEEN_THROUGH = frozenset(
    {"tuple", "get-tuple-element", "get_tuple_element", "bitcast", "after-all", "opt-barrier", "optimization_barrier"}
)
_LEFT_OUT = frozenset({"parameter", "constant", "iota", "partition-id", "replica-id", "return"})
_CONTAINERS = frozenset({"while", "conditional", "call", "case", "if", "fusion", "async-start"})

_LOCATION = re.compile(r' loc\((?:"[^"\n]*"|[^()"\n]|\([^()\n]*\))*\)')
_SMALLEST = "func.func @main(%x: tensor<1xf32>) -> tensor<1xf32> {\n  return %x : tensor<1xf32>\n}"

Key = tuple[str, str]
"""A computation and the name of an operation in it."""


@dataclass
class _Node:
    """A group of operations, or one, at the level that is shown."""

    label: str
    group: bool
    operations: int = 0
    moved: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    key: Key | None = None


class _Loaded:
    """A program under a target, with what questions about it share."""

    def __init__(self, program: hlo.Program, target: str | None) -> None:
        self.report: hlo.MovementReport = hlo.report(program, target)
        self.given = program
        if self.report.normal_form:  # the rows are of what the compiler makes of it first
            program = hlo.in_normal_form(program).program
        self.program = program
        paths = {computation.name: program.path(computation.name) for computation in program.computations}
        of_path = {(row.path, row.name): row for row in self.report.rows if not row.in_fusion}
        self.row_of: dict[Key, hlo.MovementRow] = {}
        self.operations: dict[Key, hlo.Operation] = {}
        for computation in program.computations:
            if computation.name in self._inner:
                continue
            for op in computation.operations:
                key = computation.name, op.name
                self.operations[key] = op
                if row := of_path.get((paths[computation.name], op.name)):
                    self.row_of[key] = row

    @cached_property
    def _inner(self) -> frozenset[str]:
        """Computations whose operations are another operation's insides: bodies of fusions, reducers, comparators."""
        called = {callee for _, op in self.program.operations() if op.opcode not in _CONTAINERS for callee in op.calls}
        return self.program.fused | called

    @cached_property
    def kernels(self) -> list[hlo.KernelCheck]:
        """Its Pallas kernels, as they are on the target."""
        return hlo.check_kernels(self.given, target=self.report.target or _USUAL)

    def concerned(self, change: hlo.Suggestion) -> Key | None:
        """The operation to look at for a change."""
        return next((key for key, row in self.row_of.items() if change.concerns(row)), None)

    def kernel_number(self, name: str) -> int | None:
        """Which of the kernels an operation is."""
        calls = [op.name for _, op in self.given.operations() if op.is_pallas]
        return calls.index(name) if name in calls else None

    @cached_property
    def lines(self) -> list[str]:
        text = self.program.text
        return (_LOCATION.sub("", text) if self.report.normal_form else text).split("\n")

    @cached_property
    def shown(self) -> dict[Key, hlo.Operation]:
        away = _LEFT_OUT | _SEEN_THROUGH
        return {key: op for key, op in self.operations.items() if op.opcode not in away}

    @cached_property
    def arrows(self) -> dict[tuple[Key, Key], int]:
        """(from, to) -> how many values, over operations that are shown."""
        sources: dict[Key, tuple[Key, ...]] = {}
        found: Counter[tuple[Key, Key]] = Counter()
        for (computation, name), op in self.operations.items():
            ends = [end for operand in op.operands for end in self._sources_of((computation, operand), op, sources)]
            sources[computation, name] = tuple(dict.fromkeys(ends))[:_MOST_NODES]
            if (computation, name) in self.shown:
                found.update((end, (computation, name)) for end in sources[computation, name])
        return dict(found)

    def _sources_of(self, key: Key, user: hlo.Operation, sources: Mapping[Key, tuple[Key, ...]]) -> tuple[Key, ...]:
        """The shown operations that a value comes from."""
        if key in self.shown:
            return (key,)
        op = self.operations.get(key)
        if op is None:
            return ()
        if user.opcode.replace("_", "-") == "get-tuple-element" and op.opcode == "tuple":
            number = next(iter(user.integers("index")), 0)
            if number < len(op.operands):
                inner = key[0], op.operands[number]
                return (inner,) if inner in self.shown else sources.get(inner, ())
        return sources.get(key, ())

    @cached_property
    def folds(self) -> dict[str, dict[Key, tuple[str, ...]]]:
        """How operations fold: by ``module`` (the framework's names) and by ``source`` (your files and lines).

        What the compiler made by itself has neither and stands with what reads it, else with what it reads.
        """
        return {
            "module": self._groups(
                {key: tuple(filter(None, _split(op.op_name)[:-1])) for key, op in self.shown.items()}, "without a name"
            ),
            "source": self._groups({key: _place(op) for key, op in self.shown.items()}, "without a line"),
        }

    def _groups(self, places: dict[Key, tuple[str, ...]], else_: str) -> dict[Key, tuple[str, ...]]:
        for ends in (0, 1), (1, 0):  # from readers back to what they read, last first; then the other way
            near: dict[Key, list[Key]] = {}
            for arrow in self.arrows:
                near.setdefault(arrow[ends[0]], []).append(arrow[ends[1]])
            for key in reversed(places) if ends == (0, 1) else list(places):
                if not places[key]:
                    places[key] = next((places[other] for other in near.get(key, ()) if places[other]), ())
        return {key: place or (else_,) for key, place in places.items()}


_loaded: OrderedDict[tuple[str, str], _Loaded] = OrderedDict()


def _program(asked: Question) -> _Loaded:
    """The program of the file that was asked about, read once."""
    if asked.path is None:
        raise UsageError("no program: drop an HLO or StableHLO file")
    target = asked.target()
    key = asked.path, target
    if key not in _loaded:
        path = Path(asked.path)
        if path.is_dir():
            program = hlo.load(path)
        else:
            with open_bytes(path, path.name) as file:
                program = hlo.load(read_stream(file, path.name))
        chip = find_target(target).name if target else _USUAL if program.kind == "stablehlo" else None
        _loaded[key] = _Loaded(program, chip)
    _loaded.move_to_end(key)
    while len(_loaded) > _KEPT:
        _loaded.popitem(last=False)
    return _loaded[key]


def program(asked: Question) -> dict[str, Any]:
    """The report's figures; with ``page`` the whole report as a page."""
    loaded = _program(asked)
    if asked.values.get("page") is True:
        return {"html": loaded.report.to_html()}
    movement = loaded.report
    changes = movement.suggestions[:_MOST_CHANGES]
    return {
        "name": movement.program,
        "kind": {"hlo": "HLO", "stablehlo": "StableHLO"}[movement.kind],
        "target": movement.target,
        "layouts": f"predicted for {movement.target}" if movement.predicted else "the dump's own",
        "targets": [name for name in target_names() if _takes_programs(name)],
        "figures": [(card.label, card.value, card.note) for card in movement.figures()],
        "notes": list(movement.notes),
        "changes": [{"saved": each.saved, "says": each.words, "key": loaded.concerned(each)} for each in changes],
    }


def _takes_programs(name: str) -> bool:
    try:
        hlo.report(hlo.load(_SMALLEST), name)
    except TilewrightError:
        return False
    return True


def graph(asked: Question) -> dict[str, Any]:
    """The operations under ``path`` of a fold (``by`` module or source), one level of it, and their ranked rows."""
    loaded = _program(asked)
    fold = loaded.folds["source" if asked.text("by") == "source" else "module"]
    path = tuple(asked.texts("path"))
    inside = {key: place for key, place in fold.items() if place[: len(path)] == path}
    if not inside:
        raise UsageError(f"no operations under {' / '.join(path) or 'this program'}")
    while len(level := {place[len(path) : len(path) + 1] for place in inside.values()}) == 1 and () not in level:
        path = (*path, *level.pop())  # a level with one group and nothing else says nothing
    nodes, node_of = _nodes(loaded, inside, len(path))
    edges: Counter[tuple[str, str]] = Counter()  # between nodes of the level; "" is what lies outside of it
    for (start, end), count in loaded.arrows.items():
        ends = node_of.get(start, ""), node_of.get(end, "")
        if ends[0] != ends[1]:
            edges[ends] += count
    found = [(key, loaded.row_of[key]) for key in inside if key in loaded.row_of]
    found.sort(key=lambda pair: (-(pair[1].modelled_us or 0.0), -pair[1].total_bytes, -pair[1].hidden_bytes))
    return {
        "path": list(path),
        "nodes": [_node_json(name, node) for name, node in nodes.items()],
        "edges": [(start, end, count) for (start, end), count in edges.items()],
        "operations": len(inside),
        "rows": [_row_json(key, row) for key, row in found[:_MOST_ROWS]],
    }


def _nodes(
    loaded: _Loaded, inside: Mapping[Key, tuple[str, ...]], depth: int
) -> tuple[dict[str, _Node], dict[Key, str]]:
    """The groups and operations of a level by name, the least of many in one; and where every operation is."""
    nodes, node_of = dict[str, _Node](), dict[Key, str]()
    for key, place in inside.items():
        op, row = loaded.operations[key], loaded.row_of.get(key)
        group = len(place) > depth
        name = f"g:{place[depth]}" if group else f"o:{key[0]}:{key[1]}"
        node = nodes.setdefault(name, _Node(place[depth] if group else op.name, group, key=None if group else key))
        node.operations += 1
        node.kinds[op.opcode] += 1
        if row is not None:
            node.moved += row.total_bytes
            node.seconds += (row.modelled_us or 0.0) / 1e6
        node_of[key] = name
    kept = sorted(nodes, key=lambda name: (-nodes[name].seconds, -nodes[name].moved, -nodes[name].operations))
    least = set(kept[_MOST_NODES:])
    if least:
        rest = _Node(f"{len(least)} more", group=False)
        for name in least:
            node = nodes.pop(name)
            rest.operations += node.operations
            rest.moved += node.moved
            rest.seconds += node.seconds
            rest.kinds += node.kinds
        nodes["rest"] = rest
        node_of = {key: "rest" if name in least else name for key, name in node_of.items()}
    return nodes, node_of


def _node_json(name: str, node: _Node) -> dict[str, Any]:
    kinds = ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in node.kinds.most_common(3))
    many = counted(node.operations, "operation")
    return {
        "name": name,
        "label": node.label,
        "group": node.group,
        "key": list(node.key) if node.key else None,
        "says": f"{many}: {kinds}" if node.group or node.key is None else kinds,
        "moved": node.moved,
        "cost": _cost(node.seconds, node.moved),
        "weight": node.seconds or node.moved / 1e12,
    }


def _cost(seconds: float, moved: int) -> str:
    parts = [seconds_text(seconds)] if seconds else []
    return ", ".join([*parts, f"{bytes_text(moved)} moved"] if moved else parts)


def _row_json(key: Key, row: hlo.MovementRow) -> dict[str, Any]:
    first = row.from_layout if not row.from_layout.startswith("(") else ""
    return {name: getattr(row, name) for name in ("name", "op", "category", "reason", "runs")} | {
        "key": list(key),
        "cost": _cost((row.modelled_us or 0.0) / 1e6, row.total_bytes) or ("free" if row.bitcast else ""),
        "from": first or row.from_short,
        "to": row.to_layout,
        "comparable": bool(first) and row.op in ("copy", "reshape", "bitcast"),
        "source": place_text(row.source),
        "padding": ratio_text(row.padding_ratio),
    }


def operation(asked: Question) -> dict[str, Any]:
    """One operation: its line in the program's text, the user's line, its neighbours, its row in the report."""
    loaded = _program(asked)
    computation, name = (*asked.texts("key"), "", "")[:2]
    key = computation, name
    op = loaded.operations.get(key)
    if op is None:
        raise UsageError(f"no operation {name[:60]!r}")
    row, first = loaded.row_of.get(key), max(0, op.line - 1 - _AROUND)
    lines = [line[:_WIDEST_LINE] for line in loaded.lines[first : op.line + _AROUND]]
    feeds = [list(end) for start, end in loaded.arrows if start == key][:20]
    fed_by = [list(start) for start, end in loaded.arrows if end == key][:20]
    return {name: getattr(op, name) for name in ("name", "opcode", "shape")} | {
        "key": list(key),
        "framework": op.op_name,
        "path": loaded.program.path(computation),
        "text": {"first": first + 1, "at": op.line, "lines": lines},
        "normal": bool(loaded.report.normal_form),
        "source": None
        if op.source is None
        else {"file": op.source.file, "line": op.source.line, "function": op.source.function},
        "module": list(loaded.folds["module"].get(key, ())),
        "row": _row_json(key, row) if row else None,
        "kernel": loaded.kernel_number(op.name),
        "feeds": feeds,
        "fed_by": fed_by,
    }


def kernel(asked: Question) -> dict[str, Any]:
    """Kernel ``number`` of a program at one ``step`` of its grid: the sections of its page, as markup."""
    loaded = _program(asked)
    checks = loaded.kernels
    if not checks:
        how = "drop a dump or StableHLO with one; tilewright explore model.py:step traces a function"
        raise UsageError("there is no Pallas kernel in this program", how=how)
    number = asked.number("number", 0, 0, len(checks) - 1)
    check = checks[number]
    steps = check.kernel.steps if check.kernel else 0
    step = asked.number("step", 0, 0, max(0, steps - 1))
    return {
        "names": [f"{k + 1}: {each.name}" for k, each in enumerate(checks)],
        "number": number,
        "steps": steps,
        "step": step,
        "target": loaded.report.target or _USUAL,
        "targets": [name for name in target_names() if name.startswith("tpu-")],
        "sections": [
            (name, heading, _markup(blocks)) for name, heading, blocks in check.sections(step if steps else None)
        ],
    }


def _markup(blocks: Iterable[str]) -> str:
    """Blocks of a page without the style that drawings carry: the explorer's page has it, and takes no other."""
    text = join(block if isinstance(block, Html) else element("p", block) for block in blocks)
    return text.replace(element("style", Html(shared_asset("figure.css"))), "")


def _split(name: str) -> list[str]:
    """The parts of ``jit(step)/layer_0/attention/dot_general``; what parentheses hold is part of a name."""
    parts, depth = [""], 0
    for letter in name[:2000]:
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _place(op: hlo.Operation) -> tuple[str, ...]:
    """File, then line."""
    if op.source is None:
        return ()
    function = f" in {op.source.function}" if op.source.function else ""
    return place_text(op.source.file), f"line {op.source.line}{function}"
