"""Products whose operands are made badly: parts put together, scales repeated."""

from __future__ import annotations

from typing import NamedTuple

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker, made_by, precision_for_zero_one
from tilewright.hlo.rules.matching import Repeat, megabytes, repeat_of, repeat_under
from tilewright.hlo.rules.rule import Rule

_LANES = 128

# A convolution over channels that are put together just before it, as the way up of a U-Net does with its skips.


class _JoinedChannels(NamedTuple):
    """A convolution and the concatenation of channels that it reads."""

    root: Node
    parts: Node

    @property
    def widths(self) -> list[int]:
        return [part.sizes[self.parts.attributes["dim"]] for part in self.parts.operands]


def _joined_channels(root: Node) -> _JoinedChannels | None:
    own, parts = root.attributes, made_by(root.operands[0], "concatenate")
    if parts is None or own["groups"] != 1 or own["batch_groups"] != 1 or any(own["reversal"]):
        return None
    channels = parts.attributes["dim"] == own["numbers"][0].index("f") and len(parts.operands) <= 3
    return _JoinedChannels(root, parts) if channels else None


def _add_convolutions(found: _JoinedChannels, make: Maker) -> Value:
    """Each part with its own channels of the kernel; the results are added."""
    root, kernel = found.root, found.root.operands[1]
    channel = root.attributes["numbers"][1].index("i")
    convolved, start = [], 0
    for part, width in zip(found.parts.operands, found.widths):
        weights = make.part(kernel, channel, start, start + width)
        start += width
        convolved.append(make.convolution(part, weights, root.result.dtype, root.attributes))
    return make.total(convolved)


CONVOLUTION_OF_CONCATENATION = Rule(
    name="convolution-of-concatenation",
    phase="work",
    summary="a convolution over concatenated channels: the sum of the parts' convolutions",
    finding="channels are put together in memory only to be convolved once",
    change="convolve each part with its own channels of the kernel and add the results",
    source="the TPU compiler's estimate: 1.55 for 1x1, 1.11 for 3x3 (128 and 256 channels); diffusers' unet",
    roots=("convolution",),
    find=_joined_channels,
    pays=lambda found: min(found.widths) >= _LANES,  # fewer channels leave most lanes of a part's product empty
    build=_add_convolutions,
    exact=False,
)

# Dequantised weights whose scales are repeated, one for each group of rows or columns: the copies of a scale become a
# dim of their own, in an array as large as the weights. A product of the scales with a 0/1 matrix is fused with what
# follows.


class _Scaled(NamedTuple):
    """``weights``, an array of small integers in two dims, times the repeated scales."""

    result: Value
    weights: Value
    scales: Repeat


def _scaled(root: Node) -> _Scaled | None:
    """``w.astype(t) * jnp.repeat(s, g, 1)``, or the product in a dim of groups, reshaped."""
    product = root if root.name == "multiply" else made_by(root.operands[0], "multiply")
    if product is None or len(root.result.sizes) != 2 or root.result.dtype not in ("bf16", "f32"):
        return None
    for wide, factor in (product.operands, product.operands[::-1]):
        scales = repeat_of(factor) if product is root else repeat_under(factor, root)
        weights = _small_integers(wide, root.result.sizes)
        if weights is not None and scales is not None and scales.each and scales.times > 1:
            return _Scaled(root.result, weights, scales)
    return None


def _small_integers(value: Value, sizes: tuple[int, ...]) -> Value | None:
    """What a conversion of small integers begins with, before it is reshaped."""
    convert = None
    while (node := made_by(value, "convert", "reshape")) is not None and (convert is None or value.sizes != sizes):
        convert = node if node.name == "convert" else convert
        value = node.operands[0]
    return value if convert is not None and value.dtype in ("i8", "ui8", "i4", "ui4") and value.sizes == sizes else None


def _repeat_by_product(found: _Scaled, make: Maker) -> Value:
    result, (scales, dim, times, _) = found.result, found.scales
    matrix = make.group_matrix(result.sizes[dim], times, scales.dtype, repeats=dim == 1)
    left, right = (scales, matrix) if dim == 1 else (matrix, scales)
    repeated = make.dot(left, right, ((1,), (0,)), precision=precision_for_zero_one(result.dtype))
    return make.binary("multiply", make.convert(found.weights, result.dtype), repeated)


REPEATED_SCALES = Rule(
    name="repeated-scales",
    phase="shape",
    summary="dequantised weights with a scale for each group: the scales are spread by a 0/1 product",
    finding="scales are repeated to the size of the weights: the copies become a dim of their own",
    change="multiply by the scales @ m, with m[i // group, i] = 1, instead of repeating them",
    source="the TPU compiler's estimate; a linear layer with int8 weights and a scale for every 128 of a column",
    roots=("multiply", "reshape"),
    find=_scaled,
    # In f32 the exact product takes as long as what it saves.
    pays=lambda of: of.result.dtype == "bf16" and of.scales.times >= 16 and megabytes(of.result) >= 2,
    build=_repeat_by_product,
    finite=lambda found: [found.scales.source],
)
