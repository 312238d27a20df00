"""Images made twice as large by repeating rows and columns: the copies become dims of size 2, which fill no tile.

A transposed convolution of each channel with ones writes every pixel to its window. It multiplies by ones alone, and
zeros stand only between pixels, so no NaN or infinity spreads.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, made_by, op, repeat_of
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import megabytes, precision_for


@dataclass(frozen=True)
class Upsampled:
    """An image [batch.., height, width, channels] whose rows and columns are repeated."""

    source: Value
    rows: int
    columns: int


def upsampled_of(value: Value) -> Upsampled | None:
    """Whether ``value`` repeats rows and columns of an image: repeat after repeat, or one reshape of a broadcast."""
    rank = len(value.sizes)
    if rank < 3:
        return None
    outer = repeat_of(value)
    inner = repeat_of(outer.source) if outer is not None and outer.each else None
    if outer is not None and inner is not None and inner.each and {outer.dim, inner.dim} == {rank - 3, rank - 2}:
        times = {outer.dim: outer.times, inner.dim: inner.times}
        return Upsampled(inner.source, times[rank - 3], times[rank - 2])
    return _at_once(value)


def _at_once(value: Value) -> Upsampled | None:
    """``broadcast_to(x[:, :, None, :, None], (b, h, n, w, m, c)).reshape(..)``; gradients of means convert between."""
    reshape = made_by(value, "reshape")
    convert = made_by(reshape.operands[0], "convert") if reshape is not None else None
    last = convert or reshape
    wide = made_by(last.operands[0], "broadcast_in_dim") if last is not None else None
    if wide is None:
        return None
    *lead, height, rows, width, columns, channels = wide.result.sizes if len(wide.result.sizes) >= 5 else (0,) * 5
    rank, kept = len(lead) + 5, [*range(len(lead) + 1), len(lead) + 2, len(lead) + 4]
    source, dims = wide.operands[0], list(wide.attributes["dims"])
    while (node := made_by(source, "broadcast_in_dim", "reshape")) is not None and len(source.sizes) == rank:
        if dims != list(range(rank)) or sorted(s for s in source.sizes if s > 1) != sorted(
            s for s in node.operands[0].sizes if s > 1
        ):
            return None
        dims = list(node.attributes["dims"]) if node.name == "broadcast_in_dim" else kept
        source = node.operands[0]
    image = (*lead, height, width, channels)
    if dims != kept or source.shape != image or value.sizes != (*lead, height * rows, width * columns, channels):
        return None
    return Upsampled(source, rows, columns)


def _where(match: Match, root: Node) -> bool:
    found = upsampled_of(root.result)
    return found is not None and {found.source.dtype, root.result.dtype} <= {"bf16", "f32"}


def _pays(match: Match, root: Node) -> bool:
    found = upsampled_of(root.result)
    if found is None or (found.rows, found.columns) != (2, 2):
        return False
    return root.result.sizes[-1] >= 64 and megabytes(root.result) >= 2


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    found = upsampled_of(root.result)
    if found is None:
        return None
    source, times = found.source, (found.rows, found.columns)
    height, width, channels = source.sizes[-3:]
    batch = 1
    for size in source.sizes[:-3]:
        batch *= size
    image = make.convert(make.reshape(source, (batch, height, width, channels)), root.result.dtype)
    ones = make.full("1.0", image.dtype, (*times, 1, channels))
    larger = make.convolution(
        image, ones, ("b01f", "01io", "b01f"), padding=[(n - 1, n - 1) for n in times], lhs_dilation=times,
        groups=channels, precision=precision_for(image.dtype),
    )  # fmt: skip
    return make.reshape(larger, root.result.sizes)


RULE = Rule(
    name="upsampling",
    phase="shape",
    summary="images enlarged by repeating rows and columns: a transposed convolution with ones, channel by channel",
    finding="rows and columns of an image are repeated: the copies become dims of size 2, which fill no tile",
    change="lax.conv_general_dilated with ones((2, 2, 1, c)), lhs_dilation (2, 2) and one group a channel",
    source="the TPU compiler's estimate (specs/rules.md, 11)",
    pattern=op("reshape", anything("copies")),
    roots=frozenset({"reshape"}),
    where=_where,
    pays=_pays,
    build=_build,
    over=("repeated-rows",),
    example=Example(
        before="return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)",
        after="""
            return lax.conv_general_dilated(
                x, jnp.ones((2, 2, 1, c), x.dtype), (1, 1), [(1, 1), (1, 1)], lhs_dilation=(2, 2),
                dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=c, precision="highest",
            )
        """,
        shapes="x: T[b,h,w,c]",
        sizes="b=16 h=32 w=32 c=256",
        small="b=1 h=2 w=3 c=4",
        draw="b=1..3 h=2..4 w=2..4 c=1..4",
        types=("bf16", "f32"),
        away="return jnp.tile(jnp.tile(x, (1, 2, 1, 1)), (1, 1, 2, 1))",
    ),
)
