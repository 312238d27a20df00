"""What of a StableHLO program reaches memory: one operation for each kernel that its target's compiler will make.

A stated model, read off the modules of the TPU's compiler:

* Elementwise operations, and those that only rearrange, run in the kernels that want their values. A value that several
  kernels want is computed again in each of them, unless reading what it is made of would cost more than reading it.
* What is joined, padded or reversed, or left out by strides, lies in memory; where that crosses tiles it is a kernel.
  A join pads each part and takes the largest. What several parts are cut of lies there too, heads in their own order.
* A product or a gather does what follows it elementwise, if nothing else wants its own result, and writes the last of
  it; towards another product it writes where the value is narrowest. One kernel has one product, or a second that it
  makes an operand with, block by block. A reduction is the last of its kernel; only its type is changed behind it.
* What a loop's body computes of arrays that the loop does not change is done before it, unless it makes them larger.
* An update that a condition keeps or drops is done in place, of an argument that is not given away in a copy of it; a
  product without free dims is a reduction.
* What loops, branches, custom calls, sorts and exchanges take is written, and so are the results.
* Of images (``values`` says how they lie) a result in another order is a copy behind the kernel; an argument is copied
  before it if other dims are in its lanes, before a pool's gradient in any other order. Of fewer than eight images
  columns are cut in eight, as further images: arguments and results are copied twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from math import prod

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.inlining import dims_of
from tilewright.hlo.opcodes import (
    DOTS,
    ELEMENTWISE,
    FLOWS,
    FREE,
    HEADS,
    INSIDE,
    PRODUCTS,
    TRANSCENDENTAL,
    WRITES_IN_PLACE,
)
from tilewright.hlo.program import Computation, Operation, Program, given_away, reached
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.dims import is_cut, matrix_passes, product_sizes, stepped
from tilewright.hlo.semantics.order import sooner
from tilewright.hlo.semantics.values import MANY, POOLS, Values
from tilewright.layout import is_bitcast

_PARTS = frozenset({"slice", "dynamic-slice", "pad", "concatenate"})
_NOT_ALONE = FREE | {"reshape", "transpose", "slice", "reverse", "concatenate", "pad", "bitcast-convert"}
"""Operations that are not done before a loop for their own sake."""
_SHIFTS = frozenset({"pad", "concatenate", "reverse"})
"""Operations that take what lies in memory, and nothing that is computed in their kernel."""
_LANES = 128
_CASTS = frozenset({"convert", "transpose"})
_ON_THE_WAY = frozenset({"broadcast", "concatenate", "reshape", "transpose"})
"""Operations behind whose operands a value's type is changed, rather than behind them."""
_BLOCK = 512
_RECOMPUTED = 1.1
"""How many times a value's bytes a kernel reads to compute it again rather than to have it written."""


def in_kernels(context: Context) -> Program:
    """The program with one operation for each array that is written: its operands are the written arrays it reads."""
    program = context.program
    captured = captured_names(program)
    computations = []
    for computation in program.computations:
        fusions = Fusions(context, computation, captured)
        operations = sooner(fusions.kernels(), fusions.results, fusions.size)
        computations.append(replace(computation, operations=operations))
    return replace(program, computations=tuple(computations))


def in_other_kernels(context: Context) -> set[tuple[int, str]]:
    """(line, name) of the operations that are done in kernels of others wherever they run: they take no time alone."""
    program = context.program
    captured = captured_names(program)
    called = {callee for _, op in program.operations() if op.opcode == "call" for callee in op.calls}
    found, written = set[tuple[int, str]](), set[tuple[int, str]]()
    for computation in program.computations:
        if computation.name not in called:
            fusions = Fusions(context, computation, captured)
            for op in fusions.operations:
                (found if op.name in fusions.through else written).add((op.line, op.name.rpartition("/")[2]))
    return found - written


def captured_names(program: Program) -> set[str]:
    """Names that the regions of operations read of the computation around them."""
    found: set[str] = set()
    for computation in program.computations:
        if "/" in computation.name:
            own = {op.name for op in computation.operations}
            names = {name.partition("#")[0] for op in computation.operations for name in op.operands}
            found |= names - own
    return found


class Fusions(Values):
    """The kernels of one computation; of one that is as it was ``written``, most reshapes go in its normal form."""

    def __init__(
        self, context: Context, computation: Computation, captured: Collection[str], written: bool = False
    ) -> None:
        super().__init__(context, computation, captured)
        masks = context.chip is not None and context.chip.compiler_masks_groups
        self.masked = {op.name for op in self.of_kind["ragged-dot"] if masks and not is_turned(op)}
        units = context.chip.matrix if context.chip is not None else None
        self.side = units.rows if units else 0
        self.wide_units = self.side >= 256
        reshapes = self.of_kind["reshape"]
        self.relaid = {op.name for op in reshapes if self._is_relaid(op) and (not written or self._stays(op))}
        self.loops = context.runs[computation.name].trips if computation.name in context.runs else ()
        self.hoisted = self._before_the_loop() if self.in_loop else set[str]()
        behind = {
            name: next((each for each in reached([made], self._makers, 4 * MANY) if self.kind[each] in DOTS), "")
            for name, made in self.softmaxes.items()
        }
        self.in_softmax = {name for name, scores in behind.items() if self._takes_softmax_in(scores)}
        self.scores = {scores for name, scores in behind.items() if name not in self.in_softmax}
        apart = {made for name, made in self.softmaxes.items() if name not in self.in_softmax}
        self.spread = any(map(stepped, self.of_kind["pad"]))
        self.through = self._flowing() - apart
        self.head_of: dict[str, str] = {}
        self.results = set(self.returned) if computation.entry else set[str]()
        self.arguments = {op.name for op in self.of_kind["parameter"] if computation.entry}
        self.kept = self.arguments - given_away(context.program) if self.arguments else self.arguments
        self._let_values_flow()
        self._let_heads_flow()

    def _is_relaid(self, op: Operation) -> bool:
        """Whether a reshape puts dims together that lie apart, or makes dims that are cut: a kernel, through memory."""
        if not (ends := self._sides(op)):
            return False
        merged, made = ([d for d in each.minor_to_major if each.shape[d] > 1] for each in ends)
        if len(merged) > len(made):
            moved = not ends[1].rank or ends[1].shape[0] != 1  # the product's result then has the reshape's order
        else:
            cut = len(merged) < len(made) and made[0] == ends[1].rank - 1
            moved = cut and any(self.kind[reader.name] == "slice" for reader in self.readers[op.name])
        return (moved and not is_bitcast(ends[0], ends[1])) or self._makes_pairs(op)

    def _makes_pairs(self, op: Operation) -> bool:
        """Whether a reshape takes the last dim apart into groups of a few: they lie outside lanes and sublanes then."""
        ends = [dims_of(shape) for shape in (*op.operand_shapes[:1], op.shape)]
        apart = len(ends[-1]) == len(ends[0]) + 1 > 1 and ends[0][:-1] == ends[-1][:-2]
        return apart and 1 < ends[1][-1] < MANY and ends[1][-2] > 1

    def _widens(self, name: str) -> bool:
        """Whether an operation only makes its operand's type a wider one."""
        return self.kind[name] == "convert" and self.bytes[name] > self.bytes.get(self.by_name[name].operands[0], 0)

    def _is_laid_apart(self, end: str) -> bool:
        """Whether what ends a product's chain is a reshape to another order, or widens what such a reshape takes."""
        widens = self._widens(end) and any(reader.name in self.relaid for reader in self.readers[end])
        return widens or (end in self.relaid and self._widens(self.by_name[end].operands[0]))

    def _stays(self, op: Operation) -> bool:
        """Whether a reshape stays where it is written: behind a join, or a product and elementwise operations."""
        computed = self.kind.get(self._made_as(op.operands[0], ELEMENTWISE))
        return computed in PRODUCTS or self.kind.get(op.operands[0]) == "concatenate" or self._makes_pairs(op)

    def _takes_softmax_in(self, product: str) -> bool:
        """Whether a softmax is made with its scores: of less depth than the matrix unit has, or lanes if bfloat16."""
        if product not in self.by_name:
            return self.side > 0
        op, sizes = self.by_name[product], dims_of(self.by_name[product].operand_shapes[0])
        depth = prod(sizes[d] for d in op.integers("lhs_contracting_dims") if d < len(sizes))
        return depth < (min(_LANES, self.side) if op.shape.startswith("bf16") else self.side)

    def _before_the_loop(self) -> set[str]:
        """What a loop's body computes of what stays as it is, and is no larger: it is done once, before the loop."""
        parameters = [op.name for op in self.of_kind["parameter"]]
        fixed = {before for before, after in zip(parameters, self.returned, strict=False) if before == after}
        for op in self.operations:
            same = all(name in fixed or name.partition("#")[0] not in self.by_name for name in op.operands)
            if self.kind[op.name] in INSIDE and same:
                fixed.add(op.name)
        hoisted = set[str]()
        for op in reversed(self.operations):
            if op.name not in fixed or not op.operands:
                continue
            readers = self.readers[op.name]
            worth = self.kind[op.name] not in _NOT_ALONE and self.bytes[op.name] <= sum(
                self.bytes.get(name, self.size(shape)) for name, shape in zip(op.operands, op.operand_shapes)
            )
            if worth or (readers and all(reader.name in hoisted for reader in readers)):
                hoisted.add(op.name)
        return hoisted

    def _flowing(self) -> set[str]:
        """Values that can stay in the kernels that read them."""
        written = set(self.relaid)  # and all that some reader takes from memory
        for op in self.operations:
            kind = self.kind[op.name]
            if kind == "scatter":  # it begins with its own zeros, and fetches rows in its order
                written.update(op.operands[1:])
                written.update(name for name in op.operands[:1] if self.kind.get(name) not in FREE)
            elif kind not in INSIDE:
                written.update(op.operands[:1] if kind == "dynamic-update-slice" else op.operands)
            elif kind == "gather":
                written.update(op.operands[:1])
            elif kind == "reduce-window":  # a border of other values than its own is put around an image before
                written.update(name for name in op.operands[:1] if self.kind.get(name) == "pad")
            elif op.name in self.relaid:
                computed = (name for name in op.operands if name in self.kind and self.kind[name] not in FREE)
                written.update(name for name in computed if self.wide_units or not self._widens(name))
            elif kind in _SHIFTS or (kind == "slice" and stepped(op)):
                moved = map(self._made_as, op.operands if kind == "concatenate" else op.operands[:1])
                written.update(name for name in moved if self.kind.get(name) not in FREE)
                written |= {op.name} if self._crosses_tiles(op) else set()
            elif kind == "reshape" and (
                made := self.kind.get(self._made_as(op.operands[0], {"convert"}) if op.operands else "")
            ):
                written.update(op.operands if made in ELEMENTWISE and any(self._taken_whole(op, _CASTS)) else ())
                written.update({*self._taken_whole(op, ELEMENTWISE)} - {op.name} if made == "broadcast" else ())
                if made == "broadcast" and any(each.integers("lhs_batch_dims") for each in self.readers[op.name]):
                    written.update(op.operands)  # heads that share keys have copies of them
            elif kind == "broadcast" and self._is_dear(op):
                written.update(op.operands)
            if self.hoisted and op.name not in self.hoisted:
                written |= self.hoisted.intersection(op.operands)
        written |= self._taken_apart()
        flowing = (name for name, kind in self.kind.items() if kind in FLOWS and name not in written)
        return {name for name in flowing if name not in self.captured or self.kind[name] in FREE}

    def _taken_apart(self) -> set[str]:
        """Computed values of which several parts are cut: no kernel computes them once for each part."""
        parts = defaultdict[str, set[str]](set)
        for op in self.of_kind["slice"]:
            parts["".join(op.operands[:1])].add(op.attributes.get("slice", ""))
        made = {name: self._made_as(name) for name, cuts in parts.items() if len(cuts) > 1}
        return {n for n, m in made.items() if self.kind.get(m) in (ELEMENTWISE if n == m else ELEMENTWISE | {"slice"})}

    def _crosses_tiles(self, op: Operation) -> bool:
        """Whether an operation reverses or takes apart rows or lanes of tiles, or spreads elements: it is a kernel.

        Scans that join their halves have the dim before their rows in the sublanes where that fills them.
        """
        for layout in self._arrays(op.shape) if self.kind[op.name] != "pad" else ():
            major = {*layout.minor_to_major[2:]}
            if self.spread and layout.shape[-3:-2] >= (MANY,) and self.kind.get(op.operands[0]) != "parameter":
                major.add(layout.rank - 2)
            return not major.issuperset(stepped(op))
        return self.kind[op.name] == "pad" and bool(stepped(op))

    def _taken_whole(self, op: Operation, passed: Collection[str]) -> Iterator[str]:
        """The values that products read of an array whose dims a reshape put together, operations ``passed`` between:
        what is computed before that, or of a group's scales behind it, is a kernel of its own (seen on four chips).
        """
        ends = [sum(size > 1 for size in dims_of(shape)) for shape in (*op.operand_shapes[:1], op.shape)]
        near = lambda at: [r.name for r in self.readers[at] if self.kind[r.name] in passed]  # noqa: E731
        for name in reached([op.name], near, MANY) if ends[0] > ends[-1] else ():
            products = (r for r in self.readers[name] if self.kind[r.name] in DOTS)
            yield from (name for r in products if not r.integers("lhs_batch_dims"))

    def _is_dear(self, op: Operation) -> bool:
        """Whether an array that is repeated took a root, a quotient or their like: it is not computed for each copy."""
        own = self.elements.get(op.operand_shapes[0], 0) if op.operands else 0

        def alike(name: str) -> list[str]:
            inside = self.kind.get(name) in ELEMENTWISE | {"broadcast", "reshape"}
            return [each for each in self._makers(name) if inside and self.elements[self.by_name[each].shape] == own]

        names = reached(op.operands[:1], alike, MANY) if 1 < own < self.elements[op.shape] else ()
        return any(self.kind.get(name) in TRANSCENDENTAL for name in names)

    def _let_values_flow(self) -> None:
        """Write what several kernels want and what costs more to compute again than to read."""
        through, kinds = self.through, self.kind
        heads: dict[str, _Names] = {}  # the kernels that want a value, itself where it is one
        multiplied = set[str]()  # what products take, and what that is made of as far as it flows
        for op in reversed(self.operations):
            name = op.name
            if name in through:
                readers, product = self.readers[name], name in multiplied
                heads[name] = heads[readers[0].name] if len(readers) == 1 else _union([heads[r.name] for r in readers])
            else:
                heads[name], product = name, kinds[name] in PRODUCTS
            if product:
                multiplied.update(op.operands)
        known: dict[str, tuple[_Names, bool]] = {}
        for op in self.operations:
            name, kind, wanted = op.name, kinds[op.name], heads[op.name]
            if isinstance(wanted, str) or not wanted or name not in through or kind in FREE:
                continue
            parts = [self._flows_from(each, known) for each in op.operands if each in self.by_name]
            names = _union([written for written, _ in parts])
            sources = {names} if isinstance(names, str) else names
            cost = sum(self.bytes.get(source.partition("#")[0], 0) for source in sources)
            most = _RECOMPUTED * self.bytes[name] * (2 if len(wanted) == 2 else 1)
            dear = name in multiplied or kind in TRANSCENDENTAL or any(dear for _, dear in parts)
            if (cost > most and dear) or len(sources) > MANY:
                through -= set() if kind == "compare" and len(sources) == 1 else {name}

    def _flows_from(self, name: str, known: dict[str, tuple[_Names, bool]]) -> tuple[_Names, bool]:
        """What a value is made of, itself where it is written, and whether an exponential or its like is in it."""
        open_ = [name]
        while open_:
            op = self.by_name.get(open_[-1]) if open_[-1] in self.through else None
            if op is not None and (missing := [each for each in op.operands if each not in known]):
                open_ += missing
                continue
            parts = [known[each] for each in op.operands] if op is not None else []
            dear = op is not None and (self.kind[op.name] in TRANSCENDENTAL or any(dear for _, dear in parts))
            last = open_.pop()
            known[last] = (_union([names for names, _ in parts]), dear) if op is not None else (last, False)
        return known[name]

    def _let_heads_flow(self) -> None:
        """A product or reduction whose result only one chain wants writes the chain's end instead."""
        taken, nested = set[str](), set[str]()
        for op in reversed(self.operations):
            name = op.name
            flows = (self.kind[name] in HEADS and self.kind[name] != "reduce") or name in self.masked
            if not flows or name in self.captured or name in self.hoisted or not self.readers[name]:
                continue
            ends, keeps = self._ends(name)
            end = next(iter(ends)) if len(ends) == 1 and keeps else ""
            if end and self._is_laid_apart(end):
                continue
            if end and nested.isdisjoint((name, end)) and self._nests(name, end):
                self.through.add(name)
                nested |= {name, end}
                taken |= self._between(name, end)
                continue
            fused = self.kind[end] in FLOWS and end not in self.relaid if end else False
            fused = fused or (end != "" and self.kind[name] in PRODUCTS and self._ends_product(end, name))
            if not fused or end in taken:
                narrowest = bool(end) or (len(ends) > 1 and not self._ends_computed(name))
                end = self._along(name, narrowest, taken)
            if end != name:
                taken |= {end} | self._between(name, end)
                self.through.add(name)
                self.through.discard(end)
                self.head_of[end] = name

    def _nests(self, name: str, end: str) -> bool:
        """Whether the kernel of the product ``end`` makes an operand as it goes, by the product ``name``, in blocks.

        It does where the other operand of ``name``, the sums and two blocks of both weights take less than half of what
        a kernel may hold, or all of the weights less than a quarter (105 of 109 modules of v4, v5e, v6e and 7x; with
        nothing at all between the two, larger ones do as well).
        """
        vmem = self.context.chip.memory("vmem") if self.context.chip is not None else None
        first, last = self.by_name[name], self.by_name[end]
        if vmem is None or not {self.kind[name], self.kind[end]} <= DOTS or last.integers("lhs_batch_dims"):
            return False
        if not self.bytes[name] or not self.bytes[end]:  # their sizes are not known
            return False
        one, two = (
            product_sizes(op, self._arrays(*op.operand_shapes[:2]), *self._arrays(op.shape)) for op in (first, last)
        )
        if one is None or two is None or min(one[1:3]) == 1:
            return False
        between = self._between(name, end) | {name}
        depth, (_, rows, columns, whole) = one[3], two
        rows, columns = (rows, columns) if last.operands[0] in between else (columns, rows)
        each = max(1, self.size(first.operand_shapes[0]) // max(1, prod(dims_of(first.operand_shapes[0]))))
        held = 4 * rows * columns + each * (rows * depth + 2 * min(_BLOCK, rows) * (depth + columns))
        return held < vmem.kernel_bytes / 2 or each * whole * (depth + columns) < vmem.kernel_bytes / 4

    def narrowed(self) -> set[str]:
        """Values of float32 that are wanted in bfloat16, as products take them: so they are written, and joined."""
        alone, narrow = set[str](), set[str]()  # and operations that take bfloat16 of their operands
        for op in reversed(self.operations):
            kind, readers = self.kind[op.name], self.readers[op.name]
            wide = op.shape.startswith("f32[") and kind in INSIDE and op.name not in self.captured
            if wide and readers and all(reader.name in narrow for reader in readers):
                alone.add(op.name)
            narrows = kind == "convert" and op.shape.startswith("bf16[")
            if narrows or (op.name in alone if kind in _ON_THE_WAY else kind in DOTS and matrix_passes(op) == 1):
                narrow.add(op.name)
        return alone - self.arguments - self.results

    def _ends_product(self, end: str, name: str) -> bool:
        """Whether a product's kernel sums its result up, or writes it where an update goes."""
        if self.kind[end] == "dynamic-update-slice":
            target = self.by_name[end].operands[0]
            return target != name and target not in self.through
        return self.kind[end] == "reduce"

    def _ends(self, name: str) -> tuple[set[str], bool]:
        """The kernels that want a value (two stand for more), and whether by operations on each of its elements."""
        ends: set[str] = set()
        seen, keeps, open_ = {name}, True, [name]
        while open_ and len(ends) < 2 and len(seen) <= 4 * MANY:
            for reader in self.readers[open_.pop()]:
                keeps = keeps and self._keeps(reader, name)
                if reader.name not in self.through or self.kind[reader.name] in DOTS:
                    ends.add(reader.name)
                elif reader.name not in seen:
                    seen.add(reader.name)
                    open_.append(reader.name)
        return ends if not open_ else ends | {""}, keeps

    def _keeps(self, reader: Operation, name: str) -> bool:
        """Whether an operation has a result for each element of a head's, or is a kernel of its own that takes it."""
        flows = self.kind[reader.name] in FLOWS and reader.name not in self.relaid
        return not flows or (
            self.kind[reader.name] not in _PARTS
            and self.elements[reader.shape] == self.elements[self.by_name[name].shape]
        )

    def _way(self, name: str) -> Iterator[str]:
        """The operations on the one way from a head, as long as they are done in kernels of others."""
        while len(self.readers[name]) == 1:
            name = self.readers[name][0].name
            if name not in self.through or self.kind[name] in PRODUCTS:
                break
            yield name

    def _ends_computed(self, name: str) -> bool:
        """Whether a batch of products computes more than conversions on its one way: then it writes the end of that.

        Not for a softmax of its own, which makes float32 of narrower scores itself.
        """
        if not self.by_name[name].integers("lhs_batch_dims"):
            return False
        way = [*self._way(name)]
        computed = any(self.kind[at] in ELEMENTWISE - {"convert", "reduce-precision"} for at in way)
        return computed and (self.bytes[way[-1]] <= self.bytes[name] or name not in self.scores)

    def _between(self, name: str, end: str) -> set[str]:
        """The operations between a head and the end that it writes."""
        inside = lambda at: (r.name for r in self.readers[at] if r.name in self.through and r.name != end)  # noqa: E731
        return {*reached([name], inside)} - {name}

    def _along(self, name: str, narrowest: bool, taken: Collection[str] = ()) -> str:
        """What a head writes of the one way from it: its end, no wider than it must, or the smallest towards a head.

        The way ends where it meets that of another head, ``taken``: one kernel has one product.
        """
        best, batched = name, bool(self.by_name[name].integers("lhs_batch_dims"))
        for at in self._way(name):
            if not self._keeps(self.by_name[at], name) or at in taken:
                break
            same = self.kind[name] in PRODUCTS and self.bytes[at] == self.bytes[best]
            if (not narrowest and not (batched and self._widens(at))) or same or self.bytes[at] < self.bytes[best]:
                best = at
        return best

    def kernels(self) -> Sequence[Operation]:
        """The operations that write, each with the written arrays that it reads."""
        shapes = {name: shape for op in self.operations[::-1] for name, shape in zip(op.operands, op.operand_shapes)}
        few: dict[str, tuple[str, ...]] = {}  # what values in kernels are made of, where that is not much
        found = []
        for op in self.operations:
            if op.name in self.through:
                parts = [few.get(name) if name in self.through else (name,) for name in op.operands]
                known = [part for part in parts if part is not None]
                made_of = known[0] if len(known) == 1 else tuple(dict.fromkeys(chain.from_iterable(known)))
                if len(known) == len(parts) and len(made_of) <= MANY:
                    few[op.name] = made_of
                continue
            alone = [op.operands] if self.kind[op.name] in INSIDE else [(name,) for name in op.operands]
            operands = tuple([name for names in alone for name in self._made_of(names, few)])
            # a region may take a part of what a loop before it gives: only the part has a shape here
            told = [shapes.get(n, "") or (self.by_name[n].shape if n in self.by_name else "") for n in operands]
            found += self._laid_out(replace(op, operands=operands, operand_shapes=tuple(told)))
        return found

    def _made_of(self, names: Sequence[str], few: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        """The written arrays that values are made of, each once; of those in ``few`` it is known."""
        found: dict[str, None] = {}
        seen, open_ = set[str](), [*reversed(names)]
        while open_:
            name = open_.pop()
            if name in few:
                found.update(dict.fromkeys(few[name]))
            elif name not in self.through:
                found[name] = None
            elif name not in seen:
                seen.add(name)
                open_ += reversed(self.by_name[name].operands)
        return tuple(found)

    def _laid_out(self, op: Operation) -> list[Operation]:
        """A kernel with the copies beside it of what it takes or gives in another order than memory has."""
        head = self.by_name[self.head_of.get(op.name, op.name)]
        if plain_opcode(head.opcode) == "ragged-dot" and len(op.operands) > 1:
            odd = [(dims_of(shape) or [0])[-1] % _LANES > 0 for shape in (*head.operand_shapes[:2], op.shape)]
            if head.name not in self.masked:
                return self._with_copies(op, {0, 1} if any(odd[:2]) else {1} if is_turned(head) else set())
            summed = head.integers("lhs_contracting_dims") == (0,)  # over the rows, in whose order it may lie as it is
            copied = {op.operands.index(name) for name in head.operands[summed:2] if name in op.operands}
            return self._with_copies(op, copied if any(odd[:2]) else set(), back=odd[2])
        if op.is_pallas:  # it takes and gives rows last
            given = [k for k, name in enumerate(op.operands) if name in self.arguments]
            copied = {k for k in given if self._odd(op.operand_shapes[k])}
            return self._with_copies(op, copied, back=op.name in self.results and self._odd(op.shape))
        if kept := {k for k, changed in enumerate(self._changes(op)) if changed and op.operands[k] in self.kept}:
            return [*self._with_copies(op, kept), *self._copied_over(op)]
        if copies := self._copied_over(op):
            return [op, *copies]
        if update := self._turned_update(op.name):
            return [*(replace(op, name=f"{op.name}.copy{k}", opcode="copy", shape=update) for k in range(2)), op]
        if op.name in self.images and plain_opcode(head.opcode) in POOLS | {"convolution"}:
            return self._of_images(op, head)
        parts = [reader.opcode for reader in self.readers[op.name]]
        cut = op.name in self.relaid and self.wide_units and len(parts) > 1 and {*map(plain_opcode, parts)} == {"slice"}
        cut = cut and len(dims_of(op.shape)) < len(dims_of(op.operand_shapes[0]))
        if cut or (op.name in self.results and self._turned(self.head_of.get(op.name, op.name))):
            return self._copied_after(op)
        return [op]

    def _of_images(self, op: Operation, head: Operation) -> list[Operation]:
        """A kernel of images with the copies of its arguments, and of its result."""
        image, cut = self.images[op.name], is_cut(head)
        scatters = plain_opcode(head.opcode) == "select-and-scatter"
        compared = image.rank if scatters else 1  # the others turn all but the lanes themselves
        copied = set[int]()
        for k, name in enumerate(op.operands):
            if name in self.arguments and name in self.images:
                lies, wanted = self._at_border(op.operand_shapes[k]), self.images[name].minor_to_major
                copied |= {k} if cut or lies[:compared] != wanted[:compared] else set()
        back = op.name in self.results and (cut or self._at_border(op.shape) != image.minor_to_major)
        kernels = self._with_copies(op, copied, back)
        found = list[Operation]()
        for each in kernels:
            found.append(each)
            if cut and each.opcode == "copy":
                source = each.operands if each.name == op.name else (each.name,)
                found.append(replace(each, name=f"{op.name}.copy.{each.name}", operands=source))
                self.images[found[-1].name] = image
        return found

    def _changes(self, op: Operation) -> list[bool]:
        """Of the operands of an update or a loop, whether it changes them where they lie: an argument is copied first
        if it was not given away. [] for all other operations."""
        if self.kind[op.name] != "while" or not op.calls:
            return [True] if self.kind[op.name] in WRITES_IN_PLACE and op.operands else []
        body = self.context.program.by_name[op.calls[-1]]
        carried = [inner.name for inner in body.operations if inner.opcode == "parameter"]
        returned = next((inner.operands for inner in reversed(body.operations) if inner.opcode == "return"), ())
        return [before != after for _, before, after in zip(op.operands, carried, returned)]

    def _copied_over(self, op: Operation) -> list[Operation]:
        """Copies of a loop's results that go over given-away arguments which the loop reads until it ends."""
        changes, copies = self._changes(op), list[Operation]()
        given = {name for name in op.operands if name in self.arguments and name not in self.kept}
        read = [shape for name, shape, new in zip(op.operands, op.operand_shapes, changes) if name in given and not new]
        for k, (shape, changed) in enumerate(zip(op.operand_shapes, changes)):
            if changed and shape in read and f"{op.name}#{k}" in self.results:
                read.remove(shape)
                copies.append(Operation(f"{op.name}.copy.{k}", "copy", shape, (f"{op.name}#{k}",), (shape,)))
        return copies

    def _copied_after(self, op: Operation) -> list[Operation]:
        first = replace(op, name=f"{op.name}.turned")
        if op.name in self.images:
            self.images[first.name] = self.images.pop(op.name)
        return [first, replace(op, opcode="copy", operands=(first.name,), operand_shapes=(op.shape,), calls=())]

    def _turned_update(self, name: str) -> str:
        """The shape of what a loop's update adds a product to, if that comes out turned, "" else.

        Units of 256 make a gradient of weights turned: the part that it is added to is turned before, and after it. Not
        in a loop within a loop, where the left operand is cut out before and lies as the product wants it.
        """
        op, head = self.by_name[name], self.head_of.get(name, "")
        in_place = self.kind[name] == "dynamic-update-slice" and len(op.operand_shapes) > 1
        if not in_place or not head or self.kind[head] not in DOTS or not self.wide_units:
            return ""
        target, shape, outer = op.operands[0], op.operand_shapes[1], self.loops[:-1]
        added = any(self.kind[reader.name] == "dynamic-slice" for reader in self.readers[target])
        plain = not added or any(trips != 1 for trips in outer) or not self._is_flipped(self.by_name[head])
        return "" if plain or (dims_of(shape) or [1])[0] % self.side else shape

    def _is_flipped(self, product: Operation) -> bool:
        """Whether a product's left operand is summed over its first dim."""
        turned = any(self.kind.get(name) == "transpose" for name in product.operands[:1])
        return turned or product.integers("lhs_contracting_dims") == (0,)

    def _with_copies(self, op: Operation, copied: set[int], back: bool = False) -> list[Operation]:
        """The kernel, copies of some of its operands before it, and one of its result where it goes ``back``."""
        copies = {
            k: Operation(f"{op.name}.copy{k}", "copy", op.operand_shapes[k], (op.operands[k],), (op.operand_shapes[k],))
            for k in copied
        }
        operands = tuple(copies[k].name if k in copies else name for k, name in enumerate(op.operands))
        self.images |= {each.name: self.images[n] for each in copies.values() if (n := each.operands[0]) in self.images}
        kernel = replace(op, operands=operands)
        before = (replace(copy, source=op.source) for copy in copies.values())
        return [*before, *(self._copied_after(kernel) if back else [kernel])]

    def _turned(self, name: str) -> bool:
        """Whether a product's result comes out turned and is copied into the order that results have.

        Units of 256 take the wider of two free dims as their rows; columns that lie outside all rows are copied there.
        """
        op = self.by_name[name]
        if self.kind[name] not in DOTS or not self.side or len(op.operands) != 2:
            return False
        for layout in self._arrays(op.shape):
            if layout.rank == 3 and layout.shape[0] > 1:
                # One row or column a batch is the vector unit's product, which comes out as results lie.
                return layout.minor_to_major[-1] == 2 and min(layout.shape[1:]) > 1
            if layout.rank == 2 and self.wide_units and self._is_flipped(op):
                return layout.shape[1] > layout.shape[0] and layout.shape[0] % self.side == 0
        return False

    def _odd(self, shape: str) -> bool:
        """Whether an argument or result of the program lies in another order than rows last, with less padding."""
        order = self._at_border(shape)
        return order != tuple(reversed(range(len(order))))


_Names = str | frozenset[str]
"""A few names; one as it is."""


def _union(parts: Sequence[_Names]) -> _Names:
    """All the names; of more than many some, as it does not matter then which. Most values have one name."""
    if len(parts) == 1:
        return parts[0]
    found = frozenset[str]().union(*[(part,) if isinstance(part, str) else part for part in parts])
    if len(found) == 1:
        return next(iter(found))
    return found if len(found) <= MANY else frozenset(islice(found, MANY + 1))


def is_turned(op: Operation) -> bool:
    """Whether a product by groups sums over the last dim of its weights: they are copied into another order first."""
    return op.integers("rhs_contracting_dims") == (2,)
