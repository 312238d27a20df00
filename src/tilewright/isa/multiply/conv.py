"""conv2d: a convolution by the ``mm`` instruction, as one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.isa.chip.parts import Part, by_dim
from tilewright.isa.chip.segments import TensorMemory
from tilewright.isa.execute.machine import Machine
from tilewright.isa.execute.run import MatrixUnit
from tilewright.isa.language.checks import array_of, whole
from tilewright.isa.language.config import MatrixUnitConfig, checked_config
from tilewright.isa.language.counts import Counts
from tilewright.isa.multiply.conv_program import SPLITS, ConvPlan, conv_program, conv_shape
from tilewright.isa.multiply.matmul import (
    KernelResult,
    element_type,
    result_from,
    result_of_elements,
    type_and_signs,
)
from tilewright.isa.multiply.matmul_program import ACCUMULATORS, MatmulPlan, check

Array = np.ndarray[Any, Any]


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
) -> KernelResult:
    """The convolution (as networks mean it: not flipped) of images ``x`` with weights ``w``.

    ``layout`` NHWC: x [n, h, w, c], w [kh, kw, c / groups, out]; NCHW: x [n, c, h, w], w [out, c / groups, kh, kw]. x
    is kept in memory as it comes, w with channels contiguous. ``padding``: "valid", "same" (out = ceil(in / stride), an
    odd zero behind), one number, one per dim, or (before, after) per dim. ``.value`` is int32 (modulo 2^32) or float32
    in the same layout. Types, ``ka``, ``kb``, ``columns``, ``trace``, ``watch``: as for :func:`matmul`.

    With ``config.pes`` above 1 the result is divided among the elements, by ``split``: whole images, rows (of all
    images, one after the other) or output channels (None: rows if there are enough of them, and of pixels for all
    threads; else channels). Every element reads what it needs of x, neighbouring rows included, and its own part of w.
    Raises :class:`UsageError` for what does not fit together.

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
    written, signs = type_and_signs(element_type(x, "x"), element_type(w, "w"))
    per_mm = min(config.default_columns, ka * ACCUMULATORS) if columns is None else whole("columns", columns, 1)
    width = shape.outs // shape.groups
    plan = MatmulPlan(
        shape.pixels, width, shape.depth, written, signs, x.itemsize, ka, kb, False, "k_outer", per_mm, config
    )
    if config.kb_mode == "split":
        raise UnsupportedError("conv2d with kb_mode = 'split'", how="kb_mode='chunk'")
    check(plan)
    conv = ConvPlan(plan, shape, 0, (0, shape.outs))
    images = x if layout == "NHWC" else x.transpose(0, 2, 3, 1)
    weights = np.ascontiguousarray(w.transpose(3, 0, 1, 2) if layout == "NHWC" else w.transpose(0, 2, 3, 1))
    order = None if layout == "NHWC" else (2, 1, 3, 0)
    value = np.zeros((shape.pixels, shape.outs), np.int32 if signs else np.float32)
    if shape.empty:
        result = result_from(MatrixUnit(config).run("halt"), value, None)
    elif config.pes > 1:
        result = _conv_on_elements(conv, images, weights, order, split, trace, watch)
    else:
        memory, program = TensorMemory(), conv_program(conv)
        memory.add("A", images, order=order)
        memory.add("B", weights)
        memory.add("C", value)
        run = MatrixUnit(config).run(program, memory, trace=trace, watch=watch)
        result = result_from(run, run.tensor("C"), program)
    shaped = result.value.reshape(shape.images, *shape.out, shape.outs)
    result.value = np.ascontiguousarray(shaped if layout == "NHWC" else shaped.transpose(0, 3, 1, 2))
    return result


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


def _conv_on_elements(
    conv: ConvPlan,
    images: Array,
    weights: Array,
    order: Sequence[int] | None,
    split: str | None,
    trace: bool,
    watch: Callable[[Counts], None] | None,
) -> KernelResult:
    """Every element's A is the images it needs anything of, its B the weights of its channels."""
    plan, shape = conv.plan, conv.shape
    per_image = shape.out[0] * shape.out[1]
    if split is None:
        enough = min(shape.images * shape.out[0], -(-plan.m // plan.fit))
        split = "rows" if enough >= plan.config.pes else "channels"
    machine = Machine(plan.config, trace=trace)
    dtype = np.int32 if plan.signs else np.float32
    machine.system |= {"A": images, "B": weights, "C": np.zeros((plan.m, shape.outs), dtype)}
    machine.page_table("A", order=order, mapped=True)
    machine.page_table("B", mapped=True)
    machine.page_table("C", mapped=True)
    parts = conv_parts((shape.images, *shape.out, shape.outs), split, plan.config.pes)
    programs = []
    for pe, part in parts.items():
        (pixel, channel), (rows, outs) = part.base, part.size
        first, end = pixel // per_image, -(-(pixel + rows) // per_image)
        mine = replace(
            conv,
            plan=replace(plan, m=rows),
            pixel=pixel - first * per_image,
            channels=(channel, channel + outs),
        )
        windows = {
            "A": Part((first, 0, 0, 0), (end - first, *images.shape[1:])),
            "B": Part((channel, 0, 0, 0), (outs, *weights.shape[1:])),
            "C": part,
        }
        programs.append(conv_program(mine))
        machine.start(programs[-1], pe, segments=windows)
    runs = machine.run(watch)
    return result_of_elements(machine, [runs[pe] for pe in parts], programs)
