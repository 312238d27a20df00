"""How long Pallas kernels take, from what their custom calls carry: the kernel itself, or its author's estimate.

A step of a kernel's grid takes the longest of what it brings in, what it computes and what it takes out; its
computation as long as its busiest unit: the matrix unit by passes, the slots for vector arithmetic, loads, stores and
transcendentals, and beside them what crosses lanes. The cycles are fitted on one half of a public library's kernels, in
cycles of the chip's clock, the same for all chips ([time.pallas] of a target).

Attention over a paged cache runs as long as its data says: how many sequences of how many tokens. That is what the
user states (``Context.assume``), or else a plain guess that the row and the step name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

from tilewright.errors import TilewrightError
from tilewright.hlo.opcodes import TRANSCENDENTAL
from tilewright.hlo.program import PALLAS, Operation
from tilewright.hlo.reading.kernel import Kernel, Moment, Part
from tilewright.hlo.reading.kernel_numbers import MET
from tilewright.hlo.reading.kernels import kernel_in, said_of
from tilewright.hlo.semantics.collectives import slice_of
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.dims import devices_of, matrix_kind
from tilewright.hlo.semantics.tiles import Tiles
from tilewright.hlo.timing.chip import Chip
from tilewright.hlo.timing.row import Run, busy
from tilewright.hlo.timing.work import HBM, NEAR, REGISTER, NoTime
from tilewright.layout.meshes.torus import Slice
from tilewright.render import bytes_text, count_text
from tilewright.targets import TimeConstants

FROM_BODY = "kernel: from its grid and products"
"""How the note of a row begins whose time is a pipeline's."""
_OPS_AN_EXPONENTIAL = 8
"""Vector operations beside each transcendental of a kernel of which only an estimate is known: a softmax."""
_OPS_CARRIED = 5
"""And of each step for an element of the sum that it carries on: scaled and added to, loaded and stored."""
_SCORES = 1024
"""Rows and columns of scores in a step of such a kernel: as tuned kernels take, and as advice says."""
_SPECIAL = dict.fromkeys(("exp2", "divf", "log2", "sin", "cos", "log1p", "expm1", "reciprocal"), 1)
_SPECIAL |= TRANSCENDENTAL | {"powf": TRANSCENDENTAL["power"]}
_OPS = dict.fromkeys(("truncf", "extf", "sitofp", "uitofp", "fptosi", "fptoui"), "convert_ops")
_OPS |= dict.fromkeys(("multi_reduction", "reduction", "all_reduce"), "reduce_ops") | {"broadcast": "broadcast_ops"}
_CROSSES = frozenset({"concatenate", "dynamic_gather", "rotate", "dynamic_rotate", "repeat"})
_NOTHING = frozenset({"bitcast", "extui", "extract", "reshape", "shape_cast", "extract_strided_slice"})
_INTEGERS = ("i32", "i16", "i1")


@dataclass(frozen=True)
class Step:
    """Steps that are alike: microseconds of one, by unit and of its transfers, and how long it is in the pipeline."""

    moment: Moment
    units: Mapping[str, float]  # matrix; vector, the longest slot beside it; lanes, what crosses them
    moved_us: float
    us: float
    bound: str


@dataclass(frozen=True)
class Pipeline:
    """One run of a kernel: microseconds, what it waits for, megabytes through HBM, its kinds of steps."""

    us: float
    bound: str
    megabytes: float
    steps: tuple[Step, ...]
    by_bound: Mapping[str, float]  # microseconds by what bounds steps, the most first

    def us_of(self, *units: str) -> float:
        """Microseconds of units of the core, over all steps."""
        return sum(sum(step.units[unit] for unit in units) * step.moment.times for step in self.steps)


def pipeline(chip: Chip, kernel: Kernel, near: Collection[int] = ()) -> Pipeline:
    """The pipeline of one run; ``near``: numbers of the arrays that lie in vector memory already.

    Two cores that are one device share the steps of a grid with a parallel dim; without one, one core does all.
    """
    constants, cores = chip.mechanisms["pallas"], round(chip.kernel["cores"])
    shared = any(word == "parallel" and size > 1 for word, size in zip(kernel.semantics, kernel.grid))
    split = max(1.0, cores / kernel.uneven) if shared else 1.0
    units = [_units(chip, constants, part, cores) for part in kernel.parts]
    steps, far_all, bounds = list[Step](), 0.0, defaultdict[str, float](float)
    for moment in kernel.moments:
        asked = defaultdict[str, float](float)
        for number, runs in moment.parts:
            for unit, us in units[number].items():
                asked[unit] += us * runs / split
        far = sum(megabytes for operand, megabytes, _ in moment.moved if operand not in near)
        beside = sum(megabytes for operand, megabytes, _ in moment.moved if operand in near)
        moved = chip.stream_us(far, constants["hbm"]) + beside / chip.kernel["near_mb_per_us"]
        matrix, lanes = asked.pop("matrix", 0.0), asked.pop("lanes", 0.0)
        vector = max(asked.values(), default=0.0)  # slots work at once; what crosses lanes comes on top
        core = max(matrix, vector) + constants["not_hidden"] * min(matrix, vector) + lanes
        start = sum(transfers for _, _, transfers in moment.moved) * constants["transfer_us"]
        start = start + constants["alone_us"] if moment.alone else (start + constants["step_us"]) / split
        us = max(core, moved) + constants["beside"] * min(core, moved) + start
        parts = {"matrix": matrix, "vector": max(vector + lanes, core - matrix if vector > matrix else 0.0)}
        parts |= {"hbm" if far >= beside else "vmem": moved, "latency": start}
        bound = max(parts, key=lambda unit: parts[unit])
        steps.append(Step(moment, {"matrix": matrix, "vector": vector, "lanes": lanes}, moved, us, bound))
        far_all += far * moment.times
        bounds[bound] += us * moment.times
    ordered = dict(sorted(bounds.items(), key=lambda item: -item[1]))
    us = constants["launch_us"] + sum(ordered.values())
    return Pipeline(us, next(iter(ordered), "latency"), far_all, tuple(steps), ordered)


def _units(chip: Chip, constants: TimeConstants, part: Part, cores: int) -> dict[str, float]:
    """Microseconds of one core's units for one run of a part."""
    kernel = chip.kernel
    side, us = int(kernel["side"]), 1e-3 / kernel["ghz"]
    cycles = defaultdict[str, float](float)
    for (batch, rows, columns, depth, kind), count in part.products.items():
        squares = count * batch * -(-depth // side) * -(-columns // side)
        once = max(-(-rows // 8) * 8, side * constants["fill"]) / kernel["rows_per_cycle"] / kernel["units"] * cores
        quick = chip.matrix_peaks.get(matrix_kind(kind), 0.0) / (chip.matrix_peaks.get("bf16", 0.0) or 1.0)
        once *= constants["f32_passes"] if kind == "f32" else 1 / max(1.0, quick)
        cycles["matrix"] += squares * once / constants["efficiency"] / kernel["efficiency"]
    for (name, kind), elements in part.elements.items():
        packed = 0.5 if kind in ("bf16", "f16", "i16") else 0.25 if kind.startswith(("f8", "i8")) else 1.0
        registers = elements / REGISTER * packed
        special = _SPECIAL.get(name, 0)
        if "load" in name:
            cycles["loads"] += registers / constants["loads"]
        elif "store" in name:
            cycles["stores"] += registers / constants["stores"]
        elif special:
            cycles["transcendental"] += registers * min(special, 4) / constants["transcendentals"]
            cycles["vector"] += registers * constants["special_ops"] / constants["slots"]
        elif name in _CROSSES:
            cycles["lanes"] += registers * constants["cross_cycles"]
        elif name not in _NOTHING:
            plain = 0.1 if name == "iota" else constants["integer_ops"] if kind in _INTEGERS else 1.0
            cycles["vector"] += registers * (constants[_OPS[name]] if name in _OPS else plain) / constants["slots"]
    cycles["lanes"] += part.turned / REGISTER * constants["turn_cycles"]
    return {unit: count * us for unit, count in cycles.items() if count}


# A program's kernels, and what decides how long they run.


Arrays = dict[int, Tiles]
"""Number of an operand, behind them of a result -> how it lies; of those that are arrays."""


@dataclass(frozen=True)
class _Pages:
    """Attention over a cache in pages, as its operands show it."""

    most: int  # sequences that its tables have room for
    longest: int  # tokens that the pages of one sequence hold
    tokens: int  # tokens of queries in a step
    depth: int  # elements of a head
    rows: float  # rows of queries a token, of all heads
    heads: int  # heads of the cache, where the queries have a dim for them
    megabytes_a_token: float  # of its cache
    megabytes: float  # the whole cache
    others: float  # megabytes of queries, results and new tokens


class Kernels:
    """The kernels of one program on one chip; ``notes``: what was assumed of the program's data, in sentences."""

    def __init__(self, context: Context, chip: Chip) -> None:
        self.context, self.chip = context, chip
        self.devices = devices_of(context.program)  # that take part in what names no groups
        self.notes: list[str] = []

    @cached_property
    def slice(self) -> Slice | None:
        """Where the program's devices stand."""
        return slice_of(self.context.program, self.chip.machine)

    def exchange_us(self, op: Operation, operands: list[Tiles], results: list[Tiles]) -> tuple[float, float]:
        """Microseconds of an exchange, and its megabytes in HBM; raises :class:`NoTime` where no links are known."""
        if self.chip.torus is None:
            raise NoTime("this chip's links are not known")
        return self.chip.torus.exchange_us(op, operands, results, self.devices, self.slice)

    def _arrays(self, op: Operation) -> Arrays:
        """How its operands lie, and its results."""
        found: Arrays = {}
        for k, shape in enumerate((*op.operand_shapes, op.shape)):
            with suppress(TilewrightError, OverflowError):
                found |= dict(enumerate(map(Tiles.of, self.context.layouts(shape)), k))
        return found

    def run(self, op: Operation) -> Run:
        """What one run of a kernel takes; raises :class:`NoTime` where nothing is known of it."""
        said, arrays = said_of(op), self._arrays(op)
        try:
            kernel = kernel_in(op)
        except TilewrightError as error:
            if not said:
                raise NoTime(f"a custom call of {PALLAS}: {error.what}") from error
            return self._from_estimate(said, arrays.values())
        if kernel.sparse:
            return self._gathered(op, arrays)
        if pages := _pages_of(kernel, op, arrays):
            return self._paged(op, kernel, pages)
        if kernel.trips_by_data and said.get("flops"):
            return self._from_estimate(said, arrays.values())
        return self._from_body(op, kernel, said.get("flops", 0), arrays)

    def _from_body(self, op: Operation, kernel: Kernel, said: int, arrays: Arrays) -> Run:
        """Its grid, windows and products; where data decides, no more flops than its author says, but for tiles of rows
        that several groups share: each of them computes the whole tile."""
        notes = [FROM_BODY, *kernel.assumed]
        counted = said * kernel.again / kernel.flops if said and kernel.flops and _by_chance(kernel) else 1.0
        share = min(1.0, counted)
        if kernel.passing:
            trips, over = self._passed(op, kernel, arrays)
            share *= trips / max(kernel.passing.values())
            notes.append(f"{count_text(trips)} trips of a loop, once over {over}")
        near = {number for number, tiles in arrays.items() if tiles.space == NEAR}
        whole = pipeline(self.chip, kernel, near)
        least = sum(w.distinct for w in kernel.windows if w.operand not in near)  # each block once
        us, far = whole.us * share, max(whole.megabytes * share, min(whole.megabytes, least))
        if kernel.trips_by_data:
            once = sum(tiles.megabytes for tiles in arrays.values() if tiles.space == HBM)
            us, far = us + self.chip.stream_us(max(0.0, once - far)), max(far, once)
            notes.append("loops whose length its data decides count once, its operands are read once")
        if share < 1 and not kernel.passing:
            again = f", tiles {kernel.again:.2f} times" if kernel.again > 1 else ""
            notes.append(f"no more flops than its cost estimate{again}")
        products: Counter[str] = Counter()
        for (batch, rows, columns, depth, kind), count in kernel.products.items():
            products[matrix_kind(kind)] += round(2 * batch * rows * columns * depth * count * share)
        return Run(us, whole.bound, far, products, kind="pallas", notes="; ".join(notes))

    def _passed(self, op: Operation, kernel: Kernel, arrays: Arrays) -> tuple[int, str]:
        """Trips of a loop whose length data decides. Of two kernels over the same arrays the one that takes more
        sequences at once is for those with a single token in this step, the other for those with many."""
        passing, tables = kernel.passing, _tables(op, arrays)
        most = Counter(tables).most_common(1)[0][0] if tables else 0
        rows = {k: arrays[k].shape[0] for k in passing}
        tokens_of = max(rows, key=lambda k: (rows[k] != most + 1, rows[k]))  # an entry for each sequence is no token
        shape, states = arrays[tokens_of].shape, [k for k in rows if rows[k] == most + 1]

        def batched(one: dict[int, int]) -> tuple[int, int]:
            return min((one[k] for k in states if k in one), default=0), -one.get(tokens_of, 0)

        group = [k.passing for _, k, shapes, _ in self._read if k.passing and shape in shapes]
        first = min([*group, passing], key=batched)
        if not most or all(one == passing for one in group):
            return max(passing.values()), "its arrays"
        tokens = round(min(self.context.assume.get("tokens", shape[0]), shape[0]))
        single, sequences = self._split(tokens, most)
        each = ceil(shape[0] / passing[tokens_of])
        said = f"{count_text(single)} single tokens and {count_text(sequences)} sequences of many, assumed"
        if passing == first:
            return ceil(single / each), said
        return sequences * ceil((tokens - single) / max(1, sequences) / each), said

    def _split(self, tokens: int, most: int) -> tuple[int, int]:
        """(sequences with one token, sequences with many) of a step, as the user states it or else the plainest: one
        with all that is left over where tokens do not share out evenly."""
        sequences = round(min(self.context.assume.get("sequences", most), most, tokens))
        if tokens <= sequences:
            return tokens, 0
        return (0, sequences) if tokens % sequences == 0 else (sequences - 1, 1)

    def _from_estimate(self, said: dict[str, int], arrays: Iterable[Tiles]) -> Run:
        """The pipeline of steps that are alike: what its author says, and at least its arrays once through HBM.

        Advice says besides how deep heads are, which fill the matrix unit in part, and the scores of a step.
        """
        flops, special = said.get("flops", 0), said.get("transcendentals", 0)
        depth = said.get("depth") or round(self.chip.kernel["side"])
        steps = max(1, special // (said.get("scores") or _SCORES**2))
        once = sum(tiles.megabytes for tiles in arrays if tiles.space == HBM)
        far = max(once, said.get("bytes_accessed", 0) / 1e6)
        ops = special * (_OPS_AN_EXPONENTIAL + _OPS_CARRIED * depth / _SCORES)
        part = Part(
            Counter({(1, _SCORES, _SCORES, depth, "bf16"): flops / (2 * _SCORES**2 * depth * steps)}),
            Counter({("exp", "f32"): special / steps, ("addf", "f32"): ops / steps}),
        )
        moments = [Moment(steps, ((0, 1.0),), ((-1, far / steps, 0.0),))]
        cores = (round(self.chip.kernel["cores"]),)
        whole = pipeline(self.chip, Kernel("", grid=cores, semantics=("parallel",), parts=[part], moments=moments))
        note = "kernel: from its cost estimate"
        return Run(whole.us, whole.bound, far, +Counter(bf16=flops), kind="pallas", notes=note)

    def _gathered(self, op: Operation, arrays: Arrays) -> Run:
        """A kernel of the SparseCores: a row of its results for each of its indices, priced as gathers are."""
        rows = max(_tables(op, arrays, ("s32[", "u32["), most=1), default=0)
        results = (tiles for k, tiles in arrays.items() if k >= len(op.operand_shapes))
        # they lie without tiles there: no lane is padding
        written = sum(prod(t.shape) * t.megabytes / max(1, t.elements) for t in results)
        if not rows or not written or "sparse" not in self.chip.mechanisms:
            raise NoTime("a kernel of the SparseCores that takes no indices: no mechanism for it was measured")
        us, each = self.chip.sparse_us(rows, written / rows, written), count_text(rows)
        note = f"kernel: of the SparseCores, {each} rows gathered and written; what else it computes is not known"
        return Run(us, "sparsecore", 2 * written, lane="sparsecore", kind="pallas", notes=note)

    # Attention over pages.

    def _paged(self, op: Operation, kernel: Kernel, pages: _Pages) -> Run:
        """Rows of queries against the tokens of their sequences, block by block as its products are cut."""
        assume = self.context.assume
        tokens = round(min(assume.get("tokens", pages.tokens), pages.tokens))
        room = round(pages.megabytes / pages.megabytes_a_token) if pages.megabytes_a_token else 0
        if room == pages.most * pages.longest:  # a cache made for just these sequences is taken as full
            single, many = self._split(tokens, pages.most)
            guess: float = pages.longest
        else:
            decodes = tokens <= pages.most
            count = round(min(assume.get("sequences", tokens if decodes else ceil(tokens / pages.longest)), pages.most))
            single, many = (count, 0) if decodes else (0, count)
            each = tokens / max(1, count)
            guess = min(max(each, pages.longest / 2 if decodes else 0), max(each, room / max(1, count)))
        length = min(max(assume.get("kv_len", guess), 1), pages.longest)
        said = f"{count_text(round(single + many))} sequences of {count_text(round(length))} tokens in the cache"
        said += f", {count_text(round(single))} of them with a single new one" if single and many else ""
        how = "as stated" if "kv_len" in assume else "assumed: state kv_len, sequences and tokens of a step for another"
        held = f"a cache takes {bytes_text(round(pages.megabytes_a_token * 1e6))} a token, layer and device as laid out"
        for note in (f"{said} {how}", f"{held}, and has room for {count_text(room)} tokens"):
            self.notes += [] if note in self.notes else [note]
        rows, block = _cut(kernel, pages.depth)
        attention = [(other, _cut(each, found.depth)[0]) for other, each, _, found in self._read if found]
        cuts, name = {taken for _, taken in attention}, op.name.rpartition("/")[2]  # rows of queries at once
        behind = (read for other, taken in attention if taken == rows for read in other.operands)
        single, many = (single if rows == min(cuts) else 0), (many if rows == max(cuts) else 0)
        if not (single or many) or any(read.partition("#")[0] == name for read in behind):
            kind = "tokens one by one" if rows == max(cuts) else "many tokens at once"
            kind = kind if not (single or many) else "these: the next kernel does it"
            note = f"kernel: nothing to do in a step of {kind}"
            return Run(self.chip.kernel["launch_us"], "latency", kind="pallas", notes=note)
        each = (tokens - (single if len(cuts) > 1 or many else 0)) / max(1, many)
        blocks, streamed = 0.0, 0.0
        for sequences, queries in ((single, 1.0), (many, each)):
            seen = 1 - (queries - 1) / length / 2  # of the cache, by a token in the middle
            passes = max(1, ceil(queries * pages.rows / rows)) if rows else 1
            blocks += sequences * passes * ceil(length / block) * seen
            through = sequences * length * pages.megabytes_a_token
            streamed += through * (max(1.0, passes * seen / pages.heads) if queries > 1 else 1.0)
        wanted = blocks * 4 * rows * block * pages.depth  # scores and values of each block
        share = wanted / kernel.flops if kernel.flops else 0.0
        whole = pipeline(self.chip, kernel)
        far = min(streamed, pages.megabytes) + pages.others * tokens / pages.tokens
        parts = {"matrix": whole.us_of("matrix") * share, "vector": whole.us_of("vector", "lanes") * share}
        us, bound = busy({**parts, "hbm": self.chip.stream_us(far)}, self.chip.kernel["launch_us"])
        note = f"kernel: from its products and the pages it reads; {said} {how}"
        return Run(us, bound, far, +Counter(bf16=round(wanted)), kind="pallas", notes=note)

    @cached_property
    def _read(self) -> list[tuple[Operation, Kernel, set[tuple[int, ...]], _Pages | None]]:
        """The program's kernels, the shapes of their arrays, and their pages."""
        found = []
        for _, op in self.context.program.operations():
            if op.is_pallas:
                with suppress(TilewrightError):
                    kernel, arrays = kernel_in(op), self._arrays(op)
                    shapes = {tiles.shape for k, tiles in arrays.items() if k < len(op.operand_shapes)}
                    found.append((op, kernel, shapes, _pages_of(kernel, op, arrays)))
        return found


def _by_chance(kernel: Kernel) -> bool:
    """Whether its data decides which blocks are computed: by conditions alone, or by how rows are grouped."""
    grouped = any("groups of different sizes" in text for text in kernel.assumed)
    return grouped or (bool(kernel.assumed) and all(t == MET or t.startswith("its mask") for t in kernel.assumed))


def _cut(kernel: Kernel, depth: int) -> tuple[int, int]:
    """(rows of queries, tokens of the cache) that the products of attention take at once; (0, 1) without products."""
    sizes = [size[:4] for size in kernel.products if depth in size[2:4]]
    return max((size[1] for size in sizes), default=0), max((max(size[2:]) for size in sizes), default=1)


def _tables(op: Operation, arrays: Arrays, types: tuple[str, ...] = ("s32",), most: int = 2) -> list[int]:
    """How many integers its tables hold, of one dim or up to ``most``."""
    known = [arrays[k] for k, text in enumerate(op.operand_shapes) if k in arrays and text.startswith(types)]
    return [prod(tiles.shape) for tiles in known if 0 < len(tiles.shape) <= most]


def _pages_of(kernel: Kernel, op: Operation, numbered: Arrays) -> _Pages | None:
    """What the operands of attention over a paged cache say; None for other kernels.

    Its tables are lengths [sequences], pages [sequences x pages of one] and, where a step takes several tokens of a
    sequence, where each begins [sequences + 1]. The cache is its largest operand: [pages, tokens of one, ...], of
    kernels for single tokens [heads, pages, tokens of one, depth], keys and values each.
    """
    operands = [tiles for k, tiles in numbered.items() if k < len(op.operand_shapes)]
    tables, arrays = _tables(op, numbered), [tiles for tiles in operands if len(tiles.shape) > 2]
    if not (kernel.trips_by_data or kernel.copied) or len(tables) < 2 or len(arrays) < 2:
        return None  # it has no transfers of its own, or nothing that is in pages
    taken_in = {tiles.shape[1:] for tiles in arrays}  # new tokens are as the cache's are
    cache = max(arrays, key=lambda tiles: (tiles.shape[2:] in taken_in, tiles.megabytes))
    sized = [n for n in tables if any(size >= n and size % n == 0 for size in tables if size != n)]
    begins, sized = [n for n in sized if n + 1 in tables], [n for n in sized if n > 1]
    queries = next((tiles for tiles in arrays if tiles.shape != cache.shape), None)
    several = sum(tiles.shape == cache.shape for tiles in arrays) > 1  # keys and values have an array each
    if len(cache.shape) < 4 or not (begins or (sized and several)) or queries is None:
        return None
    most = max(begins or sized)
    pages, page = cache.shape[:2] if begins else cache.shape[1:3]
    fitting = [n // most for n in tables if n % most == 0 and n <= most * pages]  # no sequence has more than all pages
    pages_each = pages // most if pages in tables and pages % most == 0 else max(fitting, default=0)
    added = next((tiles for tiles in arrays if begins and tiles.shape[1:] == cache.shape[2:]), None)
    tokens = added.shape[0] if added else queries.shape[0]
    depth, whole = queries.shape[-1], sum(t.megabytes for t in arrays if t.shape == cache.shape)
    if not (pages * page and tokens and depth and pages_each) or (begins and pages <= most + 1):
        return None  # with one entry for each sequence it is their state
    heads = queries.shape[0] if len(queries.shape) > 3 and queries.shape[1] == tokens else 1
    others = sum(t.megabytes for t in arrays if t.shape != cache.shape) + queries.megabytes
    return _Pages(
        *(most, pages_each * page, tokens, depth, prod(queries.shape) / depth / tokens, heads),
        *(whole / (pages * page), whole, others),
    )
