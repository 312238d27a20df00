"""An optimised module, operation by operation in its order: kernels one behind the other, transfers beside them.

What stands in vector memory (S(1)) costs no HBM time. Copies and slices that are started early run beside the kernels;
what they still need when their result is wanted is a stall, a row of the ``-done`` operation.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import fsum, prod

from tilewright.errors import TilewrightError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.inlining import DEEPEST, operations_of
from tilewright.hlo.opcodes import COLLECTIVES, CONTROL, MARKER_CALLS, PRODUCTS, TAKES_NO_TIME, WRITES_IN_PLACE
from tilewright.hlo.program import Computation, Operation, aliases
from tilewright.hlo.reading.hlo_scan import split_top
from tilewright.hlo.semantics.collectives import as_scatter, read_in_part
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.demand import Demand
from tilewright.hlo.semantics.dims import gathered_rows, parts_in_fusions
from tilewright.hlo.semantics.tiles import MEGA, Tiles
from tilewright.hlo.timing.chip import Chip
from tilewright.hlo.timing.kernels import Kernels
from tilewright.hlo.timing.links import SLICES
from tilewright.hlo.timing.row import Run, run_of, timed, untimed
from tilewright.hlo.timing.step import TimeRow
from tilewright.hlo.timing.work import AFTER, HBM, HOST, REGISTER, NoTime, Windows, Work, add_operation, matrix_us

_UNPRICED = frozenset({"infeed", "outfeed", "send", "recv", "send-done", "recv-done"})
"""Operations whose other side has a speed that nobody states."""
_TOP = ("TopK", "mhlo.topk")
"""Custom calls that take the largest of each row."""
_STARTS = ("async-start", "call-start")
"""Operations that begin what a computation does beside others."""
_TRANSFERS = frozenset({"slice", "dynamic-slice", "dynamic-update-slice", "copy"})
"""Operations that a transfer does on its way, where nothing says which core they are done on."""
_NO_HOST = "the rate between this chip and its host is not public (--set TARGET.host_bandwidth=BYTES a second)"
_NO_NETWORK = "the rate between slices is not public for this chip (--set TARGET.network_bandwidth=BYTES a second)"
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="?([^",}]*)')
_MOST_OPERATIONS = 2_000_000
"""Operations from which calls are not followed: a few lines of calls of calls can ask for any number of them."""


@dataclass(frozen=True)
class _Begun:
    """What runs beside other work."""

    at: float  # microseconds after the step's begin
    ends: float  # microseconds after the step's begin
    lane: str = "dma"
    megabytes: float | None = None  # that it passes through HBM; None: those of what its end gives
    way: str = ""  # to or from the host, or between slices; ``ends`` is then how long it takes


def _way(*ends: Tiles) -> str:
    """``to`` or ``from`` the host's memory, "" for a transfer between others, or of what has no two ends."""
    spaces = [tiles.space for tiles in ends]
    return "" if len(spaces) != 2 or HOST not in spaces else "to" if spaces[1] == HOST else "from"


class Schedule:
    """The clock of one pass over the entry, in microseconds, and the rows of what has run."""

    def __init__(self, context: Context, chip: Chip) -> None:
        self.context, self.chip, self.kernels = context, chip, Kernels(context, chip)
        self.demand = Demand(context.program, lambda shape: self._megabytes([shape]))
        self.parts = parts_in_fusions(context.program)  # in how many fusions each exchange stands
        self.now, self.rows = 0.0, list[TimeRow]()
        self.free = defaultdict[str, float](float)  # when what comes next in a lane can begin
        self.begun: dict[str, _Begun] = {}  # what was started, by the name of the operation that did
        self.pending: dict[str, Operation] = {}  # calls that begin when an update gives them their operands
        # when the host's link, each way, and the network between slices carry what was waited for
        self.busy = defaultdict[str, list[tuple[float, float]]](list)
        self.meetings: dict[str, str] = {}  # what a ``recv`` calls the exchange that its ``send`` begins
        self.prefetched: dict[str, str] = {}  # start of a transfer that happened before the program -> its argument
        self.brought: dict[str, float] = {}  # argument -> megabytes that such transfers have brought
        self.counted = self.depth = 0
        self.place = "", 1  # the computation that runs and how often it does in all
        self.arrays = cache(lambda shape: [*map(Tiles.of, context.layouts(shape))])  # each text is read once
        self.works: dict[tuple[str, Windows], tuple[Work, dict[int, int]]] = {}

    def run(self, computation: Computation, runs: int) -> None:
        """The operations of a computation, which runs ``runs`` times in all."""
        outer, self.place, self.depth = self.place, (computation.name, runs), self.depth + 1
        for op in computation.operations:
            name = plain_opcode(op.opcode)
            if name in TAKES_NO_TIME:
                continue
            self.counted += 1
            try:
                if (run := self._operation(op, name)) is not None:
                    source = self.context.source(computation.name, op)
                    self.rows.append(timed(self.chip, op, run, source, self.now, runs))
                    self.now += self.rows[-1].seconds / runs * 1e6
            except NoTime as error:
                self._skip(op, error.what, error.megabytes)
            except (TilewrightError, OverflowError, IndexError, ValueError) as error:
                self._skip(op, f"its shapes cannot be read: {error}")
        self.place, self.depth = outer, self.depth - 1

    def _skip(self, op: Operation, reason: str, megabytes: float | None = None) -> None:
        """The row of an operation without a time; its results that are written over operands count once."""
        computation, runs = self.place
        over = {element or 0 for element, _, _ in aliases(op.attributes.get("output_to_operand_aliasing", ""))}
        try:
            elements = split_top(op.shape[1:-1]) if op.shape.startswith("(") else [op.shape]
            own = [element for number, element in enumerate(elements) if number not in over]
            arrays = self._tiles(op.operand_shapes), self._tiles(own)
        except (TilewrightError, OverflowError, ValueError):
            arrays = [], []
        row = untimed(op, reason, self.context.source(computation, op), self.now, runs, *arrays)
        self.rows.append(row if megabytes is None else replace(row, untimed_bytes=round(megabytes * MEGA) * runs))

    def _operation(self, op: Operation, name: str) -> Run | None:
        """What one run of an operation takes; None for what only begins something, or is made of others' rows."""
        if name == "unread":
            raise NoTime(f"not understood: {op.attributes.get('reason', '')}")
        if any("?" in shape for shape in (op.shape, *op.operand_shapes)):
            raise NoTime("the size of its arrays is not known")
        if name in CONTROL and (self.depth > DEEPEST or self.counted >= _MOST_OPERATIONS):
            raise NoTime("too many calls inside calls")
        if name == "while":
            self._loop(op)
        elif name in ("call", "conditional", *_STARTS) and op.calls:
            core = self.context.core(self.place[0], op)
            if name in _STARTS and not op.operands:
                self.pending[op.name] = op
            elif core or name.endswith("-start"):
                return self._offloaded(op, core)
            else:
                self._call(op)
        elif name in _UNPRICED and SLICES in op.attributes.get("frontend_attributes", ""):
            return self._between_slices(op, name)
        elif name in _UNPRICED:
            raise NoTime("the other side's speed is unknown")
        elif name.endswith("-done"):
            return self._done(op)
        elif name in COLLECTIVES:
            us, megabytes = self._link_us(op)
            begun = self.begun[op.name] = self._begin("link", us, megabytes)
            if not name.endswith("-start"):
                return Run(begun.ends - self.now, "link", megabytes, lane="link")
        elif name.endswith("-start"):
            self._start(op)
        elif name not in ("async-update", "call-update"):
            return self._kernel(op, name)
        else:
            start = op.operands[0]
            if waiting := self.pending.pop(start, None):
                self._offloaded(waiting, self.context.core(self.place[0], waiting))
            if start in self.begun:
                self.begun[op.name] = self.begun[start]  # what began, under another name
        return None

    def _loop(self, op: Operation) -> None:
        """A loop's body passes once, and the clock goes on by all its trips; its rows count all runs.

        Its condition runs once more than its body.
        """
        if any(trips[-1:] == (None,) for trips in (self.context.runs[callee].trips for callee in op.calls)):
            self._skip(op, "how often it runs is not known: its operations count once")
        for callee in op.calls:
            begin, inside = self.now, self.context.runs[callee]
            trips = inside.trips[-1] if inside.trips else 1
            times = 1 if trips is None else trips + (callee == op.calls[0])
            if count := min(self.place[1] * times, inside.count):
                self.run(self.context.program.by_name[callee], count)
            self.now = begin + (self.now - begin) * times

    def _call(self, op: Operation) -> None:
        """A call's body, or the longest branch of a conditional; of the others what has no time."""
        begin, rows = self.now, self.rows
        branches: list[tuple[float, list[TimeRow]]] = []
        for callee in op.calls:
            self.now, self.rows = begin, []
            self.run(self.context.program.by_name[callee], self.place[1])
            branches.append((self.now, self.rows))
        self.now, longest = max(branches, key=lambda branch: branch[0])
        others = (row for _, branch in branches if branch is not longest for row in branch if row.unpriced)
        rows += [*longest, *others]
        self.rows = rows

    def _tiles(self, shapes: Sequence[str]) -> list[Tiles]:
        """The arrays of the shapes."""
        return [tiles for shape in shapes for tiles in self.arrays(shape)]

    def _megabytes(self, shapes: Sequence[str]) -> float:
        return sum(tiles.megabytes for tiles in self._tiles(shapes))

    # What runs beside other work: transfers, exchanges with other chips, work of other cores.

    def _start(self, op: Operation) -> None:
        """A transfer begins when HBM is free; prefetches between programs have happened already."""
        if "cross_program_prefetch_index" in op.attributes:
            self.prefetched[op.name] = op.operands[0] if op.operands else op.name
            return
        given, sliced = self._tiles([op.shape])[:2], op.opcode == "slice-start"
        moved = given[1:] if sliced else given if op.opcode == "copy-start" else self._tiles(op.operand_shapes)[:2]
        ends = given if sliced else reversed(given)  # a copy's tuple begins with the result
        self._transfer(op.name, max((tiles.megabytes for tiles in moved), default=0.0), way=_way(*ends))

    def _transfer(self, name: str, megabytes: float, carried: float | None = None, way: str = "") -> None:
        """A transfer within the device; or one ``to`` or ``from`` the host, which passes HBM on its way.

        Of what is under way the host's link carries first what is waited for first: its wait says when it ends.
        """
        hosted = _Begun(self.now, self._host_us(megabytes), "host", carried, way) if way else None
        begun = self._begin("dma", self.chip.stream_us(megabytes), carried)
        self.begun[name] = hosted or begun

    def _host_us(self, megabytes: float) -> float:
        if self.chip.torus is None or not self.chip.torus.host:
            raise NoTime(_NO_HOST, megabytes)
        return megabytes / self.chip.torus.host

    def _carried(self, begun: _Begun) -> float:
        """When a transfer ends that the host's link or the network carries between all that was waited for before."""
        busy, left, ends = self.busy[begun.way], begun.ends, begun.at
        for start, stop in busy:
            if start - ends >= left:
                break
            left, ends = left - max(0.0, start - ends), max(ends, stop)
        ends += left
        beside = [span for span in busy if span[1] < begun.at or span[0] > ends]
        met = [time for span in busy if span not in beside for time in span]
        busy[:] = sorted([*beside, (min([begun.at, *met]), max([ends, *met]))])
        return ends

    def _begin(self, lane: str, us: float, megabytes: float | None) -> _Begun:
        """What runs in a lane when that is free: an exchange takes all links, and shares HBM with transfers."""
        at = max(self.free[lane], self.now)
        self.free[lane] = at + us
        if lane == "link" and megabytes:
            self.free["dma"] = max(self.free["dma"], at) + self.chip.stream_us(megabytes)
        return _Begun(at, at + us, lane, megabytes)

    def _done(self, op: Operation, start: str = "") -> Run:
        """The wait for what was started."""
        start = start or (op.operands[0] if op.operands else "")
        given, begun = fsum(tiles.megabytes for tiles in self._tiles([op.shape])), self.begun.get(start)
        if start in self.prefetched:
            self.brought[self.prefetched[start]] = given
        if begun is None:
            return Run(0.0, "latency", resident=given if start in self.prefetched else 0.0, lane="dma")
        ends = self._carried(begun) if begun.way else begun.ends
        us, lane = max(0.0, ends - self.now), begun.lane
        bound = "sparsecore" if lane == "sparsecore" else "latency" if not us else "hbm" if lane == "dma" else lane
        megabytes = given if begun.megabytes is None else begun.megabytes
        beside = ends - begun.at
        return Run(us, bound, megabytes, lane=lane, begun=begun.at, beside=beside)

    def _between_slices(self, op: Operation, name: str) -> Run | None:
        """An exchange with other slices begins when its data are sent, and ends with the ``recv-done``."""
        meeting = _RENDEZVOUS.search(op.attributes["frontend_attributes"])
        if name == "recv" and meeting:
            self.meetings[op.name] = meeting[1]
        elif name == "send" and meeting and self.chip.torus:
            given = self._megabytes(op.operand_shapes[:1])
            if known := self.chip.torus.between_slices_us(op, given):
                self.begun[meeting[1]] = _Begun(self.now, known[0], "link", given + known[1], "slices")
        elif name == "recv-done":
            meant = self.meetings.get(op.operands[0], "") if op.operands else ""
            if meant not in self.begun:
                raise NoTime(_NO_NETWORK, self._megabytes([op.shape]))
            return replace(self._done(op, meant), notes="between slices, at the network's published rate")
        return None

    def _link_us(self, op: Operation) -> tuple[float, float]:
        """Microseconds of an exchange, and its megabytes in HBM."""
        return self.kernels.exchange_us(op, self._tiles(op.operand_shapes), self._tiles([op.shape]))

    def _offloaded(self, op: Operation, core: str) -> Run | None:
        """Time of a call that runs beside the TensorCore, on "sparsecore", "host" or "" (none named).

        Collectives take the links, plain copies on no core are a DMA transfer, and all else takes as long as its bytes
        through HBM, as nothing more is known. Returns the run of a synchronous call; None where it was only started.
        Raises for the host, whose speed is unknown.
        """
        if core == "host":
            raise NoTime("the host's speed is unknown")
        inside = list(operations_of(self.context.program, op))
        if exchanges := [o for o in inside if plain_opcode(o.opcode) in COLLECTIVES]:
            known = list(map(self._link_us, exchanges))
            self.begun[op.name] = self._begin("link", *map(fsum, zip(*known)))
        elif not core and all(plain_opcode(o.opcode) in _TRANSFERS | TAKES_NO_TIME for o in inside):
            carried, ways = 0.0, list[str]()
            for copy in (o for o in inside if plain_opcode(o.opcode) in _TRANSFERS):
                written = WRITES_IN_PLACE.get(copy.opcode)
                carried += self._megabytes([copy.shape if written is None else copy.operand_shapes[written]])
                given, taken = self._tiles([copy.operand_shapes[written or 0]]), self._tiles([copy.shape])
                ways += filter(None, [_way(*given[:1], *taken[:1])])
            self._transfer(op.name, carried, carried, *ways[:1])
        else:
            us, megabytes = self._elsewhere(op, inside if core == "sparsecore" else ())
            if not op.opcode.endswith("-start"):
                return Run(us, "sparsecore", megabytes, lane="sparsecore")
            self.begun[op.name] = self._begin("sparsecore", us, megabytes)
        return None

    def _elsewhere(self, op: Operation, inside: Sequence[Operation]) -> tuple[float, float]:
        """Microseconds of offloaded work, and its megabytes in HBM: of gathers ``inside`` it by SparseCores rows and
        indices read and rows written, else all that it reads and writes."""
        us = megabytes = 0.0
        for gather in (inner for inner in inside if inner.opcode == "gather"):
            results, indices = self._tiles([gather.shape])[:1], self._tiles(gather.operand_shapes[1:2])
            rows = gathered_rows(gather, indices[0], results[0]) if indices and results else 0
            each, moved = self.chip.gathered_us(gather, rows, sum(tiles.megabytes for tiles in results))
            us, megabytes = us + each, megabytes + moved
        if us:
            return us, megabytes
        body = self.context.program.by_name[op.calls[0]]
        arrays = [inner.shape for inner in body.operations if inner.opcode == "parameter" or inner.root]
        megabytes = self._megabytes(arrays if op.opcode.endswith("-start") else [*op.operand_shapes, op.shape])
        return self.chip.sparse_us(0, 0, megabytes), megabytes

    def _kernel(self, op: Operation, name: str) -> Run | None:
        numbered = ((k, shape) for k, shape in enumerate(op.operand_shapes) if not shape.startswith("("))
        operands = {k: tiles for k, shape in numbered for tiles in self.arrays(shape)}
        arrays, results = [*operands.values()], self.arrays(op.shape)
        work, windows = Work(), Windows.of(op)
        name = "top-k" if op.target in _TOP else name
        read, written = self.demand.border(op)
        if name == "fusion" and op.calls:
            fused, sides = self._fused(self.context.program.alike[op.calls[0]], windows, 0)
            work = replace(windows.visit(fused), moved=defaultdict(float))  # that of all alike is kept
            if prod(windows.counts[1:]) > 1:  # else the left operand's one block stays for all columns
                sided = ((k, sides.get(k, AFTER)) for k, tiles in operands.items() if tiles.space == HBM)
                work.again = fsum(read[k] * (windows.passes(side) - 1) for k, side in sided)
        elif name == "custom-call":
            if any(marker in op.target for marker in MARKER_CALLS):
                return None
            if not op.is_pallas:
                raise NoTime(f"a custom call of {op.target or 'unknown code'}")
            if not self._softmax(work, op, arrays):
                return self.kernels.run(op)
        else:
            if not results:
                known = op.shape not in self.context.unknown
                raise NoTime("its result is no array" if known else "the form of its shape is not known")
            if name not in ("copy", "transpose", "reshape") or not arrays:
                add_operation(work, self.chip.kernel, replace(op, opcode=name), arrays, results[0])
            elif name != "copy" or arrays[0].minor_to_major[:1] != results[0].minor_to_major[:1]:
                work.rotations += results[0].elements / REGISTER  # its minor dim changes: every register is turned
        work.steps = windows.count - 1
        for tiles, megabytes in [*((tiles, read[k]) for k, tiles in operands.items()), *zip(results, written)]:
            work.moved[tiles.space] += megabytes
        work.scalar = not windows.counts and all(not tiles.shape for tiles in results)
        run = self._priced(op, name, work)
        if hosted := work.moved[HOST]:
            return replace(run, us=max(run.us, self._host_us(hosted)), bound="host", lane="host", kind="")
        return run

    def _priced(self, op: Operation, name: str, work: Work) -> Run:
        """What a kernel takes that asks for so much; its transfers delay others."""
        run = run_of(self.chip, name, work)
        self._begin("dma", self.chip.stream_us(work.moved[HBM]), None)
        return run

    def _fused(self, body: Computation, windows: Windows, depth: int) -> tuple[Work, dict[int, int]]:
        """What the operations of a fusion ask for, those of fusions inside it included; and the parameters that flow
        into a product, and on which side.

        Followed backwards from the products, every operation before one is on the side that it is made for, and is done
        in every pass of that.
        """
        if (body.name, windows) in self.works:
            return self.works[body.name, windows]
        if depth > DEEPEST:
            raise NoTime("too many fusions inside fusions")
        work, flowing, wanted, side = Work(), dict[int, int](), self.demand.shares(body), dict[str, int]()
        for op in reversed(body.operations):
            op = replace(op, opcode="top-k") if op.target in _TOP else op
            name, mine = plain_opcode(op.opcode), side.get(op.name, AFTER)
            share = wanted[op.name] * windows.passes(mine)
            sides = dict.fromkeys(range(len(op.operands)), mine) if mine != AFTER else {}
            if name in PRODUCTS:
                sides = {0: 0, 1: 1}
            if op.opcode == "parameter" and mine != AFTER:
                flowing[op.parameter_number or 0] = mine
            if name == "fusion" and op.calls:
                called = self.context.program.alike[op.calls[0]]
                inner, taken = self._fused(called, windows if mine == AFTER else Windows(), depth + 1)
                work.include(inner.times(share))
                sides = sides or taken
            elif name in COLLECTIVES:
                us, _ = self._link_us(as_scatter(op, read_in_part(body.operations)))
                work.link_us += us / max(1, self.parts[op.attributes.get("channel_id", "")])
            elif name not in TAKES_NO_TIME and not self._is_one(op, body) and (results := self._tiles([op.shape])):
                add_operation(work, self.chip.kernel, op, self._tiles(op.operand_shapes), results[0], share)
            for number, number_side in sides.items():
                if number < len(op.operands):
                    side.setdefault(op.operands[number].partition("#")[0], number_side)
        self.works[body.name, windows] = work, flowing
        return work, flowing

    def _is_one(self, op: Operation, body: Computation) -> bool:
        """Whether an operation converts one number that is repeated: it stands in a register as it is."""
        made = body.named.get(op.operands[0]) if op.opcode == "convert" else None
        return made is not None and made.opcode == "broadcast" and "[]" in made.operand_shapes[0]

    def _softmax(self, work: Work, op: Operation, operands: list[Tiles]) -> bool:
        """Add the compiler's own softmax with the product behind it, [..., rows, depth] x [..., depth, columns].

        False for other custom calls.
        """
        named = any("online-softmax" in name for name in (op.name, op.op_name))
        if not named or len(operands) < 2 or len(operands[0].shape) < 3 or len(operands[1].shape) < 2:
            return False
        scores, values = operands[:2]
        *batches, rows, depth = scores.shape
        batch = prod(batches)
        work.matrix_us += batch * matrix_us(self.chip.kernel, op, rows, values.shape[-1], depth)
        work.products["bf16"] += 2 * batch * rows * depth * values.shape[-1]
        work.transcendental += scores.elements / REGISTER
        work.registers += 6 * scores.elements / REGISTER
        return True
