"""Images: pixels that change places with channels, convolutions that leave the matrix unit empty."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from tilewright.hlo.graphs.dims import runs
from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker, made_by, precision_for_zero_one
from tilewright.hlo.rules.rule import Rule

# Patches of an image, cut out by a reshape and a transpose and multiplied: that is a convolution with a stride.


class _Patches(NamedTuple):
    """A product whose left operand is patches of an image: reshape, transpose and reshape of ``image``.

    ``parts`` are the sizes that the first reshape splits the image's dims into, in a row; ``owner`` says which dim each
    comes from, ``order`` in which order the transpose puts them. ``letters`` says which part is b (batch), 0 and 1
    (rows and columns of patches), p and q (rows and columns in a patch) and f (channels).
    """

    product: Node
    image: Value
    parts: tuple[int, ...]
    owner: tuple[int, ...]
    order: tuple[int, ...]
    letters: dict[str, int]

    def size(self, letter: str) -> int:
        return self.parts[self.letters[letter]]


def _patches(root: Node) -> _Patches | None:
    own, (left, weights) = root.attributes, root.operands
    if own["lhs_batch"] or own["lhs_contract"] != (len(left.sizes) - 1,) or len(weights.sizes) != 2:
        return None
    outer = made_by(left, "reshape")
    transpose = made_by(outer.operands[0] if outer is not None else left, "transpose")
    inner = made_by(transpose.operands[0], "reshape") if transpose is not None else None
    if transpose is None or inner is None or len(inner.operands[0].sizes) != 4:
        return None
    image, middle = inner.operands[0], inner.result.sizes
    matched = runs(image.sizes, middle)
    if not matched or any(len(run.source) != 1 for run in matched):
        return None
    split = {run.source[0]: run.target for run in matched}
    if sorted(map(len, split.values())) != [1, 1, 2, 2]:
        return None
    places = [d for target in split.values() for d in target]  # dims of the middle, unit dims left out
    owner = tuple(d for d, target in split.items() for _ in target)
    order = tuple(places.index(d) for d in transpose.attributes["permutation"] if d in places)
    spatial = [d for d, target in split.items() if len(target) == 2]
    first = [owner.index(d) for d in spatial]
    rest = [k for k, d in enumerate(owner) if d not in spatial]
    batch, feature = (rest[0], rest[1]) if order[0] == rest[0] else (rest[1], rest[0])
    letters = {"b": batch, "0": first[0], "1": first[1], "p": first[0] + 1, "q": first[1] + 1, "f": feature}
    parts = tuple(middle[d] for d in places)
    if order[:3] != tuple(letters[c] for c in "b01") or left.sizes[-1] != prod(parts[k] for k in order[3:]):
        return None
    return _Patches(root, image, parts, owner, order, letters)


def _convolve_patches(found: _Patches, make: Maker) -> Value:
    root, parts, order, letters = found.product, found.parts, found.order, found.letters
    weights = root.operands[1]
    names = {letters["p"]: "0", letters["q"]: "1", letters["f"]: "i"}
    if root.attributes["rhs_contract"] == (1,):
        weights = make.transpose(weights, (1, 0))
    kernel = make.reshape(weights, (*(parts[k] for k in order[3:]), weights.sizes[1]))
    by_dim = {found.owner[letters[c]]: c for c in "b01f"}
    numbers = "".join(by_dim[d] for d in range(4)), "".join(names[k] for k in order[3:]) + "o", "b01f"
    strides = (found.size("p"), found.size("q"))
    own = {
        "numbers": numbers, "strides": strides, "padding": ((0, 0),) * 2, "lhs_dilation": (1, 1),
        "rhs_dilation": (1, 1), "reversal": (False,) * 2, "groups": 1, "batch_groups": 1,
        "precision": root.attributes["precision"],
    }  # fmt: skip
    return make.reshape(make.convolution(found.image, kernel, root.result.dtype, own), root.result.sizes)


PATCHES = Rule(
    name="patches-as-convolution",
    phase="work",
    summary="patches cut out by reshape and transpose, then a product: a convolution with a stride",
    finding="patches are written to memory in another order before they are multiplied",
    change="lax.conv_general_dilated(x, w.reshape(p, p, channels, -1), (p, p), 'VALID', ...)",
    source="the TPU compiler's estimate; ViT-B/16's patches",
    roots=("dot_general",),
    find=_patches,
    pays=lambda of: of.size("f") < 128 and of.size("p") * of.size("q") >= 4,
    build=_convolve_patches,
    exact=False,
)

# A convolution in narrow groups of channels: each fills a few rows of the matrix unit, one group after the other.


class _Grouped(NamedTuple):
    """A convolution, its groups, and the channels that one group reads (``width``) and makes (``outputs``)."""

    root: Node
    groups: int
    width: int
    outputs: int


def _grouped(root: Node) -> _Grouped | None:
    own, kernel = root.attributes, root.operands[1]
    groups, letters = own["groups"], own["numbers"][1]
    width, outputs = (kernel.sizes[letters.index(letter)] for letter in "io")
    many = groups > 1 and own["batch_groups"] == 1 and width > 1
    return _Grouped(root, groups, width, outputs // groups) if many else None


def _on_diagonal(found: _Grouped, make: Maker) -> Value:
    """The groups' kernels as blocks on the diagonal of one kernel; zeros elsewhere."""
    root, groups, width, outputs = found
    own, (image, kernel) = root.attributes, root.operands
    letters = own["numbers"][1]
    spatial = sorted(letter for letter in letters if letter.isdigit())
    ordered = make.transpose(kernel, [letters.index(letter) for letter in (*spatial, "i", "o")])
    rank, columns = len(spatial), ordered.sizes[-1]
    window = ordered.sizes[:rank]
    stacked = make.broadcast(ordered, (*window, groups, width, columns), [*range(rank), rank + 1, rank + 2])
    stacked = make.reshape(stacked, (*window, groups * width, columns))
    of_channel, of_output = (
        make.binary("divide", make.iota(stacked.sizes, rank + k), make.full(str(size), "i32", stacked.sizes))
        for k, size in enumerate((width, outputs))
    )
    blocks = make.select(
        make.compare(of_channel, of_output, "EQ"), stacked, make.full("0.0", kernel.dtype, stacked.sizes)
    )
    numbers = (own["numbers"][0], "".join((*spatial, "i", "o")), own["numbers"][2])
    return make.convolution(image, blocks, root.result.dtype, {**own, "numbers": numbers, "groups": 1})


def _grouped_pays(found: _Grouped) -> bool:
    """Images in as many channels as the zeros are cheap for; a gradient needs the groups anyhow, and lost by it."""
    root, groups, width, outputs = found
    image, kernel = root.operands
    taps = prod(kernel.sizes) // (groups * outputs * width)
    if groups * width > 384 or taps > 25 or len(root.result.sizes) != 4 or not 4 <= width <= 32:
        return False
    return all(user is root or user.block is not root.block for user in image.users)


GROUPED_CONVOLUTION = Rule(
    name="grouped-convolution",
    phase="work",
    summary="a convolution in narrow groups of channels: one convolution with the groups' kernels on a diagonal",
    finding="each group of channels fills a few of the matrix unit's 128 rows, and the groups take turns",
    change="write the groups' kernels as blocks on the diagonal of one kernel: feature_group_count=1",
    source="the TPU compiler's estimate: 1.5 to 2.5 for groups of 8 and 16 channels; regnet of eqxvision and "
    "transformers",
    roots=("convolution",),
    find=_grouped,
    pays=_grouped_pays,
    build=_on_diagonal,
    finite=lambda found: found.root.operands,
    exact=False,
    families=("tpu",),
)

# Pixel shuffle: channels become pixels by a transpose whose last dim has two elements; products interleave instead.

_THIN = 16


class _Shuffle(NamedTuple):
    """``source`` has the rows and columns of the small image last; ``down`` and ``across`` are its dims of new pixels.

    ``down`` is None where rows are not multiplied. ``lead`` are the other dims in the order of ``result``.
    """

    result: Value
    source: Value
    down: int | None
    across: int
    lead: tuple[int, ...]


def _shuffle(root: Node) -> _Shuffle | None:
    """Whether the root is a reshape(transpose(..)) that puts dims in front between the rows or columns of an image."""
    value, transpose = root.result, made_by(root.operands[0], "transpose")
    if transpose is None or len(value.sizes) < 2 or value.dtype not in ("bf16", "f16", "f32", "f64"):
        return None
    source = transpose.operands[0]
    order = [d for d in transpose.attributes["permutation"] if source.sizes[d] != 1]
    height, width = len(source.sizes) - 2, len(source.sizes) - 1
    if len(order) < 3 or order[-2] != width or order[-1] == height or source.sizes[order[-1]] > _THIN:
        return None
    across = order[-1]
    down = order[-3] if order[-4:-3] == [height] and source.sizes[order[-3]] <= _THIN else None
    if down is None and order[-3] != height:
        return None
    rows = source.sizes[height] * (source.sizes[down] if down is not None else 1)
    if value.sizes[-2:] != (rows, source.sizes[width] * source.sizes[across]) or source.sizes[width] <= _THIN:
        return None
    return _Shuffle(value, source, down, across, tuple(d for d in order if d not in (height, width, down, across)))


def _interleave(found: _Shuffle, make: Maker) -> Value:
    """Pixels of one kind at a time: columns are spread by a product, then rows, and what is spread is added up."""
    source, down, across = found.source, found.down, found.across
    sizes = source.sizes
    rank = len(sizes)
    kept = [d for d in range(rank - 2) if d in found.lead]
    small = [sizes[d] for d in kept] + [sizes[-2], sizes[-1]]
    columns = _interleaving_matrices(sizes[-1], sizes[across], source.dtype, make)
    rows = _interleaving_matrices(sizes[-2], sizes[down], source.dtype, make) if down is not None else [None]
    precision = precision_for_zero_one(source.dtype)
    spread = []
    for i, to_rows in enumerate(rows):
        parts = []
        for j, to_columns in enumerate(columns):
            at = {across: j, down: i}
            start, limit = [at.get(d, 0) for d in range(rank)], [at.get(d, n - 1) + 1 for d, n in enumerate(sizes)]
            part = make.reshape(make.slice(source, start, limit), small)
            parts.append(make.dot(part, to_columns, ((len(small) - 1,), (0,)), precision=precision))
        wide = make.total(parts)
        if to_rows is not None:
            wide = make.dot(wide, to_rows, ((len(small) - 2,), (0,)), precision=precision)
        spread.append(wide)
    last = [len(kept) + 1, len(kept)] if down is not None else [len(kept), len(kept) + 1]
    return make.reshape(
        make.transpose(make.total(spread), [*(kept.index(d) for d in found.lead), *last]), found.result.sizes
    )


def _interleaving_matrices(size: int, times: int, dtype: str, make: Maker) -> list[Value]:
    """For each k the 0/1 matrix that puts element n at n * times + k."""
    shape = (size, size * times)
    to, place = make.iota(shape, 1), make.binary("multiply", make.iota(shape, 0), make.full(str(times), "i32", shape))
    matrices = []
    for k in range(times):
        here = make.binary("add", place, make.full(str(k), "i32", shape)) if k else place
        matrices.append(make.convert(make.compare(to, here, "EQ"), dtype))
    return matrices


def _shuffle_pays(found: _Shuffle) -> bool:
    """Where a TPU's compiler has no dim in front to put last: few channels. Short columns lose, too."""
    sizes = found.source.sizes
    return max((sizes[d] for d in found.lead), default=1) <= 32 and sizes[-1] >= 60


PIXEL_SHUFFLE = Rule(
    name="pixel-shuffle-by-products",
    phase="movement",
    summary="a pixel shuffle whose transpose ends in a dim of few elements: products with 0/1 matrices interleave",
    finding="a pixel shuffle makes an array whose last dim has only a few elements, and a tile is mostly padding",
    change="interleave columns and rows by products with 0/1 matrices, and transpose only the dims in front of them",
    source="the video decoders of Mochi and HunyuanVideo, where tiles and pages hold 16 times the data (tt-xla issues "
    "4252 and 6048); the TPU compiler's estimate",
    roots=("reshape",),
    find=_shuffle,
    pays=_shuffle_pays,
    build=_interleave,
    finite=lambda found: [found.source],
)
