"""Pixel shuffle of an image with its channels last: a transposed convolution with a 0/1 kernel writes the windows."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker, is_elementwise
from tilewright.hlo.rules.matching import Match, anything, made_by, op, regroup_of
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import megabytes, precision_for


@dataclass(frozen=True)
class Shuffle:
    """Channels of ``source`` become windows of ``rows`` x ``columns``; the strides say where a channel is found."""

    source: Value
    rows: int
    columns: int
    strides: tuple[int, int, int]


def _shuffle(value: Value) -> Shuffle | None:
    """``x.reshape(b, h, w, r, r, c).transpose(0, 1, 3, 2, 4, 5).reshape(..)``; channels in any order."""
    cut = regroup_of(value)
    if cut is None or len(cut.parts) != 4 or [len(sizes) for sizes in cut.parts[1:]] != [1, 1, 3]:
        return None
    height = len(cut.parts[0])
    if height > 1 or len(cut.order) != height + 5 or cut.order[:height] != tuple(range(height)):
        return None
    first, rows, second, columns, channels = cut.order[height:]
    if (first, second) != (height, height + 1):
        return None
    flat, own = cut.flat, cut.parts[3]
    stride = {height + 2: own[1] * own[2], height + 3: own[2], height + 4: 1}
    b, h, w, _ = cut.source.sizes
    if value.sizes != (b, h * flat[rows], w * flat[columns], flat[channels]):
        return None
    return Shuffle(cut.source, flat[rows], flat[columns], (stride[rows], stride[columns], stride[channels]))


def _where(match: Match, root: Node) -> bool:
    found = _shuffle(root.result)
    if found is None or root.result.dtype not in ("bf16", "f32"):
        return False
    match.found["x"] = found.source
    return True


def _pays(match: Match, root: Node) -> bool:
    """For 256 channels or some more, not behind a convolution, whose result is laid out for the transpose."""
    found = _shuffle(root.result)
    if found is None or (found.rows, found.columns) != (2, 2) or _from_convolution(found.source):
        return False
    return 256 <= found.source.sizes[-1] <= 384 and megabytes(root.result) >= 8


def _from_convolution(value: Value) -> bool:
    for _ in range(8):
        node = value.operation
        if node is None or made_by(value, "convolution") is not None:
            return node is not None
        if not (is_elementwise(node) or node.name in ("reshape", "convert")):
            return False
        value = node.operands[0]
    return False


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    found = _shuffle(root.result)
    if found is None:
        return None
    source, times = found.source, (found.rows, found.columns)
    shape = (*times, source.sizes[-1], root.result.sizes[-1])

    def share(dim: int, stride: int, flips: bool) -> Value:
        place = make.along(shape, dim)
        if flips:
            place = make.binary("subtract", make.full(str(shape[dim] - 1), "i32", shape), place)
        return make.binary("multiply", place, make.full(str(stride), "i32", shape))

    row, column, channel = found.strides
    window = make.binary("add", share(0, row, True), share(1, column, True))
    wanted = make.binary("add", window, share(3, channel, False))
    kernel = make.convert(make.compare(make.along(shape, 2), wanted, "EQ"), source.dtype)
    return make.convolution(
        source, kernel, ("b01f", "01io", "b01f"), padding=[(n - 1, n - 1) for n in times], lhs_dilation=times,
        precision=precision_for(source.dtype),
    )  # fmt: skip


RULE = Rule(
    name="pixel-shuffle",
    phase="movement",
    summary="a pixel shuffle of many channels: a transposed convolution with a 0/1 kernel",
    finding="channels become pixels by a transpose that goes through a copy of the image",
    change="a transposed convolution with the identity as its kernel, or one with the weights of the layer before",
    source="the TPU compiler's estimate (specs/rules.md, 20)",
    pattern=op("reshape", anything("turned")),
    roots=frozenset({"reshape"}),
    where=_where,
    pays=_pays,
    build=_build,
    finite=("x",),
    example=Example(
        before="return x.reshape(b, h, w, 2, 2, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, 2 * h, 2 * w, c)",
        after="""
            kernel = jnp.eye(4 * c, dtype=x.dtype).reshape(4 * c, 2, 2, c).transpose(1, 2, 0, 3)[::-1, ::-1]
            return lax.conv_general_dilated(
                x, kernel, (1, 1), [(1, 1), (1, 1)], lhs_dilation=(2, 2),
                dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest",
            )
        """,
        shapes="x: T[b,h,w,4*c]",
        sizes="b=8 h=64 w=64 c=64",
        small="b=1 h=2 w=3 c=2",
        draw="b=1..2 h=2..3 w=2..4 c=2..3",
        types=("bf16", "f32"),
        away="return x.reshape(b, h, w, 2, 2, c).transpose(0, 3, 1, 2, 4, 5).reshape(b, 2 * h, 2 * w, c)",
    ),
)
