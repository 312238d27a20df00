"""Shifted slices side by side, then a product: a convolution written out (im2col, the merged patches of Swin)."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, made_by, op
from tilewright.hlo.rules.rule import Example, Rule


def _taps(root: Node) -> tuple[Value, list[tuple[int, int]], tuple[int, int]] | None:
    """(image, offsets of the slices in order, strides) where the left operand is such slices side by side."""
    left, weights = root.operands
    own = root.attributes
    whole = made_by(left, "concatenate")
    if whole is None or len(left.sizes) != 4 or whole.attributes["dim"] != 3 or len(weights.sizes) != 2:
        return None
    if own["lhs_contract"] != (3,) or own["rhs_contract"] != (0,) or own["lhs_batch"]:
        return None
    slices = [made_by(value, "slice") for value in whole.operands]
    first = slices[0]
    if first is None or len(slices) < 4:
        return None
    image, sizes = first.operands[0], first.operands[0].sizes
    strides = first.attributes["strides"]
    offsets = []
    for cut in slices:
        if cut is None or cut.operands[0] is not image or cut.attributes["strides"] != strides:
            return None
        start = cut.attributes["start"]
        if cut.result.sizes != first.result.sizes or start[0] or start[3] or cut.result.sizes[3] != sizes[3]:
            return None
        offsets.append((start[1], start[2]))
    rows, columns = (sorted({place[k] for place in offsets}) for k in range(2))
    grid = sorted(offsets) == [(i, j) for i in range(rows[0], rows[-1] + 1) for j in range(columns[0], columns[-1] + 1)]
    if not grid or strides[0] != 1 or strides[3] != 1 or first.result.sizes[0] != sizes[0]:
        return None
    return image, offsets, (strides[1], strides[2])


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    found = _taps(root)
    if found is None:
        return None
    image, offsets, strides = found
    own, weights, channels = root.attributes, root.operands[1], image.sizes[3]
    by_place = sorted(range(len(offsets)), key=offsets.__getitem__)
    rows = [make.part(weights, 0, k * channels, (k + 1) * channels) for k in by_place]
    ordered = weights if by_place == list(range(len(offsets))) else make.concatenate(rows, 0)
    first, last = min(offsets), max(offsets)
    window = (last[0] - first[0] + 1, last[1] - first[1] + 1)
    kernel = make.reshape(ordered, (*window, channels, weights.sizes[1]))
    padding = []
    for k in range(2):
        reach = (root.result.sizes[k + 1] - 1) * strides[k] + window[k]
        padding.append((-first[k], reach - image.sizes[k + 1] + first[k]))
    return make.convolution(
        image, kernel, ("b01f", "01io", "b01f"), strides, padding, dtype=root.result.dtype, precision=own["precision"]
    )


RULE = Rule(
    name="shifted-slices-as-convolution",
    phase="work",
    summary="concatenate([x[:, i:, j:], ...]) @ W becomes a convolution",
    finding="shifted copies of an image are put side by side in memory only to be multiplied",
    change="lax.conv_general_dilated(x, w.reshape(rows, columns, channels, -1), strides, 'VALID', ...)",
    source="the TPU compiler's estimate",
    pattern=op("dot_general", where=lambda node: _taps(node) is not None),
    roots=frozenset({"dot_general"}),
    build=_build,
    exact=False,
    example=Example(
        before="""
            parts = [x[:, i::2, j::2] for j in range(2) for i in range(2)]
            return jnp.concatenate(parts, axis=-1) @ k
        """,
        after="""
            kernel = k.reshape(2, 2, c, o).swapaxes(0, 1)
            return lax.conv_general_dilated(x, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        """,
        shapes="x: T[b,2*h,2*w,c]\nk: T[4*c,o]",
        sizes="b=32 h=28 w=28 c=96 o=192",
        small="b=2 h=3 w=2 c=2 o=3",
        draw="b=1..2 h=2..4 w=2..4 c=1..3 o=1..4",
        types=("bf16", "f32"),
        away="""
            parts = [x[:, i::2, :w] for j in range(2) for i in range(2)]
            return jnp.concatenate(parts, axis=-1) @ k
        """,
    ),
)
