"""The kernels of a step, each with what it computes and where that comes from: what two modules are compared by."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from tilewright.errors import TilewrightError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.inlining import operations_of
from tilewright.hlo.opcodes import MARKER_CALLS, PRODUCTS
from tilewright.hlo.program import Operation, Program
from tilewright.hlo.reporting.buffers import peaks
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.timing.estimate import estimate
from tilewright.hlo.timing.step import StepTime, TimeRow
from tilewright.layout import TensorLayout
from tilewright.render.compare import matched
from tilewright.targets import Target

_RANKS = (
    PRODUCTS,
    frozenset({"custom-call", "scatter", "gather", "sort", "fft", "all-reduce", "all-gather", "all-to-all"}),
    frozenset({"reduce", "reduce-window", "select-and-scatter"}),
)
MOVES = frozenset({"copy", "transpose", "reshape", "copy-start", "copy-done", "slice-start", "slice-done", "bitcast"})
SILENT = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota", "broadcast"})
_NUMBERS = re.compile(r"[\d.]+$")
_LOOP_WORDS = frozenset({"while", "body", "cond", "closed_call", "checkpoint", "scan", "remat"})


def origin(op: Operation) -> str:
    """Where an operation comes from: the framework's name without loops around it, else its line, else its shape."""
    if op.op_name:
        words = (op.op_name.partition("/")[2] or op.op_name).split("/")
        return "/".join(word for word in words if word not in _LOOP_WORDS) or op.op_name
    return str(op.source) if op.source else _NUMBERS.sub("", op.shape.partition("{")[0])


def is_silent(op: Operation) -> bool:
    """Whether it computes and moves nothing."""
    return op.opcode in SILENT or any(name in op.target for name in MARKER_CALLS)


def dims_of(shape: str) -> str:
    """The dims in a shape's text, of every array, without types and layouts."""
    return " ".join(re.findall(r"\[[\d,]*\]", shape))


@dataclass(eq=False)
class Kernel:
    """A row of the step with the operations behind it.

    ``op`` is its operation, of an offloaded call the one that began it; ``loop`` is the body it stands in.
    """

    row: TimeRow
    op: Operation
    inside: tuple[Operation, ...]
    source: str
    core: str
    loop: str

    @cached_property
    def main(self) -> Operation:
        """The operation that the kernel is there for."""
        loud = [op for op in self.inside if not is_silent(op)]
        ranked = (op for rank in _RANKS for op in loud if plain_opcode(op.opcode) in rank)
        if (first := next(ranked, None)) is not None:
            return first
        said = [op for op in loud if op.opcode != "convert"] or loud  # a narrow type is widened on the way
        roots = [op for op in said if op.root]
        return (roots or said or [self.op])[-1]

    @property
    def moves_only(self) -> bool:
        """Whether it only moves data, and computes nothing."""
        return all(plain_opcode(op.opcode) in MOVES or is_silent(op) for op in self.inside)

    @cached_property
    def key(self) -> tuple[str, str]:
        """What it computes, and its framework name."""
        return plain_opcode(self.main.opcode), origin(self.main)

    @property
    def name(self) -> str:
        """The opcode of its main operation, without ``-start`` and ``-done``."""
        return plain_opcode(self.main.opcode).removesuffix("-start").removesuffix("-done")

    @cached_property
    def dims(self) -> tuple[str, ...]:
        """The dims of its result and of its operands."""
        return dims_of(self.op.shape), *sorted(dims_of(shape) for shape in self.op.operand_shapes)

    @cached_property
    def movement(self) -> tuple[str, ...]:
        """The shapes and memory spaces that a kernel which only moves data goes between; () for others."""
        shapes = (self.op.shape, *self.op.operand_shapes) if self.moves_only else ()
        return tuple(re.sub(r"\{[^}]*?(S\(\d\))?\}", r"\1", shape) for shape in shapes)


@dataclass
class Side:
    """One module under the target: its step, and its kernels by what they compute."""

    program: Program
    step: StepTime
    context: Context
    operations: Mapping[str, tuple[str, Operation]]
    users: Mapping[str, Sequence[Operation]]
    kernels: Mapping[tuple[str, str], list[Kernel]]
    homes: Mapping[str, dict[tuple[str, str], None]]

    @classmethod
    def of(cls, program: Program, chip: Target) -> Side:
        """The module priced, its kernels found."""
        users: dict[str, list[Operation]] = defaultdict(list)
        for _, op in program.operations():
            for name in op.operands:
                users[name].append(op)
        operations = {op.name: (computation.name, op) for computation, op in program.operations()}
        kernels = defaultdict[tuple[str, str], list[Kernel]](list)
        homes = defaultdict[str, dict[tuple[str, str], None]](dict)  # not sets: in the order of the step
        side = cls(program, estimate(program, chip), Context(program, chip), operations, users, kernels, homes)
        for kernel in (side._kernel(row) for row in side.step.rows if row.name in operations):
            kernels[kernel.key].append(kernel)
            for inner in kernel.inside:
                if not is_silent(inner) and plain_opcode(inner.opcode) not in MOVES:
                    homes[f"{plain_opcode(inner.opcode)} {origin(inner)}"][kernel.key] = None
        return side

    def _kernel(self, row: TimeRow) -> Kernel:
        computation, op = self.operations[row.name]
        while op.opcode.endswith(("-done", "-update")) and op.operands[:1] and op.operands[0] in self.operations:
            begin = self.operations[op.operands[0]][1]
            if not begin.calls and not begin.opcode.endswith("-update"):
                break  # a transfer: its end says which array came
            op = begin
        inside = tuple(operations_of(self.program, op)) if op.opcode not in ("while", "conditional") else (op,)
        return Kernel(
            *(row, op, inside, self.context.source(computation, op)),
            core=self.context.core(computation, op),
            loop=computation if self.context.runs[computation].trips else "",
        )

    def line_of_result(self, op: Operation, number: int) -> str:
        """The line that makes one of the arrays that a fusion gives back; "" where that is not known."""
        body = self.program.body(op) if op.opcode == "fusion" else None
        if body is None or body.root is None or body.root.opcode != "tuple" or number >= len(body.root.operands):
            return ""
        made = {inner.name: inner for inner in body.operations}
        inner = made.get(body.root.operands[number])
        while inner is not None and not inner.source and len(inner.operands) == 1:
            inner = made.get(inner.operands[0])
        return str(inner.source or "") if inner is not None else ""

    def _beside(self, name: str, op: Operation) -> list[Operation]:
        """The users of a value, and what ``op`` is made of."""
        return [*self.users.get(name, ()), *(self.operations[n][1] for n in op.operands if n in self.operations)]

    def around(self, kernel: Kernel) -> Iterator[Operation]:
        """What the kernel computes, and what stands directly before and behind it, bitcasts between them included."""
        yield from kernel.inside
        for near in self._beside(kernel.row.name, kernel.op):
            for op in (near, *(self._beside(near.name, near) if near.opcode == "bitcast" else ())):
                yield from operations_of(self.program, op) if op.opcode == "fusion" else (op,)

    def all_kernels(self) -> Iterator[Kernel]:
        """The kernels, those that compute the same one behind the other."""
        return (kernel for kernels in self.kernels.values() for kernel in kernels)

    def transposes(self) -> Counter[str]:
        """How often the program's author turned dims, by the framework's name."""
        return Counter(origin(op) for _, op in self.program.operations() if is_transpose(op))

    def layouts(self, op: Operation) -> list[TensorLayout | None]:
        """The layouts of an operation's result and operands, of a tuple its first; None for what is no array."""

        def first(shape: str) -> TensorLayout | None:
            with suppress(TilewrightError):
                return next(iter(self.context.layouts(shape)), None)
            return None

        return [first(shape) for shape in (op.shape, *op.operand_shapes)]

    @property
    def peaks(self) -> dict[int, int]:
        """Memory space -> padded bytes alive at once."""
        return {peak.memory_space: peak.padded_bytes for peak in peaks(self.context)}


PAIRING_KEYS: tuple[Callable[[Kernel], Hashable], ...] = (
    lambda kernel: (kernel.movement, kernel.source, kernel.dims),
    lambda kernel: (kernel.movement, kernel.dims),
    lambda kernel: (kernel.movement, kernel.source),
    lambda kernel: kernel.movement,
)
"""What kernels that compute the same are paired by: line and dims, dims, line, their order."""


def is_transpose(op: Operation) -> bool:
    """Whether the framework calls it a transpose, whatever the compiler made of it."""
    return op.op_name.rpartition("/")[2] == "transpose"


def paired(
    left: Sequence[Kernel], right: Sequence[Kernel], keys: Sequence[Callable[[Kernel], Hashable]] = PAIRING_KEYS
) -> tuple[list[tuple[Kernel, Kernel]], list[Kernel], list[Kernel]]:
    """Kernels side by side, and those left on each side."""
    both = matched(left, right, keys)
    pairs = [(before, after) for before, after in both if before and after]
    return pairs, [before for before, after in both if before and not after], [b for a, b in both if b and not a]
