"""StableHLO priced by a stated model of what the TPU compiler fuses; there is no schedule, so none is claimed.

* The kernels, and where their arrays lie, are those of ``semantics.placing``.
* Arguments stream in beside the compute, so that the step takes the longer of kernels and HBM.
* In a loop every operation on one number is a kernel; the first of a chain takes a launch.
* A gather of many rows of a large table is left to SparseCores. One of rows that lie across the lanes turns its table
  first; what a batched product takes of an activation is cut out and turned first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.opcodes import COLLECTIVES, DOTS, ELEMENTWISE, FREE, TAKES_NO_TIME, WRITES_IN_PLACE
from tilewright.hlo.program import Computation, Operation
from tilewright.hlo.semantics.collectives import as_scatter, as_sum
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.dims import gathered_rows, matrix_type, product_flops
from tilewright.hlo.semantics.fusions import captured_names
from tilewright.hlo.semantics.placing import GroupedBlocks, Placed, across_lanes
from tilewright.hlo.semantics.tiles import MEGA, Tiles
from tilewright.hlo.timing.chip import Chip
from tilewright.hlo.timing.kernels import Kernels
from tilewright.hlo.timing.row import Run, flops_of, run_of, timed, untimed
from tilewright.hlo.timing.step import TimeRow
from tilewright.hlo.timing.work import COMMON, HBM, NEAR, REGISTER, SORTS, NoTime, Work, add_operation, matrix_us

_WITH_BODIES = SORTS | COLLECTIVES | {"reduce", "reduce-window", "scatter", "select-and-scatter", "map"}
"""Operations whose kernel is known beside the computation that they call."""
_STREAMED_MB = 40.0
"""Arguments above this are not brought in early: the kernel streams them."""
_GROUPED, _SUMMED = 0.75, 0.38
"""A grouped product's share of the matrix unit's rate (seen on v5e, v5p, 7x); where a kernel sums over the rows it
turns them, and adds to sums in vector memory (7x)."""
_TWIDDLES = 6
"""Operations of the vector unit that one stage of a Fourier transform takes for each point, and its kernels."""
_WINDOW, _WINDOW_MB = 128, 5.0
"""Elements of the widest window that is passed at once; megabytes of one window of a kernel's arrays."""
_MANY_ROWS, _TABLE_MB, _LARGE_TABLE_MB = 2048, 2.0, 24.0
"""Rows, and megabytes of a table, from which a gather is left to SparseCores; of a table that is not large no more than
it has, of four bytes an element (90 modules of v6e and 7x)."""


def _is_wide(op: Operation) -> bool:
    """Whether a chip without arithmetic of bfloat16 does an operation in float32; of conversions only those from and
    to bfloat16 are no others."""
    kind = plain_opcode(op.opcode)
    if kind == "convert":
        return all(shape.startswith(("bf16[", "f32[")) for shape in (op.shape, *op.operand_shapes))
    return kind in ELEMENTWISE or kind in ("concatenate", "reduce")


class Fusing(Placed):
    """The kernels that one computation of a StableHLO program will become, with their time."""

    def __init__(self, chip: Chip, context: Context, computation: Computation, outer: Fusing | None = None) -> None:
        captured = outer.captured if outer else captured_names(context.program)
        super().__init__(context, chip.machine, chip.kernel, computation, captured)
        self.chip = chip
        self.pallas: Kernels = outer.pallas if outer else Kernels(context, chip)
        self.wide = {op.name for op in self.operations if chip.machine.compiler_widens and _is_wide(op)}
        self.begun = False  # whether a kernel has run, beside which arguments can come in
        self.arrived = set[str]()  # those that came, and stay for whoever reads them next
        self.rows: list[TimeRow] = []
        self.shapes: dict[str, tuple[str, ...]] = {}  # of a kernel: what it reads
        self.clock, self.runs = 0.0, 1

    def _memory(self, near: bool) -> int:
        """The memory of what stays near the core, or does not."""
        return HBM if not near else COMMON if self.chip.kernel["common_mb_per_us"] else NEAR

    def _lies_in(self, name: str) -> int:
        """The memory that a value lies in."""
        return self._memory(name == self.prefetched or name in self.arrived or name in self.near)

    def _run(self, kind: str, work: Work) -> Run:
        """What a kernel takes that passes its arrays in as many windows as they fill, if no steps of it are known."""
        windows = round(max(work.moved.values(), default=0.0) / _WINDOW_MB)
        work.steps = max(work.steps, windows - 1)
        return run_of(self.chip, kind, work)

    def price(self, runs: int = 1, begin: float = 0.0, trips: int = 1) -> float:
        """Microseconds of one run; the rows, in the order of the text, stand in the object.

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
                us = self.chip.kernel["scalar_us" if behind else "launch_us"]
                self._add(op, Run(us, "latency", kind="elementwise"), often)
                continue
            if op.name in seconds or kind in TAKES_NO_TIME or kind == "iota" or (scalar and op.name in self.results):
                continue
            if kind in ("case", "if") and op.calls:
                self._longest(op)
                continue
            try:
                for each in self.kernels.get(op.name, ()):
                    if each.opcode == "copy":
                        run = self._copied(each)
                        self._add(each if each.name != op.name else replace(each, name=f"{op.name}.copy"), run, runs)
                        streamed += run.megabytes
                    elif kind == "while" and op.name not in self.broken:
                        self._loop(op)
                    else:
                        run, weights = self._kernel(op)
                        self.begun = True
                        streamed, early = streamed + run.megabytes * often / runs, early + weights
                        self._add(op, run, often)
            except NoTime as error:
                self._skip(op, error.what)
        arriving, us = self.chip.stream_us(early), self.clock - begin
        hbm = arriving + self.chip.stream_us(streamed)
        if early:  # weights that stream in beside the kernels, and results that are read again and stream out
            waits = max(0.0, hbm - us)
            run = Run(waits, "hbm" if waits else "latency", early, lane="dma", begun=begin, beside=arriving)
            op = Operation("arguments", "stream", "")
            self.rows.append(timed(self.chip, op, run, start=self.clock, runs=runs))
        return max(us, hbm)

    def _add(self, op: Operation, run: Run, often: int) -> None:
        """The row of an operation that runs ``often`` in all; the clock goes on by its part of one run."""
        source = self.context.source(self.computation.name, op)
        kernel = replace(op, operand_shapes=self.shapes[op.name]) if op.name in self.shapes else op
        self.rows.append(timed(self.chip, kernel, run, source, self.clock, often))
        self.clock += self.rows[-1].seconds / self.runs * 1e6

    def _skip(self, op: Operation, reason: str) -> None:
        """The row of an operation without a time, with the flops of all that it calls, in all runs."""
        source = self.context.source(self.computation.name, op)
        result = [self.tiles[op.name]] if op.name in self.tiles else []
        row = untimed(op, reason, source, self.clock, self.runs, self.operand_tiles(op), result)
        flops, reached = row.untimed_flops, [*op.calls] if plain_opcode(op.opcode) != "while" else []
        for name in reached:
            for inner in self.context.program.by_name[name].operations:
                reached += [callee for callee in inner.calls if callee not in reached]
                once = flops_of(inner, self.arrays(inner.operand_shapes), self.arrays([inner.shape]))
                flops += once * self.context.runs[name].count
        self.rows.append(replace(row, untimed_flops=flops))

    def _loop(self, op: Operation) -> None:
        """The body of a loop, whose carried arrays stay where they are; raises :class:`NoTime` of unknown trips."""
        known, begin = (self.context.runs[op.calls[-1]].trips or (None,))[-1] if op.calls else None, self.clock
        trips, us = 1 if known is None else known, 0.0
        again = list[tuple[Operation, Run]]()  # what was turned for the loop is turned back
        for callee in reversed(op.calls if trips else ()):
            asked = callee != op.calls[-1]  # whether it goes on is asked once more than it does
            inside = Fusing(self.chip, self.context, self.context.program.by_name[callee], self)
            if self.computation.entry and not asked:
                again += self._turned_for(op, inside)
                begin = self.clock
            us = inside.price(self.runs * (trips + asked), self.clock, 1 if asked else trips)
            self.clock += us
            self.rows += inside.rows
        self.clock = begin + (self.clock - begin) * trips + us  # of the condition, asked once more
        for copy, run in again:
            self._add(copy, run, self.runs)
        if known is None:
            raise NoTime("how often it runs is not known: its operations count once")

    def _turned_for(self, op: Operation, inside: Fusing) -> Iterator[tuple[Operation, Run]]:
        """Copies of what a loop carries in another order than it has outside: before it, and given back, behind it."""
        carried = [*inside.arguments][: len(op.operands)]
        for k in (carried.index(name) for name in inside.turned if name in carried):
            shape, name, lies = op.operand_shapes[k], f"{op.name}.copy{k}", inside.tiles[carried[k]]
            before = self._lies_in(op.operands[k]), self.tiles.get(op.operands[k], lies)
            run = self._copy(lies.elements, before, (inside._lies_in(carried[k]), lies))
            if name not in [each.name for each in self.kernels[op.name]]:  # nothing that is kept is copied twice
                self._add(Operation(name, "copy", shape, op.operands[k : k + 1], (shape,)), run, self.runs)
            yield Operation(f"{op.name}.copy.{k}", "copy", shape, (f"{op.name}#{k}",), (shape,)), run

    def _longest(self, op: Operation) -> None:
        """The longest branch of a conditional, whose branches read what stands around it; of the others what has no
        time."""
        branches: list[tuple[float, Fusing]] = []
        for body in (self.context.program.by_name[name] for name in op.calls):
            named = (pair for inner in body.operations for pair in zip(inner.operands, inner.operand_shapes))
            own = body.named.keys()
            read = {name: shape for name, shape in named if own.isdisjoint((name, name.partition("#")[0]))}
            given = (Operation(name, "parameter", shape) for name, shape in read.items())
            inside = Fusing(self.chip, self.context, replace(body, operations=(*given, *body.operations)), self)
            inside.near -= {name for name in read if self._lies_in(name) == HBM}
            branches.append((inside.price(self.runs, self.clock), inside))
        us, longest = max(branches, key=lambda branch: branch[0])
        self.clock += us
        self.rows += longest.rows
        self.rows += [row for _, inside in branches if inside is not longest for row in inside.rows if row.unpriced]

    def _turn_first(self, op: Operation, work: Work, share: float) -> float:
        """Megabytes that a copy before a batched product passes: a part of an activation, or what gets other lanes."""
        kind, result, operands = plain_opcode(op.opcode), self.tiles[op.name], self.operand_tiles(op)
        lanes = {*result.shape[-1:], *(operands[0].shape[-1:] if operands else ())}
        if kind == "reshape" and len(lanes) == 2 and 1 not in lanes:
            work.rotations += share * result.elements / REGISTER
        elif kind != "slice" or op.operands[0] in self.arguments:
            return 0.0
        work.starts += 1
        return 2 * result.megabytes

    def _by_sparsecores(self, op: Operation, operands: Sequence[Tiles]) -> float:
        """Microseconds of what SparseCores do; else 0: of a gather of many rows of a large table, of more than bytes;
        of a scatter of single numbers, or of many rows."""
        if len(operands) < 2:
            return 0.0
        table, result = operands[0], self.tiles[op.name]
        rows = gathered_rows(op, operands[1], result)
        many = self.machine.compiler_sends_rows and rows >= _MANY_ROWS
        if plain_opcode(op.opcode) == "scatter":
            sent, given = many and "32[" in op.shape, operands[-1]
            if not self.machine.sparse or not (sent or prod(given.shape) == rows):
                return 0.0
            return self.chip.sparse_us(0, 0, 2 * given.megabytes if sent else sum(t.megabytes for t in operands))
        bits = 8 * 1e6 * table.megabytes / max(1, table.elements)
        least = _TABLE_MB if bits >= 32 and result.elements <= table.elements else _LARGE_TABLE_MB
        if not (many and self.computation.entry) or bits <= 8 or table.megabytes < least:
            return 0.0
        return self.chip.gathered_us(op, rows, result.megabytes)[0]

    def _in_blocks(self, op: Operation, work: Work) -> None:
        """Add what windows of more than 128 ask, as cumulative sums have them: kernels for the sums within blocks of
        128, for those of the blocks and for both; the blocks stand in an order of their own, from and to copies."""
        tiles, window = self.tiles[op.name], op.integers("window_dimensions")
        if max(window, default=0) > _WINDOW and len(window) == len(tiles.shape):
            copies = (4, 1, 2)[min(2, tiles.minor_to_major.index(window.index(max(window))))]
            near = 2 * tiles.megabytes <= self.chip.kernel["near_result_mb"]
            work.moved[self._memory(near)] += 2 * (1 + copies) * tiles.megabytes
            work.rotations += copies * tiles.elements / REGISTER
            work.starts += 4 + copies

    def _convert(self, work: Work, written: set[str], shares: Mapping[str, float], members: Collection[str]) -> None:
        """Add what it takes to compute in float32: each value of bfloat16 becomes one where it is first taken, and one
        of bfloat16 where it is written, or a product takes it. Conversions of other types make either."""
        inside = self.wide.intersection(members)
        ends = written & inside
        for name in members:
            is_wide = name in inside
            ends.update([each for each in self.by_name[name].operands if (each in inside) != is_wide])
        for name in (name for name in shares if name in ends and name in self.tiles):  # in an order that stays
            kind = plain_opcode(self.by_name[name].opcode)
            converted = kind == "convert" and name not in self.wide
            if self.by_name[name].shape.startswith("bf16[") and kind not in FREE and not converted:
                work.registers += shares[name] * self.tiles[name].elements / REGISTER * self.chip.kernel["convert_ops"]

    def _transform(self, op: Operation, work: Work) -> None:
        """Add what a Fourier transform asks, as it is compiled to many kernels, with what lies between them.

        Products with the roots for a length up to 256, of others for each factor up to 128: three real ones, of float32
        in six passes. Between them are the twiddles and a copy into the next one's order (seen on v5e, v5p, v6e, 7x).
        """
        points, stages = max(tiles.elements for tiles in (self.tiles[op.name], *self.operand_tiles(op))), 0
        for length in op.integers("fft_length"):
            while length > 1:
                sizes = range(128, 1, -1) if length > 256 else ()
                factor = next((n for n in sizes if length % n == 0), length)
                work.matrix_us += 3 * 6 * matrix_us(self.chip.kernel, op, points // factor, factor, factor)
                work.products["bf16"] += 6 * points * factor
                length, stages = length // factor, stages + 1
        work.registers += stages * _TWIDDLES * points / REGISTER
        work.rotations += stages * 2 * points / REGISTER
        work.starts += stages * _TWIDDLES
        parts = 8e-6 * points  # megabytes, real and imaginary; a kernel's result lies beside what it reads
        near = self._memory(2 * parts <= self.chip.kernel["near_result_mb"])
        work.moved[near] += stages * _TWIDDLES * parts

    def _asked(self, op: Operation) -> tuple[Work, float]:
        """What a kernel asks, and megabytes of arguments that come early or earlier."""
        kind, near_mb = plain_opcode(op.opcode), self.chip.kernel["near_result_mb"]
        written_as = f"{op.name}.turned" if f"{op.name}.turned" in self.tiles else op.name
        result = self.tiles[written_as]
        read, members = self.found.pop(op.name) if op.name in self.found else self.members(op)
        work, early, written, between = Work(scalar=not result.shape), 0.0, result.megabytes, 0.0
        for name in self.joined.get(op.name, ()):
            more, inside = self.members(self.by_name[name])
            read, members = more | read, inside | members
            written += self.tiles[name].megabytes
        read = {name: share for name, share in read.items() if name not in {op.name, *self.joined.get(op.name, ())}}
        self.shapes[op.name] = tuple([self.by_name[name].shape for name in read])
        batched = [name for name in members.keys() - self.of_vectors if self.by_name[name].integers("lhs_batch_dims")]
        last = max((self.number[name] for name in batched), default=0)
        for name, share in members.items():
            member = self.by_name[name]
            if name not in self.tiles or (of := plain_opcode(member.opcode)) in TAKES_NO_TIME:
                continue
            operands, made = self.operand_tiles(member), self.tiles[name]
            operands *= 2 if of == "sort" and len(operands) == 1 else 1  # a stable one takes the places along
            if of in ("gather", "scatter") and (us := self._by_sparsecores(member, operands)):
                work.apart_us += us
                continue
            if of == "ragged-dot" and (blocks := GroupedBlocks.of(member, operands, made, self.machine)):
                share = _SUMMED if blocks.sums else _GROUPED
                work.matrix_us += matrix_us(self.chip.kernel, member, *blocks.shape) / share
                work.products[matrix_type(member)] += product_flops(member, operands, made)
                work.again, work.steps = work.again + blocks.again, blocks.steps - 1
                continue
            if of == "reduce-window":
                self._in_blocks(member, work)
            if of == "fft":
                self._transform(member, work)
                continue
            turned = of == "reshape" and len(self.kernels.get(name, ())) > 1  # by a copy, from the product's order
            wide = self.machine.compiler_widens
            if not turned and (of != "convert" or name not in self.wide):
                add_operation(work, self.chip.kernel, member, operands, made, share, name in self.of_vectors, wide)
            work.again += self.read_again(member, operands) if of in DOTS else 0.0
            if self.number[name] < last:
                between += self._turn_first(member, work, share)
            if of == "gather" and operands and across_lanes(member, operands[0]):
                work.moved[HBM] += operands[0].megabytes
                work.rotations += share * operands[0].elements / REGISTER
            work.starts += kind != "reduce" == of
        if self.machine.compiler_widens:
            self._convert(work, {op.name, *self.joined.get(op.name, ())}, read | members, members)
        turning = (each for each in self.kernels[op.name] if each.opcode == "copy" and each.name in self.tiles)
        copies = {each.operands[0]: each.name for each in turning}
        if kind in WRITES_IN_PLACE and len(op.operands) > WRITES_IN_PLACE[kind]:
            update = self.tiles.get(op.operands[WRITES_IN_PLACE[kind]], result)
            written = written if op.operands[0] in self.through else min(written, update.megabytes)
        work.moved[self._lies_in(written_as)] += written
        if self.computation.entry and op.name in self.near & self.results:
            early += result.megabytes  # copied out behind the kernel, beside the others
        work.moved[self._memory(between <= near_mb)] += between
        for name, share in read.items():
            name = copies.get(name, name)
            megabytes = share * self.tiles[name].megabytes if name in self.tiles else 0.0
            streams_early = name in self.arguments and megabytes <= _STREAMED_MB and name != self.prefetched
            if streams_early and self.begun and self.computation.entry and name not in self.arrived:
                early += megabytes
                self.arrived |= {name} if share == 1 and megabytes <= near_mb else set()
            elif megabytes:
                work.moved[self._lies_in(name)] += megabytes
                work.resident += self.tiles[name].megabytes if name == self.prefetched else 0.0
        return work, early

    def _kernel(self, op: Operation) -> tuple[Run, float]:
        """What one run of the kernel takes and streams itself, and megabytes of arguments that came early.

        Raises :class:`NoTime` where nothing is known of it.
        """
        kind = plain_opcode(op.opcode)
        if op.name in self.broken:
            raise NoTime(self.broken[op.name])
        if any("?" in shape for shape in (op.shape, *op.operand_shapes)):
            raise NoTime("the size of its arrays is not known")
        if kind == "custom-call" and op.is_pallas:
            return self.pallas.run(op), 0.0
        if op.name not in self.tiles or kind == "custom-call" or (op.calls and kind not in _WITH_BODIES):
            raise NoTime(f"no mechanism for {kind} is known")
        if kind in COLLECTIVES:
            result, dims = self.tiles[op.name], self.chip.torus.dims if self.chip.torus else 0
            sums = as_sum(as_scatter(op, self.in_part), self.pallas.devices, MEGA * result.megabytes, dims)
            operands = [result] if sums.operand_shapes == (op.shape,) else self.operand_tiles(op)
            us, megabytes = self.pallas.exchange_us(sums, operands, [result])
            return Run(us, "link", megabytes, lane="link"), 0.0
        work, early = self._asked(op)
        return self._run(kind, work), early

    def _copied(self, copy: Operation) -> Run:
        """What turns an operand of a kernel before it, or its result behind it; or keeps an argument, as it lies."""
        of, sizes = self.by_name[copy.name.partition(".copy")[0]], self.arrays([copy.shape])
        if not sizes:
            raise NoTime("the size of its arrays is not known")
        tiles = self.tiles.get(copy.name, sizes[0])
        first = copy.operands[0] if copy.operands[0] in self.tiles else copy.operands[0].removesuffix(".turned")
        before = self.tiles.get(first, tiles)
        before = before if before.shape == tiles.shape else tiles
        in_place = plain_opcode(of.opcode) in WRITES_IN_PLACE.keys() | {"while"}
        kept = in_place and copy.operand_shapes == (copy.shape,) and copy.operands[0] in of.operands
        behind = self._lies_in(copy.name if copy.name in self.tiles else of.name), tiles
        return self._copy(0 if kept else tiles.elements, (self._lies_in(first), before), behind)

    def _copy(self, turned: int, *ends: tuple[int, Tiles]) -> Run:
        """What a copy takes between two memories that turns so many elements."""
        work = Work(rotations=turned / REGISTER)
        for memory, tiles in ends:
            work.moved[memory] += tiles.megabytes
        return self._run("copy", work)
