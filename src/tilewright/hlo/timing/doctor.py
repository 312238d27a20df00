"""Two optimised modules of one program: what got slower, at which line, and why.

Kernels are paired by what they compute and where that comes from, never by name: by their *main operation* (a product
before a reduction, before a gather, before elementwise work), its framework name and its source line. A kernel that has
no partner is explained by where its operations stood before: in another kernel (a lost fusion), inside a loop
(unrolled), or nowhere (a new copy or relayout).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tilewright.errors import TilewrightError, UsageError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.program import Operation, Program
from tilewright.hlo.reporting.buffers import peaks
from tilewright.hlo.reporting.context import Context
from tilewright.hlo.timing.estimate import estimate
from tilewright.hlo.timing.step import StepTime, TimeRow
from tilewright.layout import TensorLayout
from tilewright.render import bytes_text, place_text, seconds_text
from tilewright.targets import Target
from tilewright.targets import target as find_target

_RANKS = (
    frozenset({"convolution", "dot", "dot-general"}),
    frozenset({"custom-call", "scatter", "gather", "sort", "fft", "all-reduce", "all-gather", "all-to-all"}),
    frozenset({"reduce", "reduce-window", "select-and-scatter"}),
)
_MOVES = frozenset({"copy", "transpose", "reshape", "copy-start", "copy-done", "slice-start", "slice-done", "bitcast"})
_SILENT = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota", "broadcast"})
_NUMBERS = re.compile(r"[\d.]+$")
_LOOP_WORDS = frozenset({"while", "body", "cond", "closed_call", "checkpoint", "scan", "remat"})
_SPACES = {0: "HBM", 1: "vector memory", 3: "common memory", 5: "host memory"}


@dataclass(frozen=True)
class TimeChange:
    """One difference that takes or saves time.

    ``cause``: ``new relayout``, ``new copy``, ``lost fusion``, ``changed layout``, ``wider type``, ``memory space``,
    ``unrolled loop``, ``offloaded``, ``more bytes``, ``more work``, ``new``, ``gone``; for what got faster the reverse:
    ``relayout gone``, ``copy gone``, ``new fusion``, ``narrower type``, ``rolled loop``, ``back on the TensorCore`` ...
    ``detail`` says it in a sentence; ``source`` is the line of the user's program.
    """

    cause: str
    detail: str
    source: str
    before: float
    after: float

    @property
    def seconds(self) -> float:
        """Seconds more (or, below 0, less) than before."""
        return self.after - self.before


@dataclass(frozen=True)
class StepDiff:
    """Two modelled steps of one program and what lies between them, the largest change first."""

    before: StepTime
    after: StepTime
    changes: tuple[TimeChange, ...]
    peaks: tuple[int, int] = (0, 0)

    def slower(self) -> list[TimeChange]:
        """What takes longer than before."""
        return [change for change in self.changes if change.seconds > 0]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "schema": "tilewright.time_diff/1",
            "schema_version": 1,
            "target": self.after.target,
            "seconds": {"before": self.before.seconds, "after": self.after.seconds},
            "peak_bytes": {"before": self.peaks[0], "after": self.peaks[1]},
            "changes": [
                {
                    "cause": change.cause,
                    "detail": change.detail,
                    "source": change.source,
                    "seconds_before": change.before,
                    "seconds_after": change.after,
                }
                for change in self.changes
            ],
        }

    def lines(self, top: int = 10) -> list[str]:
        """The account on a terminal."""
        whole = f"{seconds_text(self.before.seconds)} -> {seconds_text(self.after.seconds)}"
        lines = [f"modelled step on {self.after.target}: {whole}"]
        if self.peaks[0] != self.peaks[1]:
            lines.append(f"peak memory: {bytes_text(self.peaks[0])} -> {bytes_text(self.peaks[1])}")
        for change in self.changes[:top]:
            sign = "+" if change.seconds >= 0 else "-"
            place = place_text(change.source) if change.source else "no source line"
            lines.append(f"{sign}{seconds_text(abs(change.seconds))}  {change.cause}: {change.detail}  ({place})")
        return lines


@dataclass
class _Kernel:
    """A row of the step with the operations behind it."""

    row: TimeRow
    op: Operation
    inside: tuple[Operation, ...]
    source: str
    core: str
    looped: bool

    @cached_property
    def main(self) -> Operation:
        """The operation that the kernel is there for."""
        for rank in _RANKS:
            for op in self.inside:
                if plain_opcode(op.opcode) in rank:
                    return op
        loud = [op for op in self.inside if op.opcode not in _SILENT]
        roots = [op for op in loud if op.root]
        return (roots or loud or [self.op])[-1]

    @property
    def moves_only(self) -> bool:
        """Whether nothing is computed."""
        return all(plain_opcode(op.opcode) in _MOVES | _SILENT for op in self.inside)

    @property
    def key(self) -> tuple[str, str]:
        """What it computes, and its framework name."""
        return plain_opcode(self.main.opcode), _origin(self.main)


@dataclass
class _Side:
    program: Program
    step: StepTime
    context: Context
    kernels: dict[tuple[str, str], list[_Kernel]] = field(default_factory=lambda: defaultdict(list))
    homes: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    users: dict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, program: Program, chip: Target) -> _Side:
        side = cls(program, estimate(program, chip), Context(program, chip))
        for _, op in program.operations():
            for name in op.operands:
                side.users[name].append(op)
        operations = {op.name: (computation.name, op) for computation, op in program.operations()}
        for row in side.step.rows:
            if row.name not in operations:
                continue
            computation, op = operations[row.name]
            kernel = _Kernel(
                *(row, op, tuple(_inside(side.context, op)), side.line(computation, op, operations)),
                core=side.context.core(computation, op),
                looped=computation != program.entry.name,
            )
            side.kernels[kernel.key].append(kernel)
            for inner in kernel.inside:
                if inner.opcode not in _SILENT and plain_opcode(inner.opcode) not in _MOVES:
                    side.homes[f"{plain_opcode(inner.opcode)} {_origin(inner)}"].add(kernel.key)
        return side

    def line(self, computation: str, op: Operation, operations: Mapping[str, tuple[str, Operation]]) -> str:
        """The operation's line; of what the compiler added, that of who uses it, or of what it is made of."""
        if source := self.context.source(computation, op):
            return source
        made_of = [operations[name][1] for name in op.operands if name in operations]
        seen, around = {op.name}, [*self.users[op.name], *made_of]
        for near in around:
            inside = _inside(self.context, near)
            if source := next((str(inner.source) for inner in inside if inner.source), ""):
                return source
            if len(seen) < 32 and near.name not in seen:
                seen.add(near.name)
                around += [*self.users[near.name], *(operations[n][1] for n in near.operands if n in operations)]
        return ""

    @property
    def peak(self) -> int:
        """Padded bytes alive at once."""
        return max((peak.padded_bytes for peak in peaks(self.context)), default=0)


def _inside(context: Context, op: Operation, depth: int = 0) -> Iterable[Operation]:
    if op.opcode != "fusion" or not op.calls or depth > 40:
        yield op
        return
    for inner in context.program.by_name[op.calls[0]].operations:
        yield from _inside(context, inner, depth + 1)


def _origin(op: Operation) -> str:
    """Where an operation comes from: the framework's name without loops around it, else its line, else its shape."""
    if op.op_name:
        words = (op.op_name.partition("/")[2] or op.op_name).split("/")
        return "/".join(word for word in words if word not in _LOOP_WORDS) or op.op_name
    return str(op.source) if op.source else _NUMBERS.sub("", op.shape.partition("{")[0])


def diagnose_upgrade(before: Program, after: Program, target: Target | str) -> StepDiff:
    """What changed between two optimised modules of one program (two compilers, or two versions of the code), by time.

    Raises :class:`UsageError` where one of them is StableHLO: what the compiler changed can be seen after it only.
    """
    chip = find_target(target) if isinstance(target, str) else target
    for program in (before, after):
        if program.kind != "hlo":
            raise UsageError(f"{program.name} is StableHLO", how="give two optimised HLO dumps (or --compile)")
    old, new = _Side.of(before, chip), _Side.of(after, chip)
    changes: list[TimeChange] = []
    for key in {**old.kernels, **new.kernels}:
        mine, theirs = old.kernels.get(key, []), new.kernels.get(key, [])
        seconds = sum(k.row.seconds for k in mine), sum(k.row.seconds for k in theirs)
        if not mine:
            cause, detail = _appeared(theirs, old, new)
        elif not theirs:
            cause, detail = _vanished(mine, new)
        else:
            cause, detail = _changed(mine, theirs, old.context, new.context)
        if cause and (any(seconds) or cause == "offloaded"):
            place = next((k.source for k in (*theirs, *mine) if k.source), "")
            changes.append(TimeChange(cause, detail, place, *seconds))
    if _border_turned(before, after):
        changes = [_from_layouts(change, changes) for change in changes]
    changes = _loops_together(changes)
    changes.sort(key=lambda change: -abs(change.seconds))
    return StepDiff(old.step, new.step, tuple(changes), (old.peak, new.peak))


def _border_turned(before: Program, after: Program) -> bool:
    """Whether arguments or results of the whole program have other layouts, their shapes being the same."""
    borders = [program.attributes.get("entry_computation_layout", "") for program in (before, after)]
    bare = [re.sub(r"\](\{[^}]*\})", "]", border) for border in borders]
    return borders[0] != borders[1] and bare[0] == bare[1]


def _loops_together(changes: Sequence[TimeChange]) -> list[TimeChange]:
    """A loop that was unrolled (or rolled up) with all that came and went on its line, as one change."""
    loops = {change.source: change for change in changes if change.cause in ("unrolled loop", "rolled loop")}
    kept = [change for change in changes if change.source not in loops]
    for source, loop in loops.items():
        here = [change for change in changes if change.source == source]
        sums = sum(change.before for change in here), sum(change.after for change in here)
        kept.append(TimeChange(loop.cause, loop.detail, source, *sums))
    return kept


def _from_layouts(change: TimeChange, others: Sequence[TimeChange]) -> TimeChange:
    """A new relayout between the very layouts that another kernel changed from and to is that change's price."""
    ends = change.detail.replace("S(1)", "").partition("; ")[0]
    if change.cause == "new relayout" and any(
        other.cause == "changed layout" and other.detail.replace("S(1)", "") == ends for other in others
    ):
        return replace(change, cause="changed layout", detail=f"{change.detail}: the data must be turned")
    return change


def _appeared(kernels: Sequence[_Kernel], before: _Side, after: _Side) -> tuple[str, str]:
    kernel = kernels[0]
    if kernel.core:
        return "offloaded", f"{kernel.op.opcode} runs on the {kernel.core} now"
    if kernel.moves_only:
        relayout, detail = _movement(kernel)
        return f"new {relayout}", detail + _times(kernels)
    homes = _homes(kernels, before)
    name = plain_opcode(kernel.main.opcode)
    if homes:
        between = _new_movement(kernel, before, after)
        if between is not None:
            relayout, detail = _movement(between)
            return f"new {relayout}", f"{detail}; {name} before or behind it is a kernel of its own now"
        return "lost fusion", f"{name} was part of a kernel with {_listed(homes)} and is one of its own now"
    return "new", f"{name} was not there before" + _times(kernels)


def _vanished(kernels: Sequence[_Kernel], after: _Side) -> tuple[str, str]:
    kernel = kernels[0]
    if kernel.moves_only:
        relayout, detail = _movement(kernel)
        return f"{relayout} gone", detail + _times(kernels)
    homes = _homes(kernels, after)
    name = plain_opcode(kernel.main.opcode)
    if homes:
        return "new fusion", f"{name} is part of a kernel with {_listed(homes)} now"
    return "gone", f"{name} is not there any more" + _times(kernels)


def _new_movement(kernel: _Kernel, before: _Side, after: _Side) -> _Kernel | None:
    """A kernel that only moves data, directly before or behind this one, that the other side does not have."""
    near = {*kernel.op.operands, *(user.name for user in after.users[kernel.op.name])}
    for key, others in after.kernels.items():
        if len(others) <= len(before.kernels.get(key, ())):
            continue
        for other in others:
            around = {other.op.name, *other.op.operands, *(user.name for user in after.users[other.op.name])}
            counts = other.row.seconds >= 0.1 * kernel.row.seconds and other.op.name != kernel.op.name
            if other.moves_only and counts and around & near:
                return other
    return None


def _homes(kernels: Sequence[_Kernel], side: _Side) -> list[str]:
    """The main operations of the kernels, on the other side, that hold what these compute."""
    found: Counter[str] = Counter()
    for kernel in kernels:
        for op in kernel.inside:
            for home in side.homes.get(f"{plain_opcode(op.opcode)} {_origin(op)}", ()):
                if home != kernel.key:
                    found[home[0]] += 1
    return [name for name, _ in found.most_common(2)]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names)


def _times(kernels: Sequence[_Kernel]) -> str:
    runs = sum(kernel.row.runs for kernel in kernels)
    return f", {runs} times" if runs > 1 else ""


def _movement(kernel: _Kernel) -> tuple[str, str]:
    """``relayout`` or ``copy``, and what is moved from where to where."""
    op = kernel.op
    shapes = (*op.operand_shapes[:1], op.shape)
    turned = any(plain_opcode(inner.opcode) == "transpose" for inner in kernel.inside)
    if turned or _relays(shapes):
        return "relayout", f"{shapes[0]} -> {shapes[-1]}"
    return "copy", f"{op.opcode} of {shapes[0]}"


def _relays(shapes: Sequence[str]) -> bool:
    orders = [re.search(r"\{([\d,]*)(?::(T[^S}]*))?", shape) for shape in shapes]
    first, last = (match.groups() if match else None for match in (orders[0], orders[-1]))
    return first != last


def _changed(before: Sequence[_Kernel], after: Sequence[_Kernel], old: Context, new: Context) -> tuple[str, str]:
    """Why a kernel that stands on both sides differs; ("", "") where it does not."""
    runs = sum(k.row.runs for k in before), sum(k.row.runs for k in after)
    name = plain_opcode(after[0].main.opcode)
    if len(before) != len(after) and any(k.looped for k in before) != any(k.looped for k in after):
        cause = "unrolled loop" if len(after) > len(before) else "rolled loop"
        return cause, f"{name}: {len(before)} kernels, {runs[0]} runs -> {len(after)} kernels, {runs[1]} runs"
    cores = {k.core for k in before}, {k.core for k in after}
    if cores[0] != cores[1]:
        where = "".join(cores[1])
        return ("offloaded", f"{name} runs on the {where} now") if where else ("back on the TensorCore", name)
    if moved := _of_shapes(before, after, old, new):
        return moved
    size = sum(k.row.bytes for k in before), sum(k.row.bytes for k in after)
    flops = sum(k.row.flops for k in before), sum(k.row.flops for k in after)
    seconds = sum(k.row.seconds for k in before), sum(k.row.seconds for k in after)
    if abs(seconds[1] - seconds[0]) <= 0.01 * max(seconds):
        return "", ""
    if len(before) != len(after) and runs[0] != runs[1] and name in _MOVES:
        return (
            "new copy" if runs[1] > runs[0] else "copy gone"
        ), f"{runs[1]} of {after[0].op.shape} instead of {runs[0]}"
    if len(before) != len(after) and runs[0] != runs[1]:
        return ("new" if runs[1] > runs[0] else "gone"), f"{name} runs {runs[1]} times instead of {runs[0]}"
    if flops[0] != flops[1]:
        return ("more work" if flops[1] > flops[0] else "less work"), f"{name}: {flops[0]:,} -> {flops[1]:,} flops"
    more = "more bytes" if size[1] > size[0] else "fewer bytes"
    return more, f"{name}: {bytes_text(size[0])} -> {bytes_text(size[1])} through HBM"


def _of_shapes(
    before: Sequence[_Kernel], after: Sequence[_Kernel], old: Context, new: Context
) -> tuple[str, str] | None:
    """A type, a layout or a memory space that differs, of results first."""
    for mine, theirs in zip(before, after):
        pairs = zip(_layouts(old, mine.op), _layouts(new, theirs.op))
        texts = zip((mine.op.shape, *mine.op.operand_shapes), (theirs.op.shape, *theirs.op.operand_shapes))
        for (a, b), (left, right) in zip(pairs, texts):
            if a is None or b is None or str(a) == str(b):
                continue
            if a.element_bits != b.element_bits:
                cause = "wider type" if b.element_bits > a.element_bits else "narrower type"
                return cause, f"{a.dtype} -> {b.dtype}: {left} -> {right}"
            if a.shape == b.shape and (a.minor_to_major, a.tiles) != (b.minor_to_major, b.tiles):
                return "changed layout", f"{left} -> {right}"
            if a.shape == b.shape and a.memory_space != b.memory_space:
                spaces = (_SPACES.get(x.memory_space, f"space {x.memory_space}") for x in (a, b))
                return "memory space", f"{left.partition('{')[0]} from {' to '.join(spaces)}"
    return None


def _layouts(context: Context, op: Operation) -> list[TensorLayout | None]:
    found: list[TensorLayout | None] = []
    for shape in (op.shape, *op.operand_shapes):
        try:
            several = context.layouts(shape)
        except TilewrightError:
            several = []
        found.append(several[0] if several else None)
    return found
