"""Views: what a few operations mean together, however they were written, and what is known of values beforehand.

``repeat_of`` knows the many ways to write ``jnp.repeat``, ``number_of`` knows a constant through its broadcasts and
conversions. What a view cannot see, teach the view, not the rule.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import MOVES_AND_REPEATS, made_by

Dims = tuple[int, ...]
#: Operations whose result holds one number everywhere if their operand does.
_KEEPS_A_NUMBER = MOVES_AND_REPEATS | {"convert"}


def product_dims(product: Node) -> tuple[tuple[Dims, Dims], tuple[Dims, Dims]]:
    """(batch dims, contracted dims) of a ``dot_general``, each of the left and the right operand."""
    own = product.attributes
    return (own["lhs_batch"], own["rhs_batch"]), (own["lhs_contract"], own["rhs_contract"])


def free_dims(product: Node, side: int) -> list[int]:
    """The dims of the left (0) or right (1) operand of a ``dot_general`` that stand in its result by themselves."""
    return list(product.side_dims[side][1])


def megabytes(value: Value) -> float:
    """Bytes of an array without padding, in MB of 1e6."""
    width = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "i32": 4}.get(value.dtype, 1)
    return prod(value.sizes) * width / 1e6


def only_used_by(value: Value, user: Node) -> bool:
    return len(value.users) == 1 and user in value.users


def behind(value: Value, *names: str) -> Value:
    """The first value behind ``value`` that no operation of these names makes: their first operands, followed."""
    while (node := made_by(value, *names)) is not None:
        value = node.operands[0]
    return value


def number_of(value: Value) -> float | None:
    """The number a value holds everywhere: a constant seen through broadcasts, reshapes and conversions."""
    value = behind(value, *_KEEPS_A_NUMBER)
    node = value.operation
    text = node.attributes["literal"].element if node is not None and node.name == "constant" else None
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


class Repeat(NamedTuple):
    """``value`` is ``source`` with dim ``dim`` taken ``times`` times.

    ``each``: every element ``times`` times behind itself, as ``jnp.repeat`` does; else the whole dim ``times`` times,
    as ``jnp.tile`` does. ``source`` has the rank of the result.
    """

    source: Value
    dim: int
    times: int
    each: bool


def repeat_of(value: Value) -> Repeat | None:
    """Whether ``value`` repeats another: reshapes and broadcasts behind each other that add one dim and join it.

    ``jnp.repeat(x, n, axis)``, ``jnp.tile`` and ``broadcast_to(x[:, :, None], ...).reshape(...)`` are all this, with
    any number of unit dims on the way. ``source`` is the first array of the chain that the result repeats. A gather at
    constant places, ``x[:, jnp.arange(n * times) // times]``, repeats too.
    """
    if made_by(value, "reshape") is not None:
        return _repeat_under(value, [], value.sizes)
    choice = made_by(value, "select")  # what JAX does with an index that is out of range
    met = elements_of(behind(choice.operands[0], "broadcast_in_dim", "reshape")) if choice is not None else None
    if choice is not None and met is not None and met.all():
        value = choice.operands[1]
    gather = made_by(value, "gather")
    return _repeat_by_gather(gather) if gather is not None else None


def _repeat_by_gather(gather: Node) -> Repeat | None:
    """Whole slices along one dim, each taken several times behind itself."""
    own, (source, indices) = gather.attributes, gather.operands
    if own["batch"] or len(own["index_map"]) != 1 or own["collapsed"] != own["index_map"]:
        return None
    (dim,), sizes = own["index_map"], source.sizes
    rest = tuple(d for d in range(len(sizes)) if d != dim)
    whole = all(own["sizes"][d] == sizes[d] for d in rest)
    if not whole or own["offset_dims"] != rest or len(gather.result.sizes) != len(sizes):
        return None
    times, left = divmod(gather.result.sizes[dim], sizes[dim])
    places = elements_of(indices) if times > 1 and not left else None
    each = places is not None and bool((places.reshape(-1) == np.arange(sizes[dim] * times) // times).all())
    return Repeat(source, dim, times, each=True) if each else None


def repeat_under(value: Value, reshape: Node) -> Repeat | None:
    """Whether ``value`` would repeat another if ``reshape``, which follows a multiplication by it, were its own."""
    return _repeat_under(value, [reshape], reshape.result.sizes)


def _repeat_under(here: Value, chain: list[Node], sizes: Sequence[int]) -> Repeat | None:
    while (node := made_by(here, "reshape", "broadcast_in_dim")) is not None:
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


# Matrices of zeros and ones.


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


class OneHot(NamedTuple):
    """A matrix of zeros and ones: ``hit`` compares ``ids``, the same all along ``dim``, with the places there."""

    hit: Value
    ids: Value
    dim: int


def one_hot_of(value: Value) -> OneHot | None:
    """Whether ``value`` is ``jax.nn.one_hot`` of something, or ``jnp.arange(n) == i[..., None]``, in any type."""
    hit = made_by(behind(value, "convert"), "compare")
    if hit is None or hit.attributes["direction"] != "EQ":
        return None
    for places, index in (hit.operands, hit.operands[::-1]):
        spread = made_by(index, "broadcast_in_dim")
        for d, size in enumerate(places.sizes):
            kept = spread is not None and d in spread.attributes["dims"]
            along = spread.operands[0].sizes[spread.attributes["dims"].index(d)] if spread is not None and kept else 1
            if size > 1 and spread is not None and along == 1 and counts_along(places, d):
                return OneHot(hit.result, index, d)
    return None


# Values that are finite whatever the arguments are.

#: Results that are bounded for every operand that is a number. None of them turns NaN into a number, so their operand
#: must be finite too, unless it is an integer.
_BOUNDED = frozenset({"tanh", "logistic", "sine", "cosine", "sign", "chlo.erf"})
#: Finite for finite operands: no overflow from values that are finite.
_KEEPING = frozenset({
    "reshape", "broadcast_in_dim", "transpose", "slice", "reverse", "concatenate", "negate", "abs", "maximum",
    "minimum", "select", "pad", "dynamic_slice", "gather", "floor", "ceil", "round_nearest_even", "round_nearest_afz",
}) | _BOUNDED  # fmt: skip
_DEPTH = 12


def is_finite(value: Value, depth: int = _DEPTH) -> bool:
    """Whether no element can be NaN or an infinity: integers, constants, and what only moves or bounds such.

    >>> from tilewright.hlo.graphs.graph import Block
    >>> block = Block()
    >>> is_finite(block.add_argument((8,), "i32")), is_finite(block.add_argument((8,), "f32"))
    (True, False)
    """
    if value.dtype.lstrip("us").startswith("i"):
        return True
    node = value.operation
    if node is None or depth == 0:
        return False
    if node.name == "constant":
        element = node.attributes["literal"].element
        return element is not None and not element.startswith("0x") and element not in ("inf", "nan")
    if node.name == "iota":
        return True
    if node.name == "convert":
        return is_finite(node.operands[0], depth - 1) and not _narrows(node.operands[0].dtype, value.dtype)
    if node.name == "multiply":  # a factor of 0 or 1 keeps it; products of others may overflow
        makers = (operand.operation for operand in node.operands)
        masks = any(made and made.name == "convert" and made.operands[0].dtype == "i1" for made in makers)
        return masks and all(is_finite(operand, depth - 1) for operand in node.operands)
    if node.name in _KEEPING:
        parts = node.operands[1:] if node.name == "select" else node.operands
        return all(is_finite(operand, depth - 1) for operand in parts)
    return False


_WIDEST = {"f64": 1023, "f32": 127, "bf16": 127, "f16": 15}


def _narrows(source: str, target: str) -> bool:
    """Whether a conversion may overflow to an infinity."""
    if source not in _WIDEST:  # an integer: f16 ends at 65504
        small = source in ("i1", "i8", "ui8", "i4", "ui4", "i2", "ui2")
        return target not in _WIDEST or (target == "f16" and not small)
    return _WIDEST.get(target, 0) < _WIDEST[source]


# Elements that depend on nothing but constants: the indices of a gather, mostly.

Array = np.ndarray[Any, Any]

#: Larger values are not looked at.
_MOST_ELEMENTS = 1 << 20
_MOST_STEPS = 40


def elements_of(value: Value, known: dict[Value, Array | None] | None = None, depth: int = _MOST_STEPS) -> Array | None:
    """The elements as int64 (bool for i1), None where they depend on an argument or on an operation unknown here.

    ``known``: what has been found out on the way here, ``depth`` operations from where the search must end.
    """
    known = {} if known is None else known
    if value not in known:
        known[value] = None
        node = value.operation
        if node is not None and depth and value.shape is not None and np.prod(value.shape) <= _MOST_ELEMENTS:
            known[value] = _computed(node, known, depth - 1)
    return known[value]


def _computed(node: Node, known: dict[Value, Array | None], depth: int) -> Array | None:
    result = node.result
    if not result.dtype.lstrip("us").startswith("i") or node.name not in _OPERATIONS:
        return None
    operands = [elements_of(operand, known, depth) for operand in node.operands]
    if any(each is None for each in operands):
        return None
    array = _OPERATIONS[node.name](node, *operands)
    return None if array is None else np.asarray(array).astype(bool if result.dtype == "i1" else np.int64)


def _constant(node: Node) -> Array | None:
    literal, shape = node.attributes["literal"], node.result.sizes
    if literal.element is not None:
        text = literal.element
        return np.full(shape, text == "true" if text in ("true", "false") else int(text, 0))
    array = literal.array()
    return None if array is None else np.asarray(array).reshape(shape)


def _iota(node: Node) -> Array:
    shape, dim = node.result.sizes, node.attributes["dim"]
    return np.broadcast_to(np.arange(shape[dim]).reshape([-1 if d == dim else 1 for d in range(len(shape))]), shape)


_COMPARE: dict[str, Any] = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal
}  # fmt: skip
_BY_ELEMENT: dict[str, Any] = {
    "add": np.add, "and": np.bitwise_and, "maximum": np.maximum, "minimum": np.minimum, "multiply": np.multiply,
    "negate": np.negative, "or": np.bitwise_or, "select": np.where, "sign": np.sign, "subtract": np.subtract
}  # fmt: skip
_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: lambda node, *x, of=of: of(*x) for name, of in _BY_ELEMENT.items()},
    **dict.fromkeys(("broadcast_in_dim", "reshape", "reverse", "slice", "transpose"), Node.rearranged),
    "clamp": lambda node, low, x, high: np.clip(x, low, high),
    "compare": lambda node, a, b: _COMPARE[node.attributes["direction"]](a, b),
    "concatenate": lambda node, *x: np.concatenate(x, node.attributes["dim"]),
    "constant": _constant,
    "convert": lambda node, x: x,
    "divide": lambda node, a, b: np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)) if b.all() else None,
    "iota": _iota,
    "reduce": lambda node, x, start: (
        x.all(node.attributes["dims"]) & start if node.attributes.get("monoid") == "and" else None
    ),
    "remainder": lambda node, a, b: np.fmod(a, b) if b.all() else None,
}
