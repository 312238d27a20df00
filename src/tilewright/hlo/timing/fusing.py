"""StableHLO priced by a stated model of what the TPU compiler fuses; there is no schedule, so none is claimed.

* The kernels are those of ``semantics.fusions``, which memory is counted by too. A reduction of what a product's kernel
  writes is a second result of it. What stands behind a reduction in its kernel starts anew.
* Results stay near the core while all that are alive fit ``near_result_mb``, and so does what a loop carries;
  arguments stream in beside the compute and stay, so that the step takes the longer of kernels and HBM; the largest
  argument of a product or gather, if it fits ``between_calls_mb``, is brought in between calls, and leaves less room
  until its last reader.
* Operands of a product that do not fit near the core are read anew for every block of its result.
* In a loop every operation on one number is a kernel; the first of a chain takes a launch.
* A gather of many rows of a large table is left to SparseCores. One of rows that lie across the lanes turns its table
  first; what a batched product takes of an activation is cut out and turned first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from heapq import heappop, heappush
from math import prod

from tilewright.errors import TilewrightError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.inlining import DEEPEST
from tilewright.hlo.opcodes import (
    COLLECTIVES,
    DOTS,
    ELEMENTWISE,
    HEADS,
    PRODUCTS,
    TAKES_NO_TIME,
    TAKES_PART,
    WRITES_IN_PLACE,
)
from tilewright.hlo.program import Computation, Operation
from tilewright.hlo.semantics.collectives import as_scatter, as_sum, read_in_part
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.dims import devices_of, gathered_rows, matrix_type, product_sizes
from tilewright.hlo.semantics.fusions import Fusions, captured_names, is_turned
from tilewright.hlo.timing.chip import Chip
from tilewright.hlo.timing.kernels import TARGET, Kernels
from tilewright.hlo.timing.row import NoTime, Run, flops_of, run_of, timed, untimed
from tilewright.hlo.timing.step import TimeRow
from tilewright.hlo.timing.tiles import MEGA, Tiles
from tilewright.hlo.timing.work import LANES, REGISTER, SORTS, Asked, Windows, Work, add_operation
from tilewright.layout.meshes.torus import Slice

_WITH_BODIES = SORTS | COLLECTIVES | {"reduce", "reduce-window", "scatter", "select-and-scatter", "map"}
"""Operations whose kernel is known beside the computation that they call."""
_SAME = frozenset({"bitcast", "convert", "reshape", "transpose"})
"""Operations whose result is their operand in another type or form."""
_TOGETHER = ELEMENTWISE | {"broadcast", "constant", "iota", "reshape"}
"""Operations of kernels that become one kernel of several results."""
_ARGUMENTS = Operation("arguments", "stream", "")
"""The row of weights that stream in beside the kernels."""
_STREAMED_MB = 40.0
"""Arguments above this are not brought in early: the kernel streams them."""
_BLOCK, _BLOCK_MB = 1280, 16.0
"""Rows and columns of one block of a product's result, and megabytes of an operand that stays for all blocks."""
_KEPT_FREE, _GROUPED, _SUMMED = 8 << 20, 0.75, 0.38
"""Bytes that a grouped product's kernel leaves free, and its share of the matrix unit's rate (seen on v5e, v5p, 7x).

The last is the share where a kernel sums over the rows: it turns them, and adds to sums in vector memory (7x).
"""
_MASKED_WEIGHTS = 4 << 20
"""Bytes of weights beside which a fusion that masks the rows of a grouped product passes them."""
_TWIDDLES = 6
"""Operations of the vector unit that one stage of a Fourier transform takes for each point, and its kernels."""
_WINDOW_MB = 5.0
"""Megabytes of one window of a kernel's arrays."""
_MANY_ROWS, _LARGE_TABLE_MB = 2048, 2.0
"""Rows, and megabytes of a table, from which a gather is left to SparseCores."""
_MOST_BEHIND = 4096
"""Operations that are computed again in one kernel; what is further behind it reads from memory."""


def _across_lanes(op: Operation, table: Tiles) -> bool:
    """Whether the rows that a gather takes lie across the lanes: the compiler turns the whole table first."""
    sizes = op.integers("slice_sizes")
    if len(sizes) != len(table.shape) or len(sizes) < 2:
        return False
    lanes = table.minor_to_major[0]
    return sizes[lanes] == 1 < table.shape[lanes] and max(sizes) > 1


class Fusing:
    """The kernels that one computation of a StableHLO program will become, as far as the stated model goes."""

    def __init__(self, chip: Chip, context: Context, computation: Computation, outer: Fusing | None = None) -> None:
        self.chip, self.context, self.computation = chip, context, computation
        self.pallas: Kernels = outer.pallas if outer else Kernels(context, chip)
        on = chip.torus.slice_of(context.program) if chip.torus and outer is None else None
        self.slice: Slice | None = outer.slice if outer else on
        self.begun = False  # whether a kernel has run, beside which arguments can come in
        self.arrived = set[str]()  # those that came, and stay for whoever reads them next
        self.rows: list[TimeRow] = []
        self.shapes: dict[str, tuple[str, ...]] = {}  # of a kernel: what it reads
        self.priced, self.clock, self.runs = 0, 0.0, 1
        self.captured: set[str] = outer.captured if outer else captured_names(context.program)
        fusions = Fusions(context, computation, self.captured, written=True)
        self.operations = [op for op in fusions.operations if op.opcode != "return"]
        self.in_softmax, self.hoisted = fusions.in_softmax, fusions.hoisted
        self.copied = defaultdict[str, list[Operation]](list)
        kernels = fusions.kernels()
        for op in kernels:
            if op.opcode == "copy":
                self.copied[op.name.partition(".copy")[0]].append(op)
        self.by_name = {op.name: op for op in self.operations}
        self.in_part = read_in_part(self.operations)
        self.number = {op.name: k for k, op in enumerate(self.operations)}
        returned = [op.operands for op in fusions.operations if op.opcode == "return"]
        times = Counter(returned[-1] if returned and computation.entry else ())
        self.returned_again = {name: count - 1 for name, count in times.items() if count > 1}
        self.returned = (returned or [()])[-1]
        self.results = {part for name in self.returned for part in (name, name.partition("#")[0])}
        self.leaving = set(self.results)  # and what such results are written over in place, in the same memory
        for op in reversed(self.operations):
            if op.name in self.leaving and op.operands and plain_opcode(op.opcode) in WRITES_IN_PLACE:
                self.leaving.add(op.operands[0])
        tiles: dict[str, Tiles] = {}
        broken: dict[str, str] = {}
        for shape in {op.shape for op in self.operations}:
            try:
                if layouts := context.layouts(shape):
                    tiles[shape] = Tiles.of(max(layouts, key=lambda layout: layout.size_bytes))
            except (TilewrightError, OverflowError) as error:
                broken[shape] = str(error)
        self.tiles = {op.name: tiles[op.shape] for op in self.operations if op.shape in tiles}
        self.broken = {op.name: broken[op.shape] for op in self.operations if op.shape in broken}
        self.arguments = {op.name for op in self.operations if op.opcode == "parameter"}
        self.through = fusions.through - self.broken.keys()
        self.joined = self._second_results()
        sized = (name for name in self._brought_in() if name in self.arguments and name in self.tiles)
        largest = max(sized, key=lambda name: self.tiles[name].megabytes, default="")
        fits = largest and self.tiles[largest].megabytes <= chip.kernel["between_calls_mb"]
        self.prefetched = largest if fits and computation.entry else ""
        self.near = self._stay_near(kernels)

    def _stay_near(self, kernels: Sequence[Operation]) -> set[str]:
        """What lies in vector memory from where it is written to where it was last read, as far as there is room.

        An argument brought in between calls takes its part until then; what a loop carries has what the others leave.
        """
        size = {name: tiles.megabytes for name, tiles in self.tiles.items()}
        last = {
            name: at for at, op in enumerate(kernels) for each in op.operands for name in (each, each.split("#")[0])
        }
        room, near, alive = self.chip.kernel["near_result_mb"], set[str](), list[tuple[int, float]]()
        machine = self.context.chip
        vmem = machine.memory("vmem") if machine is not None else None
        if self.prefetched and vmem is not None:
            left = max(0.0, self.chip.near_bytes / MEGA - size[self.prefetched] - vmem.kernel_bytes / MEGA)
            alive.append((last.get(self.prefetched, -1), max(0.0, room - left)))
            room -= alive[0][1]
        carried = [op.name for op in self.operations if op.opcode == "parameter"]
        least, apart = room, {*carried, *self.results}
        for at, op in enumerate(kernels):
            while alive and alive[0][0] < at:
                room += heappop(alive)[1]
            if op.name in apart or op.name not in size or (self.computation.entry and op.name in self.leaving):
                continue
            if plain_opcode(op.opcode) in WRITES_IN_PLACE and op.operands[0] in near:
                near.add(op.name)
            elif size[op.name] <= room:
                near.add(op.name)
                room -= size[op.name]
                heappush(alive, (last.get(op.name, at), size[op.name]))
            least = min(least, room)
        pairs = [] if self.computation.entry else zip(carried, self.returned or carried)  # the same memory
        for pair in sorted(pairs, key=lambda pair: size.get(pair[0], 0.0)):
            if size.get(pair[0], 0.0) <= least:
                near |= {*pair}
                least -= size.get(pair[0], 0.0)
        return near

    def _brought_in(self) -> Iterator[str]:
        """What a compiler brings in between calls, as it is or in another type and order: both sides of a dot, the
        weights of a convolution, a table of whole rows; nothing that only the vector unit reads.
        """
        taken = {**dict.fromkeys(DOTS, slice(2)), "convolution": slice(1, 2), "gather": slice(1)}
        for op in self.operations:
            rows, table = op.integers("slice_sizes")[1:], self._operands(op)[:1]
            if plain_opcode(op.opcode) == "gather" and any(rows != tiles.shape[1:] for tiles in table):
                continue
            for name in op.operands[taken.get(plain_opcode(op.opcode), slice(0))]:
                while name in self.through and plain_opcode(self.by_name[name].opcode) in _SAME:
                    name = self.by_name[name].operands[0]
                yield name

    def _second_results(self) -> dict[str, list[str]]:
        """What a kernel makes of what it writes, or of what it reads, by its name: further results of that kernel.

        Reductions of what a product's kernel writes, of a softmax both: its largest score and the sum of its
        exponentials, which the kernel then writes. Elementwise results of one size as the kernel's, and sums of them.
        """
        joined: dict[str, list[str]] = {}
        made_in: dict[str, str] = {}  # a written value -> the kernel that makes it
        products, sums = set[str](), set[str]()
        times = Counter(name for op in self.operations for name in dict.fromkeys(op.operands))
        wanted = {name for name, count in times.items() if count > 1}
        beside: dict[tuple[str, int], str] = {}  # what an elementwise kernel reads and its size -> the last such kernel
        for op in self.operations:
            kind = plain_opcode(op.opcode)
            if op.name in self.through or op.name not in self.tiles or kind in TAKES_NO_TIME:
                continue
            read, members = self._members(op)
            kinds = {plain_opcode(self.by_name[name].opcode) for name in members}
            if not kinds.isdisjoint(HEADS & PRODUCTS):
                made_in[op.name] = op.name
                products.add(op.name)
            elif not kinds.isdisjoint(PRODUCTS):
                continue
            elif read and self.tiles[op.name].shape and (kind == "reduce" or kinds <= _TOGETHER):
                last, size = max(read, key=lambda name: self.number[name]), self._size(op)
                kernel = made_in.get(last, "")
                if kernel and kind == "reduce" and kernel != last and op.name not in self.in_softmax:
                    kernel = ""
                elif kernel and kind != "reduce" and (last in sums or (kernel == last and kernel not in wanted)):
                    kernel = ""  # it waits for whole rows, or is apart from what is written for it alone
                elif not kernel and kind != "reduce":
                    near = (beside.get((name, size), "") for name in read)
                    kernel = max(near, key=lambda name: self.number.get(name, -1))
                    kernel = kernel if self.number.get(kernel, -1) > self.number[last] else ""
                if kernel and (self.tiles[kernel].elements == size or (kind == "reduce" and kernel in products)):
                    joined.setdefault(kernel, []).append(op.name)
                elif kind != "reduce":
                    kernel = op.name
                if kernel:
                    made_in[op.name] = kernel
                    sums |= {op.name} if kind == "reduce" else set()
                beside |= {(name, size): kernel for name in read if kernel == op.name}
        return joined

    def _size(self, op: Operation) -> int:
        """Over how many elements a kernel passes that ends in this operation."""
        over = op.operands[0] if plain_opcode(op.opcode) == "reduce" and op.operands[0] in self.tiles else op.name
        return self.tiles[over].elements

    def _members(self, op: Operation) -> tuple[dict[str, float], dict[str, float]]:
        """Shares of the written arrays that a kernel reads, and of the values that it computes on the way."""
        read: dict[str, float] = {}
        share, open_ = {op.name: 1.0}, [-self.number[op.name]]
        while open_:
            name = self.operations[-heappop(open_)].name
            member, part = self.by_name[name], share[name]
            kind = plain_opcode(member.opcode)
            for k, operand in enumerate(member.operands):
                operand = operand if operand in self.number else operand.partition("#")[0]
                if operand not in self.number or (kind in WRITES_IN_PLACE and not k):
                    continue
                wanted = 1.0 if kind in HEADS else part
                if kind in TAKES_PART and not k and operand in self.tiles and name in self.tiles:
                    taken = self.tiles[name].elements / max(1, self.tiles[operand].elements)
                    wanted = min(1.0, part * taken)
                if operand not in self.through or len(share) > _MOST_BEHIND:
                    read[operand] = min(1.0, read.get(operand, 0.0) + wanted)
                elif operand in share:
                    share[operand] = max(share[operand], wanted)
                else:
                    share[operand] = wanted
                    heappush(open_, -self.number[operand])
        return read, share

    def _is_near(self, name: str) -> bool:
        """Whether a value stays in vector memory."""
        return name == self.prefetched or name in self.arrived or name in self.near

    def price(self, runs: int = 1, begin: float = 0.0, trips: int = 1) -> float:
        """Microseconds of one run; the rows, in the order of the text, and how many were priced stand in the object.

        ``runs``: how often the computation runs in a step; rows count all runs. ``begin``: when the first begins.
        ``trips``: how many of the runs have what is done before a loop in common.
        """
        self.clock, self.runs = begin, runs
        early = streamed = 0.0
        scalars = set[str]()
        seconds = {name for names in self.joined.values() for name in names}
        for op in self.operations:
            kind, often = plain_opcode(op.opcode), runs // trips if op.name in self.hoisted else runs
            scalar = op.name in self.tiles and not self.tiles[op.name].shape and kind in ELEMENTWISE
            if scalar and not self.computation.entry:  # a loop's counters and indices: a kernel each
                behind = any(name in scalars for name in op.operands)
                scalars.add(op.name)
                self._add(op, Run(self.chip.kernel["scalar_us" if behind else "launch_us"], "latency"), often)
                continue
            if op.name in self.through or op.name in seconds or kind in TAKES_NO_TIME | {"iota"}:
                continue
            if scalar and op.name in self.results:
                continue
            streamed += self._add_copies(op, runs, of_operands=True)
            if kind == "while" and op.calls and op.name not in self.broken:
                self._loop(op)
                if self._trips(op) is not None:
                    continue
            try:
                run, weights = self._kernel(op)
            except NoTime as error:
                self._skip(op, error.what)
                continue
            self.begun = True
            streamed, early = streamed + run.megabytes * often / runs, early + weights
            self._add(op, run, often)
            streamed += self._add_copies(op, runs, of_operands=False)
        arriving, us = self.chip.stream_us(early), self.clock - begin
        hbm = arriving + self.chip.stream_us(streamed)
        if early:
            waits = max(0.0, hbm - us)
            run = Run(waits, "hbm" if waits else "latency", early, lane="dma", begun=begin, beside=arriving)
            self.rows.append(timed(self.chip, _ARGUMENTS, run, start=self.clock, runs=runs))
        return max(us, hbm)

    def _add(self, op: Operation, run: Run, often: int) -> None:
        """The row of an operation that runs ``often`` in all; the clock goes on by its part of one run."""
        source = self.context.source(self.computation.name, op)
        kernel = replace(op, operand_shapes=self.shapes.get(op.name, op.operand_shapes))
        self.rows.append(timed(self.chip, kernel, run, source, self.clock, often))
        self.clock, self.priced = self.clock + self.rows[-1].seconds / self.runs * 1e6, self.priced + 1

    def _skip(self, op: Operation, reason: str) -> None:
        """The row of an operation without a time, with the flops of what it calls."""
        source = self.context.source(self.computation.name, op)
        result = [self.tiles[op.name]] if op.name in self.tiles else []
        row = untimed(op, reason, source, self.clock, self.runs, self._operands(op), result)
        called = self._flops_inside(op, {}) * self.runs if op.calls and plain_opcode(op.opcode) != "while" else 0
        self.rows.append(replace(row, untimed_flops=row.untimed_flops + called))

    def _copies(self, op: Operation) -> list[Operation]:
        """What turns an operation's operands before it or its result behind it, or copies a result returned again."""
        again = Operation(op.name, "copy", op.shape, (op.name,), (op.shape,))
        return [*self.copied.get(op.name, ()), *[again] * self.returned_again.get(op.name, 0)]

    def _add_copies(self, op: Operation, runs: int, of_operands: bool) -> float:
        """The rows of the copies of what an operation takes, or of what it gives; their megabytes."""
        streamed = 0.0
        for copy in self._copies(op):
            if (copy.operands[0] in op.operands) == of_operands:
                run = self._copied(op, copy)
                self._add(copy if copy.name != op.name else replace(copy, name=f"{op.name}.copy"), run, runs)
                self.priced, streamed = self.priced - 1, streamed + run.megabytes
        return streamed

    @staticmethod
    def _is_kept(op: Operation, copy: Operation) -> bool:
        """Whether a copy keeps an argument that an update or a loop changes: it lies as the argument lay."""
        in_place = plain_opcode(op.opcode) in WRITES_IN_PLACE.keys() | {"while"}
        return in_place and copy.operand_shapes == (copy.shape,) and copy.operands[0] in op.operands

    def _loop(self, op: Operation) -> None:
        """The body of a loop, as often as it runs; its carried arrays stay where they are."""
        trips, begin = self._trips(op), self.clock
        trips = 1 if trips is None else trips
        for callee in reversed(op.calls if trips else ()):
            asked = callee != op.calls[-1]  # whether it goes on is asked once more than it does
            inside = Fusing(self.chip, self.context, self.context.program.by_name[callee], self)
            self.clock += inside.price(self.runs * (trips + asked), self.clock, 1 if asked else trips)
            self.rows, self.priced = self.rows + inside.rows, self.priced + inside.priced
        self.clock = begin + (self.clock - begin) * trips

    def _flops_inside(self, op: Operation, known: dict[str, int], depth: int = 0) -> int:
        """Multiplications and additions of all that an operation without a time calls, loops as often as they run."""
        total = 0
        for callee in op.calls if depth < DEEPEST else ():
            if callee not in known:
                known[callee] = 0  # for the rare text whose calls go round
                for inner in self.context.program.by_name[callee].operations:
                    arrays = self._arrays(inner.operand_shapes), self._arrays([inner.shape])
                    known[callee] += self._flops_inside(inner, known, depth + 1) + flops_of(inner, *arrays)
            trips = self._trips(op) if plain_opcode(op.opcode) == "while" else 1
            total += known[callee] * (1 if trips is None else trips)
        return total

    def _arrays(self, shapes: Sequence[str]) -> list[Tiles]:
        """The arrays of shapes that can be read."""
        found: list[Tiles] = []
        for shape in shapes:
            with suppress(TilewrightError, OverflowError):
                found += map(Tiles.of, self.context.layouts(shape))
        return found

    def _trips(self, op: Operation) -> int | None:
        """How often a loop's body runs, None where that is not known."""
        trips = self.context.runs[op.calls[-1]].trips
        return trips[-1] if trips else None

    def _unknown(self, op: Operation) -> str:
        """Why an operation has no time, "" where it has one."""
        kind = plain_opcode(op.opcode)
        if kind == "while":
            return "how often it runs is not known: its operations count once"
        if any("?" in shape for shape in (op.shape, *op.operand_shapes)):
            return "the size of its arrays is not known"
        if kind == "custom-call" and TARGET in op.attributes.get("custom_call_target", ""):
            return ""
        if op.name not in self.tiles or kind == "custom-call" or (op.calls and kind not in _WITH_BODIES):
            return f"no mechanism for {kind} is known"
        if kind in COLLECTIVES and self.chip.torus is None:
            return "this chip's links are not known"
        return ""

    def _operands(self, op: Operation) -> list[Tiles]:
        """Its operands that are arrays, those of other computations too, which a region reads."""
        found: list[Tiles] = []
        for name, shape in zip(op.operands, op.operand_shapes):
            if name in self.tiles:
                found.append(self.tiles[name])
            elif name not in self.by_name:  # where it cannot be read, its own operation says so
                found += self._arrays([shape])
        return found

    def _turned_first(self, op: Operation, work: Work, share: float) -> float:
        """Megabytes that a copy before a batched product passes: a part of an activation, or what gets other lanes."""
        kind, result, operands = plain_opcode(op.opcode), self.tiles[op.name], self._operands(op)
        lanes = {*result.shape[-1:], *(operands[0].shape[-1:] if operands else ())}
        if kind == "reshape" and len(lanes) == 2 and 1 not in lanes:
            work.rotations += share * result.elements / REGISTER
        elif kind != "slice" or op.operands[0] in self.arguments:
            return 0.0
        return 2 * result.megabytes

    def _by_sparsecores(self, op: Operation, operands: Sequence[Tiles]) -> float:
        """Microseconds of a gather that SparseCores do: of many rows of a large table, of more than bytes; else 0."""
        if len(operands) < 2 or not self.context.chip or not self.context.chip.sparse or not self.computation.entry:
            return 0.0
        result, table = self.tiles[op.name], operands[0]
        rows = gathered_rows(op, operands[1], result)
        bits = 8 * 1e6 * table.megabytes / max(1, table.elements)
        if rows < _MANY_ROWS or table.megabytes < _LARGE_TABLE_MB or bits <= 8:
            return 0.0
        return self.chip.gathered_us(op, rows, result.megabytes)[0]

    def _read_again(self, op: Operation) -> float:
        """Megabytes that a product's blocks read more than once: each column of blocks reads the left operand anew."""
        operands = self._operands(op)
        dims = product_sizes(op, operands, self.tiles[op.name]) if plain_opcode(op.opcode) in DOTS else None
        if dims is None or len(operands) < 2:
            return 0.0
        batch, rows, columns, _ = dims
        left, right = (tiles.megabytes / batch for tiles in operands[:2])
        if min(left, right) <= _BLOCK_MB:
            return 0.0
        cut = left * (columns / _BLOCK - 1) + right * (rows / _BLOCK - 1)
        whole = min(left * (right / _BLOCK_MB - 1), right * (left / _BLOCK_MB - 1))
        return batch * max(0.0, min(cut, whole))

    def _transformed(self, op: Operation, work: Work) -> tuple[float, int]:
        """Add what a Fourier transform asks, as it is compiled to: megabytes that it keeps between, and its kernels.

        A product with the roots for each factor of a length up to 128, real and imaginary parts apart, between them
        the twiddles and a copy into the next one's order (seen on v5e, v5p, v6e, 7x).
        """
        points, stages = max(tiles.elements for tiles in (self.tiles[op.name], *self._operands(op))), 0
        for length in op.integers("fft_length"):
            while length > 1:
                factor = next((n for n in range(min(length, LANES), 1, -1) if length % n == 0), length)
                work.matrix_us += 4 * self.chip.matrix_us(points // factor, factor, factor)
                work.products["bf16"] += 8 * points * factor
                length, stages = length // factor, stages + 1
        work.registers += stages * _TWIDDLES * points / REGISTER
        work.rotations += stages * 2 * points / REGISTER
        return stages * _TWIDDLES * 2 * 4e-6 * points, stages * _TWIDDLES

    def _grouped(self, op: Operation, operands: Sequence[Tiles], work: Work) -> tuple[float, int] | None:
        """Add what a grouped product asks of the matrix unit; megabytes that its blocks read again, and its steps.

        Rows pass in blocks of the unit's side, and one more for each group, as groups end inside blocks. Beside them
        stand the largest blocks of weights, or of a result summed over the rows, that leave 8 MiB of what a kernel may
        hold: so cut 65 of 65 modules that a compiler made. A fusion that masks rows has 4 MiB for weights, a
        third of that for sums, cut so that least is read again (24 modules of v6e). None if its sizes are unknown.
        """
        result, machine = self.tiles[op.name], self.context.chip
        sizes, vmem = product_sizes(op, operands, result), machine.memory("vmem") if machine else None
        if sizes is None or len(operands) < 3 or machine is None or machine.matrix is None or vmem is None:
            return None
        _, rows, columns, depth = sizes
        side, summed = machine.matrix.rows, len(result.shape) > len(operands[0].shape)
        groups = result.shape[0] if summed else prod(operands[2].shape[-1:])
        left, right = (1e6 * tiles.megabytes / max(1, tiles.elements) for tiles in operands[:2])
        masked = machine.compiler_masks_groups and not is_turned(op)
        room, step = vmem.kernel_bytes - _KEPT_FREE, side

        def largest(size: int, fixed: float, each: float) -> int:
            fitting = int((room - fixed - 1) / each) // side * side
            return max(side, min(fitting, -(-size // side) * side))

        if masked and summed:
            most = vmem.kernel_bytes // 12  # sums are float32
            cuts = [(n, -(-rows // max(side, most // -(-columns // n)))) for n in range(1, -(-columns // side) + 1)]
            across, down = min(cuts, key=lambda cut: cut[0] * operands[0].megabytes + cut[1] * operands[1].megabytes)
            wide, high = -(-columns // across), -(-rows // down)
        elif masked:
            lanes, widest = -(-columns // LANES), _MASKED_WEIGHTS / depth / right
            fitting = (lanes // n * LANES for n in range(1, lanes + 1) if lanes % n == 0)
            high, wide = 0, next((width for width in fitting if width <= widest), LANES)
            step = side // 2 if side * depth * left > vmem.kernel_bytes / 16 else side
        elif summed:
            high = largest(rows, 2 * side * side * right, 2 * side * left + 16 * side)
            wide = largest(columns, 2 * side * high * left, 2 * side * right + 16 * high)
        else:
            high, wide = 0, largest(columns, 2 * side * depth * left, 2 * depth * right + 16 * side)
        across, down = -(-columns // wide), -(-rows // high) if high else 1
        blocks = -(-(depth if summed else rows) // step) + groups - 1
        shape = (down * high, across * wide, blocks * step) if summed else (blocks * step, across * wide, depth)
        work.matrix_us += self.chip.matrix_us(*shape) / (_SUMMED if summed and not masked else _GROUPED)
        work.products[matrix_type(op)] += 2 * rows * columns * depth
        again = operands[0].megabytes * (across - 1) + operands[1].megabytes * (down - 1)
        return again, across * down * blocks if masked else 1

    def _asked(self, op: Operation) -> tuple[Asked, float, float, int]:
        """What a kernel asks, megabytes of arguments that come early or earlier, and how many others start for it."""
        kind, result, near_mb = plain_opcode(op.opcode), self.tiles[op.name], self.chip.kernel["near_result_mb"]
        read, members = self._members(op)
        asked, early, resident, starts, steps = Asked(Work(), Windows()), 0.0, 0.0, 0, 1
        written, turned = result.megabytes, 0.0
        for name in self.joined.get(op.name, ()):
            more, made = self._members(self.by_name[name])
            read, members = more | read, made | members
            written += self.tiles[name].megabytes
        read = {name: share for name, share in read.items() if name not in {op.name, *self.joined.get(op.name, ())}}
        self.shapes[op.name] = tuple([self.by_name[name].shape for name in read])
        batched = [name for name in members if self.by_name[name].integers("lhs_batch_dims")]
        last = max((self.number[name] for name in batched), default=0)
        for name, share in members.items():
            member = self.by_name[name]
            if name not in self.tiles or (of := plain_opcode(member.opcode)) in TAKES_NO_TIME:
                continue
            operands = self._operands(member)
            if of == "gather" and (us := self._by_sparsecores(member, operands)):
                asked.work.sparse_us += us
                continue
            if of == "ragged-dot" and (grouped := self._grouped(member, operands, asked.work)):
                asked.again, steps = asked.again + grouped[0], grouped[1]
                continue
            if of == "scatter" and len(operands) > 1:  # each row is fetched, too; single numbers go to SparseCores
                rows = gathered_rows(member, operands[1], self.tiles[name])
                if prod(operands[-1].shape) == rows and self.context.chip and self.context.chip.sparse:
                    asked.work.sparse_us += self.chip.sparse_us(0, 0, sum(tiles.megabytes for tiles in operands))
                    continue
                asked.work.rows += rows
            if of == "fft":
                kept, kernels = self._transformed(member, asked.work)
                turned, starts = turned + kept, starts + kernels
                continue
            if of != "reshape" or name not in self.copied:  # else the product's order is kept, and the copy turns it
                add_operation(asked.work, self.chip.kernel, member, operands, self.tiles[name], share)
            asked.again += self._read_again(member)
            if self.number[name] < last and (copied := self._turned_first(member, asked.work, share)):
                turned, starts = turned + copied, starts + 1
            starts += kind != "reduce" == of
            if of == "gather" and operands and _across_lanes(member, operands[0]):
                asked.far += operands[0].megabytes
                asked.work.rotations += share * operands[0].elements / REGISTER
        passing = [(written, self._is_near(op.name)), (turned, turned <= near_mb)]
        if kind in WRITES_IN_PLACE and len(op.operands) > WRITES_IN_PLACE[kind]:
            update = self.tiles.get(op.operands[WRITES_IN_PLACE[kind]], result)
            own = written if op.operands[0] in self.through else min(written, update.megabytes)
            passing[0] = own, self._is_near(op.name)
        for name, share in read.items():
            megabytes = share * self.tiles[name].megabytes if name in self.tiles else 0.0
            streams_early = name in self.arguments and megabytes <= _STREAMED_MB and self.computation.entry
            if megabytes and streams_early and name != self.prefetched and self.begun and name not in self.arrived:
                early += megabytes
                self.arrived |= {name} if share == 1 and megabytes <= near_mb else set()
            elif megabytes:
                passing.append((megabytes, self._is_near(name)))
                resident += self.tiles[name].megabytes if name == self.prefetched else 0.0
        asked.near = sum(megabytes for megabytes, near in passing if near)
        asked.far += sum(megabytes for megabytes, near in passing if not near)
        asked.windows = Windows((max(steps, round(max(asked.far, asked.near) / _WINDOW_MB)),))
        if self.chip.kernel["common_mb_per_us"]:
            asked.near, asked.common = 0.0, asked.near
        asked.scalar = not result.shape and asked.far < 0.001
        return asked, early, resident, starts

    def _kernel(self, op: Operation) -> tuple[Run, float]:
        """What one run of the kernel takes and streams itself, and megabytes of arguments that came early.

        Raises :class:`NoTime` where nothing is known of it.
        """
        if reason := self.broken.get(op.name) or self._unknown(op):
            raise NoTime(reason)
        kind = plain_opcode(op.opcode)
        if kind == "custom-call":
            numbered = [(k, tiles) for k, shape in enumerate(op.operand_shapes) for tiles in self._arrays([shape])[:1]]
            return self.pallas.run(op, numbered, self._arrays([op.shape])), 0.0
        constants, result = self.chip.kernel, self.tiles[op.name]
        if kind in COLLECTIVES and self.chip.torus:
            devices = devices_of(self.context.program)
            sums = as_sum(as_scatter(op, self.in_part), devices, MEGA * result.megabytes, self.chip.torus.dims)
            operands = [result] if sums.operand_shapes == (op.shape,) else self._operands(op)
            us, megabytes = self.chip.torus.exchange_us(sums, operands, [result], devices, self.slice)
            return Run(us, "link", megabytes, lane="link", measured=False), 0.0
        asked, early, resident, starts = self._asked(op)
        if asked.work.unknown:
            raise NoTime(asked.work.unknown[0])
        return run_of(self.chip, kind, asked, starts * constants["near_launch_us"], resident), early

    def _copied(self, op: Operation, turned: Operation) -> Run:
        """What turns an operand of a kernel before it, or its result behind it, or keeps an argument."""
        tiles, ends = self._arrays([turned.shape])[0], [turned.operands[0].removesuffix(".turned"), turned.name]
        ends[1] = ends[1] if ends[1] in self.tiles else op.name
        near = sum(self._is_near(name) for name in ends if name in self.tiles) * tiles.megabytes
        far = 2 * tiles.megabytes - near
        work = Work() if self._is_kept(op, turned) else Work(rotations=tiles.elements / REGISTER)
        windows = Windows((max(1, round(max(far, near) / _WINDOW_MB)),))
        return run_of(self.chip, "copy", Asked(work, windows, far, near=near))
