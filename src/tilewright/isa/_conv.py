"""conv2d: a convolution by the ``mm`` instruction, as one program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.isa._checks import array_of, whole
from tilewright.isa._config import MatrixUnitConfig, checked_config
from tilewright.isa._emit import ACCUMULATORS, Plan
from tilewright.isa._emit_conv import ConvPlan, conv_program
from tilewright.isa._matmul import MatmulResult, element_type, result_from, type_and_signs
from tilewright.isa._segments import Memory
from tilewright.isa._unit import MatrixUnit

__all__ = ["conv2d"]

Array = np.ndarray[Any, Any]
Pairs = tuple[tuple[int, int], tuple[int, int]]


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
    trace: bool = False,
) -> MatmulResult:
    """The convolution (as networks mean it: not flipped) of images ``x`` with weights ``w``.

    ``layout`` NHWC: x [n, h, w, c], w [kh, kw, c / groups, out]; NCHW: x [n, c, h, w], w [out, c / groups, kh, kw]. x
    is kept in memory as it comes, w with channels contiguous. ``padding``: "valid", "same" (out = ceil(in / stride), an
    odd zero behind), one number, one per dim, or (before, after) per dim. ``.value`` is int32 (modulo 2^32) or float32
    in the same layout. Types, ``ka``, ``kb``, ``columns``, ``trace``: as for :func:`matmul`. Raises
    :class:`UsageError` for what does not fit together.

    >>> image, edge = np.arange(9, dtype=np.int8).reshape(1, 3, 3, 1), np.array([[[[1]], [[-1]]]], np.int8)
    >>> conv2d(image, edge).value[0, :, :, 0].tolist()
    [[-1, -1], [-1, -1], [-1, -1]]
    """
    config = checked_config(config)
    x, w = array_of("x", x), array_of("w", w)
    if layout not in ("NHWC", "NCHW"):
        raise UsageError(f"layout {layout!r}", how="NHWC or NCHW")
    if x.ndim != 4 or w.ndim != 4:
        raise UsageError(f"x has shape {list(x.shape)}, w {list(w.shape)}", how="four dims each")
    images = x if layout == "NHWC" else x.transpose(0, 2, 3, 1)
    weights = w.transpose(3, 0, 1, 2) if layout == "NHWC" else w.transpose(0, 2, 3, 1)
    outs, kh, kw, c = weights.shape
    groups, ka, kb = whole("groups", groups, 1), whole("ka", ka, 1), whole("kb", kb, 1)
    if images.shape[3] != c * groups or outs % groups:
        what = f"{images.shape[3]} channels in {groups} groups, weights for {c} channels and {outs} outputs"
        raise UsageError(what, how="channels must be groups times those of the weights, outputs a multiple of groups")
    strides, dilations = _two("stride", stride), _two("dilation", dilation)
    spans = [(k - 1) * d + 1 for k, d in zip((kh, kw), dilations, strict=True)]
    pads = _padding(padding, images.shape[1:3], spans, strides)
    out = [
        (size + sum(pad) - span) // s + 1 if size + sum(pad) >= span else 0
        for size, pad, span, s in zip(images.shape[1:3], pads, spans, strides, strict=True)
    ]
    written, signs = type_and_signs(element_type(x, "x"), element_type(w, "w"))
    pixels, width = images.shape[0] * out[0] * out[1], outs // groups
    per_mm = min(config.default_columns, ka * ACCUMULATORS) if columns is None else whole("columns", columns, 1)
    plan = Plan(pixels, width, c, written, signs, x.itemsize, ka, kb, False, "k_outer", per_mm, config)
    if config.kb_mode == "split":
        raise UnsupportedError("conv2d with kb_mode = 'split'", how="kb_mode='chunk'")
    before = (pads[0][0], pads[1][0])
    conv = ConvPlan(plan, (out[0], out[1]), (kh, kw), strides, before, dilations, groups)
    value = np.zeros((pixels, outs), np.int32 if signs else np.float32)
    memory = Memory()
    program = None
    if value.size and weights.size and x.size:
        program = conv_program(conv)
        memory.add("A", images, order=None if layout == "NHWC" else (2, 1, 3, 0))
        memory.add("B", np.ascontiguousarray(weights))
        memory.add("C", value)
    run = MatrixUnit(config).run(program or "halt", memory, trace=trace)
    if program is not None:
        value = run.tensor("C")
    shaped = value.reshape(images.shape[0], *out, outs)
    return result_from(run, np.ascontiguousarray(shaped if layout == "NHWC" else shaped.transpose(0, 3, 1, 2)), program)


def _two(name: str, value: int | Sequence[int], least: int = 1) -> tuple[int, int]:
    both = tuple(value) if isinstance(value, Sequence | np.ndarray) else (value, value)
    if len(both) != 2:
        raise UsageError(f"{name} = {value!r}", how="one number, or two")
    return whole(name, both[0], least), whole(name, both[1], least)


def _padding(padding: Any, sizes: Sequence[int], spans: Sequence[int], strides: Sequence[int]) -> Pairs:
    if isinstance(padding, str):
        if padding.lower() not in ("valid", "same"):
            raise UsageError(f"padding {padding!r}", how="valid, same, or numbers")
        if padding.lower() == "valid":
            return (0, 0), (0, 0)
        needed = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in zip(sizes, spans, strides, strict=True)]
        return (needed[0] // 2, needed[0] - needed[0] // 2), (needed[1] // 2, needed[1] - needed[1] // 2)
    if not isinstance(padding, Sequence | np.ndarray):
        both = _two("padding", padding, 0)
        return (both[0], both[0]), (both[1], both[1])
    rows = list(padding)
    if len(rows) != 2:
        raise UsageError(f"padding = {padding!r}", how="one number, one per dim, or (before, after) per dim")
    return _two("padding", rows[0], 0), _two("padding", rows[1], 0)
