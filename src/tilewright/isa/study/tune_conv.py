"""autotune_conv2d: the fastest way to make a convolution on a machine, as :func:`tilewright.isa.autotune` finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa.chip.segments import ELEMENT_TYPES
from tilewright.isa.language.config import MatrixUnitConfig, checked_config
from tilewright.isa.language.errors import whole
from tilewright.isa.multiply.conv import MOST_TAPS, SPLITS, ConvShape, conv2d, conv_shape
from tilewright.isa.multiply.expected import expected_conv2d_counts
from tilewright.isa.multiply.matmul import A_REGISTER, ACCUMULATORS, KernelResult
from tilewright.isa.study.tune import Tuning, search
from tilewright.layout import paged

_PLACES = 280


@dataclass(frozen=True)
class ConvChoice:
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

    def __str__(self) -> str:
        """On one line; what is as usual is not written."""
        parts = [f"ka{self.ka} kb{self.kb}"]
        parts += [f"{self.columns} columns"] if self.columns else []
        parts += [f"split by {self.split}"] if self.split else []
        parts += [f"A by {self.block_a}"] if self.block_a > 1 else []
        parts += ["twice"] if self.buffers > 1 else []
        return " ".join([*parts, *["weights by DMA"] * self.stream])

    @property
    def options(self) -> dict[str, Any]:
        """As keywords of :func:`conv2d`."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def settings(self) -> int:
        """How many options are not what ``conv2d`` does by itself."""
        return sum(getattr(self, f.name) != f.default for f in fields(self))


@dataclass(frozen=True)
class ConvProblem:
    """A convolution of images ``x`` by weights ``w`` (shapes) on a machine; ``how``: stride, padding, ..."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    how: tuple[tuple[str, Any], ...]
    element_bytes: int
    config: MatrixUnitConfig

    @property
    def shape(self) -> ConvShape:
        """Its sizes."""
        how: dict[str, Any] = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "layout": "NHWC"} | dict(self.how)
        return conv_shape(self.x, self.w, **how)

    @property
    def title(self) -> str:
        """In words."""
        sides = ["x".join(map(str, side)) for side in (self.x, self.w)]
        return f"a convolution of {sides[0]} by {sides[1]}"

    @property
    def macs(self) -> int:
        """Products, those with padding included."""
        shape = self.shape
        return shape.pixels * shape.outs * shape.depth * shape.kernel[0] * shape.kernel[1]

    @property
    def sizes(self) -> dict[str, Any]:
        """As JSON has them."""
        return {"x": list(self.x), "w": list(self.w), **dict(self.how)}

    def busy(self, choice: ConvChoice) -> dict[str, int]:
        """Cycles each unit is busy at least, from the closed forms; of several elements the mean."""
        c, shape, e = self.config, self.shape, self.element_bytes
        options: dict[str, Any] = {"ka": choice.ka, "kb": choice.kb, "columns": choice.columns, "split": choice.split}
        counts = expected_conv2d_counts(self.x, self.w, **dict(self.how), config=c, element_bytes=e, **options)
        asked = min(c.line_bytes, c.a_bytes * choice.block_a)
        lines = counts.l1_touches + counts.a_bytes_loaded // asked
        weights = self.shape.outs * self.shape.depth * shape.kernel[0] * shape.kernel[1] * e
        units = {"math unit": counts.steps * c.step_cycles(e, choice.kb), "load-store unit": lines // c.l1_ports}
        units = {name: -(-cycles // c.pes) for name, cycles in units.items()}
        units["memory bus"] = (weights + 4 * shape.pixels * shape.outs) // c.dram_bytes_per_cycle
        return units

    def runs(self, dtype: str, choice: ConvChoice) -> tuple[list[KernelResult], tuple[int, ...]]:
        """The run without its values."""
        kind = paged((1,), dtype).numpy_dtype
        plain: dict[str, Any] = {"on_error": "record", "overflow": "wrap", "float_order": "chunk"}
        config = replace(self.config, values=False, uninitialized="zero", **plain)
        x, w = np.zeros(self.x, kind), np.zeros(self.w, kind)
        return [conv2d(x, w, config=config, **dict(self.how), **choice.options)], (1,)


def conv_choices(problem: ConvProblem, fixed: dict[str, Any]) -> list[ConvChoice]:
    """Everything considered, the default first; ``fixed`` options have one value only."""
    space = dict.fromkeys([ConvChoice(**fixed)])
    c, shape = problem.config, problem.shape
    fits = shape.outs * shape.depth * shape.kernel[0] * shape.kernel[1] * problem.element_bytes <= c.l2_bytes

    def free(name: str, *values: Any) -> tuple[Any, ...]:
        return (fixed[name],) if name in fixed else tuple(dict.fromkeys(values))

    for ka, kb in _groups(problem, free):
        widths: list[int | None] = [None]
        usual = min(c.default_columns, ka * ACCUMULATORS)
        width = shape.outs // shape.groups
        if width > usual and width % usual:
            widths.append(-(-width // -(-width // usual)))
        for columns, split in product(free("columns", *widths), free("split", *(SPLITS if c.pes > 1 else (None,)))):
            for stream in free("stream", False, *([True] if fits and c.pes == 1 else [])):
                for block, buffers in _blocks(problem, kb, free):
                    space[ConvChoice(ka, kb, columns, split, block, buffers, stream)] = None
    return list(space)


def _groups(problem: ConvProblem, free: Callable[..., tuple[Any, ...]]) -> Iterator[tuple[int, int]]:
    """(ka, kb): powers of two and as many threads as there are for a pixel; none without anything to do."""
    c, shape = problem.config, problem.shape
    threads = c.compute_threads
    pixels = -(-shape.pixels // c.pes)
    spare = max(1, threads // min(pixels, threads))
    powers = [1 << n for n in range(threads.bit_length())]
    e, outs = problem.element_bytes, shape.outs // shape.groups
    rounds = -(-shape.depth // c.chunk(e)) if c.kb_mode == "chunk" else c.chunk(e)
    for ka in free("ka", *powers, spare):
        for kb in free("kb", *powers, spare, max(1, spare // ka)):
            if (
                ka * kb <= threads
                and ka < 2 * outs
                and kb < 2 * rounds
                and (c.kb_mode == "chunk" or c.chunk(e) % kb == 0)
            ):
                yield ka, kb


def _blocks(problem: ConvProblem, kb: int, free: Callable[..., tuple[Any, ...]]) -> Iterator[tuple[int, int]]:
    """(rounds of A at once, buffers) that divide the channels, up to a line of each thread; or two taps' channels."""
    c, shape, e = problem.config, problem.shape, problem.element_bytes
    depth, own = c.depth(e, kb), c.chunk(e, kb) * e
    several = 1 < shape.kernel[0] * shape.kernel[1] <= MOST_TAPS
    most = min((_PLACES - A_REGISTER) // c.a_registers, max(1, c.line_bytes // c.a_bytes))
    for block, buffers in product(free("block_a", *(1 << n for n in range(most.bit_length()))), free("buffers", 1, 2)):
        fits = shape.depth % (depth * block * buffers) == 0 or (several and shape.depth == depth * block)
        if block * buffers == 1 or (block <= most and fits and (block == 1 or own % 4 == 0)):
            yield block, buffers


def autotune_conv2d(
    x: Sequence[int],
    w: Sequence[int],
    dtype: str = "s8",
    config: MatrixUnitConfig | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "NHWC",
    most: int = 48,
    within: float = 0.0,
    watch: Callable[[int, int], None] | None = None,
    **fixed: Any,
) -> Tuning:
    """The options of :func:`conv2d` that take the fewest modelled cycles, for images and weights of these shapes.

    Chosen: ``ka``, ``kb``, ``columns``, ``block_a``, ``buffers``, ``stream``, and ``split`` over several elements; one
    that is given keeps its value. The other arguments are those of :func:`autotune` and :func:`conv2d`.

    >>> tuning = autotune_conv2d((1, 4, 4, 64), (3, 3, 64, 32), padding=1, config=MatrixUnitConfig(threads=64))
    >>> print(tuning.best.choice, tuning.best.cycles, tuning.default.cycles)
    ka2 kb1 A by 8 weights by DMA 4645 11454
    """
    config = checked_config(config)
    if dtype not in ELEMENT_TYPES:
        raise UsageError(f"no element type called {dtype!r} for matrices", how=f"one of {', '.join(ELEMENT_TYPES)}")
    known = sorted(f.name for f in fields(ConvChoice))
    for name in fixed:
        if name not in known:
            raise UsageError(f"no option called {name!r}", how=f"one of {', '.join(known)}")
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": layout}
    e = paged((1,), dtype).numpy_dtype.itemsize
    problem = ConvProblem(tuple(x), tuple(w), tuple(how.items()), e, config)
    if problem.shape.empty:
        raise UsageError("nothing to multiply", how="sizes of at least 1")
    if not 0 <= within < 1:
        raise UsageError(f"within = {within!r}", how="a share from 0 to less than 1")
    return search(problem, dtype, conv_choices(problem, fixed), whole("most", most, 1), float(within), watch)
