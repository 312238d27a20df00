"""The values of one computation: what kind of operation makes each, who reads it, and in which order it lies.

* Images of convolutions have their channels in the lanes and the batch in the sublanes, or the other way round where
  that pads less; what is computed of them element by element lies alike. Scores of a softmax: the rows in the lanes.
* A product with one row a batch, which another product makes, is a sum of the vector unit; its result lies as the
  larger operand does. What a loop writes one place of has that place outside its other dims.
* Parts that are cut out of an array, or joined to one, lie as that does: half of its lanes are as long as all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from tilewright.errors import TilewrightError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.inlining import dims_of, simplified
from tilewright.hlo.opcodes import DOTS, ELEMENTWISE, FLOWS, FREE, PRODUCTS
from tilewright.hlo.program import Computation, Operation, reached
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.dims import image_dims, is_of_vectors
from tilewright.layout import TensorLayout, is_bitcast, predict

POOLS = frozenset({"reduce-window", "select-and-scatter"})
"""Operations that take windows of images."""
_ALIKE = ELEMENTWISE | POOLS | {"pad", "slice", "concatenate", "reverse"}
"""Operations whose results lie as the images do that they are made of."""
_ANYWHERE = FREE - {"broadcast"}
_LONG_ROW = 4096
MANY = 8
"""Names, and a quarter of the operations on a way, from which on they are not followed."""


class Values:
    """The operations of a computation as they are compiled, calls in their place, and how their values lie."""

    def __init__(self, context: Context, computation: Computation, captured: Collection[str]) -> None:
        self.context, self.captured = context, captured
        self.operations = simplified(context.program, computation, captured)
        self.operations = self._as_it_lies(self.operations)
        whole = Computation(computation.name, tuple(self.operations))
        self.by_name, self.readers = whole.named, whole.readers
        shapes = {op.shape for op in self.operations}
        sizes = {each: self.size(each) for each in shapes}
        self.elements = {each: sum(layout.num_elements for layout in self._arrays(each)) for each in shapes}
        self.bytes = {op.name: sizes[op.shape] for op in self.operations}
        self.kind, self.of_kind = dict[str, str](), defaultdict[str, list[Operation]](list)
        for op in self.operations:
            kind = self.kind[op.name] = plain_opcode(op.opcode)
            self.of_kind[kind].append(op)
        self.returned = self.of_kind["return"][-1].operands if self.of_kind["return"] else ()
        self.in_loop = computation.name.endswith(".body")
        self.of_vectors = set(self._of_vectors())
        self.kind |= dict.fromkeys(self.of_vectors, "reduce")
        self.turned = self._turned_in_loops()
        self.softmaxes = {op.name: made for op in self.of_kind["reduce"] if (made := self._summed_up(op))}
        self.images = self._lie_as_images()

    def _as_it_lies(self, operations: Sequence[Operation]) -> list[Operation]:
        """Without what moves nothing: transposes that undo one another, reshapes between a custom call, or what only it
        reads, and memory."""
        kinds = {op.name: plain_opcode(op.opcode) for op in operations}
        turned: dict[str, Operation] = {}
        for op in (op for op in operations if op.operands):  # a damaged text's may have none
            if kinds[op.name] == "get-tuple-element":
                kinds[op.name] = kinds.get(op.operands[0], "")
            elif kinds[op.name] == "transpose":
                turned[op.name] = op
        others = {name for op in operations if kinds[op.name] != "custom-call" for name in op.operands}
        found = []
        for op in operations:
            lies = False
            if op.name in turned and (first := turned.get(op.operands[0])):
                there, back = first.integers("dimensions"), op.integers("dimensions")
                if lies := sorted(back) == [there[d] for d in back if d < len(there)]:
                    op = replace(op, operands=first.operands, operand_shapes=first.operand_shapes)
            elif kinds[op.name] == "reshape" and op.operands and op.operand_shapes:
                maker = kinds.get(op.operands[0], "parameter")
                asked = maker == "custom-call" or (maker == "parameter" and op.name not in others)
                lies = asked and bool(ends := self._sides(op)) and is_bitcast(ends[0], ends[1])
            found.append(replace(op, opcode="bitcast") if lies else op)
        return found

    def _arrays(self, *shapes: str) -> Sequence[TensorLayout]:
        """The arrays of shapes as their target lays them out; none where it cannot."""
        with suppress(TilewrightError, OverflowError):
            return [layout for shape in shapes for layout in self.context.layouts(shape)]
        return ()

    def _of_vectors(self) -> Iterator[str]:
        """Products with one row a batch that another product makes: the vector unit does them, as a reduction."""
        sums = self.context.chip is not None and self.context.chip.compiler_sums_products
        for op in (op for kind in DOTS if sums for op in self.of_kind[kind] if op.integers("lhs_batch_dims")):
            operands, result = self._arrays(*op.operand_shapes[:2]), self._arrays(op.shape)
            if len(operands) == 2 and len(result) == 1 and is_of_vectors(op, operands, result[0]):
                few = op.operands[min(range(2), key=lambda k: operands[k].num_elements)].partition("#")[0]
                if any(self.kind.get(name) in PRODUCTS for name in reached([few], self._makers)):
                    yield op.name

    def _lies_after(self, op: Operation) -> tuple[int, ...]:
        """The lanes and sublanes of a product of the vector unit: its dims lie as in the operand that has more."""
        left, right = self._arrays(*op.operand_shapes[:2])
        side, many = ("lhs", left) if left.num_elements > right.num_elements else ("rhs", right)
        batch, over = op.integers(f"{side}_batch_dims"), op.integers(f"{side}_contracting_dims")
        own = [d for d in range(many.rank) if d not in (*batch, *over)]
        first = len(batch) if side == "lhs" else len(dims_of(op.shape)) - len(own)
        goes = {d: k for k, d in enumerate(batch)} | {d: first + k for k, d in enumerate(own)}
        return tuple([goes[d] for d in many.minor_to_major if d in goes and many.shape[d] > 1])[:2]

    def _turned_in_loops(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """The lanes and sublanes of what a loop writes one place of, in the order in which the place lies together.

        A cache of keys or values has its positions outside its batch and heads then, as modules of every chip show. So
        has what is written over, and what is cut out of it.
        """
        found = dict[str, tuple[int, ...]]()
        for op in self.of_kind["dynamic-update-slice"] if self.in_loop else ():
            if len(layouts := self._arrays(*op.operand_shapes[:2])) == 2:
                sizes, order = [layout.shape for layout in layouts], layouts[0].minor_to_major
                places = [d for d in order if sizes[1][d] == 1 < sizes[0][d]]
                turned = [d for d in order if d not in places] + places
                if [d for d in turned if sizes[0][d] > 1] != [d for d in order if sizes[0][d] > 1]:
                    found |= dict.fromkeys((op.name, op.operands[0]), tuple(turned[:2]))
        for op in self.operations if found else ():
            kind, pair = self.kind[op.name], found.get("".join(op.operands[:1]), ())
            if kind == "reshape" and pair:  # it may only drop or add dims of one
                ends = [dims_of(shape) for shape in (op.operand_shapes[0], op.shape)]
                before, after = ([d for d, size in enumerate(each) if size > 1] for each in ends)
                same = [ends[0][d] for d in before] == [ends[1][d] for d in after]
                pair = tuple([after[before.index(d)] for d in pair if same and d in before])
            if len(pair) == 2 and kind in ("slice", "dynamic-slice", "reshape"):
                found.setdefault(op.name, pair)
        return {name: (pair,) for name, pair in found.items()}

    def _lie_as_images(self) -> dict[str, TensorLayout]:
        """Where the values around convolutions, pooling and softmaxes lie; of an argument, where it is wanted.

        What pooling takes lies as its result does, which has an order of its own where no convolution is near. Scores
        of no fewer rows than columns have the rows in their lanes (330 of 370 softmaxes in modules of four chips).
        """
        minor = dict[str, tuple[tuple[int, ...], ...]]()  # value -> its lanes and sublanes, one of these pairs of dims
        minor |= {name: (pair,) for name in self.of_vectors if len(pair := self._lies_after(self.by_name[name])) == 2}
        minor |= self.turned
        for op in self.of_kind["convolution"]:
            minor |= {name: (pair, pair[::-1]) for name, pair in image_dims(op).items() if name in self.by_name}
        for made in self.softmaxes.values():
            sizes = dims_of(self.by_name[made].shape)
            if len(sizes) > 2 and sizes[-2] >= sizes[-1]:
                minor[made] = ((len(sizes) - 2, len(sizes) - 1),)
        parts = [(op.name, op.shape, op.operand_shapes[0]) for op in self.of_kind["slice"] if op.operand_shapes]
        for op in self.of_kind["concatenate"]:
            parts += [
                (name, shape, op.shape) for name, shape in zip(op.operands, op.operand_shapes) if name in self.by_name
            ]
        for name, own, whole in parts:
            if len(lies := self._minor(whole)) == 1 and lies != self._minor(own):
                minor.setdefault(name, lies)
        some = self.operations if any(self.of_kind[kind] for kind in POOLS) else ()
        open_, pools = [*minor], [op for op in some if self.kind[op.name] in POOLS and dims_of(op.shape)[1:]]
        while open_ or pools:
            op = self.by_name[open_.pop()] if open_ else pools.pop()
            if op.name not in minor:
                minor[op.name] = self._minor(op.shape)
            makers = [self.by_name[name] for name in op.operands if name in self.by_name]
            readers = [reader for reader in self.readers[op.name] if self.kind[reader.name] in _ALIKE]
            for near in (*(makers if self.kind[op.name] in _ALIKE else ()), *readers):
                alike = len(dims_of(near.shape)) == len(dims_of(op.shape)) and self.kind[near.name] not in _ANYWHERE
                if alike and near.name not in minor:
                    minor[near.name] = minor[op.name]
                    open_.append(near.name)
        found = dict[tuple[str, tuple[tuple[int, ...], ...]], list[TensorLayout]]()  # one of each shape and order
        for shape, pairs in {(self.by_name[name].shape, pairs) for name, pairs in minor.items()}:
            arrays = self._arrays(shape)
            found[shape, pairs] = [predict("tpu", each.shape, each.dtype, minor=pairs) for each in arrays]
        laid = {name: found[self.by_name[name].shape, pairs] for name, pairs in minor.items()}
        return {name: layouts[0] for name, layouts in laid.items() if len(layouts) == 1}

    def _minor(self, shape: str) -> tuple[tuple[int, ...], ...]:
        """The lanes and sublanes of each array of a shape."""
        return tuple([tuple(array.minor_to_major[:2]) for array in self._arrays(shape)])

    def _sides(self, op: Operation) -> Sequence[TensorLayout]:
        """The operand and the result of a reshape; none where they are not known, or have not the same elements."""
        ends = self._arrays(*op.operand_shapes[:1], op.shape)
        return ends if len(ends) == 2 and ends[0].num_elements == ends[1].num_elements else ()

    def size(self, shape: str) -> int:
        """Bytes of a shape as its target lays it out."""
        return sum(layout.size_bytes for layout in self._arrays(shape))

    def _summed_up(self, op: Operation) -> str:
        """The exponentials of which a reduction sums up rows whose quotients a product takes in bfloat16, "" if none.

        One kernel has them, their largest and their sum, and writes the exponentials, as the modules of every chip show
        up to 4,096 columns and none beyond: that of the product that makes the scores, if it is of less depth than the
        matrix unit has, or one behind it.
        """
        if not op.operand_shapes or op.name in self.captured:
            return ""
        made = self.by_name.get(self._made_as(op.operands[0], {"convert"}))
        rows, sums = dims_of(op.operand_shapes[0]), dims_of(op.shape)
        if made is None or self.kind[made.name] != "exponential" or rows[:-1] != sums or rows[-1] > _LONG_ROW:
            return ""
        flows = lambda name: (reader.name for reader in self.readers[name] if self.kind[reader.name] in FLOWS)  # noqa: E731
        readers = (reader for name in reached([op.name], flows, 4 * MANY) for reader in self.readers[name])
        products = (reader for reader in readers if self.kind[reader.name] in DOTS and op.shape.startswith("f32"))
        narrow = (all(shape.startswith("bf16") for shape in each.operand_shapes[:2]) for each in products)
        return made.name if any(narrow) else ""

    def _made_as(self, name: str, kinds: Collection[str] = ("broadcast", "reshape")) -> str:
        """What a value was before operations that only changed its type, or put dims together, apart or beside one."""
        while self.kind.get(name) in kinds:
            maker = self.by_name.get("".join(self.by_name[name].operands[:1]))
            if maker is None or self.elements[maker.shape] != self.elements[self.by_name[name].shape]:
                break
            name = maker.name
        return name

    def _makers(self, name: str) -> list[str]:
        """The operations of this computation that made the operands of one."""
        operands = self.by_name[name].operands if name in self.by_name else ()
        return [each for operand in operands if (each := operand.partition("#")[0]) in self.by_name]

    def _at_border(self, shape: str) -> tuple[int, ...]:
        """The order of an argument's or a result's dims, minor first; () for several."""
        orders = [predict("tpu", a.shape, a.dtype, boundary=True).minor_to_major for a in self._arrays(shape)]
        return tuple(orders[0]) if len(orders) == 1 else ()
