"""Rotary embeddings of interleaved pairs: only whoever stores the weights can put the pairs' halves apart."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rules.matching import Match, Part, anything, made_by, merge_of, part_of
from tilewright.hlo.rules.rule import Example, Rule

_ON_THE_WAY = ("reshape", "broadcast_in_dim", "convert")


def _halves(value: Value) -> list[Value]:
    """What ``jnp.stack([a, b], -1)`` puts together, where ``value`` merges such a stack into its minor dim."""
    merge = merge_of(value)
    if merge is None or merge.parts[-1:] != (2,) or merge.dim != len(value.sizes) - 1:
        return []
    stack = made_by(merge.source, "concatenate")
    if stack is None or len(stack.operands) != 2 or stack.attributes["dim"] != len(merge.source.sizes) - 1:
        return []
    return [_behind(half) for half in stack.operands]


def _behind(value: Value) -> Value:
    while (node := made_by(value, *_ON_THE_WAY)) is not None:
        value = node.operands[0]
    return value


def _parts(half: Value) -> set[tuple[Value, int]]:
    """The interleaved parts that a sum or difference of two products takes: (source, 0 or 1)."""
    total = made_by(half, "add", "subtract")
    products = [made_by(_behind(value), "multiply") for value in total.operands] if total is not None else []
    factors = [value for product in products if product is not None for value in product.operands]
    parts = [_part(value) for value in factors]
    return {(part.source, part.start) for part in parts if part is not None and part.stride == 2}


def _part(value: Value) -> Part | None:
    """The part, behind conversions."""
    while (node := made_by(value, "convert")) is not None:
        value = node.operands[0]
    part = part_of(value)
    return part if part is not None and part.dim == len(part.source.sizes) - 1 else None


def _rotates(match: Match, root: Node) -> bool:
    halves = [_parts(half) for half in _halves(root.result)]
    return len(halves) == 2 and halves[0] == halves[1] and sorted(start for _, start in halves[0]) == [0, 1]


RULE = Rule(
    name="rotary-in-halves",
    phase="advice",
    summary="rotary embeddings of interleaved pairs: keep the pairs' first halves before their second ones",
    finding="a rotary embedding turns neighbouring elements, which are taken apart and put together in the lanes",
    change="permute the columns of Wq and Wk once, so that pairs lie half a head apart, and turn the two halves",
    source="the TPU compiler's estimate; it puts no price on some of the slices before, so the factor is a lower bound",
    pattern=anything("turned"),
    roots=frozenset({"reshape"}),
    where=_rotates,
    build=None,
    example=Example(
        before="""
            first, second = x[..., ::2], x[..., 1::2]
            return jnp.stack([first * c - second * s, first * s + second * c], -1).reshape(x.shape)
        """,
        after="""
            first, second = jnp.split(x, 2, -1)  # x in the other order: its columns were permuted once
            return jnp.concatenate([first * c - second * s, first * s + second * c], -1)
        """,
        shapes="x: T[b,t,h,2*d]\nc: T[t,1,d]\ns: T[t,1,d]",
        sizes="b=8 t=1024 h=16 d=64",
        small="b=2 t=3 h=2 d=4",
        away="""
            first, second = jnp.split(x, 2, -1)
            return jnp.concatenate([first * c - second * s, first * s + second * c], -1)
        """,
        types=("bf16", "f32"),
    ),
)
