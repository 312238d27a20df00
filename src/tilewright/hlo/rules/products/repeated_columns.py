"""Repeats along the minor dim: the copies become a dim of size 2 or 4, which fills no tile."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, Repeat, anything, op, repeat_of
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import group_matrix, megabytes, precision_for


def _repeat(root: Node) -> Repeat | None:
    """Every element of the minor dim several times behind itself."""
    repeat = repeat_of(root.result, converted=True)
    if repeat is None or not repeat.each or root.result.dtype not in ("bf16", "f32"):
        return None
    return repeat if repeat.dim == len(root.result.sizes) - 1 and repeat.source.sizes[repeat.dim] > 1 else None


def _pays(match: Match, root: Node) -> bool:
    repeat = _repeat(root)
    if repeat is None or not 32 <= repeat.source.sizes[-1] <= 512:
        return False
    return root.result.sizes[-1] <= 2048 and megabytes(root.result) >= 2


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    repeat = _repeat(root)
    if repeat is None:
        return None
    source, last = make.convert(repeat.source, root.result.dtype), len(root.result.sizes) - 1
    matrix = group_matrix(make, root.result.sizes[-1], repeat.times, source.dtype, wide=True)
    return make.dot(source, matrix, ((last,), (0,)), precision=precision_for(source.dtype))


RULE = Rule(
    name="repeated-columns",
    phase="shape",
    summary="repeats along the minor dim: a product with a 0/1 matrix instead",
    finding="every column is repeated: the copies become a dim of their own, which fills no tile",
    change="multiply by a matrix that has 1 at [i // n, i]",
    source="the TPU compiler's estimate (specs/rules.md, 18)",
    pattern=op("reshape", anything("copies")),
    roots=frozenset({"reshape"}),
    where=lambda match, root: _repeat(root) is not None,
    pays=_pays,
    build=_build,
    finite=("copies",),
    example=Example(
        before="return jnp.repeat(x, 4, axis=-1)",
        after="""
            columns = jnp.arange(d)[:, None] == jnp.arange(4 * d) // 4
            return jnp.dot(x, columns.astype(x.dtype), precision="highest")
        """,
        shapes="x: T[n,d]",
        sizes="n=16384 d=256",
        small="n=3 d=4",
        draw="n=1..4 d=2..5",
        types=("bf16", "f32"),
        away="return jnp.tile(x, (1, 4))",
    ),
)
