"""A program as the report sees it: computations of operations, each with its shapes, operands and source line.

The model is neutral: HLO text and StableHLO text are read into the same records. Shapes are kept as XLA text
(``f32[48,350]{1,0:T(8,128)}``); ``tilewright.layout.parse`` turns them into layouts when a pass needs them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import inf
from typing import Any, TypeVar

_KERNEL = re.compile(r"([^/()]+)/pallas_call$")
PALLAS = "tpu_custom_call"
"""The target of a custom call that is a Pallas kernel."""
_INTEGER = re.compile(r"-?\d+")
_WINDOW_WORDS = (("stride", "1"), ("pad", "0"), ("lhs_dilate", "1"), ("rhs_dilate", "1"))
"""The words of a convolution's window, and what they say by default."""
_ALIAS = re.compile(r"\{([\d,\s]*)\}\s*:\s*\(\s*(\d{1,9})\s*,\s*\{([\d,\s]*)\}")

CALLS = (
    "calls", "to_apply", "condition", "body", "branch_computations", "true_computation", "false_computation",
    "called_computations", "select", "scatter", "comparator",
)  # fmt: skip
"""Attributes of HLO that name computations, in the order of ``Operation.calls``."""


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's program. ``str()`` gives ``file.py:47``; ``function`` and ``column`` may be unknown."""

    file: str
    line: int
    column: int = 0
    function: str = ""

    def __str__(self) -> str:
        """The place as editors and compilers write it."""
        return f"{self.file}:{self.line}" if self.line else self.file


def aliases(text: str) -> tuple[tuple[int | None, int, int | None], ...]:
    """What ``output_to_operand_aliasing`` and ``input_output_alias`` say: (result, operand, element of the operand).

    Each result is an element of the result's tuple, None for all of it; deeper elements count as the one they are in.

    >>> aliases("{{0}: (7, {}), {1}: (9, {2}, may-alias)}")
    ((0, 7, None), (1, 9, 2))
    """
    found = ((result.split(","), int(number), inside.split(",")) for result, number, inside in _ALIAS.findall(text))
    return tuple((_first(result), number, _first(inside)) for result, number, inside in found)


_DONOR = re.compile(r"\(\s*(\d{1,9})\s*,")


GIVEN_AWAY = "jax.buffer_donor"
"""The attribute of a parameter that marks it as donated, beside what the module's header says."""


def given_away(program: Program) -> frozenset[str]:
    """The names of the entry's arguments that it may write over: donated ones."""
    numbers = {int(number) for number in _DONOR.findall(program.attributes.get("buffer_donor", ""))}
    numbers |= {number for _, number, _ in aliases(program.attributes.get("input_output_alias", ""))}
    arguments = (op for op in program.entry.operations if op.opcode == "parameter")
    return frozenset(op.name for k, op in enumerate(arguments) if k in numbers or GIVEN_AWAY in op.attributes)


def written_over_arguments(program: Program) -> frozenset[int]:
    """Elements of the program's result that are written over an argument: none of them needs memory of its own.

    Those that ``input_output_alias`` names; and of each argument that is only given away (``buffer_donor``) the first
    further element of its shape, as XLA pairs them.

    >>> from tilewright.hlo import load
    >>> main = "func.func @main(%x: tensor<4xf32> {jax.buffer_donor = true}) -> tensor<4xf32>"
    >>> sorted(written_over_arguments(load(f"{main} {{\\n  return %x : tensor<4xf32>\\n}}")))
    [0]
    """
    over = {element or 0 for element, _, _ in aliases(program.attributes.get("input_output_alias", ""))}
    donors = [int(number) for number in _DONOR.findall(program.attributes.get("buffer_donor", ""))]
    root = program.entry.root
    if not donors or root is None or program.kind != "stablehlo":  # an optimised dump names the pairs
        return frozenset(over)
    arguments = [op.shape for op in program.entry.operations if op.opcode == "parameter"]
    free = defaultdict(list)
    for element, shape in reversed(list(enumerate(root.operand_shapes))):
        if element not in over:
            free[shape].append(element)
    for number in donors:
        if number < len(arguments) and free[arguments[number]]:
            over.add(free[arguments[number]].pop())
    return frozenset(over)


def _first(indices: list[str]) -> int | None:
    """The first of the indices in braces, None where there is none."""
    word = indices[0].strip()
    return int(word) if word.isdecimal() and len(word) < 10 else None


def convolution_attributes(labels: str, window: Mapping[str, str], groups: Mapping[str, str]) -> dict[str, str]:
    """A convolution's attributes as HLO writes them, without what says no more than the default.

    >>> convolution_attributes("b0f_0io->b0f", {"stride": "1", "pad": "2_0"}, {"feature_group_count": "1"})
    {'dim_labels': 'b0f_0io->b0f', 'window': '{pad=2_0}'}
    """
    said = [(key, window.get(key, ""), default) for key, default in _WINDOW_WORDS]
    words = [f"{key}={text}" for key, text, default in said if set(re.split("[x_]", text)) - {default, ""}]
    found = {"dim_labels": labels} | ({"window": "{" + " ".join(words) + "}"} if words else {})
    return found | {key: count for key, count in groups.items() if count != "1"}


@dataclass(slots=True, unsafe_hash=True)
class Operation:
    """One instruction. Nobody changes one: those that say the same share their attributes.

    (A frozen dataclass would hold people to it, but takes six times as long to make, and a large dump has millions.)

    ==================  ========================================================================================
    ``name``            its name: ``reshape.12`` in HLO (without the ``%``), ``%0`` in StableHLO
    ``opcode``          ``reshape``, ``copy-start``, ``broadcast_in_dim`` ... (without a dialect prefix)
    ``shape``           the result as XLA text, a tuple ``(a, b)`` if there are several
    ``operands``        names of the operands; ``operand_shapes`` their shapes
    ``attributes``      attribute -> text, as written (``dimensions`` -> ``{1,0,2}``)
    ``op_name``         the framework's name for it (``jit(f)/reshape``)
    ``source``          the line of the user's program, or None
    ``calls``           the computations it calls: fusion body, loop body, reducer ...
    ``line``            its line in the program's text, from 1
    ``root``            it is its computation's result
    ==================  ========================================================================================
    """

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...] = ()
    operand_shapes: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)
    op_name: str = ""
    source: Source | None = None
    calls: tuple[str, ...] = ()
    line: int = 0
    root: bool = False

    def reading(self, operands: tuple[str, ...], name: str = "", source: Source | None = None) -> Operation:
        """The same of other operands, under another name and of another line if they are given.

        (``replace`` takes five times as long.)
        """
        return Operation(
            *(name or self.name, self.opcode, self.shape, operands, self.operand_shapes, self.attributes),
            *(self.op_name, source or self.source, self.calls, self.line, self.root),
        )

    @property
    def parameter_number(self) -> int | None:
        """Which parameter of its computation this is, where the text says so (HLO does), else None."""
        literal = self.attributes.get("literal", "").strip() if self.opcode == "parameter" else ""
        return int(literal) if literal.isdecimal() and len(literal) < 10 else None

    @property
    def kernel(self) -> str:
        """What the maker of a custom kernel called it; "" for all else, and where its name says so already.

        >>> Operation("custom-call.3", "custom-call", "f32[8]", op_name="jit(f)/splash/pallas_call").kernel
        'splash'
        """
        if "custom" not in self.opcode:
            return ""
        told = _KERNEL.search(self.op_name)
        name = self.attributes.get("kernel_name", "").strip('"') or (told[1] if told else "")
        return "" if self.name.startswith(name) else name

    @property
    def target(self) -> str:
        """What a custom call calls; "" for all else."""
        return self.attributes.get("custom_call_target", "").strip('"')

    @property
    def is_pallas(self) -> bool:
        """Whether it is a Pallas kernel for a TPU."""
        return PALLAS in self.target

    def integers(self, attribute: str) -> tuple[int, ...]:
        """The integers in an attribute's text, () if it is absent. What no dim can be comes back as 2**62.

        >>> Operation("t", "transpose", "f32[2,3]", attributes={"dimensions": "{1,0}"}).integers("dimensions")
        (1, 0)
        """
        return _integers(self.attributes[attribute]) if attribute in self.attributes else ()


@lru_cache(maxsize=4096)
def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(word) if len(word) < 19 else 2**62 for word in _INTEGER.findall(text))


@dataclass(frozen=True)
class Computation:
    """A list of operations in the order of the text: a function, a loop body, a fusion body, a reducer."""

    name: str
    operations: tuple[Operation, ...]
    entry: bool = False

    @property
    def root(self) -> Operation | None:
        return next((op for op in reversed(self.operations) if op.root), None)

    @cached_property
    def named(self) -> Mapping[str, Operation]:
        """The operations by their names."""
        return {op.name: op for op in self.operations}

    @cached_property
    def readers(self) -> Mapping[str, list[Operation]]:
        """Name of a value, as its readers write it -> the operations that read it, each once; [] for all others."""
        readers = defaultdict[str, list[Operation]](list)
        for op in self.operations:
            for name in op.operands if len(op.operands) < 2 else dict.fromkeys(op.operands):
                readers[name].append(op)
        return readers


@dataclass(frozen=True)
class Program:
    """A loaded program.

    ==================  ========================================================================================
    ``kind``            ``hlo`` (shapes carry the compiler's own layouts) or ``stablehlo`` (shapes carry none)
    ``name``            the module's name
    ``text``            the text it was read from, whole
    ``computations``    every computation, in the order of the text
    ``attributes``      the module header's attributes, as text
    ``signature``       the arguments and results of the JAX function it was made from, or None
    ``notes``           what of the text was not understood, in sentences; such an instruction's opcode is ``unread``
    ==================  ========================================================================================

    >>> from tilewright.hlo import load
    >>> program = load("HloModule m\\nENTRY e {\\n  ROOT p = f32[3,5] parameter(0)\\n}")
    >>> program.entry.operations[0].shape
    'f32[3,5]'
    """

    kind: str
    name: str
    text: str = field(repr=False)
    computations: tuple[Computation, ...] = field(repr=False, hash=False)
    attributes: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    signature: Any = field(default=None, repr=False, compare=False)
    notes: tuple[str, ...] = field(default=(), repr=False)

    @property
    def entry(self) -> Computation:
        return next((c for c in self.computations if c.entry), self.computations[-1])

    def operations(self) -> Iterator[tuple[Computation, Operation]]:
        """Every operation with its computation, in the order of the text."""
        return ((computation, op) for computation in self.computations for op in computation.operations)

    @cached_property
    def by_name(self) -> Mapping[str, Computation]:
        return {computation.name: computation for computation in self.computations}

    def body(self, op: Operation) -> Computation | None:
        """The one computation that an operation calls, as a fusion does."""
        return self.by_name[op.calls[0]] if len(op.calls) == 1 else None

    @cached_property
    def callers(self) -> Mapping[str, tuple[tuple[str, Operation], ...]]:
        """Computation name -> (calling computation, calling operation), in the order of the text."""
        callers: dict[str, list[tuple[str, Operation]]] = {c.name: [] for c in self.computations}
        for computation, op in self.operations():
            for callee in op.calls:
                callers[callee].append((computation.name, op))
        return {name: tuple(calls) for name, calls in callers.items()}

    @cached_property
    def fused(self) -> frozenset[str]:
        """Names of the computations that are bodies of fusions, and of what those call; never the entry's."""
        names = (callee for _, op in self.operations() if op.opcode == "fusion" for callee in op.calls)
        called = lambda name: (callee for op in self.by_name[name].operations for callee in op.calls)  # noqa: E731
        return frozenset(reached(names, called)) - {self.entry.name}

    @cached_property
    def alike(self) -> Mapping[str, Computation]:
        """Computation name -> the first computation that says the same: only names, lines and metadata differ.

        The bodies of a model's unrolled layers are alike; what one asks for, all of them do.
        """
        found: dict[str, Computation] = {}
        first: dict[object, Computation] = {}
        said: dict[int, frozenset[tuple[str, str]]] = {}  # operations share their attributes
        for computation in self.computations:
            number = {op.name: k for k, op in enumerate(computation.operations)}
            key = []
            for op in computation.operations:
                if (own := said.get(id(op.attributes))) is None:
                    own = frozenset((k, v) for k, v in op.attributes.items() if k not in CALLS and k != "metadata")
                    said[id(op.attributes)] = own
                operands = tuple([number.get(name, name) for name in op.operands])
                calls = tuple([found[name].name if name in found else name for name in op.calls]) if op.calls else ()
                key.append((op.opcode, op.shape, operands, own, calls, op.root))
            found[computation.name] = first.setdefault(tuple(key), computation)
        return found

    def path(self, computation: str) -> str:
        """The chain of computations from the entry to this one by first callers: ``main > while_body > fused``."""
        chain = reached([computation], lambda name: (caller for caller, _ in self.callers[name][:1]))
        return " > ".join(reversed([*chain]))


T = TypeVar("T", bound=Hashable)


def reached(starts: Iterable[T], near: Callable[[T], Iterable[T]], most: float = inf) -> Iterator[T]:
    """The starts, those near them, those near these and so on, nearest first; none behind the first ``most``.

    >>> list(reached([8], lambda n: [n // 2, n - 1], most=3))
    [8, 4, 7, 2, 3]
    """
    found = dict.fromkeys(starts)
    open_ = [*found]
    for each in open_:
        yield each
        new = dict.fromkeys([other for other in near(each) if other not in found] if len(open_) <= most else ())
        found |= new
        open_ += new


# Equal rows of a program's unrolled layers, shown as one: a step of 80 layers has its few kernels 80 times.

Row = TypeVar("Row", bound=Any)
_FEWEST = 4
"""Equal rows from which they are shown as one."""


def joined(rows: Iterable[Row], same: Sequence[str], sums: Sequence[str]) -> list[Row]:
    """Rows of which four or more agree in the fields ``same`` and in their names but for numbers, as the first of them.

    Its fields ``sums`` are those of all together (None where all are None), its ``also`` names the others.

    >>> from tilewright.hlo.timing.step import TimeRow
    >>> rows = [TimeRow(f"fusion.{k}", "fusion", 1e-6, "hbm", 8, 0, "llama.py:3") for k in (7, 8, 9, 11)]
    >>> [(row.name, row.also, row.seconds, row.runs) for row in joined(rows, ("op", "source"), ("seconds", "runs"))]
    [('fusion.7', ('fusion.8', 'fusion.9', 'fusion.11'), 4e-06, 4)]
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((re.sub(r"\.?\d+", "", row.name), *(getattr(row, name) for name in same)), []).append(row)
    parts = ([_one(group, sums)] if len(group) >= _FEWEST else group for group in groups.values())
    return [row for part in parts for row in part]


def _one(rows: Sequence[Row], sums: Sequence[str]) -> Row:
    values = {name: [value for row in rows if (value := getattr(row, name)) is not None] for name in sums}
    whole = {name: sum(numbers) if numbers else None for name, numbers in values.items()}
    one: Row = replace(rows[0], also=tuple(row.name for row in rows[1:]), **whole)
    return one


def title(row: Any) -> str:
    """What a row is called where people read it: a kernel by its own name, equal ones with their number.

    >>> from tilewright.hlo.timing.step import TimeRow
    >>> title(TimeRow("custom-call.3", "custom-call", 1e-6, "hbm", 8, 0, "", kernel="splash", also=("custom-call.4",)))
    'splash × 2'
    """
    name: str = row.kernel or row.name
    return f"{name} × {1 + len(row.also)}" if row.also else name
