"""Views: what a few operations mean together, however they were written.

``repeat_of`` knows the many ways to write ``jnp.repeat``, ``number_of`` knows a constant through its broadcasts and
conversions. What a view cannot see, teach the view, not the rule.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

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
    batch, contract = product_dims(product)
    taken = (*batch[side], *contract[side])
    return [d for d in range(len(product.operands[side].sizes)) if d not in taken]


def megabytes(value: Value) -> float:
    """Bytes of an array without padding, in MB of 1e6."""
    width = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "i32": 4}.get(value.dtype, 1)
    return prod(value.sizes) * width / 1e6


def only_used_by(value: Value, user: Node) -> bool:
    """Whether nobody else uses ``value``."""
    return len(value.users) == 1 and user in value.users


def number_of(value: Value) -> float | None:
    """The number a value holds everywhere: a constant seen through broadcasts, reshapes and conversions."""
    node = value.operation
    while node is not None and node.name in _KEEPS_A_NUMBER and node.operands:
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
    any number of unit dims on the way. ``source`` is the first array of the chain that the result repeats.
    """
    return _repeat_under(value, [], value.sizes) if made_by(value, "reshape") is not None else None


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
