"""A convolution over several processing elements: images, rows of the result, or output channels to each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.isa._counts import Counts
from tilewright.isa._emit_conv import ConvPlan, conv_program
from tilewright.isa._machine import Machine
from tilewright.isa._spread import Spread
from tilewright.isa._work import Part, by_dim

__all__ = ["conv_parts", "spread_conv"]

Array = np.ndarray[Any, Any]


def conv_parts(shape: tuple[int, ...], split: str, pes: int) -> dict[int, Part]:
    """Of the result (images, rows, columns, channels) as pixels by channels: a part for every element at work.

    >>> {pe: str(part) for pe, part in conv_parts((2, 3, 4, 8), "rows", 2).items()}
    {0: '[0:12, 0:8]', 1: '[12:24, 0:8]'}
    """
    images, height, width, channels = shape
    pixels = images * height * width
    unit = {"images": height * width, "rows": width, "channels": 1}[split]
    many = {"images": images, "rows": images * height, "channels": channels}[split]
    found = {}
    for pe, (part,) in by_dim((many,), 0, pes).items():
        (first,), (count,) = part.base, part.size
        if split == "channels":
            found[pe] = Part((0, first), (pixels, count))
        else:
            found[pe] = Part((first * unit, 0), (count * unit, channels))
    return found


def spread_conv(
    conv: ConvPlan,
    images: Array,
    weights: Array,
    order: Sequence[int] | None,
    split: str | None,
    trace: bool,
    watch: Callable[[Counts], None] | None,
) -> Spread:
    """Run it. Every element's A is the images it needs anything of, its B the weights of its channels."""
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
    return Spread(machine.tensor("C"), tuple(runs[pe] for pe in parts), tuple(programs), 0, "")
