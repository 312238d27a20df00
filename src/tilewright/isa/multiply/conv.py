"""conv2d: a convolution by the ``mm`` instruction, as one program.

No matrix of patches is made; every thread finds its pixels by coordinates. A thread group is one output pixel, a loader
one output channel. The input is a segment of four dims, channels d1 first, so that what lies outside the image is
outside the segment: not loaded, zero because it was cleared. The weights are a segment too, so that channels beyond the
last are absent from the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.isa.chip.segments import Part, by_dim
from tilewright.isa.language.assemble import assemble
from tilewright.isa.language.config import MatrixUnitConfig, checked_config
from tilewright.isa.language.counts import Counts
from tilewright.isa.language.errors import array_of, whole, wholes
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.multiply import matmul
from tilewright.isa.vector.spec import VectorSpec

# The sizes of a convolution, read off the shapes of its images and weights and how it is to be done.

Pair = tuple[int, int]
_MOST_STEP = 1 << 31
MOST_TAPS = 25
"""Of a kernel whose taps are written one behind the other in the program."""
_MOST_PIXELS = 1 << 20
_MOST_RESULTS = 1 << 32
SPLITS = ("images", "rows", "channels")
"""What of the result can be divided among processing elements."""


@dataclass(frozen=True)
class ConvShape:
    """Sizes by (height, width) where there are two; ``depth``: channels that one output channel adds up.

    ``beside``: channels of a pixel where a row of the kernel is one tap: its pixels follow one another along d1.
    """

    images: int
    size: Pair
    depth: int
    outs: int
    groups: int
    kernel: Pair
    stride: Pair
    before: Pair
    dilation: Pair
    out: Pair
    beside: int = 0

    @property
    def pixels(self) -> int:
        """Of the result, all images together."""
        return self.images * self.out[0] * self.out[1]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to multiply."""
        return 0 in (self.pixels, self.outs, self.depth, *self.kernel, *self.size)


def conv_shape(
    x: Sequence[int], w: Sequence[int], stride: Any, padding: Any, dilation: Any, groups: Any, layout: str
) -> ConvShape:
    """The sizes, or one clear error; ``x`` and ``w`` are shapes."""
    if layout not in ("NHWC", "NCHW"):
        raise UsageError(f"layout {layout!r}", how="NHWC or NCHW")
    x, w = wholes("x", x), wholes("w", w)
    if len(x) != 4 or len(w) != 4:
        raise UsageError(f"x has shape {list(x)}, w {list(w)}", how="four dims each")
    images, height, width, channels = x if layout == "NHWC" else (x[0], x[2], x[3], x[1])
    kh, kw, depth, outs = w if layout == "NHWC" else (w[2], w[3], w[1], w[0])
    groups = whole("groups", groups, 1)
    if channels != depth * groups or outs % groups:
        sizes = f"{channels} channels in {groups} groups, weights for {depth} channels and {outs} outputs"
        raise UsageError(sizes, how="channels must be groups times those of the weights, outputs a multiple of groups")
    strides, dilations = _pair("stride", stride), _pair("dilation", dilation)
    spans = [(k - 1) * d + 1 for k, d in zip((kh, kw), dilations, strict=True)]
    pads = _padding(padding, (height, width), spans, strides)
    out = [
        (size + sum(pad) - span) // s + 1 if size + sum(pad) >= span else 0
        for size, pad, span, s in zip((height, width), pads, spans, strides, strict=True)
    ]
    for side, count in zip(("height", "width"), out, strict=True):
        whole(f"{side} of the result", count, most=_MOST_PIXELS)
    whole("elements of the result", images * out[0] * out[1] * outs, most=_MOST_RESULTS)
    return ConvShape(
        images=images,
        size=(height, width),
        depth=depth,
        outs=outs,
        groups=groups,
        kernel=(kh, kw),
        stride=strides,
        before=(pads[0][0], pads[1][0]),
        dilation=dilations,
        out=(out[0], out[1]),
    )


def _pair(name: str, value: int | Sequence[int], least: int = 1) -> Pair:
    both = tuple(value) if isinstance(value, Sequence | np.ndarray) else (value, value)
    if len(both) != 2:
        raise UsageError(f"{name} = {value!r}", how="one number, or two")
    return whole(name, both[0], least, _MOST_STEP), whole(name, both[1], least, _MOST_STEP)


def _padding(padding: Any, sizes: Sequence[int], spans: Sequence[int], strides: Sequence[int]) -> tuple[Pair, Pair]:
    if isinstance(padding, str):
        if padding.lower() not in ("valid", "same"):
            raise UsageError(f"padding {padding!r}", how="valid, same, or numbers")
        if padding.lower() == "valid":
            return (0, 0), (0, 0)
        needed = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in zip(sizes, spans, strides, strict=True)]
        return (needed[0] // 2, needed[0] - needed[0] // 2), (needed[1] // 2, needed[1] - needed[1] // 2)
    if not isinstance(padding, Sequence | np.ndarray):
        both = _pair("padding", padding, 0)
        return (both[0], both[0]), (both[1], both[1])
    rows = list(padding)
    if len(rows) != 2:
        raise UsageError(f"padding = {padding!r}", how="one number, one per dim, or (before, after) per dim")
    return _pair("padding", rows[0], 0), _pair("padding", rows[1], 0)


@dataclass(frozen=True)
class ConvPlan:
    """``plan`` has the pixels for rows, the channels of a group for columns, and their depth for k.

    A processing element's part: ``plan.m`` pixels from ``pixel`` on of the images it sees, ``channels`` (first, end) of
    all output channels. B and C are windows that begin there; A's channels are all there. ``stream``: the weights come
    to L2 by DMA.
    """

    plan: matmul.MatmulPlan
    shape: ConvShape
    pixel: int
    channels: tuple[int, int]
    stream: bool = False

    @property
    def ahead(self) -> bool:
        """Whether A of a tap is loaded while the one before is worked on."""
        return conv_ahead(self.plan, self.shape.kernel[0] * self.shape.kernel[1])

    @property
    def pieces(self) -> list[tuple[int, int, int, int]]:
        """(first group, end, first channel in each, end): whole groups, and what of a group is at either end."""
        width, (first, end) = self.plan.n, self.channels
        (low, before), (high, after) = divmod(first, width), divmod(end, width)
        if before and low == high:
            return [(low, low + 1, before, after)]
        pieces = [(low, low + 1, before, width)] if before else []
        low += bool(before)
        pieces += [(low, high, 0, width)] if high > low else []
        return pieces + ([(high, high + 1, 0, after)] if after else [])


def conv_program(conv: ConvPlan) -> MachineProgram:
    """The program; segments ``$A`` (images, h, w, c), ``$B`` (its out channels, kh, kw, c of a group), ``$C``.

    ur0 first pixel, ur1 first channel of the block, ur20 kh, ur21 kw, ur22 channel, ur14 group; the others as for a
    matrix product. r272, r273: where the pixel's window begins, r274: its image.
    """
    if conv.shape.empty:
        return assemble("halt", conv.plan.config)
    matmul.check(conv.plan)
    if conv.plan.config.uniform_registers < 23:
        raise UsageError("conv2d needs 23 uniform registers", where="config")
    lines = matmul.places(conv.plan)
    if conv.stream:
        lines.insert(lines.index("segment ur4, $B") + 1, "dmain ur4    # page by page, in the order of use")
    for number, piece in enumerate(conv.pieces):
        lines += _blocks(conv, piece, f"_{number}" if number else "")
    return assemble("\n".join([*lines, "halt"]), conv.plan.config)


def _blocks(conv: ConvPlan, piece: tuple[int, int, int, int], tag: str) -> list[str]:
    plan, (low, high, first, end) = conv.plan, piece
    shifted = f"sub ur15, ur15, {conv.channels[0]}    # the first channel of the part"
    product = [
        f"mul ur15, ur14, {plan.n}",
        "add ur15, ur15, ur1",
        *([shifted] if conv.channels[0] else []),
        "add r293, r280, ur15    # every loader's own channel",
        *_depth(conv, tag),
        *matmul.store(plan, "ur15", tag),
    ]
    return [
        f"mov ur14, {low}",
        f"groups{tag}:",
        *matmul.over_blocks(plan, tag, 0, (first, end), ["add r299, r281, ur0", *_window(conv)], product),
        "add ur14, ur14, 1",
        f"br.lt ur14, {high}, groups{tag}",
    ]


def _window(conv: ConvPlan) -> list[str]:
    """From the number of a pixel to its image and the corner of its window."""
    height, width = conv.shape.out
    pixel = "r275" if conv.pixel else "r299"
    return [
        *([f"add r275, r299, {conv.pixel}    # the first pixel of the part"] if conv.pixel else []),
        f"rem r272, {pixel}, {width}",
        f"div r274, {pixel}, {width}",
        f"rem r273, r274, {height}",
        f"div r297, r274, {height}",
        f"mul r272, r272, {conv.shape.stride[1]}",
        f"sub r272, r272, {conv.shape.before[1]}",
        f"mul r273, r273, {conv.shape.stride[0]}",
        f"sub r273, r273, {conv.shape.before[0]}",
        *([f"mul r272, r272, {conv.shape.beside}", "mov r295, 0"] if conv.shape.beside else []),
    ]


def _depth(conv: ConvPlan, tag: str) -> list[str]:
    plan = conv.plan
    if conv.ahead:
        return _taps(conv)
    block: list[str] = []
    for buffer in range(plan.buffers):
        block += [*_channels_of(conv, buffer), f"add ur22, ur22, {plan.depth * plan.block_a}"]
    return [
        "mov ur20, 0",
        f"down{tag}:",
        f"mul ur16, ur20, {conv.shape.dilation[0]}",
        "add r296, r273, ur16",
        "mov r292, ur20",
        "mov ur21, 0",
        f"across{tag}:",
        *([] if conv.shape.beside else [f"mul ur16, ur21, {conv.shape.dilation[1]}", "add r295, r272, ur16"]),
        "mov r291, ur21",
        "mov ur22, 0",
        f"channels{tag}:",
        *block,
        f"br.lt ur22, {plan.k}, channels{tag}",
        "add ur21, ur21, 1",
        f"br.lt ur21, {conv.shape.kernel[1]}, across{tag}",
        "add ur20, ur20, 1",
        f"br.lt ur20, {conv.shape.kernel[0]}, down{tag}",
    ]


def _taps(conv: ConvPlan) -> list[str]:
    """All taps one behind the other, each with all its channels; A of the next is loaded before the ``mm`` of one."""
    taps = [(down, across) for down in range(conv.shape.kernel[0]) for across in range(conv.shape.kernel[1])]
    lines = [*_first_channel(conv, f"mul ur16, ur14, {conv.plan.k}"), "mov r290, 0"]
    for number, tap in enumerate([*taps, None]):
        if tap is not None:
            places = [offset * step for offset, step in zip(tap, conv.shape.dilation, strict=True)]
            lines += [f"add r296, r273, {places[0]}"]
            lines += [] if conv.shape.beside else [f"add r295, r272, {places[1]}"]
            lines += _load(conv, number % 2)
        if number:
            down, across = taps[number - 1]
            lines += [f"mov r292, {down}", f"mov r291, {across}", *_multiply(conv, (number - 1) % 2)]
    return lines


def _channels_of(conv: ConvPlan, buffer: int) -> list[str]:
    """``block_a`` rounds of channels from ur22 on: A of all of them to the registers of a buffer, then their ``mm``."""
    lines = _first_channel(conv, f"mul ur16, ur14, {conv.plan.k}", "add ur16, ur16, ur22")
    return [*lines, *_load(conv, buffer), "mov r290, ur22", *_multiply(conv, buffer)]


def _first_channel(conv: ConvPlan, *lines: str) -> list[str]:
    """Every thread's own first channel, from the group's, which ``lines`` put in ur16; of a row of pixels the first."""
    return [*lines, "add r294, r286, ur16", *(["add r294, r294, r272"] if conv.shape.beside else [])]


def _load(conv: ConvPlan, buffer: int) -> list[str]:
    """A of ``block_a`` rounds to the registers of a buffer; what lies outside the image is 0."""
    plan = conv.plan
    first, count = matmul.a_bases(plan)[buffer], plan.held * plan.block_a
    load = f"ld{matmul.own_elements(plan)} r{first}, ur3:rf294:0x00, {count}"
    return [*(f"mov r{first + i}, 0" for i in range(count)), f"@p2, {load}"]


def _multiply(conv: ConvPlan, buffer: int) -> list[str]:
    plan = conv.plan
    first, held = matmul.a_bases(plan)[buffer], plan.held
    name = f"mm{plan.type}.ka{plan.ka}.kb{plan.kb}.t0{plan.signs}"
    return [f"{name} r0, ur4:rf290:0x{n * plan.depth:02x}, r{first + n * held}" for n in range(plan.block_a)]


def conv2d(
    x: Any,
    w: Any,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] | Sequence[Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NHWC",
    config: MatrixUnitConfig | None = None,
    ka: int = 1,
    kb: int = 1,
    columns: int | None = None,
    split: str | None = None,
    trace: bool = False,
    watch: Callable[[Counts], None] | None = None,
    block_a: int = 1,
    buffers: int = 1,
    stream: bool = False,
    epilogue: VectorSpec | None = None,
    operands: Mapping[str, Any] | None = None,
) -> matmul.KernelResult:
    """The convolution (as networks mean it: not flipped) of images ``x`` with weights ``w``.

    ``layout`` NHWC: x [n, h, w, c], w [kh, kw, c / groups, out]; NCHW: x [n, c, h, w], w [out, c / groups, kh, kw]. x
    is kept in memory as it comes, w with channels contiguous. ``padding``: "valid", "same" (out = ceil(in / stride), an
    odd zero behind), one number, one per dim, or (before, after) per dim. ``.value`` is int32 (modulo 2^32) or float32
    in the same layout. Types, ``ka``, ``kb``, ``columns``, ``trace``, ``watch``: as for :func:`matmul`.

    With ``config.pes`` above 1 the result is divided among the elements, by ``split``: whole images, rows (of all
    images, one after the other) or output channels (None: rows if there are enough of them, and of pixels for all
    threads; else channels). Every element reads what it needs of x, neighbouring rows included, and its own part of w.
    ``block_a``: rounds of channels that one ``ld`` brings; ``buffers``: 2 has the next block's in registers of its own,
    so that it is loaded while one is worked on. Blocks of all buffers must divide the channels; where one block has
    them all, two buffers are those of two taps, and A of the next comes before the products of one. ``stream``: the
    weights come to L2 by DMA, page by page in the order of use (one element; they must fit). ``epilogue``,
    ``operands``: as for :func:`matmul`, over pixels (of all images, one after the other) and channels. Raises
    :class:`UsageError` for what does not fit together.

    >>> image, edge = np.arange(9, dtype=np.int8).reshape(1, 3, 3, 1), np.array([[[[1]], [[-1]]]], np.int8)
    >>> conv2d(image, edge).value[0, :, :, 0].tolist()
    [[-1, -1], [-1, -1], [-1, -1]]
    """
    config = checked_config(config)
    x, w = array_of("x", x), array_of("w", w)
    shape = conv_shape(x.shape, w.shape, stride, padding, dilation, groups, layout)
    ka, kb = whole("ka", ka, 1), whole("kb", kb, 1)
    if split not in (None, *SPLITS):
        raise UsageError(f"split {split!r}", how="images, rows or channels")
    written, signs = matmul.type_and_signs(matmul.element_type(x, "x"), matmul.element_type(w, "w"))
    per_mm = matmul.columns_of_mm(config, ka, columns)
    width = shape.outs // shape.groups
    plan = matmul.MatmulPlan(
        *(shape.pixels, width, shape.depth, written, signs, x.itemsize, ka, kb, False, "k_outer", per_mm, config),
        block_a=whole("block_a", block_a, 1),
        buffers=whole("buffers", buffers, 1, 2),
        epilogue=epilogue,
    )
    _check_conv(plan, stream, shape.kernel[0] * shape.kernel[1])
    conv = ConvPlan(plan, shape, 0, (0, shape.outs), bool(stream))
    images = x if layout == "NHWC" else x.transpose(0, 2, 3, 1)
    weights = np.ascontiguousarray(w.transpose(3, 0, 1, 2) if layout == "NHWC" else w.transpose(0, 2, 3, 1))
    weights = matmul.stored_weights(plan, weights)
    order = None if layout == "NHWC" else (2, 1, 3, 0)
    value, more = matmul.result_and_operands(replace(plan, n=shape.outs), operands)
    tensors = {"A": images, "B": weights, "C": value, **more}
    if (config.pes > 1 or stream) and not shape.empty:
        # Streamed weights in the order of use: channels, taps, output channels.
        pages = {"page": _page_of_weights(plan, shape), "mapped": False} if stream else {}
        machine = matmul.host(config, tensors, trace, A={"order": order}, B=pages)
        shares = conv_shares(conv, images.shape, weights.shape, split)
        work = (
            (pe, conv_program(own), {**seen, **matmul.operand_windows(epilogue, seen["C"])}) for pe, own, seen in shares
        )
        result = matmul.run_on_elements(machine, work, watch)
    else:
        result = matmul.run_alone(config, conv_program(conv), tensors, trace=trace, watch=watch, A={"order": order})
    shaped = result.value.reshape(shape.images, *shape.out, shape.outs)
    result.value = np.ascontiguousarray(shaped if layout == "NHWC" else shaped.transpose(0, 3, 1, 2))
    result.values = {"C": result.value}
    return result


def conv_ahead(plan: matmul.MatmulPlan, taps: int) -> bool:
    """Whether two buffers hold the channels of two taps: one block has them all, and the taps are few enough."""
    return plan.buffers == 2 and -(-plan.k // plan.depth) == plan.block_a and 1 < taps <= MOST_TAPS


def _check_conv(plan: matmul.MatmulPlan, stream: bool, taps: int) -> None:
    """Refuse what the kernel cannot write."""
    if stream and plan.config.pes > 1:
        raise UnsupportedError("weights by DMA for several elements", how="pes=1, or stream=False")
    block = plan.k if conv_ahead(plan, taps) else plan.depth * plan.block_a * plan.buffers
    if plan.block_a * plan.buffers > 1 and plan.k % block:
        problem = f"{plan.k} channels in blocks of {block} (depth {plan.depth}, block_a, buffers)"
        raise UnsupportedError(problem, how="blocks that divide the channels")
    matmul.check(plan)


def _page_of_weights(plan: matmul.MatmulPlan, shape: ConvShape) -> tuple[int, ...]:
    """Of one block of output channels and one tap, so deep that the latency of a transfer is little of it."""
    c, outs = plan.config, min(plan.columns, shape.outs)
    depth = max(1, c.line_bytes // plan.element_bytes)
    while depth < plan.k and outs * depth * plan.element_bytes < 8 * c.dma_latency * c.dram_bytes_per_cycle:
        depth *= 2
    return outs, 1, 1, depth


# A convolution over several processing elements: images, rows of the result, or output channels to each.


def conv_parts(shape: tuple[int, ...], split: str, pes: int) -> dict[int, Part]:
    """Of the result (images, rows, columns, channels) as pixels by channels: a part for every element at work.

    >>> {pe: str(part) for pe, part in conv_parts((2, 3, 4, 8), "rows", 2).items()}
    {0: '[0:12, 0:8]', 1: '[12:24, 0:8]'}
    """
    images, height, width, channels = shape
    pixels = images * height * width
    unit = {"images": height * width, "rows": width, "channels": 1}[split]
    many = {"images": images, "rows": images * height, "channels": channels}[split]
    parts = {}
    for pe, (share,) in by_dim((many,), 0, pes).items():
        (first,), (count,) = share.base, share.size
        if split == "channels":
            parts[pe] = Part((0, first), (pixels, count))
        else:
            parts[pe] = Part((first * unit, 0), (count * unit, channels))
    return parts


def conv_shares(
    conv: ConvPlan, images: tuple[int, ...], weights: tuple[int, ...], split: str | None = None
) -> Iterator[tuple[int, ConvPlan, dict[str, Part]]]:
    """Every element at work, its plan and its windows: A, the images it needs anything of; B, the weights; C.

    ``images``, ``weights``: shapes of A and B; ``split``: None for rows where there are enough, else channels.
    """
    plan, shape, pes = conv.plan, conv.shape, conv.plan.config.pes
    per_image = shape.out[0] * shape.out[1]
    if split is None:
        split = "rows" if min(shape.images * shape.out[0], -(-plan.m // plan.fit)) >= pes else "channels"
    for pe, part in conv_parts((shape.images, *shape.out, shape.outs), split, pes).items():
        (pixel, channel), (rows, outs) = part.base, part.size
        first, end = pixel // per_image, -(-(pixel + rows) // per_image)
        own = replace(plan, m=rows)
        mine = replace(conv, plan=own, pixel=pixel - first * per_image, channels=(channel, channel + outs))
        a, b = Part((first, 0, 0, 0), (end - first, *images[1:])), Part((channel, 0, 0, 0), (outs, *weights[1:]))
        yield pe, mine, {"A": a, "B": b, "C": part}
