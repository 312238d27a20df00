"""StableHLO priced by a stated model of what the TPU compiler fuses; there is no schedule, so none is claimed.

* Kernels stand at products, reductions, gathers, scatters and transposes of activations. Elementwise chains
  and broadcasts flow into the kernels that use them and never reach memory. A reduction straight from a product, and a
  sum of two activations with several users, are second results of the product's kernel.
* Where ``joins_softmax`` is 1 (v6e), softmax over rows of 256 or more is one kernel with the product behind it.
* A gather of rows that lie across the lanes turns its table first.
* Results that fit ``near_result_mb`` stay near the core; arguments stream in beside the compute, so that the step takes
  the longer of kernels and HBM; the largest argument, if it fits ``between_calls_mb``, is brought in between calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import fsum

from tilewright.errors import TilewrightError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.inlining import DEEPEST, inlined
from tilewright.hlo.opcodes import COLLECTIVES, ELEMENTWISE, MARKER_CALLS, MOVES_ONLY, PRODUCTS, TAKES_NO_TIME
from tilewright.hlo.program import Computation, Operation
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.dims import gathered_rows, product_sizes
from tilewright.hlo.timing.chip import Chip
from tilewright.hlo.timing.kernels import TARGET, Kernels
from tilewright.hlo.timing.row import Run, busy, flops_of, timed, untimed
from tilewright.hlo.timing.step import TimeRow
from tilewright.hlo.timing.tiles import Tiles
from tilewright.hlo.timing.work import REGISTER_MB, Work, add_operation

_KERNELS = PRODUCTS | {"reduce", "gather", "scatter", "transpose", "reduce-window"}
_BODIES = frozenset({"map", "reduce-scatter", "all-reduce", "select-and-scatter"})
_FLOWS = frozenset({"add", "reshape", "convert", "transpose"})
_UNPRICED = frozenset(
    {"custom-call", "fft", "sort", "cholesky", "triangular-solve", "infeed", "outfeed", "send", "recv", "top-k"}
)
_KNOWN = _KERNELS | _BODIES | MOVES_ONLY | ELEMENTWISE | COLLECTIVES | {"while", "reverse", "call", "dynamic-iota"}
_ARGUMENTS = Operation("arguments", "stream", "")
"""The row of weights that stream in beside the kernels."""
_STREAMED_MB = 40.0
"""Weights of one product above this are not brought in early: the product streams them."""
_ELEMENT = "get-tuple-element"
_MOST_BEHIND = 4096
"""Operations that are computed again in one kernel; what is further behind it reads from memory."""


def _without_marks(op: Operation) -> Operation:
    """A custom call that only tells the compiler something is its operand under another name."""
    target = op.attributes.get("custom_call_target", "")
    marks = plain_opcode(op.opcode) == "custom-call" and op.operands and any(mark in target for mark in MARKER_CALLS)
    return replace(op, opcode="bitcast") if marks else op


def _across_lanes(op: Operation, table: Tiles) -> bool:
    """Whether the rows that a gather takes lie across the lanes: the compiler turns the whole table first."""
    sizes = op.integers("slice_sizes")
    if len(sizes) != len(table.shape) or len(sizes) < 2:
        return False
    lanes = table.minor_to_major[0]
    return sizes[lanes] == 1 < table.shape[lanes] and max(sizes) > 1


class Fusing:
    """The kernels that one computation of a StableHLO program will become, as far as the stated model goes."""

    def __init__(self, chip: Chip, context: Context, computation: Computation, kernels: Kernels | None = None) -> None:
        self.chip, self.context, self.computation = chip, context, computation
        self.pallas, self.pallas_runs = kernels or Kernels(context, chip), dict[str, Run | str]()
        operations = list(map(_without_marks, inlined(context.program, computation)))
        self.operations = [op for op in operations if op.opcode != "return"]
        self.by_name = {op.name: op for op in self.operations}
        self.users: dict[str, list[Operation]] = defaultdict(list)
        for op in operations:
            for name in op.operands:
                self.users[name].append(op)
        returned = [op.operands for op in operations if op.opcode == "return"]
        self.results = {part for name in (returned or [()])[-1] for part in (name, name.partition("#")[0])}
        self.tiles: dict[str, Tiles] = {}
        self.broken: dict[str, str] = {}
        for op in self.operations:
            try:
                layouts = context.layouts(op.shape)
                if layouts:
                    self.tiles[op.name] = Tiles.of(max(layouts, key=lambda layout: layout.size_bytes))
            except (TilewrightError, OverflowError) as error:
                self.broken[op.name] = str(error)
        self.arguments = {op.name for op in self.operations if op.opcode == "parameter"}
        self.arguments |= {op.name for op in self.operations if self._is_slice_of_argument(op)}
        self.kernels = self._find_kernels()
        sized = [op.name for op in self.operations if op.name in self.arguments and op.name in self.tiles]
        largest = max(sized, key=lambda name: self.tiles[name].megabytes, default="")
        fits = largest and self.tiles[largest].megabytes <= chip.kernel["between_calls_mb"]
        self.prefetched = largest if fits else ""

    def _is_slice_of_argument(self, op: Operation) -> bool:
        """Weights of one layer, cut out of those of all: only the cut is read."""
        if plain_opcode(op.opcode) not in ("slice", "dynamic-slice"):
            return False
        whole = self.by_name.get(op.operands[0]) if op.operands else None
        return whole is not None and whole.opcode == "parameter"

    def _cut_written_into(self, op: Operation) -> str:
        """The slice of an argument that an update is written into, "" for others: the argument stays, hence a copy."""
        if plain_opcode(op.opcode) != "dynamic-update-slice" or not op.operands:
            return ""
        target = self.by_name.get(op.operands[0])
        while target is not None and target.opcode == "reshape" and target.operands:
            target = self.by_name.get(target.operands[0])
        cut = target is not None and target.opcode != "parameter" and target.name in self.arguments & self.tiles.keys()
        return target.name if cut and target is not None else ""

    def _find_kernels(self) -> set[str]:
        """Values that reach memory: arguments, what kernels make, and sums that several kernels want."""
        kept, second_results, activations = set(self.arguments), set[str](), set[str]()
        weights: set[str] = set()  # arguments and constants, moved or widened at most

        def is_weight(name: str) -> bool:
            return name in weights or name not in self.by_name

        for op in self.operations:
            kind = plain_opcode(op.opcode)
            moved = kind in ("reshape", "transpose", "convert", "broadcast") and op.operands
            if kind in ("parameter", "constant") or (moved and is_weight(op.operands[0])):
                weights.add(op.name)
            if kind == "transpose":
                stands = not all(map(is_weight, op.operands))
            else:
                takes_time = kind not in TAKES_NO_TIME and kind != "iota"
                own = kind in _KERNELS | COLLECTIVES | {"custom-call"} or self._cut_written_into(op) != ""
                stands = own or (takes_time and bool(op.calls or self._unknown(op)))
            if stands or kind == _ELEMENT:
                kept.add(op.name)
            made_of = not activations.isdisjoint(op.operands)
            if kind == "add" and self._several_users(op) and made_of:
                second_results.add(op.name)
            if kind in PRODUCTS or kind == "gather" or op.name in second_results or (kind in _FLOWS and made_of):
                activations.add(op.name)
        self.softmax = self._softmax_kernels() if self.chip.kernel["joins_softmax"] else set()
        return kept | second_results

    def _several_users(self, op: Operation) -> bool:
        """Whether several operations want a value, as it is or in another type."""
        users = self.users[op.name]
        if len(users) == 1 and plain_opcode(users[0].opcode) == "convert":
            users = self.users[users[0].name]
        return len(users) > 1

    def _softmax_kernels(self) -> set[str]:
        """Reductions over rows of 256 or more, three dims before and after a product: they join the product behind."""
        joined = set()
        for op in self.operations:
            named = [name for name in (*op.operands[:1], op.name) if name in self.tiles]
            if plain_opcode(op.opcode) != "reduce" or len(named) < 2:
                continue
            shape, result = self.tiles[op.operands[0]].shape, self.tiles[op.name].shape
            if len(shape) >= 4 and len(result) == len(shape) - 1 and shape[:-1] == result and shape[-1] >= 256:
                joined.add(op.name)
        return joined

    def _inputs_and_work(self, names: list[str]) -> tuple[set[str], Work]:
        """What a kernel reads to compute ``names``, and the elementwise work on the way."""
        seen: set[str] = set()
        inputs: set[str] = set()
        work, stack = Work(), list(names)
        while stack:
            name = stack.pop()
            if name in seen or name not in self.by_name:
                continue
            seen.add(name)
            if name in self.kernels or len(seen) > _MOST_BEHIND:
                inputs.add(name)
                continue
            op = self.by_name[name]
            if plain_opcode(op.opcode) not in MOVES_ONLY and name in self.tiles:
                add_operation(work, self.chip.kernel, op, (), self.tiles[name])
            stack += op.operands
        return inputs, work

    def _hbm_megabytes(self, name: str) -> float:
        """Megabytes of a value that pass through HBM when it is used."""
        if name not in self.tiles or name == self.prefetched:
            return 0.0
        megabytes = self.tiles[name].megabytes
        stays = name not in self.arguments and name not in self.results
        return 0.0 if stays and megabytes <= self.chip.kernel["near_result_mb"] else megabytes

    def price(self, runs: int = 1, begin: float = 0.0) -> tuple[list[TimeRow], float, int]:
        """Rows in the order of the text, microseconds of one run, and how many operations were priced.

        ``runs``: how often the computation runs in a step; rows count all runs. ``begin``: when the first begins.
        """
        rows: list[TimeRow] = []
        clock = early = streamed = 0.0
        priced = 0
        results_without_kernel = self.results - self.kernels
        shown = (self.kernels - self.arguments) | results_without_kernel | set(self.broken)
        for op in self.operations:
            wanted = op.name in shown
            if not wanted or op.name in self.softmax or op.opcode in ("parameter", _ELEMENT):
                continue
            if op.name in self.tiles and not self.tiles[op.name].shape and op.name in results_without_kernel:
                continue  # scalars, such as a loop's counter, are the scalar core's
            if plain_opcode(op.opcode) == "while" and op.calls and op.name not in self.broken:
                inside, us, within = self._loop(op, runs, begin + clock)
                rows += inside
                clock, priced = clock + us, priced + within
                if self._trips(op) is not None:
                    continue
            source = self.context.source(self.computation.name, op)
            reason = self.broken.get(op.name) or self._unknown(op)
            if reason:
                result = [self.tiles[op.name]] if op.name in self.tiles else []
                row = untimed(op, reason, source, begin + clock, runs, self._operands(op), result)
                called = self._flops_inside(op, {}) * runs if op.calls and plain_opcode(op.opcode) != "while" else 0
                rows.append(replace(row, untimed_flops=row.untimed_flops + called))
                continue
            run, weights = self._kernel(op)
            streamed, early = streamed + run.megabytes, early + weights
            rows.append(timed(self.chip, op, run, self.chip.kernel, source, begin + clock, runs))
            clock, priced = clock + rows[-1].seconds / runs * 1e6, priced + 1
        arriving = self.chip.stream_us(early, self.chip.kernel["read_mb_per_us"])
        hbm = arriving + self.chip.stream_us(streamed, self.chip.kernel["mb_per_us"])
        if early:
            waits = max(0.0, hbm - clock)
            run = Run(waits, "hbm" if waits else "latency", early, lane="dma", begun=begin, beside=arriving)
            rows.append(timed(self.chip, _ARGUMENTS, run, self.chip.kernel, start=begin + clock, runs=runs))
        return rows, max(clock, hbm), priced

    def _loop(self, op: Operation, runs: int, begin: float) -> tuple[list[TimeRow], float, int]:
        """The body of a loop, as often as it runs; its carried arrays stay where they are."""
        body, trips = self.context.program.by_name[op.calls[-1]], self._trips(op)
        trips = 1 if trips is None else trips
        if not trips:
            return [], 0.0, 0
        rows, us, priced = Fusing(self.chip, self.context, body, self.pallas).price(runs * trips, begin)
        return rows, us * trips, priced

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
            run = self._pallas(op)
            return run if isinstance(run, str) else ""
        if kind in _UNPRICED or kind not in _KNOWN:
            return f"no mechanism for {kind} is known"
        if op.name not in self.tiles:
            return "its result is no array"
        if op.calls and kind not in _KERNELS | _BODIES:
            return f"{kind} is not predicted"
        if kind in COLLECTIVES and self.chip.torus is None:
            return "this chip's links are not known"
        if kind in PRODUCTS and product_sizes(op, self._operands(op), self.tiles[op.name]) is None:
            return f"{kind} does not say its dims"
        return ""

    def _pallas(self, op: Operation) -> Run | str:
        """What one run of a Pallas kernel takes, or why that is not known."""
        if op.name not in self.pallas_runs:
            numbered = [(k, tiles) for k, shape in enumerate(op.operand_shapes) for tiles in self._arrays([shape])[:1]]
            self.pallas_runs[op.name] = self.pallas.run(op, numbered, self._arrays([op.shape]))
        return self.pallas_runs[op.name]

    def _operands(self, op: Operation) -> list[Tiles]:
        """Its operands that are arrays, those of other computations too, which a region reads."""
        found: list[Tiles] = []
        for name, shape in zip(op.operands, op.operand_shapes):
            if name in self.tiles:
                found.append(self.tiles[name])
            elif name not in self.by_name:  # where it cannot be read, its own operation says so
                found += self._arrays([shape])
        return found

    def _kernel(self, op: Operation) -> tuple[Run, float]:
        """What one run of the kernel takes and streams itself, and megabytes of weights that came early."""
        constants, kind, result = self.chip.kernel, plain_opcode(op.opcode), self.tiles[op.name]
        if kind == "custom-call" and isinstance(run := self._pallas(op), Run):
            return run, 0.0
        if kind in COLLECTIVES and self.chip.torus:
            us, megabytes = self.chip.torus.exchange_us(op, self._operands(op), [result])
            return Run(us, "link", megabytes, lane="link", measured=False), 0.0
        operands = list(op.operands[: max(1, len(op.operands) // 2)]) if kind == "reduce" else list(op.operands)
        inputs, work = self._inputs_and_work(operands if op.name in self.kernels else [op.name])
        size, copied = result.megabytes, 0.0
        if kind == "dynamic-update-slice" and len(op.operands) > 1 and op.operands[1] in self.tiles:
            inputs, size = inputs - {op.operands[0]}, self.tiles[op.operands[1]].megabytes  # written in its place
            if cut := self._cut_written_into(op):
                inputs, copied = inputs - {cut}, 2 * self.tiles[cut].megabytes
        weights = fsum(self._hbm_megabytes(name) for name in inputs & self.arguments)
        read = fsum(self._hbm_megabytes(name) for name in inputs - self.arguments)
        written = min(self._hbm_megabytes(op.name), size)
        present = [name for name in inputs - self.arguments if name in self.tiles]
        near = fsum(self.tiles[name].megabytes for name in present) + size - read - written
        latency, rows = constants["near_launch_us"], 0
        shapes = self._operands(op)
        if inputs & self.softmax:
            scores = max(
                (self.tiles[name].megabytes for name in inputs - self.softmax if name in self.tiles), default=0.0
            )
            work = Work(registers=6 * scores / REGISTER_MB, transcendental=scores / REGISTER_MB)
        if kind in PRODUCTS:
            add_operation(work, constants, op, shapes, result)
        elif kind in ("gather", "scatter"):
            rows = gathered_rows(op, shapes[1] if len(shapes) > 1 else result, result)
            weights, work, written = 0.0, Work(), self._hbm_megabytes(op.name)
            taken = min(self._hbm_megabytes(op.operands[0]) if op.operands else 0.0, result.megabytes)
            read += taken if kind == "gather" and op.operands[0] in inputs & self.arguments else 0.0
            if kind == "gather" and shapes and _across_lanes(op, shapes[0]):
                read += shapes[0].megabytes
                work.rotations += shapes[0].megabytes / REGISTER_MB
        elif kind == "reduce" and shapes:
            work.registers += shapes[0].elements / 1024
            if any(plain_opcode(self.by_name[name].opcode) in PRODUCTS for name in inputs):
                latency = near = read = 0.0  # a second result of the product's kernel
        elif kind == "transpose":
            work.rotations += result.megabytes / REGISTER_MB
        here = read + written + copied
        if kind in PRODUCTS and weights > _STREAMED_MB:
            here, weights = here + weights, 0.0
        write = written / constants["write_mb_per_us"] if written > 4 else 0.0
        parts = {
            "matrix": work.matrix_us,
            "vector": work.vector_us(constants),
            "hbm": max(here / constants["mb_per_us"], write),
            "vmem": near / (constants["common_mb_per_us"] or constants["near_mb_per_us"]),
        }
        us, bound = busy(parts, latency)
        us += rows * constants["gather_row_us"]
        if kind == "transpose" and bound == "vector":
            bound = "relayout"
        run = Run(us, bound, here, work.products, lane="matrix" if work.products else "vector")
        run.measured = kind not in ("gather", "scatter")
        run.resident = self.tiles[self.prefetched].megabytes if self.prefetched in inputs else 0.0
        return run, weights
