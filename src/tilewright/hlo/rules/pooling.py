"""Groups: windows summed, and scales repeated, by a reshape over small dims, which fill no tile; pools; variances."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from tilewright.hlo.graphs.dims import runs
from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker, made_by, precision_for_zero_one
from tilewright.hlo.rules.matching import Repeat, behind, megabytes, number_of, only_used_by, repeat_of, repeat_under
from tilewright.hlo.rules.rule import Rule

_FLOATS = ("bf16", "f16", "f32", "f64")


@dataclass(frozen=True)
class _Windows:
    """A sum over inner factors of dims alone: ``x.reshape(.., H // 2, 2, ..).sum(..)``, or a mean of means of such.

    ``source`` reshaped to ``shape`` and converted to ``dtype`` is what the ``window`` (one entry a dim) goes over,
    without overlap. Dims with a window are dims of the source; the others may be taken apart or joined on the way.
    ``scale`` is what the sums are multiplied by, for means of means.
    """

    root: Node
    source: Value
    shape: tuple[int, ...]
    window: tuple[int, ...]
    dtype: str
    scale: float

    @property
    def dims(self) -> tuple[int, ...]:
        return tuple(d for d, size in enumerate(self.window) if size > 1)

    def scaled(self, make: Maker, total: Value) -> Value:
        if self.scale == 1:
            return total
        return make.binary("multiply", total, make.full(f"{self.scale:.17e}", total.dtype, total.sizes))


def _windows(root: Node) -> _Windows | None:
    """The windows that ``root`` sums up, unless a later sum takes it in; ``x.mean(4).mean(2)`` counts as one.

    A conversion may stand after the reshape, and between two sums conversions and constant factors.
    """
    found = _windows_under(root)
    return found if found is not None and not _is_inside_another(root) else None


def _windows_under(root: Node) -> _Windows | None:
    if len(root.operands) != 2 or root.attributes.get("monoid") != "add":
        return None
    value, dims, scale = root.operands[0], set(root.attributes["dims"]), 1.0
    dtype = value.dtype
    while (node := _behind_float_conversions(value).operation) is not None and node.name in (
        "reduce", "divide", "multiply",
    ):  # fmt: skip
        if not node.plain or len(node.operands) != 2 or len(node.result.users) > 1:
            return None
        if node.name == "reduce":
            if node.attributes.get("monoid") != "add" or number_of(node.operands[1]) != 0:
                return None
            inner = node.attributes["dims"]
            kept = [d for d in range(len(node.operands[0].sizes)) if d not in inner]
            dims = {kept[d] for d in dims} | set(inner)
        else:
            factor = number_of(node.operands[1])
            if not factor:
                return None
            scale *= factor if node.name == "multiply" else 1 / factor
        value = node.operands[0]
    convert = made_by(value, "convert")
    widens = convert is not None and (convert.operands[0].dtype, value.dtype) in _WIDENING
    reshape = made_by(convert.operands[0] if convert is not None and widens else value, "reshape")
    if reshape is None or not dims:
        return None
    source, parts = reshape.operands[0], value.sizes
    whole = {run.target for run in runs(source.sizes, parts) or () if len(run.source) == 1}
    if any((d - 1, d) not in whole for d in dims):
        return None
    shape: list[int] = []
    window: list[int] = []
    for d, size in enumerate(parts):
        if d in dims:
            shape[-1], window[-1] = shape[-1] * size, size
        else:
            shape.append(size)
            window.append(1)
    return _Windows(root, source, tuple(shape), tuple(window), dtype, scale)


def _is_inside_another(reduce: Node) -> bool:
    """Whether a later sum takes this one in: ``x.mean(4)`` of ``x.mean(4).mean(2)``."""
    value = reduce.result
    while len(value.users) == 1:
        [node] = value.users
        if node.name == "reduce":
            return node.plain and _windows_under(node) is not None
        if node.name not in ("convert", "divide", "multiply") or len(node.results) != 1:
            return False
        value = node.result
    return False


#: Conversions that lose nothing.
_WIDENING = {("bf16", "f32"), ("f16", "f32"), ("f32", "f64"), ("bf16", "f64"), ("f16", "f64")}


def _behind_float_conversions(value: Value) -> Value:
    """What may stand between two sums left out: conversions of any kind between floats."""
    while (node := made_by(value, "convert")) is not None and {value.dtype, node.operands[0].dtype} <= {*_FLOATS}:
        value = node.operands[0]
    return value


# Average pooling written as reshape and mean: the windows become dims, and the image is copied for it.


def _pool_average(found: _Windows, make: Maker) -> Value:
    image = make.convert(make.reshape(found.source, found.shape), found.dtype)
    ones = (1,) * len(found.window)
    own = {
        "window": found.window, "strides": found.window, "base_dilation": ones, "window_dilation": ones,
        "padding": ((0, 0),) * len(ones), "monoid": "add",
    }  # fmt: skip
    total = make.reduce_window(image, found.root.operands[1], own)
    return found.scaled(make, total)


def _average_pays(found: _Windows) -> bool:
    """Windows over two dims, channels last or first; the compiler's figures for windows over one are incomplete."""
    if len(found.dims) < 2:
        return False
    columns = found.dims[-1] == len(found.shape) - 1
    return megabytes(found.source) >= (4 if columns else 0.25)


AVERAGE_POOL = Rule(
    name="average-pool",
    phase="shape",
    summary="sums or means over blocks of an image, written as a reshape: a pooling window instead",
    finding="an image is reshaped so that its pooling windows become dims of size 2 or 3, which fill no tile",
    change="use lax.reduce_window (flax.linen.avg_pool, keras AveragePooling2D) instead of reshape and mean",
    source="the TPU compiler's estimate; the transition of DenseNet-121",
    roots=("reduce",),
    find=_windows,
    pays=_average_pays,
    build=_pool_average,
    exact=False,
)

# Max pooling of an image that was padded with zeros before: Keras' networks pad in an operation of its own.


class _PaddedPool(NamedTuple):
    """A pool and the padding before it, which the pool's own padding can replace."""

    pool: Node
    pad: Node


def _padded_pool(pool: Node) -> _PaddedPool | None:
    own, pad = pool.attributes, made_by(pool.operands[0], "pad")
    if pad is None or len(pool.operands) != 2 or own.get("monoid") != "maximum" or any(map(any, own["padding"])):
        return None
    if set(own["base_dilation"]) | set(own["window_dilation"]) != {1} or number_of(pool.operands[1]) != float("-inf"):
        return None
    low, high, inner = (pad.attributes[name] for name in ("low", "high", "interior"))
    if any(inner) or min(*low, *high) < 0 or not _pads_with_the_least(pad):
        return None
    for d, size in enumerate(pad.operands[0].sizes):  # every window holds an element of the image
        window, stride, last = own["window"][d], own["strides"][d], pool.result.sizes[d] - 1
        if low[d] >= window or last * stride >= low[d] + size:
            return None
    return _PaddedPool(pool, pad)


def _pads_with_the_least(pad: Node) -> bool:
    """Whether no element of the image is below what it is padded with: zeros around a relu's result, or -inf."""
    fill, relu = number_of(pad.operands[1]), made_by(pad.operands[0], "maximum")
    if fill == float("-inf"):
        return True
    return fill == 0 and relu is not None and any(number_of(side) == 0 for side in relu.operands)


def _pool_with_padding(found: _PaddedPool, make: Maker) -> Value:
    pool, pad = found
    around = tuple(zip(pad.attributes["low"], pad.attributes["high"]))
    return make.reduce_window(pad.operands[0], pool.operands[1], {**pool.attributes, "padding": around})


PADDED_MAX_POOL = Rule(
    name="padded-max-pool",
    phase="work",
    summary="an image padded with zeros after a relu, then max pooling: the pooling window pads",
    finding="an image is written to memory once more, with a border of zeros, only to be pooled",
    change='give the pooling its padding: padding="same", or ((1, 1), (1, 1)) in lax.reduce_window',
    source="the TPU compiler's estimate: 1.27 for the stem of a ResNet on 4 pictures; keras' resnet and densenet",
    roots=("reduce_window",),
    find=_padded_pool,
    pays=lambda found: only_used_by(found.pad.result, found.pool),  # a gradient reads the padded image, too
    build=_pool_with_padding,
)

# Sums of every few rows or columns, written as a reshape: a product with a block matrix does them in one pass.


def _windows_of_one_dim(root: Node) -> _Windows | None:
    """Windows along one dim, of a type that products have."""
    found = _windows_under(root)
    if found is None or len(found.dims) != 1 or number_of(root.operands[1]) != 0:
        return None
    return found if {found.source.dtype, found.dtype} <= {"bf16", "f32"} else None


def _block(size: int, group: int) -> int:
    """How many rows a block holds: 128, which the matrix unit takes at once, or all where that does not divide."""
    return 128 if size % 128 == 0 and 128 % group == 0 else size


def _sum_by_product(found: _Windows, make: Maker) -> Value:
    [dim] = found.dims
    shape, group = found.shape, found.window[dim]
    narrow = found.source.dtype if found.dtype == "f32" else found.dtype
    values = make.convert(make.reshape(found.source, shape), narrow)
    precision = precision_for_zero_one(narrow)
    if dim == len(shape) - 1:
        matrix = make.group_matrix(shape[dim], group, narrow)
        return found.scaled(make, make.dot(values, matrix, ((dim,), (0,)), dtype=found.dtype, precision=precision))
    block = _block(shape[dim], group)
    blocks = make.reshape(values, (*shape[:dim], shape[dim] // block, block, *shape[dim + 1 :]))
    # XLA:CPU has no such product with the matrix transposed.
    matrix = make.group_matrix(block, group, narrow, repeats=True)
    total = make.dot(matrix, blocks, ((1,), (dim + 1,)), dtype=found.dtype, precision=precision)
    order = [*range(1, dim + 2), 0, *range(dim + 2, len(shape) + 1)]
    return found.scaled(make, make.reshape(make.transpose(total, order), found.root.result.sizes))


def _sum_pays(found: _Windows) -> bool:
    if megabytes(found.source) < 1:
        return False
    [dim] = found.dims
    group, size = found.window[dim], found.shape[dim]
    if dim == len(found.shape) - 1:
        return group <= 64 and size <= 4096
    large = megabytes(found.source) >= 4  # 1 MB of a grouped query's gradient took 1.04 times as long
    return large and group <= 8 and _block(size, group) <= 128 and found.shape[-1] >= 64


WINDOW_SUM = Rule(
    name="window-sum",
    phase="shape",
    summary="sums or means of every few rows or columns, written as a reshape: a product with a block matrix instead",
    finding="an array is reshaped so that a few neighbouring rows or columns become a dim, which fills no tile",
    change="multiply by a matrix that has 1 / n at [i, i // n], for 128 rows at a time",
    source="the TPU compiler's estimate; the gradient of keras-hub's qwen3",
    roots=("reduce",),
    find=_windows_of_one_dim,
    pays=_sum_pays,
    build=_sum_by_product,
    finite=lambda found: [found.root.operands[0]],
    exact=False,
)

# Advice: variances in two passes, the mean first, then the distances from it. One pass changes the numerics.


def _two_passes(root: Node) -> Value | None:
    """The array whose squared distances from its own mean the root sums up, over the dims of the mean."""
    square = made_by(root.operands[0], "multiply", "chlo.square") if root.attributes.get("monoid") == "add" else None
    distances = [made_by(value, "subtract") for value in square.operands] if square is not None else [None]
    if distances[0] is None or any(d is None or d.operands != distances[0].operands for d in distances):
        return None
    x, mean = distances[0].operands
    total = made_by(behind(mean, "reshape", "broadcast_in_dim", "convert", "divide", "multiply"), "reduce")
    if total is None or total.attributes.get("monoid") != "add" or total.operands[0] is not x:
        return None
    return x if total.attributes["dims"] == root.attributes["dims"] else None


ONE_PASS_VARIANCE = Rule(
    name="one-pass-variance",
    phase="advice",
    summary="a variance in two passes over the array: sums of x and of x * x in one",
    finding="the variance reads the array a second time, after the mean",
    change="take jnp.mean(x) and jnp.mean(x * x) together and use mean(x * x) - mean(x) ** 2 in f32, if the mean is "
    "not far larger than the deviation (the numerics change)",
    source="the TPU compiler's estimate, 1.3 to 1.9 times in norms; the layer norms of ViT-B/16",
    roots=("reduce",),
    find=_two_passes,
    pays=lambda x: prod(x.sizes) >= 1 << 20,
    build=None,
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
