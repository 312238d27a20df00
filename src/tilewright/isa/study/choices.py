"""What can be chosen for a product or a convolution, cycles that no choice stays below, and runs without values.

A :class:`Problem` and a :class:`ConvProblem` are what :func:`tilewright.isa.study.tune.search` asks: ``choices`` (the
search space), ``busy`` (lower bounds in cycles) and ``runs`` (the machine's own clock).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np

from tilewright.isa.execute.operands import numpy_type
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.counts import Counts
from tilewright.isa.multiply.conv import MOST_TAPS, SPLITS, ConvShape, conv2d, conv_shape
from tilewright.isa.multiply.expected import expected_conv2d_counts, expected_counts
from tilewright.isa.multiply.matmul import A_REGISTER, ACCUMULATORS, PLACES, KernelResult, columns_of_mm, matmul
from tilewright.layout.index.types import round_up

Runs = tuple[list[KernelResult], tuple[int, ...]]
"""Runs without values, and how often each counts."""
_MOST_LOADS = 1 << 20
"""Columns loaded by a run that is timed as a whole; of larger ones three row blocks are, if there are more."""
_FEW_ROWS = 8
"""Rows below which A is next to nothing, and how several threads to a row load it matters little."""


_WORDS = {"columns": "{} columns", "line": "line {}", "page": "page {}", "split": "split by {}"}
_WORDS |= {"segments": "{} segments", "block_a": "A by {}", "buffers": "twice", "stream": "weights by DMA"}
_WORDS |= {"tail_kb": "last rows kb{}"}
"""How options that are not the default are named."""


@dataclass(frozen=True)
class _Options:
    def __str__(self) -> str:
        own, usual = self.options, {f.name: f.default for f in fields(self)}
        words = [f"ka{own['ka']} kb{own['kb']}"]
        words += [f"{own['order']} t{int(own['transpose_b'])}"] if "order" in own else []
        for name in (name for name in _WORDS if own.get(name) != usual.get(name)):
            value = own[name]
            words.append(_WORDS[name].format("x".join(map(str, value)) if isinstance(value, tuple) else value))
        return " ".join(words)

    @property
    def options(self) -> dict[str, Any]:
        """As keywords of :func:`matmul` or :func:`conv2d`."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def non_defaults(self) -> int:
        """How many options are not the default: of choices as fast, the one with the fewest is taken."""
        return sum(getattr(self, f.name) != f.default for f in fields(self))


def _without_values(config: MatrixUnitConfig) -> MatrixUnitConfig:
    """The same machine, which counts and times products but does not compute them."""
    plain: dict[str, Any] = {"on_error": "record", "overflow": "wrap", "float_order": "chunk", "uninitialized": "zero"}
    return replace(config, values=False, **plain)


@dataclass(frozen=True)
class Choice(_Options):
    """Options of :func:`matmul`; None is what ``matmul`` does by itself.

    >>> print(Choice(), "|", Choice(ka=4, line=(8, 8)))
    ka1 kb1 k_outer t0 | ka4 kb1 k_outer t0 line 8x8
    """

    ka: int = 1
    kb: int = 1
    order: str = "k_outer"
    transpose_b: bool = False
    columns: int | None = None
    line: tuple[int, ...] | None = None
    page: tuple[int, ...] | None = None
    split: str | None = None
    segments: int | None = None
    block_a: int = 1
    tail_kb: int | None = None


@dataclass(frozen=True)
class Problem:
    """C[m, n] = A[m, k] B[k, n] with elements of ``element_bytes``, on a machine."""

    m: int
    n: int
    k: int
    element_bytes: int
    config: MatrixUnitConfig

    default = Choice()

    @property
    def title(self) -> str:
        return f"a matrix product of {self.m} x {self.n} x {self.k}"

    @property
    def macs(self) -> int:
        """Multiplications to be made."""
        return self.m * self.n * self.k

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes by name, for JSON."""
        return {"m": self.m, "n": self.n, "k": self.k}

    def choices(self, fixed: Mapping[str, Any]) -> list[Choice]:
        """Everything considered, the default first; ``fixed`` options have one value only."""
        space, c = dict.fromkeys([Choice(**fixed)]), self.config
        both = c.pred_scope == "loader" and c.column_numbering == "gap"
        orders = _allowed(fixed, "order", ("k_outer", "column_outer") if both else ("k_outer",))
        for ka, kb in _groups(c, self.element_bytes, (self.m, self.n, self.k), fixed):
            for order, transpose_b in product(orders, _allowed(fixed, "transpose_b", (False, True))):
                how = {"ka": ka, "kb": kb, "order": order, "transpose_b": transpose_b}
                columns = _allowed(fixed, "columns", _columns(self, ka))
                lines = _allowed(fixed, "line", _lines(self, kb, transpose_b))
                for line, width in product(lines, columns):
                    for split, segments in product(_splits(self, fixed), _segments(self, fixed)):
                        if segments and (split == "rows" or not {line, width} <= {lines[0], columns[0]}):
                            continue  # segments that all share, and too many of what matters little
                        rest = {"columns": width, "line": line, "split": split, "segments": segments}
                        for page in _allowed(fixed, "page", _pages(self, transpose_b, line, segments)):
                            same = {"block_a": fixed.get("block_a", 1), "tail_kb": fixed.get("tail_kb")}
                            space[Choice(**how, **rest, page=page, **same)] = None
                    if width != columns[0] or order != "k_outer":
                        continue
                    plain = Choice(**how, columns=width, line=line, tail_kb=fixed.get("tail_kb"))
                    few = [replace(plain, split=split) for split in _splits(self, fixed)]
                    few += _blocks_of_a(self, fixed, plain) if "block_a" not in fixed else ()
                    space |= dict.fromkeys((*few, *(more for choice in few for more in _tails(self, fixed, choice))))
        return list(space)

    def busy(self, choice: Choice) -> dict[str, int]:
        """Cycles each unit is busy at least, from the closed forms; of several elements the mean."""
        c, e, (m, n, k) = self.config, self.element_bytes, (self.m, self.n, self.k)
        given = {name: value for name, value in choice.options.items() if name != "page"}
        counts = expected_counts(m, n, k, c, e, **given)
        own = c.chunk(e, choice.kb) * choice.block_a  # elements of A that a thread loads at once
        loads, rest = divmod(k, own * choice.kb)
        a_lines = loads * choice.kb * -(-own * e // c.line_bytes) + -(-rest * e // c.line_bytes)  # of a row
        units = _busy(c, e, counts, choice, (m, n), counts.a_bytes_loaded // (k * e) * a_lines)
        if choice.tail_kb and c.pes == 1:  # the last rows take another time a step
            whole = m - m % (c.compute_threads // (choice.ka * choice.kb))
            steps = expected_counts(whole, n, k, c, e, **given | {"tail_kb": None}).steps if whole else 0
            rest = (counts.steps - steps) * c.step_cycles(e, choice.tail_kb)
            units["math unit"] = steps * c.step_cycles(e, choice.kb) + rest
        if choice.segments:
            units["DMA"] = c.dma_latency + -(-k * n * e // c.dram_bytes_per_cycle)
        if c.pes == 1 or c.slots == 1:  # else what one fetches another finds in L2
            lines = m * (-(-k * e // c.line_bytes) + -(-4 * n // c.line_bytes)) + counts.l2_misses
            units["memory bus"] = lines * -(-c.line_bytes * c.slots // c.dram_bytes_per_cycle)
        return units

    def runs(self, dtype: str, choice: Choice) -> Runs:
        """The whole run, counted once; of a long one three row blocks and, as often as more follow, the third."""
        config = self.config
        fit = config.compute_threads // (choice.ka * choice.kb)
        share = 1 if choice.split == "columns" else config.pes
        blocks, k_steps = self.m // (fit * share), -(-self.k // config.depth(self.element_bytes, choice.kb))
        loads = -(-self.m // fit) * self.n * k_steps * (1 if choice.order == "k_outer" else 64)
        if loads <= _MOST_LOADS or blocks <= 4:
            return [self.run(dtype, choice)], (1,)
        rows = self.m - (blocks - 3) * fit * share
        several = [replace(self, m=rows), replace(self, m=rows - fit * share)]
        return [few.run(dtype, choice) for few in several], (blocks - 2, 3 - blocks)

    def run(self, dtype: str, choice: Choice) -> KernelResult:
        """All of it, without values."""
        a, b = (np.zeros(shape, numpy_type(dtype)) for shape in ((self.m, self.k), (self.k, self.n)))
        return matmul(a, b, _without_values(self.config), **choice.options)


def _tails(problem: Problem, fixed: Mapping[str, Any], plain: Choice) -> Iterator[Choice]:
    """The last rows with as many threads to each as there are, and as a power of two."""
    c, e = problem.config, problem.element_bytes
    share = problem.m if plain.split == "columns" else -(-problem.m // c.pes)
    rest = share % (c.compute_threads // (plain.ka * plain.kb))
    if not rest or rest == share or "tail_kb" in fixed or (plain.block_a > 1 and plain.kb > 1):
        return
    k_steps = -(-problem.k // c.chunk(e)) if c.kb_mode == "chunk" else c.chunk(e)
    most = min(c.compute_threads // (plain.ka * rest), 2 * k_steps - 1)
    for kb in sorted({most, 1 << (most.bit_length() - 1)} if most else ()):
        if kb > plain.kb and (c.kb_mode == "chunk" or c.chunk(e) % kb == 0):
            yield replace(plain, tail_kb=kb)


def _blocks_of_a(problem: Problem, fixed: Mapping[str, Any], plain: Choice) -> Iterator[Choice]:
    """A of several k steps at once: as many as a line holds, half of them, or as many as registers do; B by DMA too.

    Segments of B have the columns of one block, half of all or all of them, and pages as deep as a line, so that the
    first one is soon there.
    """
    c, e, kb = problem.config, problem.element_bytes, plain.kb
    k_steps, room = -(-problem.k // c.depth(e, kb)), (PLACES - A_REGISTER) // c.a_registers_read(e, kb)
    few = kb > 1 and problem.m < _FEW_ROWS
    per_line = min(max(1, c.line_bytes // c.a_bytes), room)
    for block in dict.fromkeys((per_line, *([] if few else [per_line // 2]), *([room] if kb == 1 else []))):
        if not 1 < block <= k_steps:
            continue
        if kb > 1 and (problem.k % (c.depth(e, kb) * block) or c.chunk(e, kb) * e % 4):
            continue
        for split in _splits(problem, fixed):
            yield replace(plain, block_a=block, split=split)
        if c.pes == 1 and plain.line is None and not few and not {"segments", "page"} & fixed.keys():
            blocks, wide = -(-problem.n // columns_of_mm(c, plain.ka, plain.columns)), max(1, c.line_bytes // e)
            for segments in dict.fromkeys((blocks, 1, min(2, problem.n)) if kb == 1 else (1,)):
                share = -(-problem.n // segments)
                for high in dict.fromkeys((share, -(-share // 2))):
                    page = (wide, round_up(high, wide)) if plain.transpose_b else (high, wide)
                    yield replace(plain, block_a=block, segments=segments, page=page)


def _allowed(fixed: Mapping[str, Any], name: str, values: Any) -> tuple[Any, ...]:
    return (fixed[name],) if name in fixed else tuple(values)


def _groups(
    c: MatrixUnitConfig, e: int, sizes: tuple[int, int, int], fixed: Mapping[str, Any], all_threads: bool = False
) -> Iterator[tuple[int, int]]:
    """(ka, kb) for ``sizes`` rows, columns and depth: powers of two, and as many threads as there are for a row.

    None has threads without anything to do. ``all_threads``: also the kb that gives a row all its threads with this ka.
    """
    threads, (rows, columns, depth) = c.compute_threads, sizes
    spare = threads // min(-(-rows // c.pes), threads)

    def up_to(most: int, *more: int) -> list[int]:
        return sorted({size for size in (*(1 << n for n in range(most.bit_length())), spare, *more) if size <= most})

    k_steps = -(-depth // c.chunk(e)) if c.kb_mode == "chunk" else c.chunk(e)
    for ka in _allowed(fixed, "ka", up_to(min(threads, 2 * columns - 1))):
        more = (max(1, spare // ka),) if all_threads else ()
        for kb in _allowed(fixed, "kb", up_to(min(threads // ka, 2 * k_steps - 1), *more)):
            if ka * kb <= threads and (c.kb_mode == "chunk" or c.chunk(e) % kb == 0):
                yield ka, kb


def _columns(problem: Problem, ka: int) -> list[int | None]:
    """By default, as many as registers and loaders allow, and blocks of N that are even."""
    c, usual = problem.config, columns_of_mm(problem.config, ka)
    registers = ACCUMULATORS if c.acc_window is None else max(1, min(ACCUMULATORS, c.acc_window[1]))
    most = min(c.loader_threads, ka * registers)
    widths: list[int | None] = [None]
    for width in (most, -(-problem.n // -(-problem.n // most)), -(-most // 2)):
        if width not in (*widths, usual) and not width >= problem.n <= usual:
            widths.append(width)
    return widths


def _lines(problem: Problem, kb: int, transpose_b: bool) -> list[tuple[int, ...] | None]:
    """Lines along d1 (the default), as deep as an instruction, and all along k (t1 would be t0 then)."""
    c, e = problem.config, problem.element_bytes
    elements = c.line_bytes // e
    if elements < 1:
        return [None]
    deep = min(elements, 1 << (c.depth(e, kb) - 1).bit_length())
    usual = 1 if transpose_b else elements
    depths = [deep] if transpose_b and deep < elements else [] if transpose_b else [deep, elements]
    shapes = [(along, elements // along) for along in dict.fromkeys(depths) if along != usual]
    return [None, *((along, across) if transpose_b else (across, along) for along, across in shapes)]


def _splits(problem: Problem, fixed: Mapping[str, Any]) -> tuple[str | None, ...]:
    return _allowed(fixed, "split", ("rows", "columns") if problem.config.pes > 1 else (None,))


def _segments(problem: Problem, fixed: Mapping[str, Any]) -> tuple[int | None, ...]:
    """B by segments where it is larger than L2: as few as let two of every element be there, and twice as many."""
    c = problem.config
    size = problem.n * problem.k * problem.element_bytes
    if size <= c.l2_bytes or not c.l2_bytes:
        return _allowed(fixed, "segments", (None,))
    few = -(-2 * size // c.l2_bytes)  # two of each element's: its share of B is a pes-th
    most = max(1, problem.n // c.pes)
    return _allowed(fixed, "segments", (None, *(s for s in (few, 2 * few) if s <= most)))


def _pages(
    problem: Problem, transpose_b: bool, line: tuple[int, ...] | None, segments: int | None
) -> list[tuple[int, ...] | None]:
    """One page; where caches have sets, rows one line further apart; segments in pages of a few columns each."""
    c, e = problem.config, problem.element_bytes
    elements = c.line_bytes // e
    high, wide = line or (1, elements)
    pages: list[tuple[int, ...] | None] = [None]
    rows, run = (problem.k, problem.n) if transpose_b else (problem.n, problem.k)
    if segments:
        width = -(-problem.n // (c.pes * segments))
        part = -(-width // 4)
        shape = (rows, part) if transpose_b else (part, run)
        return [None, (round_up(shape[0], high), round_up(shape[1], wide))] if width >= 8 else pages
    if c.l1_ways or c.l2_ways:
        lines_of_a_row = round_up(run, wide) // wide
        if lines_of_a_row % 2 == 0:
            pages.append((round_up(rows, high), (lines_of_a_row + 1) * wide))
    return pages


# Cycles no run can stay below, by closed forms.


def _busy(
    c: MatrixUnitConfig, e: int, counts: Counts, choice: Any, sums: tuple[int, int], a_lines: int
) -> dict[str, int]:
    """Cycles of the math unit, the load-store unit and L2's bus for what was counted of [rows, columns] ``sums``."""
    rows, columns = sums
    local = -(-min(columns_of_mm(c, choice.ka, choice.columns), columns) // choice.ka)  # of a thread
    stored = max(4 * rows * columns // c.line_bytes, rows * -(-columns // local))
    asked = max(-(-counts.l1_touches // c.l1_ports), counts.column_loads) + (a_lines + stored) // c.l1_ports
    own = 0 if c.loads_through_l1 else counts.a_bytes_loaded
    crossing = (counts.l1_misses * c.line_bytes + own + 4 * rows * columns) * c.slots // c.l2_bytes_per_cycle
    step = min(c.step_cycles(e, kb) for kb in {choice.kb, getattr(choice, "tail_kb", None) or choice.kb})
    units = {"math unit": counts.steps * step, "load-store unit": asked, "L2 bus": crossing}
    return {name: -(-cycles // c.pes) for name, cycles in units.items()}


# Convolutions.


@dataclass(frozen=True)
class ConvChoice(_Options):
    """Options of :func:`conv2d`; None is what ``conv2d`` does by itself.

    >>> print(ConvChoice(), "|", ConvChoice(kb=4, block_a=8, buffers=2, stream=True))
    ka1 kb1 | ka1 kb4 A by 8 twice weights by DMA
    """

    ka: int = 1
    kb: int = 1
    columns: int | None = None
    split: str | None = None
    block_a: int = 1
    buffers: int = 1
    stream: bool = False


@dataclass(frozen=True)
class ConvProblem:
    """A convolution of images ``x`` by weights ``w`` (shapes) on a machine; ``how``: stride, padding, ..."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    how: tuple[tuple[str, Any], ...]
    element_bytes: int
    config: MatrixUnitConfig

    default = ConvChoice()

    @property
    def shape(self) -> ConvShape:
        how: dict[str, Any] = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "layout": "NHWC"} | dict(self.how)
        return conv_shape(self.x, self.w, **how)

    @property
    def title(self) -> str:
        sides = ["x".join(map(str, side)) for side in (self.x, self.w)]
        return f"a convolution of {sides[0]} by {sides[1]}"

    @property
    def macs(self) -> int:
        """Multiplications, those with padding included."""
        shape = self.shape
        return shape.pixels * shape.outs * shape.depth * shape.kernel[0] * shape.kernel[1]

    @property
    def sizes(self) -> dict[str, Any]:
        """The shapes and options by name, for JSON."""
        return {"x": list(self.x), "w": list(self.w), **dict(self.how)}

    def choices(self, fixed: Mapping[str, Any]) -> list[ConvChoice]:
        """Everything considered, the default first; ``fixed`` options have one value only."""
        space = dict.fromkeys([ConvChoice(**fixed)])
        c, shape = self.config, self.shape
        fits = shape.outs * shape.depth * shape.kernel[0] * shape.kernel[1] * self.element_bytes <= c.l2_bytes
        width = shape.outs // shape.groups
        for ka, kb in _groups(c, self.element_bytes, (shape.pixels, width, shape.depth), fixed, all_threads=True):
            widths: list[int | None] = [None]
            usual = columns_of_mm(c, ka)
            if width > usual and width % usual:
                widths.append(-(-width // -(-width // usual)))
            columns, splits = (
                _allowed(fixed, "columns", widths),
                _allowed(fixed, "split", SPLITS if c.pes > 1 else (None,)),
            )
            streams = _allowed(fixed, "stream", (False, True) if fits and c.pes == 1 else (False,))
            for width_, split, stream in product(columns, splits, streams):
                for block, buffers in _conv_blocks(self, kb, fixed):
                    space[ConvChoice(ka, kb, width_, split, block, buffers, stream)] = None
        return list(space)

    def busy(self, choice: ConvChoice) -> dict[str, int]:
        """Cycles each unit is busy at least, from the closed forms; of several elements the mean."""
        c, shape, e = self.config, self.shape, self.element_bytes
        options: dict[str, Any] = {"ka": choice.ka, "kb": choice.kb, "columns": choice.columns, "split": choice.split}
        counts = expected_conv2d_counts(self.x, self.w, **dict(self.how), config=c, element_bytes=e, **options)
        weights = shape.outs * shape.depth * shape.kernel[0] * shape.kernel[1] * e
        a_lines = counts.a_bytes_loaded // min(c.line_bytes, c.chunk(e, choice.kb) * e * choice.block_a)
        units = _busy(c, e, counts, choice, (shape.pixels, shape.outs), a_lines)
        return units | {"memory bus": (weights + 4 * shape.pixels * shape.outs) // c.dram_bytes_per_cycle}

    def runs(self, dtype: str, choice: ConvChoice) -> Runs:
        """The whole run, counted once."""
        return [self.run(dtype, choice)], (1,)

    def run(self, dtype: str, choice: ConvChoice) -> KernelResult:
        """All of it, without values."""
        x, w = (np.zeros(shape, numpy_type(dtype)) for shape in (self.x, self.w))
        return conv2d(x, w, config=_without_values(self.config), **dict(self.how), **choice.options)


def problem_of(
    sizes: Sequence[Any], how: Mapping[str, Any], element_bytes: int, config: MatrixUnitConfig
) -> Problem | ConvProblem:
    """A product (m, n, k), or a convolution (shapes of x and w, with stride, padding, ... in ``how``)."""
    if len(sizes) == 2:
        return ConvProblem(tuple(sizes[0]), tuple(sizes[1]), tuple(how.items()), element_bytes, config)
    m, n, k = sizes
    return Problem(m, n, k, element_bytes, config)


def _conv_blocks(problem: ConvProblem, kb: int, fixed: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """(k steps of A at once, buffers) that divide the channels, up to a line of each thread; or two taps' channels."""
    c, shape, e = problem.config, problem.shape, problem.element_bytes
    depth, own = c.depth(e, kb), c.chunk(e, kb) * e
    several = 1 < shape.kernel[0] * shape.kernel[1] <= MOST_TAPS
    most = min((PLACES - A_REGISTER) // c.a_registers, max(1, c.line_bytes // c.a_bytes))
    blocks = _allowed(fixed, "block_a", (1 << n for n in range(most.bit_length())))
    for block, buffers in product(blocks, _allowed(fixed, "buffers", (1, 2))):
        fits = shape.depth % (depth * block * buffers) == 0 or (several and shape.depth == depth * block)
        if block * buffers == 1 or (block <= most and fits and (block == 1 or own % 4 == 0)):
            yield block, buffers
