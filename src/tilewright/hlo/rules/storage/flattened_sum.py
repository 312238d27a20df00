"""Arrays flattened into one vector to be summed up: each is summed by itself, and the sums are added."""

from __future__ import annotations

from math import prod

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.base import regroups, starts
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, op
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.storage.flattened import Flattened, flattened

_LEAST = 1 << 14
"""Elements of a piece from which on a reduction of its own pays."""


def _summed(root: Node) -> Flattened | None:
    vector = root.operands[0]
    if len(vector.sizes) != 1 or not regroups(root, allow_reassociation=True):
        return None
    return flattened(vector, lambda user: user is root)


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    found, monoid, vector = _summed(root), root.attributes["monoid"], root.operands[0]
    begin = starts(monoid, root.operands[1], make)
    if found is None or begin is None:
        return None
    total = None if begin[0] is begin[1] else begin[1]
    for piece in range(len(found.lengths)):
        part = make.convert(found.computed(piece, make)[vector], begin[0].dtype)
        partial = make.reduce(part, begin[0], range(len(part.sizes)), monoid)
        total = partial if total is None else make.binary(monoid, total, partial)
    return make.convert(total, vector.dtype) if total is not None else None


def _pays(match: Match, root: Node) -> bool:
    found = _summed(root)
    return found is not None and prod(root.operands[0].sizes) >= _LEAST * len(found.lengths)


RULE = Rule(
    name="flattened-sum",
    phase="shape",
    summary="arrays flattened into one vector and summed up: each is summed by itself",
    finding="arrays are flattened into one vector only to be summed up, as for a global norm",
    change="sum up every array by itself and add the sums: sum(jnp.sum(x * x) for x in jax.tree.leaves(grads))",
    source="the TPU compiler's estimate for 2 to 16 arrays, and tt-mlir pull request 9227 for Tenstorrent's tiles",
    pattern=op("reduce", anything("vector")),
    roots=frozenset({"reduce"}),
    where=lambda match, root: _summed(root) is not None,
    pays=_pays,
    build=_build,
    exact=False,
    example=Example(
        before="""
            flat = jnp.concatenate([a.reshape(-1), b, c.reshape(-1)])
            return jnp.sqrt(jnp.sum(flat * flat))
        """,
        after="""
            return jnp.sqrt(sum(jnp.sum(x * x) for x in (a, b, c)))
        """,
        shapes="a: T[n,k]\nb: T[k]\nc: T[k,p]",
        sizes="n=2048 k=1024 p=1024",
        small="n=4 k=3 p=5",
        draw="n=2..5 k=2..6 p=2..4",
        types=("f32",),
        away="""
            flat = jnp.concatenate([a.reshape(-1), b, c.reshape(-1)])
            return jnp.cumsum(flat), jnp.sum(flat[1:])
        """,
    ),
)
