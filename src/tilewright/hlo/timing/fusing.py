"""StableHLO priced by a stated model of what the TPU compiler fuses; there is no schedule, so none is claimed.

* The kernels, and where their arrays lie, are those of ``semantics.placing``.
* Arguments stream in beside the compute and stay, so that the step takes the longer of kernels and HBM.
* In a loop every operation on one number is a kernel; the first of a chain takes a launch.
* A gather of many rows of a large table is left to SparseCores. One of rows that lie across the lanes turns its table
  first; what a batched product takes of an activation is cut out and turned first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.opcodes import COLLECTIVES, ELEMENTWISE, TAKES_NO_TIME, WRITES_IN_PLACE
from tilewright.hlo.program import Computation, Operation
from tilewright.hlo.semantics.collectives import as_scatter, as_sum
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.dims import devices_of, gathered_rows, matrix_type, product_flops
from tilewright.hlo.semantics.fusions import captured_names
from tilewright.hlo.semantics.placing import GroupedBlocks, Placed, across_lanes
from tilewright.hlo.semantics.tiles import MEGA, Tiles
from tilewright.hlo.timing.chip import Chip
from tilewright.hlo.timing.kernels import TARGET, Kernels
from tilewright.hlo.timing.row import NoTime, Run, flops_of, run_of, timed, untimed
from tilewright.hlo.timing.step import TimeRow
from tilewright.hlo.timing.work import LANES, REGISTER, SORTS, Asked, Windows, Work, add_operation, passes_of

_WITH_BODIES = SORTS | COLLECTIVES | {"reduce", "reduce-window", "scatter", "select-and-scatter", "map"}
"""Operations whose kernel is known beside the computation that they call."""
_NO_KERNEL = TAKES_NO_TIME | {"iota"}
_ARGUMENTS = Operation("arguments", "stream", "")
"""The row of weights that stream in beside the kernels."""
_STREAMED_MB = 40.0
"""Arguments above this are not brought in early: the kernel streams them."""
_GROUPED, _SUMMED = 0.75, 0.38
"""A grouped product's share of the matrix unit's rate (seen on v5e, v5p, 7x); where a kernel sums over the rows it
turns them, and adds to sums in vector memory (7x)."""
_TWIDDLES = 6
"""Operations of the vector unit that one stage of a Fourier transform takes for each point, and its kernels."""
_WINDOW_MB = 5.0
"""Megabytes of one window of a kernel's arrays."""
_MANY_ROWS, _LARGE_TABLE_MB = 2048, 2.0
"""Rows, and megabytes of a table, from which a gather is left to SparseCores."""


class Fusing(Placed):
    """The kernels that one computation of a StableHLO program will become, with their time."""

    def __init__(self, chip: Chip, context: Context, computation: Computation, outer: Fusing | None = None) -> None:
        captured = outer.captured if outer else captured_names(context.program)
        near_mb, early_mb = (chip.kernel[name] for name in ("near_result_mb", "between_calls_mb"))
        super().__init__(context, computation, captured, near_mb, early_mb, chip.near_bytes)
        self.chip = chip
        self.pallas: Kernels = outer.pallas if outer else Kernels(context, chip)
        self.begun = False  # whether a kernel has run, beside which arguments can come in
        self.arrived = set[str]()  # those that came, and stay for whoever reads them next
        self.rows: list[TimeRow] = []
        self.shapes: dict[str, tuple[str, ...]] = {}  # of a kernel: what it reads
        self.clock, self.runs = 0.0, 1

    def _is_near(self, name: str) -> bool:
        """Whether a value stays in vector memory."""
        return name == self.prefetched or name in self.arrived or name in self.near

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
                self._add(op, Run(self.chip.kernel["scalar_us" if behind else "launch_us"], "latency"), often)
                continue
            if op.name in self.through or op.name in seconds or kind in _NO_KERNEL:
                continue
            if scalar and op.name in self.results:
                continue
            streamed += self._add_copies(op, runs, of_operands=True)
            if kind == "while" and op.calls and op.name not in self.broken and self._loop(op):
                continue
            if kind in ("case", "if") and op.calls:
                self._longest(op)
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
        self.clock += self.rows[-1].seconds / self.runs * 1e6

    def _skip(self, op: Operation, reason: str) -> None:
        """The row of an operation without a time, with the flops of what it calls."""
        source = self.context.source(self.computation.name, op)
        result = [self.tiles[op.name]] if op.name in self.tiles else []
        row = untimed(op, reason, source, self.clock, self.runs, self.operand_tiles(op), result)
        called = self._flops_inside(op) if plain_opcode(op.opcode) != "while" else 0
        self.rows.append(replace(row, untimed_flops=row.untimed_flops + called))

    def _copies(self, op: Operation) -> list[Operation]:
        """What turns an operation's operands before it or its result behind it, or copies a result returned again."""
        again = Operation(op.name, "copy", op.shape, (op.name,), (op.shape,))
        return [*self.copied.get(op.name, ()), *[again] * (self.times_returned[op.name] - 1)]

    def _add_copies(self, op: Operation, runs: int, of_operands: bool) -> float:
        """The rows of the copies of what an operation takes, or of what it gives; their megabytes."""
        streamed = 0.0
        for copy in self._copies(op):
            if (copy.operands[0] not in (op.name, f"{op.name}.turned")) == of_operands:
                run = self._copied(op, copy)
                self._add(copy if copy.name != op.name else replace(copy, name=f"{op.name}.copy"), run, runs)
                streamed += run.megabytes
        return streamed

    @staticmethod
    def _is_kept(op: Operation, copy: Operation) -> bool:
        """Whether a copy keeps an argument that an update or a loop changes: it lies as the argument lay."""
        in_place = plain_opcode(op.opcode) in WRITES_IN_PLACE.keys() | {"while"}
        return in_place and copy.operand_shapes == (copy.shape,) and copy.operands[0] in op.operands

    def _loop(self, op: Operation) -> bool:
        """The body of a loop, whose carried arrays stay where they are; returns whether its trips are known."""
        known, begin = (self.context.runs[op.calls[-1]].trips or (None,))[-1], self.clock
        trips = 1 if known is None else known
        for callee in reversed(op.calls if trips else ()):
            asked = callee != op.calls[-1]  # whether it goes on is asked once more than it does
            inside = Fusing(self.chip, self.context, self.context.program.by_name[callee], self)
            self.clock += inside.price(self.runs * (trips + asked), self.clock, 1 if asked else trips)
            self.rows += inside.rows
        self.clock = begin + (self.clock - begin) * trips
        return known is not None

    def _longest(self, op: Operation) -> None:
        """The longest branch of a conditional, whose branches read what stands around it; of the others what has no
        time."""
        branches: list[tuple[float, Fusing]] = []
        for body in (self.context.program.by_name[name] for name in op.calls):
            own = {inner.name for inner in body.operations}
            read = {
                name: shape
                for inner in body.operations
                for name, shape in zip(inner.operands, inner.operand_shapes)
                if name not in own and name.partition("#")[0] not in own
            }
            given = (Operation(name, "parameter", shape) for name, shape in read.items())
            inside = Fusing(self.chip, self.context, replace(body, operations=(*given, *body.operations)), self)
            inside.near -= {name for name in read if not self._is_near(name)}
            branches.append((inside.price(self.runs, self.clock), inside))
        us, longest = max(branches, key=lambda branch: branch[0])
        self.clock += us
        self.rows += longest.rows
        self.rows += [row for _, inside in branches if inside is not longest for row in inside.rows if row.unpriced]

    def _flops_inside(self, op: Operation) -> int:
        """Multiplications and additions of all that an operation without a time calls, in all of its runs."""
        total, reached = 0, list(op.calls)
        for name in reached:
            for inner in self.context.program.by_name[name].operations:
                reached += [callee for callee in inner.calls if callee not in reached]
                flops = flops_of(inner, self.arrays(inner.operand_shapes), self.arrays([inner.shape]))
                total += flops * self.context.runs[name].count
        return total

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

    def _turned_first(self, op: Operation, work: Work, share: float) -> float:
        """Megabytes that a copy before a batched product passes: a part of an activation, or what gets other lanes."""
        kind, result, operands = plain_opcode(op.opcode), self.tiles[op.name], self.operand_tiles(op)
        lanes = {*result.shape[-1:], *(operands[0].shape[-1:] if operands else ())}
        if kind == "reshape" and len(lanes) == 2 and 1 not in lanes:
            work.rotations += share * result.elements / REGISTER
        elif kind != "slice" or op.operands[0] in self.arguments:
            return 0.0
        return 2 * result.megabytes

    def _by_sparsecores(self, op: Operation, operands: Sequence[Tiles]) -> float:
        """Microseconds of a gather that SparseCores do: of many rows of a large table, of more than bytes; else 0."""
        if len(operands) < 2 or not self.chip.machine.sparse or not self.computation.entry:
            return 0.0
        result, table = self.tiles[op.name], operands[0]
        rows = gathered_rows(op, operands[1], result)
        bits = 8 * 1e6 * table.megabytes / max(1, table.elements)
        if rows < _MANY_ROWS or table.megabytes < _LARGE_TABLE_MB or bits <= 8:
            return 0.0
        return self.chip.gathered_us(op, rows, result.megabytes)[0]

    def _transformed(self, op: Operation, work: Work) -> tuple[float, int]:
        """Add what a Fourier transform asks, as it is compiled to: megabytes that it keeps between, and its kernels.

        A product with the roots for each factor of a length up to 128, real and imaginary parts apart, between them
        the twiddles and a copy into the next one's order (seen on v5e, v5p, v6e, 7x).
        """
        points, stages = max(tiles.elements for tiles in (self.tiles[op.name], *self.operand_tiles(op))), 0
        for length in op.integers("fft_length"):
            while length > 1:
                factor = next((n for n in range(min(length, LANES), 1, -1) if length % n == 0), length)
                work.matrix_us += 4 * self.chip.matrix_us(points // factor, factor, factor)
                work.products["bf16"] += 8 * points * factor
                length, stages = length // factor, stages + 1
        work.registers += stages * _TWIDDLES * points / REGISTER
        work.rotations += stages * 2 * points / REGISTER
        return stages * _TWIDDLES * 2 * 4e-6 * points, stages * _TWIDDLES

    def _asked(self, op: Operation) -> tuple[Asked, float, float, int]:
        """What a kernel asks, megabytes of arguments that come early or earlier, and how many others start for it."""
        kind, near_mb = plain_opcode(op.opcode), self.chip.kernel["near_result_mb"]
        written_as = f"{op.name}.turned" if f"{op.name}.turned" in self.tiles else op.name
        result = self.tiles[written_as]
        read, members = self.found.pop(op.name) if op.name in self.found else self.members(op)
        asked, early, resident, starts, steps = Asked(Work(), Windows()), 0.0, 0.0, 0, 1
        written, turned = result.megabytes, 0.0
        for name in self.joined.get(op.name, ()):
            more, made = self.members(self.by_name[name])
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
            operands = self.operand_tiles(member)
            operands *= 2 if of == "sort" and len(operands) == 1 else 1  # a stable one takes the places along
            if of == "gather" and (us := self._by_sparsecores(member, operands)):
                asked.work.sparse_us += us
                continue
            of_groups = of == "ragged-dot"
            if of_groups and (blocks := GroupedBlocks.of(member, operands, self.tiles[name], self.chip.machine)):
                us = self.chip.matrix_us(*blocks.shape) / (_SUMMED if blocks.sums else _GROUPED)
                asked.work.matrix_us += us * passes_of(self.chip.kernel, member)
                asked.work.products[matrix_type(member)] += product_flops(member, operands, self.tiles[name]) or 0
                asked.again, steps = asked.again + blocks.again, blocks.steps
                continue
            if of == "scatter" and len(operands) > 1:  # each row is fetched, too; single numbers go to SparseCores
                count, machine = gathered_rows(member, operands[1], self.tiles[name]), self.chip.machine
                rows = machine.compiler_sends_rows and count >= _MANY_ROWS and "32[" in member.shape
                if machine.sparse and (rows or prod(operands[-1].shape) == count):
                    given = sum(tiles.megabytes for tiles in operands) if not rows else 2 * operands[-1].megabytes
                    asked.work.sparse_us += self.chip.sparse_us(0, 0, given)
                    continue
                asked.work.rows += count
            if of == "fft":
                kept, others = self._transformed(member, asked.work)
                turned, starts = turned + kept, starts + others
                continue
            if of != "reshape" or name not in self.copied:  # else the product's order is kept, and the copy turns it
                add_operation(asked.work, self.chip.kernel, member, operands, self.tiles[name], share)
            asked.again += self.read_again(member)
            if self.number[name] < last and (copied := self._turned_first(member, asked.work, share)):
                turned, starts = turned + copied, starts + 1
            starts += kind != "reduce" == of
            if of == "gather" and operands and across_lanes(member, operands[0]):
                asked.far += operands[0].megabytes
                asked.work.rotations += share * operands[0].elements / REGISTER
        copies = {copy.operands[0]: copy.name for copy in self.copied.get(op.name, ()) if copy.name in self.tiles}
        passing = [(written, self._is_near(written_as)), (turned, turned <= near_mb)]
        if kind in WRITES_IN_PLACE and len(op.operands) > WRITES_IN_PLACE[kind]:
            update = self.tiles.get(op.operands[WRITES_IN_PLACE[kind]], result)
            own = written if op.operands[0] in self.through else min(written, update.megabytes)
            passing[0] = own, self._is_near(op.name)
        for name, share in read.items():
            name = copies.get(name, name)
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
            numbered = [(k, tiles) for k, shape in enumerate(op.operand_shapes) for tiles in self.arrays([shape])[:1]]
            return self.pallas.run(op, numbered, self.arrays([op.shape])), 0.0
        if kind in COLLECTIVES and self.chip.torus:
            devices, result = devices_of(self.context.program), self.tiles[op.name]
            sums = as_sum(as_scatter(op, self.in_part), devices, MEGA * result.megabytes, self.chip.torus.dims)
            operands = [result] if sums.operand_shapes == (op.shape,) else self.operand_tiles(op)
            us, megabytes = self.chip.torus.exchange_us(sums, operands, [result], devices, self.pallas.slice)
            return Run(us, "link", megabytes, lane="link", measured=False), 0.0
        asked, early, resident, starts = self._asked(op)
        if asked.work.unknown:
            raise NoTime(asked.work.unknown[0])
        return run_of(self.chip, kind, asked, starts * self.chip.kernel["near_launch_us"], resident), early

    def _copied(self, op: Operation, turned: Operation) -> Run:
        """What turns an operand of a kernel before it, or its result behind it, or keeps an argument."""
        tiles = self.tiles.get(turned.name) or self.arrays([turned.shape])[0]
        first = turned.operands[0] if turned.operands[0] in self.tiles else turned.operands[0].removesuffix(".turned")
        before = self.tiles.get(first, tiles)
        before = before if before.shape == tiles.shape else tiles
        ends = (first, before), (turned.name if turned.name in self.tiles else op.name, tiles)
        near = sum(each.megabytes for name, each in ends if self._is_near(name))
        far = before.megabytes + tiles.megabytes - near
        work = Work() if self._is_kept(op, turned) else Work(rotations=tiles.elements / REGISTER)
        windows = Windows((max(1, round(max(far, near) / _WINDOW_MB)),))
        return run_of(self.chip, "copy", Asked(work, windows, far, near=near))
