"""A program under a target: where its arrays live, and what each computation inherits from its callers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tilewright.errors import ParseError, TilewrightError, UnsupportedError, UsageError
from tilewright.hlo.cost import Traffic, array_layout, place, plain_opcode, traffic
from tilewright.hlo.opcodes import REARRANGES, WRITES_IN_PLACE
from tilewright.hlo.program import Computation, Operation, Program, reached
from tilewright.hlo.reading.hlo_scan import array_shapes
from tilewright.hlo.semantics.demand import Demand
from tilewright.hlo.semantics.runs import Runs, count_runs
from tilewright.layout import TensorLayout
from tilewright.targets import Target

_LONGEST_PATH = 16
_MOST_BESIDE = 32
_MOST_LOOKED_AT = 1024
_TPU_REGISTER = 8 * 128 * 4
_THREAD = re.compile(r"\b(sparsecore|host)\b")
_COMPUTE_TYPE = re.compile(r'_xla_compute_type"?\s*=\s*"(\w+)"')
_OFFLOADED = {"sparse": "sparsecore", "sparseoffload": "sparsecore", "host": "host"}


ASSUMABLE = {
    "kv_len": "tokens in the cache of a sequence, the mean of a step",
    "tokens": "tokens that a step computes, no more than the program has room for",
    "sequences": "sequences that these tokens belong to",
    "trips": "how often a loop runs whose length data decides",
}
"""What a user may state of a step's data, and what it means."""


def checked_assumptions(assume: Mapping[str, float]) -> Mapping[str, float]:
    """The assumptions, if all are known and above 0.

    Raises :class:`UsageError` for others.

    >>> checked_assumptions({"kv_len": 2048})
    {'kv_len': 2048}
    """
    for name, value in assume.items():
        if name not in ASSUMABLE:
            how = "; ".join(f"{known}: {meaning}" for known, meaning in ASSUMABLE.items())
            raise UsageError(f"nothing called {name!r} can be assumed", how=how)
        if not 1 <= value < 1e12:
            raise UsageError(f"{name} = {value:g} is not at least 1")
    return assume


@dataclass(frozen=True, slots=True)
class Scope:
    """What a computation inherits from its callers, from the nearest one that has it.

    ``chain``: the computations from the entry to this one by first callers, the middle of a very long one left out;
    ``source``: the user's line; ``core``: where it is offloaded to.
    """

    chain: tuple[str, ...] = ()
    source: str = ""
    core: str = ""

    @property
    def path(self) -> str:
        """The chain as a report writes it."""
        return " > ".join(self.chain)


@dataclass(slots=True)
class Placed:
    """An operation in its place: the layouts of arrays it reads and writes, its line, its path, its runs.

    A layout is None for what is no array (tokens) or has no size.
    """

    op: Operation
    computation: str
    operands: list[TensorLayout | None]
    results: list[TensorLayout | None]
    source: str
    path: str
    core: str
    runs: Runs


class Context:
    """One program under one target; ``tiled``, ``unsized`` and ``unknown`` describe the layouts placed so far.

    ``modelled``: (line of the text, name) of an operation -> the microseconds of all its runs and what bounds it, where
    the target has a time model and somebody has asked it. ``fused_along``: (computation, operation) of what is expected
    to be fused into operations that compute. ``assume``: what the user states of data that decides how long kernels
    run (``ASSUMABLE``).
    """

    def __init__(
        self,
        program: Program,
        chip: Target | None,
        modelled: Mapping[tuple[int, str], tuple[float, str]] | None = None,
        fused_along: Collection[tuple[str, str]] = (),
        assume: Mapping[str, float] | None = None,
    ) -> None:
        self.program, self.chip = program, chip
        self.predicted = program.kind == "stablehlo"
        self.tiled = False
        self.unsized: set[str] = set()
        self.unknown: set[str] = set()
        self.modelled, self.fused_along = modelled or {}, fused_along
        self.assume = checked_assumptions(assume or {})
        stated = round(self.assume["trips"]) if "trips" in self.assume else None
        self.runs, unknown = count_runs(program, stated)
        self.unknown_loops = unknown if stated is None else ()
        self.stated_loops = () if stated is None else unknown
        self.costs: dict[tuple[object, ...], Traffic] = {}  # of what moves, by all that decides it
        self._scopes: dict[str, Scope] = {}
        self._layouts: dict[str, TensorLayout] = {}
        self._lines_beside: dict[tuple[str, str], str] = {}
        self._lines_inside: dict[str, str] = {}
        self._lines = program.text.split("\n") if self.predicted and "_xla_compute_type" in program.text else []
        self._marked = self.predicted or any(word in program.text for word in ("sparse", "_xla_compute_type", "host"))

    def placed(self, computation: Computation, op: Operation, operand_shapes: Sequence[str]) -> Placed:
        """Everything a row says about an operation except its cost; of its operands, those with ``operand_shapes``."""
        return Placed(
            results=[self.layout(shape) for shape in array_shapes(op.shape)],
            operands=[self.layout(shape) for shape in operand_shapes],
            op=op,
            computation=computation.name,
            source=self.source(computation.name, op),
            path=self.scope(computation.name).path,
            core=self.core(computation.name, op),
            runs=self.runs[computation.name],
        )

    def time_of_fusion(self, computation: str) -> float | None:
        """The modelled microseconds of the fusion that a fused computation is a part of, None where it has none."""
        for _ in range(_LONGEST_PATH):
            calls = self.program.callers[computation]
            if not calls:
                return None
            computation, op = calls[0]
            if time := self.modelled.get((op.line, op.name)):
                return time[0]
        return None

    def layout(self, shape: str) -> TensorLayout | None:
        """Where an array lives; None for what is no array (tuples, tokens) or has no size."""
        if known := self._layouts.get(shape):
            return known
        if shape.startswith(("(", "token", "opaque", "b(")) or shape in self.unknown:
            return None
        try:
            layout = array_layout(shape)
        except ParseError:  # of few shapes in a dump it is what a newer compiler prints, and not damage
            few = 8 * (len(self.unknown) + 1) <= sum(len(c.operations) for c in self.program.computations)
            if not few or self.program.kind != "hlo":
                raise
            self.unknown.add(shape)
            return None
        if "?" in shape:
            self.unsized.add(shape)
            return None
        if self.predicted and self.chip is not None:
            layout = place(layout.shape, layout.dtype, self.chip)
        self.tiled = self.tiled or bool(layout.tiles)
        self._layouts[shape] = layout
        return layout

    def layouts(self, shape: str) -> list[TensorLayout]:
        """Every array in a shape, those of a tuple one after the other."""
        return [layout for text in array_shapes(shape) if (layout := self.layout(text)) is not None]

    @cached_property
    def demand(self) -> Demand:
        """What fusions read and write of their arrays, in bytes."""
        size = lambda shape: sum(layout.size_bytes for layout in self.layouts(shape))  # noqa: E731
        return Demand(self.program, size, whole_tiles=True)

    @property
    def register_bytes(self) -> int | None:
        """Bytes of one vector register: the target's, a TPU's for a dump with tiles, None for linear memory."""
        if self.chip is not None and self.chip.vector is not None:
            return self.chip.vector.register_bytes
        return _TPU_REGISTER if self.tiled and not self.predicted else None

    def scope(self, computation: str) -> Scope:
        """What a computation inherits from its callers."""
        known, calls = self._scopes, self.program.callers
        first = lambda name: (caller for caller, _ in calls[name][:1] if caller not in known)  # noqa: E731
        for name in reversed([*reached([computation], first)]) if computation not in known else ():
            known[name] = self._called(name)
        return known[computation]

    def _called(self, computation: str) -> Scope:
        """The scope of a computation whose first caller's is known."""
        calls = self.program.callers[computation]
        if not calls:
            return Scope((computation,))
        caller, op = calls[0]
        outer = self._scopes.get(caller, Scope())
        chain = (*outer.chain, computation)
        if len(chain) > _LONGEST_PATH:
            chain = (*chain[:8], "...", *chain[-7:])
        return Scope(chain, str(op.source or "") or outer.source, self._core(op) or outer.core)

    def source(self, computation: str, op: Operation) -> str:
        """The operation's own line; in a dump, of what the compiler added, that of who uses it or of what it is made
        of; else that of the nearest caller that has one."""
        if op.source or self.predicted or op.opcode == "parameter":
            return str(op.source or "") or self.scope(computation).source
        key = computation, op.name
        if key not in self._lines_beside:
            self._lines_beside[key] = self._line_beside(computation, op) or self.scope(computation).source
        return self._lines_beside[key]

    def _line_beside(self, computation: str, op: Operation) -> str:
        """The line of the nearest operation behind this one, else before it, within a few; fusions by their bodies."""
        whole = self.program.by_name[computation]

        def makers(near: Operation) -> list[Operation]:
            return [whole.named[name] for name in near.operands if name in whole.named]

        for further in (lambda near: whole.readers[near.name], makers):
            seen, around = {op.name}, further(op)[:_MOST_LOOKED_AT]
            for near in around:
                if source := self._line_inside(near):
                    return source
                if len(around) > _MOST_LOOKED_AT:
                    del around[_MOST_LOOKED_AT:]
                if len(seen) < _MOST_BESIDE and near.name not in seen:
                    seen.add(near.name)
                    around += further(near)
        return ""

    def _line_inside(self, op: Operation) -> str:
        """The operation's own line, else a fusion's first inside."""
        body = self.program.body(op) if not op.source and op.opcode == "fusion" else None
        if body is None:
            return str(op.source or "")
        if body.name not in self._lines_inside:
            self._lines_inside[body.name] = next((str(inner.source) for inner in body.operations if inner.source), "")
        return self._lines_inside[body.name]

    def core(self, computation: str, op: Operation) -> str:
        """ "sparsecore" or "host" where the operation, or what calls its computation, is offloaded, else ""."""
        return self._core(op) or self.scope(computation).core

    def _core(self, op: Operation) -> str:
        """ "sparsecore" or "host" where the operation itself says that it is offloaded, else ""."""
        if not self._marked:
            return ""
        if self.predicted:
            line = self._lines[op.line - 1] if self._lines else ""
            kind = _COMPUTE_TYPE.search(line.replace(" ", ""))
            return _OFFLOADED.get(kind[1], "") if kind else ""
        if thread := _THREAD.search(op.attributes.get("async_execution_thread", "")):
            return thread[1]
        if kind := _COMPUTE_TYPE.search(op.attributes.get("frontend_attributes", "")):
            return _OFFLOADED.get(kind[1], "")
        return "sparsecore" if '"sparse_core_config"' in op.attributes.get("backend_config", "") else ""

    def at(self, op: Operation, error: TilewrightError) -> TilewrightError:
        """An error of a shape at its column, any other at its operation's line; what is unsupported stays so."""
        if isinstance(error, UnsupportedError):
            return error
        text, start = self.program.text, 0
        for _ in range(op.line - 1):
            start = text.find("\n", start) + 1
        if isinstance(error, ParseError) and (offset := text.find(error.text, start)) >= 0:
            start = offset + error.column
        return ParseError(f"{op.opcode} {op.name}: {error.what}", text=text, column=start, how=error.how)


# Operations whose work is to move data: which they are, and what each moves by itself.

_OF_SEVERAL = WRITES_IN_PLACE.keys() | {"concatenate", "custom-call", "gather"}
"""Movers of which all operands count."""
_MOVERS = _OF_SEVERAL | REARRANGES | {"bitcast", "bitcast-convert", "convert", "reverse"}


class Moved(NamedTuple):
    """What an operation moves: ``cost``, which counts where it is ``counted``.

    Nothing counts inside a fusion (``fused``), in a conversion that keeps the order, and in what is expected ``along``
    with a kernel that computes. A custom call has no cost here: what it does, its target says.
    """

    name: str
    placed: Placed
    operands: list[TensorLayout]
    result: TensorLayout
    dimensions: tuple[int, ...] | None
    cost: Traffic
    along: bool
    counted: bool


def moved_by(context: Context, computation: Computation, op: Operation, fused: bool = False) -> Moved | None:
    """What the operation moves, None if that is not its work. Raises ParseError for shapes that do not fit it."""
    name = plain_opcode(op.opcode).removesuffix("-start")
    if name not in _MOVERS:
        return None
    placed = context.placed(computation, op, op.operand_shapes if name in _OF_SEVERAL else op.operand_shapes[:1])
    operands = [layout for layout in placed.operands if layout is not None]
    result = _written_by(placed)
    if result is None or not operands or (name == "convert" and not result.rank):
        return None
    if name == "custom-call":
        return Moved(name, placed, operands, result, None, Traffic(False, 0, 0), False, not fused)
    dimensions = op.integers("dimensions") if "dimensions" in op.attributes else None
    said = name, op.shape, op.operand_shapes, dimensions, op.attributes.get("slice")
    cost = context.costs.get(said) or context.costs.setdefault(said, traffic(name, op, operands, result, dimensions))
    in_place = name == "convert" and operands[0].minor_to_major == result.minor_to_major
    along = not fused and not cost.bitcast and (computation.name, op.name) in context.fused_along
    return Moved(name, placed, operands, result, dimensions, cost, along, not (fused or in_place or along))


def movers(context: Context) -> Iterator[tuple[Computation, Operation, Moved]]:
    """Every operation outside fusions whose work is to move, in the program's order."""
    for computation in context.program.computations:
        if computation.name not in context.program.fused:
            for op in computation.operations:
                try:
                    found = moved_by(context, computation, op)
                except TilewrightError:  # shapes that contradict each other: the report says which
                    continue
                if found is not None:
                    yield computation, op, found


def _written_by(placed: Placed) -> TensorLayout | None:
    """The array an operation writes; a started one has it in its tuple."""
    opcode, number = placed.op.opcode, 0
    if placed.op.shape.startswith("("):
        if not opcode.endswith("-start"):
            return None
        number = 0 if opcode == "copy-start" else len(placed.op.operands)  # most put their operands first
    return placed.results[number] if number < len(placed.results) else None
