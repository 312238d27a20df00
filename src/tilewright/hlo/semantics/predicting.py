"""StableHLO as its target's compiler will see it: in that compiler's normal form, every operation under its old name.

What a compiler removes by itself costs nothing, so a report that predicts must not rank it. The names, lines and
framework's names are those of the operations that the new ones come from; where one became several, the further ones
have a number behind the name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.graphs.mlir import read_functions, write_functions
from tilewright.hlo.ir import ir, parse_module, print_module
from tilewright.hlo.opcodes import ELEMENTWISE, PRODUCTS
from tilewright.hlo.program import Computation, Operation, Program, Source
from tilewright.hlo.reading.mlir_reader import read_stablehlo
from tilewright.hlo.rewrites.inline import Inline
from tilewright.hlo.rewrites.pipeline import NEWEST, normal_form

_TAG = "tilewright:"

Key = tuple[int, str]
"""(line of the text, name) of an operation."""


@dataclass(frozen=True)
class Normalised:
    """A program in normal form (of that ``version``, 0 where it could not be brought there).

    ``came_from``: its operations that are still what they were -> what they were; None where all are.
    """

    program: Program
    came_from: Mapping[Key, Key] | None = None
    version: int = NEWEST

    def times_of(self, times: Mapping[Key, tuple[float, str]]) -> Mapping[Key, tuple[float, str]]:
        """The original's modelled times, at the operations that are left; copies of a called one share its time."""
        if self.came_from is None:
            return times
        copies = Counter(self.came_from.values())
        kept = {key: (times[before], copies[before]) for key, before in self.came_from.items() if before in times}
        return {key: (microseconds / count, bound) for key, ((microseconds, bound), count) in kept.items()}


def in_normal_form(program: Program) -> Normalised:
    """A StableHLO program as XLA normalises it; itself where nothing changes.

    A text that the bindings refuse (of another StableHLO version, or damaged) stays as it is, and so does any where
    they are missing.

    >>> from tilewright.hlo import load
    >>> swap = "stablehlo.transpose %x, dims = [0, 1] : (tensor<4x2xf32>) -> tensor<4x2xf32>"
    >>> body = f"{{\\n  %0 = {swap}\\n  return %0 : tensor<4x2xf32>\\n}}"
    >>> text = f"func.func @main(%x: tensor<4x2xf32>) -> tensor<4x2xf32> {body}"
    >>> [op.opcode for op in in_normal_form(load(text)).program.entry.operations]
    ['parameter', 'return']
    """
    try:
        module = parse_module(program.text)
        origins = tag(module, program)
        inlined = Inline().apply_module(module)
        bodies = read_functions(module)
        if not normal_form(bodies) and not inlined:
            return Normalised(program)
        write_functions(module, bodies)
        text = print_module(module, locations=True)
        return _Names(program, origins).given_back(read_stablehlo(text))
    except Exception:  # the bindings' own, too: a report on the program as written is better than none
        return Normalised(program, version=0)


@dataclass(frozen=True)
class Origin:
    """What an operation was, the function it stood in, and the computation: that function or a body in it."""

    op: Operation
    function: str
    computation: str = ""


def tag(module: Any, program: Program) -> list[Origin]:
    """Number the module's operations in their locations; what stands at each number (:func:`number_in`)."""
    origins: list[Origin] = []
    with module.context:
        for view in module.body.operations:
            function = view.operation
            if function.name == "func.func" and len(function.regions[0].blocks) == 1:
                name = ir.StringAttr(function.attributes["sym_name"]).value
                if name in program.by_name:
                    _tag_block(function.regions[0].blocks[0], program, name, name, origins)
    return origins


def _tag_block(block: Any, program: Program, computation: str, function: str, origins: list[Origin]) -> None:
    """The block's operations and the text's stand in one order; where they do not, the rest stays untagged."""
    written = [op for op in program.by_name[computation].operations if op.opcode != "parameter"]
    for view, op in zip(block.operations, written):
        handle = view.operation
        if handle.name.rpartition(".")[2] != op.opcode.rpartition(".")[2]:
            return
        handle.location = ir.Location.name(f"{_TAG}{len(origins)}", handle.location)
        origins.append(Origin(op, function, computation))
        for region, name in zip(handle.regions, op.calls):
            if len(region.blocks) == 1 and name in program.by_name:
                _tag_block(region.blocks[0], program, name, function, origins)


def number_in(name: str) -> int | None:
    """The number in a location's name, None where there is none."""
    number = name.removeprefix(_TAG)
    return int(number) if number != name and number.isdecimal() else None


class _Names:
    """Gives operations their old names back."""

    def __init__(self, old: Program, origins: list[Origin]) -> None:
        self.old, self.origins = old, origins
        self.taken: dict[str, set[str]] = defaultdict(set)
        self.names: dict[str, dict[str, str]] = defaultdict(dict)
        self.computations: dict[str, str] = {}
        self.came_from: dict[Key, Key] = {}

    def given_back(self, new: Program) -> Normalised:
        """The program under the old names; its text is the new one."""
        self.computations = {c.name: c.name for c in new.computations}
        for computation in new.computations:  # callers stand before the bodies of their regions
            for op in computation.operations:
                self._rename_bodies(op)
        for still in (True, False):  # what is still the same operation has the first right to the name
            for computation in new.computations:
                self._name(computation, still)
        computations = tuple(
            Computation(self.computations[c.name], tuple(self._renamed(c)), c.entry) for c in new.computations
        )
        program = replace(self.old, text=new.text, computations=computations, attributes=new.attributes)
        return Normalised(program, self.came_from)

    def _origin(self, op: Operation) -> Origin | None:
        number = number_in(op.op_name)
        return self.origins[number] if number is not None else None

    def _rename_bodies(self, op: Operation) -> None:
        """A loop's bodies are called what they were called."""
        origin = self._origin(op)
        if origin is None or len(origin.op.calls) != len(op.calls):
            return
        used = set(self.computations.values())
        for mine, theirs in zip(op.calls, origin.op.calls):
            if "/" in mine and (theirs not in used or theirs == mine):
                self.computations[mine] = theirs
                used.add(theirs)

    def _name(self, computation: Computation, still: bool) -> None:
        function = computation.name.partition("/")[0]
        before = self.old.by_name.get(self.computations[computation.name])
        parameters = iter([op for op in before.operations if op.opcode == "parameter"] if before else ())
        for op in computation.operations:
            origin = self._origin(op)
            if op.opcode == "parameter":
                wanted, same = next(parameters, op).name, True
            elif origin is None or not origin.op.name:  # it may come from a return, which has none
                wanted, same = op.name, False
            else:
                inlined = f"{origin.function}/" if origin.function != function else ""
                wanted, same = f"{inlined}{origin.op.name}", origin.op.opcode == op.opcode
            if op.name and same is still:
                name = self.names[function][op.name] = self._free(function, wanted)
                if origin is not None and same:
                    self.came_from[op.line, name] = origin.op.line, origin.op.name

    def _free(self, function: str, name: str) -> str:
        """The name, with a number behind it where the function has it already."""
        found, number = name, 1
        while found in self.taken[function]:
            number += 1
            found = f"{name}.{number}"
        self.taken[function].add(found)
        return found

    def _renamed(self, computation: Computation) -> Iterator[Operation]:
        names = self.names[computation.name.partition("/")[0]]
        for op in computation.operations:
            origin = self._origin(op)
            operands = (name.partition("#") for name in op.operands)
            renamed = tuple([f"{names.get(base, base)}{mark}{index}" for base, mark, index in operands])
            op_name = op.op_name if origin is None else origin.op.op_name
            source = op.source if origin is None else origin.op.source or _without_tag(op.source)
            calls = tuple([self.computations[name] for name in op.calls])
            yield Operation(
                *(names.get(op.name, ""), op.opcode, op.shape, renamed, op.operand_shapes, op.attributes),
                *(op_name, source, calls, op.line, op.root),
            )


def _without_tag(source: Source | None) -> Source | None:
    """The place without the tag, which stands where a function's name does; None for one in the text itself, ``-``."""
    return replace(source, function="") if source and source.file != "-" else None


# What the compiler fuses: an array that only computing operations read, or that they make, is never written out.

_READ_ALONG = frozenset({"broadcast", "concatenate", "convert", "dynamic-slice", "pad", "reverse", "slice"})
"""Operations that a kernel does on the way where its readers compute."""
_MADE_ALONG = frozenset({"concatenate", "convert", "dynamic-slice", "pad", "reverse", "slice"})
"""And those that a kernel does on the way where what they read is computed."""
_COMPUTING = ELEMENTWISE | PRODUCTS | {"reduce", "reduce-window", "dynamic-update-slice"}


def fused_along(program: Program) -> frozenset[tuple[str, str]]:
    """(computation, operation) of what a StableHLO program moves within kernels that compute, by a stated rule.

    A broadcast, slice, join, padding or reversal that only elementwise operations, reductions and products read
    (through others of the kind, and through reshapes that add or drop unit dims) is done by them. It is written out
    where a reshape of another kind reads it, where it is returned or carried by a loop, and where anything else reads
    it; all but broadcasts only if no elementwise operation makes what they read. A transpose beside a product is a part
    of it.
    """
    found: set[tuple[str, str]] = set()
    for computation in program.computations:
        found |= {(computation.name, name) for name in _fused_in(computation.operations)}
    return frozenset(found)


def _fused_in(operations: Sequence[Operation]) -> set[str]:
    read_by: dict[str, list[Operation]] = defaultdict(list)
    along: set[str] = set()
    made_by = {op.name: op for op in operations}
    for op in reversed(operations):
        kind, readers = plain_opcode(op.opcode), read_by.get(op.name, [])
        passes = kind in _READ_ALONG or (kind == "reshape" and _only_unit_dims(op))
        computing = bool(readers) and all(plain_opcode(r.opcode) in _COMPUTING or r.name in along for r in readers)
        makers = [made_by[name] for name in op.operands if name in made_by]
        made = kind in _MADE_ALONG and any(plain_opcode(maker.opcode) in ELEMENTWISE for maker in makers)
        if (passes and computing) or made or (kind == "transpose" and _of_product(op, readers, makers, read_by)):
            along.add(op.name)
        for name in op.operands:
            read_by[name.partition("#")[0]].append(op)
    return along


def _of_product(
    op: Operation, readers: list[Operation], makers: list[Operation], read_by: Mapping[str, list[Operation]]
) -> bool:
    """Whether products take this transpose in, or one gives its result in that order: they read and write any."""
    if readers and all(plain_opcode(reader.opcode) in PRODUCTS for reader in readers):
        return True
    return any(plain_opcode(maker.opcode) in PRODUCTS and read_by[maker.name] == [] for maker in makers)


def _only_unit_dims(op: Operation) -> bool:
    texts = (shape.partition("[")[2].partition("]")[0] for shape in (*op.operand_shapes[:1], op.shape))
    sizes = [[size for size in text.split(",") if size not in ("", "1")] for text in texts]
    return len(sizes) == 2 and sizes[0] == sizes[1]
