"""Products whose operands are made badly: parts put together, scales repeated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker, made_by, precision_for_zero_one
from tilewright.hlo.rules.matching import Repeat, free_dims, megabytes, product_dims, repeat_of, repeat_under
from tilewright.hlo.rules.rule import Rule

_LANES = 128

# A product whose operand is put together just before it: each part could meet its own rows of the weights.

#: With many parts (the columns of a recommender) the compiler's estimates show no gain.
_MOST_PARTS = 4


class _Repeated(NamedTuple):
    """An array, and the dims of a larger one that it has; that one repeats it along all others."""

    small: Value
    kept: list[int]


@dataclass
class _Joined:
    """A product one of whose operands (``side``, 0 or 1) is a concatenation along the one contracted dim.

    ``repeated`` says which of its parts repeat a smaller array over free dims.
    """

    product: Node
    side: int
    parts: Node
    repeated: list[_Repeated | None] = field(default_factory=list)

    @property
    def dim(self) -> int:
        """The dim of the operand in which the parts stand behind each other."""
        dim: int = self.parts.attributes["dim"]
        return dim


def _joined(root: Node) -> _Joined | None:
    batch, contract = product_dims(root)
    for side, value in enumerate(root.operands):
        parts = made_by(value, "concatenate")
        if parts is None or contract[side] != (parts.attributes["dim"],) or len(parts.operands) > _MOST_PARTS:
            continue
        repeated = [_repeated(part, {parts.attributes["dim"], *batch[side]}) for part in parts.operands]
        return _Joined(root, side, parts, repeated)
    return None


def _repeated(part: Value, needed: set[int]) -> _Repeated | None:
    """What a part repeats along dims that are not ``needed``; None where it repeats nothing."""
    node = made_by(part, "broadcast_in_dim")
    if node is None or not node.operands[0].sizes:
        return None
    small, dims = node.operands[0], list(node.attributes["dims"])
    if dims != sorted(dims):
        return None
    kept = [d for k, d in enumerate(dims) if small.sizes[k] == part.sizes[d]]
    if any(small.sizes[k] != 1 for k, d in enumerate(dims) if d not in kept) or needed - set(kept):
        return None
    return _Repeated(small, kept) if len(kept) < len(part.sizes) else None


def _add_products(found: _Joined, make: Maker) -> Value:
    root, side = found.product, found.side
    batch, contract = product_dims(root)
    other, other_dim = root.operands[1 - side], contract[1 - side][0]
    narrow = root.result.dtype in ("bf16", "f16")
    products, start = [], 0
    for part, repeated in zip(found.parts.operands, found.repeated):
        rows = make.part(other, other_dim, start, start + part.sizes[found.dim])
        start += part.sizes[found.dim]
        kept = repeated.kept if repeated is not None else list(range(len(part.sizes)))
        operand = make.reshape(repeated.small, [part.sizes[d] for d in kept]) if repeated is not None else part
        both_batch, both_contract = [list(dims) for dims in batch], [list(dims) for dims in contract]
        for dims in (both_batch, both_contract):
            dims[side] = [kept.index(d) for d in dims[side]]
        product = make.dot(
            *((operand, rows) if side == 0 else (rows, operand)), (both_contract[0], both_contract[1]),
            (both_batch[0], both_batch[1]), "f32" if narrow else root.result.dtype, root.attributes["precision"],
        )  # fmt: skip
        if repeated is not None:  # the product of what is repeated is repeated instead
            product = make.broadcast(product, root.result.sizes, _places(root, side, kept))
        products.append(product)
    return make.convert(make.total(products), root.result.dtype)


def _places(root: Node, side: int, kept: list[int]) -> list[int]:
    """Dims of the whole result that the product of a part without some free dims has."""
    count = len(product_dims(root)[0][0])
    free = [free_dims(root, k) for k in range(2)]
    places = list(range(count))
    for k, first in enumerate((count, count + len(free[0]))):
        places += [first + n for n, d in enumerate(free[k]) if k != side or d in kept]
    return places


def _joined_pays(found: _Joined) -> bool:
    if any(found.repeated):
        return True
    sizes = [part.sizes[found.dim] for part in found.parts.operands]
    return any(size % _LANES for size in sizes[:-1]) and sum(sizes) >= _LANES


PRODUCT_OF_CONCATENATION = Rule(
    name="product-of-concatenation",
    phase="work",
    summary="concatenate(x, y) @ W becomes x @ W[:k] + y @ W[k:]",
    finding="arrays are put together in memory only to be multiplied once, at a boundary that is no multiple of 128",
    change="multiply each part by its own rows of the weights and add: x @ W[:k] + y @ W[k:]",
    source="the TPU compiler's estimate; diffusers' unet and controlnet, transformers' gptj, DLRM",
    roots=("dot_general",),
    find=_joined,
    pays=_joined_pays,
    build=_add_products,
    exact=False,
)

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
