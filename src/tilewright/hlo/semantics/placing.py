"""Where the arrays of predicted kernels lie: what stays in vector memory, what is written beside, how products are cut.

A stated model, read off the modules of the TPU's compiler, on top of the kernels that ``fusions`` predicts:

* A reduction of what a product's kernel writes is a second result of it. Elementwise results of one size are made in
  one kernel.
* Results stay near the core while all that are alive fit, and so does what a loop carries; the largest argument of a
  product or gather is brought in between calls, if it fits, and leaves less room until its last reader.
* Operands of a product that do not fit near the core are read anew for every block of its result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from heapq import heappop, heappush
from math import prod
from typing import NamedTuple

from tilewright.errors import TilewrightError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.opcodes import DOTS, ELEMENTWISE, HEADS, PRODUCTS, TAKES_NO_TIME, TAKES_PART, WRITES_IN_PLACE
from tilewright.hlo.program import Computation, Operation
from tilewright.hlo.semantics.collectives import read_in_part
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.dims import product_sizes, stepped
from tilewright.hlo.semantics.fusions import Fusions, is_turned
from tilewright.hlo.semantics.tiles import MEGA, Tiles
from tilewright.targets import Target, TimeConstants

_SAME = frozenset({"bitcast", "convert", "reshape", "transpose"})
"""Operations whose result is their operand in another type or form."""
_TOGETHER = ELEMENTWISE | {"broadcast", "constant", "iota", "reshape", "slice"}
"""Operations of kernels that become one kernel of several results."""
_BLOCK, _BLOCK_MB = 1280, 16.0
"""Rows and columns of one block of a product's result, and megabytes of an operand that stays for all blocks."""
_KEPT_FREE = 8 << 20
"""Bytes that a grouped product's kernel leaves free (seen on v5e, v5p, 7x)."""
_MASKED_WEIGHTS = 4 << 20
"""Bytes of weights beside which a fusion that masks the rows of a grouped product passes them."""
_MOST_BEHIND = 4096
"""Operations that are computed again in one kernel; what is further behind it reads from memory."""
_LANES = 128


def across_lanes(op: Operation, table: Tiles) -> bool:
    """Whether the rows that a gather takes lie across the lanes: the compiler turns the whole table first."""
    sizes, order = op.integers("slice_sizes"), table.minor_to_major
    return len(sizes) == len(order) > 1 and sizes[order[0]] == 1 < table.shape[order[0]] and max(sizes) > 1


class Placed:
    """The kernels that one computation of a StableHLO program will become, and where their arrays lie.

    ``time`` says how many megabytes of vector memory there are for what is alive (``near_result_mb``), and how large an
    argument is at most that is brought in between calls (``between_calls_mb``).
    """

    def __init__(
        self, context: Context, machine: Target, time: TimeConstants, computation: Computation, captured: set[str]
    ) -> None:
        self.context, self.machine, self.computation, self.captured = context, machine, computation, captured
        fusions = Fusions(context, computation, self.captured, written=True)
        self.operations = [op for op in fusions.operations if op.opcode != "return"]
        self.in_softmax = {name: fusions.softmaxes[name] for name in fusions.in_softmax}  # sums -> exponentials
        self.hoisted, self.of_vectors = fusions.hoisted, fusions.of_vectors
        self.exponentials = dict[str, str]()  # and the kernels that write these
        self.returned = fusions.returned
        # an operation -> its kernel, among the copies that turn its operands before it, or its result behind it
        self.kernels, kernels = defaultdict[str, list[Operation]](list), fusions.kernels()
        for op in kernels:
            self.kernels[op.name.partition(".copy")[0].removesuffix(".turned")].append(op)
        self.readers = fusions.readers
        self.by_name, fixed = dict[str, Operation](), set[str]()  # constants and what repeats them
        for op in self.operations:
            kind = plain_opcode(op.opcode)
            if kind == "constant" or (kind == "broadcast" and fixed.issuperset(op.operands)):
                fixed.add(op.name)
            elif kind == "divide" and fixed.issuperset(op.operands[1:]) and "f" in op.shape.partition("[")[0]:
                op = replace(op, opcode="multiply")  # by its inverse
            self.by_name[op.name] = op
        self.in_part = read_in_part(self.operations)
        self.number = {op.name: k for k, op in enumerate(self.operations)}
        for k, name in enumerate(self.returned if computation.entry else ()):
            if name in self.kernels and name in self.returned[:k]:  # the same array is no result twice
                copied = self.by_name[name].shape
                self.kernels[name].append(Operation(name, "copy", copied, (name,), (copied,)))
        self.results = {part for name in self.returned for part in (name, name.partition("#")[0])}
        self.narrowed = fusions.narrowed()  # what is written as bfloat16, as only products want it
        shapes = {op.name: op.shape for op in self.operations}
        shapes |= {name: shapes[name].replace("f32", "bf16", 1) for name in self.narrowed}
        of_shape, broken = dict[str, Tiles](), dict[str, str]()
        for shape in {*shapes.values()}:
            try:
                if layouts := context.layouts(shape):
                    of_shape[shape] = Tiles.of(max(layouts, key=lambda layout: layout.size_bytes))
            except (TilewrightError, OverflowError) as error:
                broken[shape] = str(error)
        self.tiles = {name: of_shape[shape] for name, shape in shapes.items() if shape in of_shape}  # as they lie
        self.broken = {name: broken[shape] for name, shape in shapes.items() if shape in broken}
        images = fusions.images.keys() - fusions.arguments - self.broken.keys()
        self.tiles |= {name: Tiles.of(fusions.images[name]) for name in images}
        self.arguments = dict.fromkeys(op.name for op in self.operations if op.opcode == "parameter")
        self.turned = [name for name in self.tiles if name in self.arguments and name in fusions.turned]
        self.through = fusions.through - self.broken.keys()  # what is done in the kernels of others
        self.found: dict[str, tuple[dict[str, float], dict[str, float]]] = {}  # members that were asked for
        self.joined = self._second_results()  # a kernel -> what it writes beside its own result
        sized = (name for name in self._brought_in() if name in self.arguments and name in self.tiles)
        largest = max(sized, key=lambda name: self.tiles[name].megabytes, default="")
        fits = largest and self.tiles[largest].megabytes <= time["between_calls_mb"]
        self.prefetched = largest if fits and computation.entry else ""  # the argument brought in between calls
        # two cores that are one device and have no memory in common
        self.apart = time["cores"] > 1 and machine.memory("cmem") is None
        self.near = self._stay_near(kernels, time["near_result_mb"])

    def _stay_near(self, kernels: Sequence[Operation], room: float) -> set[str]:
        """What lies in vector memory from where it is written to where it was last read, as far as there is room.

        An argument brought in between calls takes its part until then; what a loop carries has what the others leave.
        """
        size = {name: tiles.megabytes for name, tiles in self.tiles.items()}
        taken = ((at, name) for at, op in enumerate(kernels) for name in op.operands)
        last = {part: at for at, name in taken for part in (name, name.partition("#")[0])}
        near, alive = set[str](), list[tuple[int, float]]()
        if self.prefetched and (vmem := self.machine.memory("vmem")):
            left = max(0.0, self.machine.near_bytes / MEGA - size[self.prefetched] - vmem.kernel_bytes / MEGA)
            alive.append((last.get(self.prefetched, -1), max(0.0, room - left)))
            room -= alive[0][1]
        fresh = {op.name for op in kernels if plain_opcode(op.opcode) not in WRITES_IN_PLACE}
        beside = {name: kernel for kernel, names in self.joined.items() for name in (kernel, *names)}
        working = (op for op in kernels if plain_opcode(op.opcode) not in TAKES_NO_TIME)
        steps = [(op.operands, beside.get(op.name, op.name)) for op in working]
        read = {name for names, kernel in steps for name in names if beside.get(name) != kernel}
        leaving = self.results - (fresh & read if self.computation.entry else set())  # the others are copied out
        least = room
        parts = defaultdict[str, list[Operation]](list)  # what is cut out of an argument is cut in one kernel
        for op in kernels:
            if plain_opcode(op.opcode) in ("slice", "reshape") and self.arguments.keys() >= {*op.operands}:
                parts["".join(op.operands)].append(op)
        together = {found[0].name: found for found in parts.values()}
        behind = {op.name for found in parts.values() for op in found[1:]}
        for at, first in enumerate(kernels):
            while alive and alive[0][0] < at:
                room += heappop(alive)[1]
            for op in together.get(first.name, (first,)) if first.name not in behind else ():
                if op.name in self.arguments or op.name in leaving or op.name not in size:
                    continue
                if plain_opcode(op.opcode) in WRITES_IN_PLACE and op.operands[0] in near:
                    near.add(op.name)
                elif size[op.name] <= room and not (self.apart and self._is_for_both(op)):
                    near.add(op.name)
                    room -= size[op.name]
                    heappush(alive, (last.get(op.name, at), size[op.name]))
                least = min(least, room)
        pairs = [] if self.computation.entry else zip(self.arguments, self.returned or self.arguments)  # same memory
        for pair in sorted(pairs, key=lambda pair: size.get(pair[0], 0.0)):
            if size.get(pair[0], 0.0) <= least:
                near |= {*pair}
                least -= size.get(pair[0], 0.0)
        return near

    def _is_for_both(self, op: Operation) -> bool:
        """Whether cores write into HBM for each other what they make: products, copies, all but fusions of the vector
        unit (0 of 2,000 such arrays of v5p's modules lie near, 738 of 852 of those fusions).
        """
        _, members = self.found.get(op.name, ({}, {}))
        kinds = [plain_opcode(self.by_name[name].opcode) for name in members]
        return op.opcode == "copy" or len(kinds) < 2 or not PRODUCTS.isdisjoint(kinds)

    def _brought_in(self) -> Iterator[str]:
        """What a compiler brings in between calls, as it is or in a wider type and another order: both sides of a dot,
        the weights of a convolution, a table of rows; nothing that only the vector unit reads, or is narrowed.
        """
        size = {name: tiles.megabytes for name, tiles in self.tiles.items()}
        taken = {**dict.fromkeys(DOTS, slice(2)), "convolution": slice(1, 2), "gather": slice(1)}
        for op in (op for op in self.operations if plain_opcode(op.opcode) in taken):
            for name in op.operands[taken[plain_opcode(op.opcode)]]:
                while name in self.through and plain_opcode(self.by_name[name].opcode) in _SAME:
                    made, name = name, self.by_name[name].operands[0]
                    if size.get(made, 0.0) < size.get(name, 0.0):  # a cast of what is kept in float32
                        break
                else:
                    yield name

    def _second_results(self) -> dict[str, list[str]]:
        """What a kernel makes of what it writes, or of what it reads, by its name: further results of that kernel.

        Reductions of what a product's kernel writes, of a softmax both: its largest score and the sum of its
        exponentials, which the kernel then writes. Elementwise results of one size as the kernel's, and sums of them.
        """
        joined: dict[str, list[str]] = {}
        made_in: dict[str, str] = {}  # a written value -> the kernel that makes it
        beside: dict[tuple[str, int], str] = {}  # what an elementwise kernel reads and its size -> the last such kernel
        products = set[str]()
        for op in self.operations:
            kind = plain_opcode(op.opcode)
            if op.name in self.through or op.name not in self.tiles or kind in TAKES_NO_TIME:
                continue
            read, members = self.found[op.name] = self.members(op)
            kinds = {plain_opcode(self.by_name[name].opcode) for name in members}
            if not kinds.isdisjoint(HEADS & PRODUCTS):
                made_in[op.name] = op.name
                products.add(op.name)
            elif not kinds.isdisjoint(PRODUCTS) or kind == "reshape" or (kind == "slice" and stepped(op)):
                continue
            elif read and self.tiles[op.name].shape and (kind == "reduce" or kinds <= _TOGETHER):
                # numbers are given along
                wide = [name for name in read if name in self.tiles and self.tiles[name].shape]
                last, over = max(wide or read, key=lambda name: self.number[name]), op.operands[0]
                size = self.tiles[over if kind == "reduce" and over in self.tiles else op.name].elements
                kernel = made_in.get(last, "")
                if kind == "reduce":
                    fits = kernel == last or op.name in self.in_softmax
                elif kernel and self.tiles[kernel].elements == size:
                    # it waits for whole rows of a sum, and is apart from what is written for it alone
                    wanted = sum(reader.opcode != "return" for reader in self.readers[last]) > 1
                    fits = plain_opcode(self.by_name[last].opcode) != "reduce" and (kernel != last or wanted)
                else:  # results of one size that read alike, as an optimizer's do
                    kernel = max([beside.get((name, size), "") for name in read], key=lambda k: self.number.get(k, -1))
                    fits = self.number.get(kernel, -1) > self.number[last]
                kernel = kernel if fits else ""
                if kernel and (self.tiles[kernel].elements == size or (kind == "reduce" and kernel in products)):
                    joined.setdefault(kernel, []).append(op.name)
                    made = self.in_softmax.get(op.name, "")  # scores in bfloat16 are not widened to write them
                    if made in self.tiles and self.tiles[made].megabytes <= self.tiles[kernel].megabytes:
                        self.exponentials[made], self.tiles[kernel] = kernel, self.tiles[made]
                elif kind != "reduce":
                    kernel = op.name
                if kernel:
                    made_in[op.name] = kernel
                beside |= {(name, size): kernel for name in read if kernel == op.name}
        return joined

    def members(self, op: Operation) -> tuple[dict[str, float], dict[str, float]]:
        """Shares of the written arrays that a kernel reads, and of the values that it computes on the way."""
        read: dict[str, float] = {}
        written = self.exponentials if op.name not in self.in_softmax else {}
        share, open_ = {op.name: 1.0}, [-self.number[op.name]]
        while open_:
            name = self.operations[-heappop(open_)].name
            member, part = self.by_name[name], share[name]
            kind = plain_opcode(member.opcode)
            for k, operand in enumerate(member.operands):
                operand = written.get(operand, operand if operand in self.number else operand.partition("#")[0])
                if operand not in self.number or (kind in WRITES_IN_PLACE and not k):
                    continue
                wanted = 1.0 if kind in HEADS else part
                if kind in TAKES_PART and not k and operand in self.tiles and name in self.tiles:
                    taken = self.tiles[name].elements / max(1, self.tiles[operand].elements)
                    wanted = min(1.0, part * taken)
                if operand not in self.through or len(share) > _MOST_BEHIND:
                    read[operand] = min(1.0, read.get(operand, 0.0) + wanted)
                else:
                    if operand not in share:
                        heappush(open_, -self.number[operand])
                    share[operand] = max(share.get(operand, 0.0), wanted)
        return read, share

    def arrays(self, shapes: Sequence[str]) -> list[Tiles]:
        """The arrays of shapes that can be read."""
        found: list[Tiles] = []
        for shape in shapes:
            with suppress(TilewrightError, OverflowError):
                found += map(Tiles.of, self.context.layouts(shape))
        return found

    def operand_tiles(self, op: Operation) -> list[Tiles]:
        """Its operands that are arrays, those of other computations too, which a region reads."""
        found: list[Tiles] = []
        for name, shape in zip(op.operands, op.operand_shapes):
            if name in self.tiles:
                found.append(self.tiles[name])
            elif name not in self.by_name:  # where it cannot be read, its own operation says so
                found += self.arrays([shape])
        return found

    def read_again(self, op: Operation, operands: Sequence[Tiles]) -> float:
        """Megabytes that a product's blocks read more than once: each column of blocks reads the left operand anew."""
        if (dims := product_sizes(op, operands, self.tiles[op.name])) is None:
            return 0.0
        batch, rows, columns, _ = dims
        left, right = (tiles.megabytes / batch for tiles in operands[:2])
        cut = left * (columns / _BLOCK - 1) + right * (rows / _BLOCK - 1)
        whole = min(left * (right / _BLOCK_MB - 1), right * (left / _BLOCK_MB - 1))
        return batch * max(0.0, min(cut, whole))


class GroupedBlocks(NamedTuple):
    """How a grouped product is cut."""

    shape: tuple[int, int, int]  # the passes of the matrix unit as one product's rows, columns and depth
    sums: bool  # whether its kernel has sums over the rows
    again: float  # megabytes that its blocks read again
    steps: int

    @classmethod
    def of(cls, op: Operation, operands: Sequence[Tiles], result: Tiles, machine: Target) -> GroupedBlocks | None:
        """The blocks of a ``ragged_dot``; None if its sizes are unknown.

        Rows pass in blocks of the unit's side, and one more for each group, as groups end inside blocks. Beside them
        stand the largest blocks of weights, or of a result summed over the rows, that leave 8 MiB of what a kernel may
        hold: so cut 65 of 65 modules that a compiler made. A fusion that masks rows has 4 MiB for weights, a
        third of that for sums, cut so that least is read again (24 modules of v6e).
        """
        sizes, vmem = product_sizes(op, operands, result), machine.memory("vmem")
        if sizes is None or len(operands) < 3 or machine.matrix is None or vmem is None:
            return None
        _, rows, columns, depth = sizes
        side, summed = machine.matrix.rows, len(result.shape) > len(operands[0].shape)
        groups = result.shape[0] if summed else prod(operands[2].shape[-1:])
        left, right = (1e6 * tiles.megabytes / max(1, tiles.elements) for tiles in operands[:2])
        masked = machine.compiler_masks_groups and not is_turned(op)
        room = vmem.kernel_bytes - _KEPT_FREE

        def largest(size: int, fixed: float, each: float) -> int:
            fitting = int((room - fixed - 1) / each) // side * side
            return max(side, min(fitting, -(-size // side) * side))

        if masked and summed:
            most = vmem.kernel_bytes // 12  # sums are float32
            cuts = [(n, -(-rows // max(side, most // -(-columns // n)))) for n in range(1, -(-columns // side) + 1)]
            across, down = min(cuts, key=lambda cut: cut[0] * operands[0].megabytes + cut[1] * operands[1].megabytes)
            wide, high = -(-columns // across), -(-rows // down)
        elif masked:
            lanes, widest = -(-columns // _LANES), _MASKED_WEIGHTS / depth / right
            fitting = (lanes // n * _LANES for n in range(1, lanes + 1) if lanes % n == 0)
            high, wide = 0, next((width for width in fitting if width <= widest), _LANES)
        elif summed:
            high = largest(rows, 2 * side * side * right, 2 * side * left + 16 * side)
            wide = largest(columns, 2 * side * high * left, 2 * side * right + 16 * high)
        else:
            high, wide = 0, largest(columns, 2 * side * depth * left, 2 * depth * right + 16 * side)
        across, down = -(-columns // wide), -(-rows // high) if high else 1
        blocks = -(-(depth if summed else rows) // side) + groups - 1
        shape = (down * high, across * wide, blocks * side) if summed else (blocks * side, across * wide, depth)
        again = operands[0].megabytes * (across - 1) + operands[1].megabytes * (down - 1)
        return cls(shape, summed and not masked, again, across * down * blocks if masked else 1)
