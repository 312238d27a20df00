"""StableHLO as its target's compiler will see it: in that compiler's normal form, every operation under its old name.

What a compiler removes by itself costs nothing, so a report that predicts must not rank it. The names, lines and
framework's names are those of the operations that the new ones come from; where one became several, the further ones
have a number behind the name.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from typing import Any, NamedTuple

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.graphs.dims import only_unit_dims_differ
from tilewright.hlo.graphs.graph import Block, Node, Value, in_order, operations_in
from tilewright.hlo.graphs.mlir import Reader, read_functions
from tilewright.hlo.inlining import DEEPEST, as_choice, dims_of
from tilewright.hlo.ir import ir, parse_module
from tilewright.hlo.opcodes import ELEMENTWISE, PRODUCTS
from tilewright.hlo.program import Computation, Operation, Program
from tilewright.hlo.reading.hlo_scan import xla_shape, xla_tuple
from tilewright.hlo.reading.mlir_reader import STAND_INS, attributes_of, region_kind
from tilewright.hlo.rewrites.cleanup import merging_key
from tilewright.hlo.rewrites.inline import Inline, inlinable
from tilewright.hlo.rewrites.pipeline import NEWEST, normal_form
from tilewright.hlo.rewriting.maker import PURE

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
        bodies, inlined = functions_of(program, once=True)
        if not normal_form(bodies) and not inlined:
            return Normalised(program)
        return _Written(program).normalised(bodies)
    except Exception:  # the bindings' own, too: a report on the program as written is better than none
        return Normalised(program, version=0)


class Origin(NamedTuple):
    """What an operation was, the function it stood in, and the computation: that function or a body in it."""

    op: Operation
    function: str
    computation: str = ""


_NOTHING = (Origin(Operation("", "", ""), ""),)


def functions_of(program: Program, once: bool = False) -> tuple[list[Block], int]:
    """The program's functions, calls in place as :class:`Inline` leaves them, and how many operations went.

    Each operation knows what it was (``Node.origins``); none does where MLIR reads the text in another way than the
    program's reader. ``once``: what an operation before it has computed is not put there again.
    """
    module, reader = parse_module(program.text), _Reader(program, once)
    try:
        return reader.functions(module), reader.gone
    except LookupError:
        gone = Inline().apply_module(module)
        return read_functions(module), gone


class _Reader(Reader):
    """Reads a program's module beside the program, whose names say which values an operation takes.

    MLIR is asked once for operations that share their attributes: their lines differ in nothing but names.
    """

    def __init__(self, program: Program, once: bool) -> None:
        super().__init__()
        self.program, self.once, self.called, self.gone = program, once, False, 0
        self.stood_for = {*_DECOMPOSITION.findall(program.text)} - program.by_name.keys()  # by an operation we know
        self.private: dict[str, Any] = {}  # functions that are put in place of their calls, and their bodies
        self.alike: dict[Hashable, tuple[Node, int]] = {}
        self.numbers: dict[Hashable, int] = {}  # of all that operations say
        self.named = dict[str, Value]()  # values of the function that is read
        self.place, self.calls = ("", ""), tuple[Origin, ...]()  # it, the computation in it, the calls that led there
        self.computed: dict[Hashable, Value] | None = None  # what was computed, where it is not to be computed again
        self.bodies = iter(tuple[str]())  # of the operation that is read

    def functions(self, module: Any) -> list[Block]:
        found = [view.operation for view in module.body.operations if view.operation.name == "func.func"]
        calls = {each.name: {name for op in each.operations for name in op.calls} for each in self.program.computations}
        with suppress(CycleError):
            TopologicalSorter(calls).prepare()
            private = (function for function in found if inlinable(function))
            self.private = {ir.StringAttr(f.attributes["sym_name"]).value: f.regions[0].blocks[0] for f in private}
        bodies = {body.name: body for body in super().functions(module)}
        named, open_ = set[str](), bodies.keys() - (self.private.keys() if self.called else set())
        while open_:
            named |= open_
            used = (op.handle for name in open_ for op in operations_in(bodies[name]) if op.name not in PURE)
            words = {word for op in used for key in op.attributes for word in _SYMBOL.findall(str(op.attributes[key]))}
            open_ = words & bodies.keys() - named
        return [body for name, body in bodies.items() if name in named - self.stood_for]

    def fill(self, block: Block) -> None:
        around, name = (self.place, self.computed, self.bodies), block.name or next(self.bodies, "")
        merges = self.once and block.owner is None and name not in self.private
        self.place, self.computed = (block.name or self.place[0], name), {} if merges else None
        if name not in self.stood_for:
            self._put(block, block.handle, block.arguments)
        block.merged = block.edits if merges else -1
        self.place, self.computed, self.bodies = around

    def _put(self, block: Block, handle: Any, given: Sequence[Value]) -> list[Value]:
        """Read a body of these arguments to the end of a block; what it returns, where it is another's."""
        whole = self.program.by_name[self.place[1]].operations
        parameters, operations = ([op for op in whole if (op.opcode == "parameter") is kind] for kind in (True, False))
        if (len(parameters), len(operations)) != (len(given), len(handle.operations)):
            raise LookupError(self.place[1])
        named, computed, origin = self.named, self.computed, self.place
        named.update((op.name, value) for op, value in zip(parameters, given))
        self.values.update(zip(handle.arguments, given))
        for op, view in zip(operations, handle.operations):
            said, each, node = (id(op.attributes), op.opcode, op.shape, op.operand_shapes), view.operation, None
            operands = [named.get(name) or self.values[each.operands[k]] for k, name in enumerate(op.operands)]
            if op.opcode == "return" and handle != block.handle:
                return operands
            if (known := self.alike.get(said) or self.alike.get(each)) is None:
                self.bodies = iter(op.calls)
                node = self.operation(each, operands)
                known = self._known(op, node, said)
            first, number = known
            self.position += 1
            key = (number, *operands) if number and computed is not None and block.owner is None else None
            callee = op.calls[0] if op.opcode == "call" and op.calls and first.plain else ""
            if callee in self.private and self.position <= Inline.limit and len(self.calls) < DEEPEST:
                around = self.place, self.calls, self.named
                self.called, self.place, self.named = True, (callee, callee), {}
                self.calls = (Origin(op, *origin), *self.calls)
                results = self._put(block, self.private[callee], operands)
                self.place, self.calls, self.named = around
            elif key is not None and computed is not None and key in computed:
                results, block.changed = [computed[key]], True
            else:
                node = block.append(node or self._another(first, operands))
                node.position, node.origins = self.position, (Origin(op, *origin), *self.calls)
                if len(results := node.results) == 1:
                    named[op.name] = results[0]
                if key is not None and computed is not None:
                    computed[key] = results[0]
                continue
            self.gone += 1
            named |= {op.name: results[0]} if len(results) == 1 else {}
            self.values.update(zip(each.results, results) if len(results) > 1 else ())
            if node is not None:
                node.drop()
        return []

    @staticmethod
    def _another(first: Node, operands: Sequence[Value]) -> Node:
        """An operation that says of others what the ``first`` says, and shares its handles."""
        op = Node(first.name, operands, first.attributes)
        op.handle, op.plain, op.said = first.handle, first.plain, first.said or first.key
        for value in first.results:
            op.add_result(value.shape, value.dtype).handle = value.handle
        return op

    def _known(self, op: Operation, node: Node, said: tuple[object, ...]) -> tuple[Node, int]:
        """What is known of an operation that is the first to say so: itself, and a number where others may be merged
        with it, which all have that do the same; 0 where none may.
        """
        if node.name not in STAND_INS and node.name.rpartition(".")[2] != op.opcode.rpartition(".")[2]:
            raise LookupError(op.name)
        key = merging_key(node, ())
        known = node, self.numbers.setdefault(key, len(self.numbers) + 1) if key is not None else 0
        fixed = node.name != "constant" or node.attributes["literal"].element is not None
        if not node.blocks and len(node.results) < 2:
            self.alike[said if fixed else node.handle] = known  # an array of constants is its own only equal
        return known


_SYMBOL = re.compile(r'@"?([\w$.\-]+)')
_DECOMPOSITION = re.compile(r"decomposition = @([\w$.\-]+)")


class _Written:
    """Writes blocks as computations: what is still an operation of the program has its name, line and attributes."""

    def __init__(self, old: Program) -> None:
        self.old = old
        self.blocks: list[tuple[Block, str, list[Operation]]] = []  # its name and old parameters
        # results and their function, line, name and what they were: of those that still are it, and of the others
        self.wanted: tuple[list[_Wanted], list[_Wanted]] = [], []
        self.calls: dict[Node, tuple[str, ...]] = {}
        self.names: dict[Value, str] = {}
        self.taken: set[tuple[str | int, str]] = set()  # names of a function ("": of computations), and of a line
        self.copies: dict[tuple[str, str], int] = {}
        self.came_from: dict[Key, Key] = {}

    def normalised(self, bodies: Sequence[Block]) -> Normalised:
        """The program of these functions; its text is still the old one, as its lines are."""
        functions = {body.name for body in bodies}
        for body in bodies:
            self._place(body, body.name, body.name, body.name)
        for results, function, line, name, was in chain(*self.wanted):  # what is still the same has the first right
            found = self._free(function, line, name)
            if len(results) == 1:
                self.names[results[0]] = found
            else:
                self.names.update((value, f"{found}#{value.index}") for value in results)
            if was:
                self.came_from[line, found] = line, was
        computations = tuple(
            Computation(name, tuple(self._operations(block, parameters, functions)), name == self.old.entry.name)
            for block, name, parameters in self.blocks
        )
        return Normalised(replace(self.old, computations=computations), self.came_from)

    def _place(self, block: Block, name: str, function: str, before: str) -> None:
        """Note a block and those in it, outermost first, under the names that they had."""
        known = self.old.by_name[before].operations if before in self.old.by_name else ()
        parameters = [op for op in known if op.opcode == "parameter"]
        parameters += [Operation(f"%arg{k}", "parameter", "") for k in range(len(parameters), len(block.arguments))]
        self.blocks.append((block, name, parameters))
        self.wanted[0].extend(([value], function, 0, one.name, "") for value, one in zip(block.arguments, parameters))
        if block.changed:
            *inner, last = block.operations
            block.operations = [*in_order(inner), last]
        for op in (op for op in block.operations if op.results):
            was, of, _ = _known(op)[0]
            if not was.name or (op.handle is None and op.name == "constant"):
                self.wanted[1].append((op.results, function, 0, f"%{op.name}", ""))
            else:
                wanted, still = was.name if of == function else f"{of}/{was.name}", was.opcode == _opcode(op)
                self.wanted[not still].append((op.results, function, was.line, wanted, was.name if still else ""))
        for op in (op for op in block.operations if op.blocks):
            theirs = _known(op)[0].op.calls
            if len(theirs) != len(op.blocks):
                theirs = tuple(f"{name}/{op.name}.{region_kind(op.name, k)}" for k in range(len(op.blocks)))
            self.calls[op] = tuple(self._free("", 0, each) for each in theirs)
            for body, own, each in zip(op.blocks, self.calls[op], theirs):
                self._place(body, own, function, each)

    def _free(self, function: str, line: int, name: str) -> str:
        """The name, with a number behind it where the function has it already, or another one for the same line."""
        found, taken, place = name, self.taken, (function, name)
        if place in taken or (line, name) in taken:
            head, dot, kind = (name, "", "") if function else name.rpartition(".")
            number = self.copies.get(place, 1)
            while (function, found) in taken or (line, found) in taken:
                number += 1
                found = f"{head}.{number}{dot}{kind}"
            self.copies[place] = number
        taken.add((function, found))
        if line:
            taken.add((line, found))
        return found

    def _operations(self, block: Block, given: Sequence[Operation], functions: Collection[str]) -> Iterator[Operation]:
        for value, parameter in zip(block.arguments, given):
            yield replace(parameter, name=self.names[value], shape=_shape(value))
        for op in block.operations:
            known, opcode, calls = _known(op), _opcode(op), self.calls.get(op, ())
            before = known[0].op
            if opcode == "call":
                named = op.handle.attributes["decomposition" if op.name == "composite" else "callee"]
                callee = ir.FlatSymbolRefAttr(named).value
                calls = (callee,) if callee in functions else ()
            name = self.names[op.results[0]].partition("#")[0] if op.results else ""
            shape = _shape(op.results[0]) if len(op.results) == 1 else xla_tuple(tuple(map(_shape, op.results)))
            operands, shapes = tuple([self.names[v] for v in op.operands]), tuple([_shape(v) for v in op.operands])
            source = before.source or next((each.op.source for each in known if each.op.source), None)
            attributes = _attributes(op) if op.handle is None else before.attributes
            if op.handle is not None and not before.opcode:
                attributes = attributes_of(opcode, str(op.handle))
            said = name, opcode, shape, operands, shapes, attributes, before.op_name, source, calls, before.line
            yield Operation(*said, root=opcode == "return")


_Wanted = tuple[Sequence[Value], str, int, str, str]


def _known(op: Node) -> tuple[Origin, ...]:
    """What an operation was, and the calls that it came with."""
    return op.lender.origins or _NOTHING


def _opcode(op: Node) -> str:
    """The operation's name without any dialect's, as programs have it; of a stand-in that of what it stands for."""
    name = op.name if op.name not in STAND_INS else _known(op)[0].op.opcode or op.name
    return name.removeprefix("chlo.").removeprefix("func.").removeprefix("mhlo.") if "." in name else name


def _shape(value: Value) -> str:
    return xla_shape(str(value.handle.type)) if value.shape is None else _array_shape(value.shape, value.dtype)


@lru_cache(maxsize=16384)
def _array_shape(shape: tuple[int, ...], dtype: str) -> str:
    return xla_shape(f"tensor<{''.join([f'{size}x' for size in shape])}{dtype}>")


_WITH_DIMS = {"broadcast_in_dim": "dims", "concatenate": "dim", "reduce": "dims", "transpose": "permutation"}


def _attributes(op: Node) -> dict[str, str]:
    """The attributes of an operation that a rewrite made, as they would be read of its text."""
    own = op.attributes
    if op.name in _WITH_DIMS:
        return {"dimensions": "{" + str(own[_WITH_DIMS[op.name]]).strip("(),").replace(" ", "") + "}"}
    if op.name == "compare":
        return {"direction": own["direction"]}
    if op.name == "constant" and op.result.shape == () and "i" in op.result.dtype[:2]:
        return {"literal": own["literal"].element} if own["literal"].element.strip("-").isdecimal() else {}
    return {}


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
    return frozenset((each.name, name) for each in program.computations for name in _fused_in(each.operations))


def _fused_in(operations: Sequence[Operation]) -> set[str]:
    read_by: dict[str, list[Operation]] = defaultdict(list)
    along: set[str] = set()
    made_by = {op.name: op for op in operations}
    for op in reversed(operations):
        kind = plain_opcode(op.opcode)
        if kind in _READ_ALONG or kind in ("reshape", "transpose"):
            readers, makers = read_by[op.name], [made_by[name] for name in op.operands if name in made_by]
            ends = [*map(dims_of, (*op.operand_shapes[:1], op.shape))]
            passes = kind in _READ_ALONG or (kind == "reshape" and only_unit_dims_differ(ends[0], ends[-1]))
            compute = (plain_opcode(r.opcode) in _COMPUTING or r.name in along or as_choice(r) for r in readers)
            computing = bool(readers) and all(compute)
            made = kind in _MADE_ALONG and any(plain_opcode(maker.opcode) in ELEMENTWISE for maker in makers)
            # products read, and write, an array in any order
            taken = bool(readers) and all(plain_opcode(reader.opcode) in PRODUCTS for reader in readers)
            taken = taken or any(plain_opcode(maker.opcode) in PRODUCTS and not read_by[maker.name] for maker in makers)
            if (passes and computing) or made or (kind == "transpose" and taken):
                along.add(op.name)
        for name in op.operands:
            read_by[name.partition("#")[0] if "#" in name else name].append(op)
    return along
