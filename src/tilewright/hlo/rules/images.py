"""Images: pixels that change places with channels, convolutions that leave the matrix unit empty, group norms."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from tilewright.hlo.graphs.dims import runs
from tilewright.hlo.graphs.graph import Node, Value, in_order
from tilewright.hlo.rewriting.maker import Maker, is_elementwise, made_by, precision_for_zero_one
from tilewright.hlo.rules.matching import megabytes, number_of
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


# The first convolution of an image model: three channels leave lanes empty; blocks of four pixels fill more.


def _stem(node: Node) -> Node | None:
    """Two spatial dims, stride 2, few channels, an odd or even window of at least 3, even image sizes, no dilation."""
    own, (image, kernel) = node.attributes, node.operands
    if own["numbers"] != ("b01f", "01io", "b01f") or own["strides"] != (2, 2) or own["groups"] != 1:
        return None
    if not own["lhs_dilation"] == own["rhs_dilation"] == (1, 1) or own["batch_groups"] != 1 or any(own["reversal"]):
        return None
    even = image.sizes[1] % 2 == 0 and image.sizes[2] % 2 == 0
    fits = even and image.sizes[3] <= 4 and min(kernel.sizes[:2]) >= 3 and min(own["padding"][0]) >= 0
    return node if fits else None


def _fold_stem(root: Node, make: Maker) -> Value:
    """Blocks of 2 x 2 pixels become channels of a convolution of stride 1; the kernel is padded to whole blocks.

    Tap ``u`` of the kernel meets pixel ``2 i + u - low``. With ``s = low mod 2`` rows of zeros before the kernel the
    shift is even, so tap ``u + s = 2 a + r`` meets row r of block ``i + a - (low + s) / 2``.
    """
    own, (image, kernel) = root.attributes, root.operands
    batch, high, wide, channels = image.sizes
    blocks = make.transpose(make.reshape(image, (batch, high // 2, 2, wide // 2, 2, channels)), (0, 1, 3, 2, 4, 5))
    blocks = make.reshape(blocks, (batch, high // 2, wide // 2, 4 * channels))
    before = [low % 2 for low, _ in own["padding"]]
    after = [(kernel.sizes[k] + before[k]) % 2 for k in range(2)]
    zero = make.constant("0.0", kernel.dtype)
    whole = make.pad(kernel, zero, (*before, 0, 0), (*after, 0, 0))
    taps = [whole.sizes[k] // 2 for k in range(2)]
    split = make.reshape(whole, (taps[0], 2, taps[1], 2, channels, kernel.sizes[3]))
    folded = make.reshape(make.transpose(split, (0, 2, 1, 3, 4, 5)), (*taps, 4 * channels, kernel.sizes[3]))
    padding = []
    for k in range(2):
        low = (own["padding"][k][0] + before[k]) // 2
        padding.append((low, root.result.sizes[k + 1] - 1 + taps[k] - low - blocks.sizes[k + 1]))
    return make.convolution(blocks, folded, root.result.dtype, {**own, "strides": (1, 1), "padding": tuple(padding)})


def _stem_pays(root: Node) -> bool:
    """Large batches in bf16 only: in f32, and for a few images, whole models took up to twice the estimated cycles."""
    image, kernel = root.operands
    return image.dtype == "bf16" and image.sizes[0] >= 16 and image.sizes[1] >= 128 and kernel.sizes[0] >= 7


STEM = Rule(
    name="stem-convolution",
    phase="shape",
    summary="a convolution of stride 2 on at most 4 channels: blocks of 2 x 2 pixels as channels",
    finding="the image has so few channels that the matrix unit is mostly empty",
    change="give the model images with blocks of 2 x 2 pixels as channels, and a kernel folded the same way",
    source="the TPU compiler's estimate; the stems of ResNet-50 and DenseNet-121",
    roots=("convolution",),
    find=_stem,
    pays=_stem_pays,
    build=_fold_stem,
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

# Group norm in two passes: sums over positions and groups of channels at once, in [batch, .., groups, size]. As a
# reshape the groups turn the layout of an image that convolutions want; summed over the positions first, each channel
# by itself, they do not.

_MOST = 200  # values looked at for one root


@dataclass(eq=False)
class _InGroups:
    """All that is computed while the channels stand apart as [.., groups, size]: from reshapes to reshapes.

    ``dim`` is the groups' place, ``parts`` the shape in groups, ``flat`` the one with the channels in one dim.
    ``inside`` are the values in groups and what makes them; ``reshapes`` join the channels again, ``sums`` reduce.
    """

    dim: int
    parts: tuple[int, ...]
    flat: tuple[int, ...]
    inside: dict[Value, Node] = field(default_factory=dict)
    reshapes: list[Node] = field(default_factory=list)
    sums: list[Node] = field(default_factory=list)

    @property
    def ends(self) -> list[Node]:
        """The operations that lead out of the groups, reshapes in the program's order first: what is replaced."""
        return [*sorted(self.reshapes, key=lambda node: node.position), *self.sums]

    def over_both(self) -> list[Node]:
        """The sums over positions and a group's channels at once."""
        both = [node for node in self.sums if self.dim + 1 in node.attributes["dims"]]
        return [node for node in both if len(node.attributes["dims"]) > 1]

    def is_second_pass(self, value: Value) -> bool:
        """Whether ``value`` depends on numbers that were broadcast over the groups, such as their means."""
        open_, seen = [value], {value}
        while open_:
            node = self.inside.get(open_.pop())
            if node is None:
                continue
            if node.name == "broadcast_in_dim" and node.operands[0].sizes:
                return True
            open_ += [operand for operand in node.operands if operand not in seen]
            seen.update(open_)
        return False

    def grow(self, start: Value) -> bool:
        """Find all of it from one of its values; False where something needs the groups as a dim."""
        open_ = [start]
        while open_:
            value = open_.pop()
            node = value.operation
            if value in self.inside:
                continue
            if node is None or not node.plain or value.sizes != self.parts or len(self.inside) > _MOST:
                return False
            self.inside[value] = node
            if is_elementwise(node):
                open_ += [operand for operand in node.operands if operand.sizes]
            elif not self._comes_in(node):
                return False
            for user in dict.fromkeys(value.users):
                if user in self.reshapes or user in self.sums:
                    continue
                if is_elementwise(user) and user.plain:
                    open_ += user.results
                elif user.name == "reshape" and _joined_dim(user) == self.dim and user.result.sizes == self.flat:
                    self.reshapes.append(user)
                elif user.name == "reduce" and user.plain and self._sums_up(user):
                    self.sums.append(user)
                else:
                    return False
        return True

    def _comes_in(self, node: Node) -> bool:
        """Whether the operation brings an array into the groups in a way that is possible without them, too."""
        if node.name == "reshape":  # the channels are the same dim of the source; what stands before may be cut anew
            sizes, tail = node.operands[0].sizes, len(self.flat) - self.dim
            return len(sizes) >= tail and sizes[len(sizes) - tail :] == self.flat[self.dim :]
        if node.name == "broadcast_in_dim":
            dims = [d for place, d in enumerate(node.attributes["dims"]) if node.operands[0].sizes[place] > 1]
            return dims == sorted(dims)
        return node.name == "constant" and number_of(node.result) is not None

    def _sums_up(self, node: Node) -> bool:
        zero = len(node.operands) == 2 and number_of(node.operands[1]) == 0
        return zero and node.attributes.get("monoid") == "add" and self.dim + 1 in node.attributes["dims"]

    def build(self, make: Maker) -> list[Value]:
        """The same on the channels as one dim: a value for each of the ends."""
        made: dict[Value, Value] = {}
        for node in in_order(list(self.inside.values())):
            made[node.result] = self._on_channels(make, node, made)
        return [made[end.operands[0]] if end.name == "reshape" else self._sum(make, end, made) for end in self.ends]

    def _on_channels(self, make: Maker, node: Node, made: dict[Value, Value]) -> Value:
        if is_elementwise(node):
            return make.elementwise(node, [made.get(operand, operand) for operand in node.operands], self.flat)
        if node.name == "constant":
            return make.reshaped_constant(node, self.flat)
        source = node.operands[0]
        if node.name == "reshape":
            return make.reshape(source, self.flat)
        places = [d for place, d in enumerate(node.attributes["dims"]) if source.sizes[place] > 1]
        narrow = make.reshape(source, [size for size in source.sizes if size > 1])
        if not {self.dim, self.dim + 1} & set(places):
            return make.broadcast(narrow, self.flat, [d - (d > self.dim) for d in places])
        kept = sorted({*places, self.dim, self.dim + 1})
        spread = make.broadcast(narrow, [self.parts[d] for d in kept], [kept.index(d) for d in places])
        joined = [d - (d > self.dim) for d in kept if d != self.dim + 1]
        return make.broadcast(make.reshape(spread, [self.flat[d] for d in joined]), self.flat, joined)

    def _sum(self, make: Maker, node: Node, made: dict[Value, Value]) -> Value:
        """Positions first, each channel for itself; then the few numbers of a group."""
        dims = node.attributes["dims"]
        value, zero = made[node.operands[0]], node.operands[1]
        if self.dim in dims:
            return make.reduce(value, zero, sorted({d - (d > self.dim) for d in dims}), "add")
        first = [d - (d > self.dim) for d in dims if d != self.dim + 1]
        channels = make.reduce(value, zero, first, "add") if first else value
        at = self.dim - sum(d < self.dim for d in dims)
        apart = (*channels.sizes[:at], *self.parts[self.dim : self.dim + 2], *channels.sizes[at + 1 :])
        return make.reduce(make.reshape(channels, apart), zero, [at + 1], "add")


def _joined_dim(node: Node) -> int | None:
    """The dim of a reshape's result that joins two neighbouring dims of its operand, where all others stay."""
    if made_by(node.result, "reshape") is None:
        return None
    parts, flat = node.operands[0].sizes, node.result.sizes
    for d in range(len(parts) - 1):
        if min(parts[d : d + 2]) > 1 and flat == (*parts[:d], parts[d] * parts[d + 1], *parts[d + 2 :]):
            return d
    return None


def _in_groups(root: Node) -> _InGroups | None:
    """What ends in ``root``, a reshape that joins groups and their channels."""
    dim = _joined_dim(root)
    if dim is None:
        return None
    groups = _InGroups(dim, root.operands[0].sizes, root.result.sizes)
    return groups if groups.grow(root.operands[0]) and groups.over_both() else None


def _step_by_step(value: Value, onwards: bool) -> list[Node]:
    """What reads that which is computed of ``value`` element by element, or what makes that which it is computed of."""
    ends, open_, seen = [], [value], {value}
    while open_ and len(seen) < _MOST:
        each = open_.pop()
        for node in each.users if onwards else [each.operation] if each.operation is not None else []:
            if not is_elementwise(node):
                ends.append(node)
                continue
            fresh = [x for x in (node.results if onwards else node.operands) if x not in seen and x.sizes]
            seen.update(fresh)
            open_ += fresh
    return ends


def _norm_pays(found: _InGroups) -> bool:
    """Two passes over images, channels last, and a convolution between these groups and others: alone all runs well."""
    if found.dim + 1 < len(found.flat) or megabytes(found.ends[0].result) < 0.25 or prod(found.flat[1:-1]) < 64:
        return False
    outer = [(node.result, True) for node in found.reshapes]
    outer += [(node.operands[0], False) for node in found.inside.values() if node.name == "reshape"]
    for value, onwards in outer:
        for node in _step_by_step(value, onwards):
            if node.name != "convolution":
                continue
            beyond = node.result if onwards else node.operands[0]
            if any(map(_joins_or_parts, _step_by_step(beyond, onwards))):
                return any(found.is_second_pass(node.operands[0]) for node in found.over_both())
    return False


def _joins_or_parts(node: Node) -> bool:
    return node.name == "reshape" and len(node.result.sizes) != len(node.operands[0].sizes)


GROUP_NORM = Rule(
    name="group-norm",
    phase="work",
    summary="sums over positions and a group's channels at once: over positions first, then over the group",
    finding="channels are taken apart into groups, so the array is laid out for groups and not for convolutions",
    change="sum over the positions first, x.sum((1, 2)), then over the groups of those few numbers",
    source="the TPU compiler's estimate, in a residual block with convolutions; dm-haiku's GroupNorm",
    roots=("reshape",),
    find=_in_groups,
    pays=_norm_pays,
    replaces=lambda found: found.ends,
    build=lambda found, make: found.build(make),
    exact=False,
    families=("tpu",),
)

RULES = (PATCHES, STEM, GROUPED_CONVOLUTION, PIXEL_SHUFFLE, GROUP_NORM)
