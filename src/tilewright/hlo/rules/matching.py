"""A small matcher: patterns say what a value must be made by, and name what a rule needs.

    >>> pattern = op("reduce", op("multiply", anything("x"), anything("y"), swaps=True), bind="total", monoid="add")

``pattern.match(value)`` gives a :class:`Match`, whose attributes are the names (``m.x`` a Value, ``m.total`` a Node),
or None. A pattern looks only through plain operations of static shape. Names that occur twice must meet the same value.

Beyond single operations there are *views*: what a few operations mean together, however they were written.
``repeat_of`` knows the many ways to write ``jnp.repeat``; ``split_of`` and ``merge_of`` know which dim a reshape takes
apart or joins; ``number_of`` knows a constant through its broadcasts and conversions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.hlo.graphs.dims import runs
from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import is_static


class Match:
    """What a pattern found: its names as attributes, Values for ``anything`` and Nodes for ``op``."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        """The Value or Node of that name."""
        try:
            return self.__dict__["found"][name]
        except KeyError:
            raise AttributeError(f"the pattern names nothing {name!r}") from None


class Pattern:
    """What a value must be. ``match`` tries a value, ``accepts`` goes on with what is bound already."""

    def match(self, value: Value) -> Match | None:
        """The names and what they met, or None."""
        match = Match()
        return match if self.accepts(value, match) else None

    def accepts(self, value: Value, match: Match) -> bool:
        """Whether ``value`` fits; binds names as it goes and unbinds them where it fails."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Anything(Pattern):
    name: str
    where: Callable[[Value], bool] | None

    def accepts(self, value: Value, match: Match) -> bool:
        if self.where is not None and not self.where(value):
            return False
        return match.found.setdefault(self.name, value) is value


@dataclass(frozen=True)
class _Op(Pattern):
    names: frozenset[str]
    operands: tuple[Pattern, ...]
    bind: str
    swaps: bool
    where: Callable[[Node], bool] | None
    attributes: tuple[tuple[str, Any], ...]

    def accepts(self, value: Value, match: Match) -> bool:
        node = value.operation
        if node is None or node.name not in self.names or not node.plain or value.shape is None:
            return False
        if len(self.operands) > len(node.operands):
            return False
        if any(node.attributes.get(key) != wanted for key, wanted in self.attributes):
            return False
        if self.where is not None and not self.where(node):
            return False
        before = dict(match.found)
        orders = [node.operands, node.operands[::-1]] if self.swaps and len(node.operands) == 2 else [node.operands]
        for order in orders:
            fits = all(pattern.accepts(operand, match) for pattern, operand in zip(self.operands, order))
            if fits and (not self.bind or match.found.setdefault(self.bind, node) is node):
                return True
            match.found = dict(before)
        return False


@dataclass(frozen=True)
class _Either(Pattern):
    patterns: tuple[Pattern, ...]

    def accepts(self, value: Value, match: Match) -> bool:
        before = dict(match.found)
        for pattern in self.patterns:
            if pattern.accepts(value, match):
                return True
            match.found = dict(before)
        return False


@dataclass(frozen=True)
class _Maybe(Pattern):
    names: frozenset[str]
    pattern: Pattern

    def accepts(self, value: Value, match: Match) -> bool:
        before = dict(match.found)
        if self.pattern.accepts(value, match):
            return True
        match.found = before
        node = value.operation
        if node is None or node.name not in self.names or not node.plain or not is_static(value, node.operands[0]):
            return False
        return self.accepts(node.operands[0], match)


@dataclass(frozen=True)
class _Number(Pattern):
    name: str
    wanted: float | None

    def accepts(self, value: Value, match: Match) -> bool:
        number = number_of(value)
        if number is None or (self.wanted is not None and number != self.wanted):
            return False
        if self.name:
            match.found[self.name] = number
        return True


def anything(name: str, where: Callable[[Value], bool] | None = None) -> Pattern:
    """Any value, under a name; ``where`` may ask more of it."""
    return _Anything(name, where)


def op(
    name: str, *operands: Pattern, bind: str = "", swaps: bool = False, where: Callable[[Node], bool] | None = None,
    **attributes: Any,
) -> Pattern:  # fmt: skip
    """The result of a plain operation; several names are separated by spaces.

    Patterns of ``operands`` are met in order (further operands are free); ``swaps`` tries both orders of two.
    ``attributes`` must be equal (``monoid="add"``), ``where`` may ask more of the Node.
    """
    return _Op(frozenset(name.split()), operands, bind, swaps, where, tuple(attributes.items()))


def either(*patterns: Pattern) -> Pattern:
    """The first of the patterns that fits."""
    return _Either(patterns)


def through(names: str, pattern: Pattern) -> Pattern:
    """The pattern, behind any number of operations of the given names (their first operand is followed)."""
    return _Maybe(frozenset(names.split()), pattern)


def number(name: str = "", is_: float | None = None) -> Pattern:
    """A constant number spread over any shape; bound as a float, and equal to ``is_`` if that is given."""
    return _Number(name, is_)


# Views: what a few operations mean together.


def made_by(value: Value, *names: str) -> Node | None:
    """The plain operation of one of these names that makes ``value``, its operands of static shape; else None."""
    node = value.operation
    return node if node is not None and node.name in names and node.plain and is_static(*node.operands) else None


def only_used_by(value: Value, user: Node) -> bool:
    """Whether nobody else uses ``value``."""
    return len(value.users) == 1 and user in value.users


def number_of(value: Value) -> float | None:
    """The number a value holds everywhere: a constant seen through broadcasts, reshapes and conversions."""
    node = value.operation
    while node is not None and node.name in ("broadcast_in_dim", "reshape", "convert", "transpose") and node.operands:
        value = node.operands[0]
        node = value.operation
    if node is None or node.name != "constant":
        return None
    text = node.attributes["literal"].element
    if text is None:
        return None
    if text in ("true", "false"):
        return float(text == "true")
    if text.startswith("0x"):
        return _from_bits(int(text, 16), value.dtype)
    try:
        return float(text)
    except ValueError:
        return None


def _from_bits(bits: int, dtype: str) -> float | None:
    """What MLIR writes as bits: infinities, and numbers that are none."""
    if dtype == "bf16":
        bits, dtype = bits << 16, "f32"
    form = {"f64": ("<Q", "<d"), "f32": ("<I", "<f"), "f16": ("<H", "<e")}.get(dtype)
    return float(struct.unpack(form[1], struct.pack(form[0], bits))[0]) if form else None


@dataclass(frozen=True)
class Split:
    """A reshape that takes one dim apart: dim ``dim`` of ``source`` becomes ``parts``, from result dim ``first`` on."""

    source: Value
    dim: int
    first: int
    parts: tuple[int, ...]


def split_of(value: Value) -> Split | None:
    """What ``value``, made by a reshape, takes apart, if it is one dim and all others stay (unit dims too)."""
    node = made_by(value, "reshape")
    if node is None:
        return None
    split = _one_run(node.operands[0].sizes, value.sizes)
    return Split(node.operands[0], *split) if split else None


@dataclass(frozen=True)
class Merge:
    """A reshape that joins dims: ``parts`` from dim ``first`` of ``source`` on become result dim ``dim``."""

    source: Value
    dim: int
    first: int
    parts: tuple[int, ...]


def merge_of(value: Value) -> Merge | None:
    """What ``value``, made by a reshape, joins, if it is one dim of the result and all others stay."""
    node = made_by(value, "reshape")
    if node is None:
        return None
    split = _one_run(value.sizes, node.operands[0].sizes)
    return Merge(node.operands[0], *split) if split else None


def _one_run(whole: Sequence[int], parts: Sequence[int]) -> tuple[int, int, tuple[int, ...]] | None:
    """(dim, first, sizes) where ``parts`` is ``whole`` with one dim taken apart; None otherwise."""
    more = len(parts) - len(whole)
    if more < 1:
        return None
    first = 0
    while first < len(whole) and whole[first] == parts[first]:
        first += 1
    while first >= 0:  # a part may equal the dim itself, when the others are 1
        if first < len(whole) and tuple(whole[first + 1 :]) == tuple(parts[first + more + 1 :]):
            sizes = tuple(parts[first : first + more + 1])
            product = 1
            for size in sizes:
                product *= size
            if product == whole[first] and tuple(whole[:first]) == tuple(parts[:first]):
                return first, first, sizes
        first -= 1
    return None


@dataclass(frozen=True)
class Repeat:
    """``value`` is ``source`` with dim ``dim`` taken ``times`` times.

    ``each``: every element ``times`` times behind itself, as ``jnp.repeat`` does; else the whole dim ``times`` times,
    as ``jnp.tile`` does. ``source`` has the rank of the result.
    """

    source: Value
    dim: int
    times: int
    each: bool


def repeat_of(value: Value, converted: bool = False) -> Repeat | None:
    """Whether ``value`` repeats another: reshapes and broadcasts behind each other that add one dim and join it.

    ``jnp.repeat(x, n, axis)``, ``jnp.tile`` and ``broadcast_to(x[:, :, None], ...).reshape(...)`` are all this, with
    any number of unit dims on the way. ``source`` is the first array of the chain that the result repeats. With
    ``converted`` one conversion may stand on the way, as in gradients of means; ``source`` may be of another type then.
    """
    return _repeat_under(value, [], value.sizes, converted) if made_by(value, "reshape") is not None else None


def repeat_under(value: Value, reshape: Node) -> Repeat | None:
    """Whether ``value`` would repeat another if ``reshape``, which follows a multiplication by it, were its own."""
    return _repeat_under(value, [reshape], reshape.result.sizes, False)


def _repeat_under(here: Value, chain: list[Node], sizes: Sequence[int], converted: bool) -> Repeat | None:
    while (node := made_by(here, "reshape", "broadcast_in_dim", *["convert"] * converted)) is not None:
        if node.name == "convert":
            here, converted = node.operands[0], False
            continue
        if node.name == "broadcast_in_dim" and list(node.attributes["dims"]) != sorted(node.attributes["dims"]):
            break
        chain.append(node)
        here = node.operands[0]
        repeat = _repeat(here, chain[::-1]) if len(here.sizes) == len(sizes) else None
        if repeat is not None:
            return repeat
    return None


def _repeat(source: Value, chain: Sequence[Node]) -> Repeat | None:
    """What a chain does to its first array: each dim as factors, outermost first, True where one is a repetition."""
    dims = [[(size, False)] if size != 1 else [] for size in source.sizes]
    for node in chain:
        sizes, before = node.result.sizes, node.operands[0].sizes
        if node.name == "reshape":
            regrouped = _regrouped([factor for dim in dims for factor in dim], sizes)
            if regrouped is None:
                return None
            dims = regrouped
        else:
            at = {d: k for k, d in enumerate(node.attributes["dims"])}
            dims = [
                dims[at[d]] if d in at and before[at[d]] == size else [(size, True)] * (size != 1)
                for d, size in enumerate(sizes)
            ]
    found = [(d, k) for d, dim in enumerate(dims) for k, (_, new) in enumerate(dim) if new]
    if len(found) != 1:
        return None
    (d, k), result = found[0], chain[-1].result.sizes
    times = dims[d][k][0]
    once = (*result[:d], result[d] // times, *result[d + 1 :])
    if k not in (0, len(dims[d]) - 1) or once != tuple(source.sizes):
        return None
    return Repeat(source, d, times, each=k != 0 or len(dims[d]) == 1)


def _regrouped(factors: Sequence[tuple[int, bool]], sizes: Sequence[int]) -> list[list[tuple[int, bool]]] | None:
    """Factors shared out to dims of these sizes, one taken apart where two dims share it."""
    left, dims = list(factors), []
    for size in sizes:
        dim: list[tuple[int, bool]] = []
        while size != 1:
            if not left:
                return None
            own, new = left.pop(0)
            if size % own and own % size:
                return None
            if own > size:
                left.insert(0, (own // size, new))
                own = size
            if dim and dim[-1][1] == new:
                dim[-1] = (dim[-1][0] * own, new)
            else:
                dim.append((own, new))
            size //= own
        dims.append(dim)
    return dims


@dataclass(frozen=True)
class Regroup:
    """``value`` is ``source.reshape(flat).transpose(order).reshape(value.shape)``.

    ``parts`` holds, for each dim of the source, the sizes it is split into, unit parts left out; ``flat`` is all of
    them in a row, and ``owner[k]`` says which dim of the source the k-th comes from.
    """

    source: Value
    parts: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]

    @property
    def flat(self) -> tuple[int, ...]:
        """The sizes of all parts in a row."""
        return tuple(size for sizes in self.parts for size in sizes)

    @property
    def owner(self) -> tuple[int, ...]:
        """The source's dim of each part."""
        return tuple(d for d, sizes in enumerate(self.parts) for _ in sizes)


def regroup_of(value: Value) -> Regroup | None:
    """A transpose between two reshapes, the first of which takes dims apart and joins none (either may be missing)."""
    outer = made_by(value, "reshape")
    transpose = made_by(outer.operands[0] if outer is not None else value, "transpose")
    if transpose is None:
        return None
    inner = made_by(transpose.operands[0], "reshape")
    middle = transpose.operands[0].sizes
    source = inner.operands[0] if inner is not None else transpose.operands[0]
    matched = runs(source.sizes, middle)
    if not matched or any(len(run.source) != 1 for run in matched):
        return None
    parts: list[tuple[int, ...]] = [() for _ in source.sizes]
    places: dict[int, int] = {}  # dim of the middle -> place among the parts
    for run in matched:
        parts[run.source[0]] = tuple(middle[j] for j in run.target)
        for j in run.target:
            places[j] = len(places)
    order = tuple(places[j] for j in transpose.attributes["permutation"] if j in places)
    return Regroup(source, tuple(parts), order)


def counts_along(value: Value, dim: int) -> bool:
    """Whether every element of ``value`` is its own position along ``dim``: an iota, however it was spread."""
    node = made_by(value, "iota", "broadcast_in_dim", "reshape", "convert", "select")
    if node is None:
        return False
    if node.name == "iota":
        return bool(node.attributes["dim"] == dim)
    if node.name == "select":  # what JAX does with an index that may count from the end
        below = made_by(node.operands[0], "compare")
        if below is None or below.attributes["direction"] != "LT" or number_of(below.operands[1]) != 0:
            return False
        return below.operands[0] is node.operands[2] and counts_along(node.operands[2], dim)
    inner = node.operands[0].sizes
    if node.name == "convert":
        return counts_along(node.operands[0], dim)
    if node.name == "broadcast_in_dim":
        dims = node.attributes["dims"]
        at = dims.index(dim) if dim in dims else None
        return at is not None and inner[at] == value.sizes[dim] and counts_along(node.operands[0], at)
    real = [[d for d, size in enumerate(sizes) if size != 1] for sizes in (inner, value.sizes)]
    if [inner[d] for d in real[0]] != [value.sizes[d] for d in real[1]] or dim not in real[1]:
        return False
    return counts_along(node.operands[0], real[0][real[1].index(dim)])


def one_of_each_row(node: Node) -> Value | None:
    """Which element of each row a gather picks, or a scatter writes, where it is one of each; None for any other.

    The value has an element for each row (all dims but the last of the first operand), in their order. Rows are named
    by batch dims, or by the other coordinates of the index counting up.
    """
    own, array, indices = node.attributes, node.operands[0], node.operands[1]
    window, gone = ("offset_dims", "collapsed") if node.name == "gather" else ("window_dims", "inserted")
    last, rank = len(array.sizes) - 1, len(indices.sizes)
    if last < 1 or own[window] or (node.name == "gather" and set(own["sizes"]) != {1}):
        return None
    if own["batch"]:
        rows = tuple(range(last))
        one = own["batch"] == rows and own["indices_batch"] == rows and own["index_map"] == own[gone] == (last,)
        return indices if one and own["index_dim"] >= last and set(indices.sizes[last:]) <= {1} else None
    parts = made_by(indices, "concatenate")
    everywhere = tuple(range(last + 1))
    if parts is None or own["index_map"] != everywhere or own[gone] != everywhere or own["index_dim"] != rank - 1:
        return None
    if parts.attributes["dim"] != rank - 1 or [part.sizes[-1] for part in parts.operands] != [1] * (last + 1):
        return None
    if indices.sizes[:last] != array.sizes[:last] or set(indices.sizes[last:-1]) - {1}:
        return None
    named = all(counts_along(part, d) or array.sizes[d] == 1 for d, part in enumerate(parts.operands[:-1]))
    return parts.operands[-1] if named else None


def same_elements(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether a reshape between the shapes can be matched dim by dim."""
    return runs(shape, other) is not None


@dataclass(frozen=True)
class Part:
    """``value`` is every ``stride``-th element of ``source`` along ``dim``, from ``start`` on."""

    source: Value
    dim: int
    start: int
    stride: int


def part_of(value: Value) -> Part | None:
    """Whether ``value`` takes every n-th element of one dim: ``x[..., k::n]``, or ``x.reshape(..., n)[..., k]``."""
    node = made_by(value, "slice")
    if node is not None:
        own, sizes = node.attributes, node.operands[0].sizes
        cut = [d for d in range(len(sizes)) if value.sizes[d] != sizes[d]]
        if len(cut) != 1 or own["strides"][cut[0]] < 2:
            return None
        d = cut[0]
        stride = own["strides"][d]
        whole = own["limit"][d] > sizes[d] - stride and own["start"][d] < stride and sizes[d] % stride == 0
        return Part(node.operands[0], d, own["start"][d], stride) if whole else None
    node = made_by(value, "reshape")
    pick = made_by(node.operands[0], "slice") if node is not None else None
    split = split_of(pick.operands[0]) if pick is not None else None
    if pick is None or split is None or len(split.parts) != 2:
        return None
    inner, own, sizes = split.first + 1, pick.attributes, pick.operands[0].sizes
    one = [b - a for a, b in zip(own["start"], own["limit"])]
    if one != [1 if d == inner else size for d, size in enumerate(sizes)]:
        return None
    if value.sizes != (*sizes[:inner], *sizes[inner + 1 :]):
        return None
    return Part(split.source, split.dim, own["start"][inner], sizes[inner])
