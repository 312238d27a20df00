"""Repeated rows: the copies of a row become a dim of size 2 or 4, which fills no tile."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, Repeat, anything, op, repeat_of
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import group_matrix, megabytes, precision_for


def _repeat(root: Node) -> Repeat | None:
    """Every row, in any dim but the last, several times behind itself."""
    repeat = repeat_of(root.result, converted=True)
    if repeat is None or not repeat.each or root.result.dtype not in ("bf16", "f32"):
        return None
    return repeat if repeat.dim < len(root.result.sizes) - 1 and repeat.source.sizes[repeat.dim] > 1 else None


def _block(rows: int) -> int:
    """Rows of the source that one block repeats: 32, or all where that does not divide."""
    return 32 if rows % 32 == 0 else rows


def _pays(match: Match, root: Node) -> bool:
    """Rows beside the minor dim, which has to fill the lanes; rows further out are whole tiles anyway."""
    repeat = _repeat(root)
    if repeat is None or repeat.dim != len(root.result.sizes) - 2:
        return False
    whole = repeat.source.sizes[repeat.dim] % 32 == 0
    return whole and root.result.sizes[-1] >= 128 and repeat.times <= 4 and megabytes(root.result) >= 1


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    repeat = _repeat(root)
    if repeat is None:
        return None
    dim, sizes = repeat.dim, repeat.source.sizes
    source = make.convert(repeat.source, root.result.dtype)
    block = _block(sizes[dim])
    blocks = make.reshape(source, (*sizes[:dim], sizes[dim] // block, block, *sizes[dim + 1 :]))
    matrix = group_matrix(make, block * repeat.times, repeat.times, source.dtype)
    product = make.dot(matrix, blocks, ((1,), (dim + 1,)), precision=precision_for(source.dtype))
    order = [*range(1, dim + 2), 0, *range(dim + 2, len(sizes) + 1)]
    return make.reshape(make.transpose(product, order), root.result.sizes)


RULE = Rule(
    name="repeated-rows",
    phase="shape",
    summary="repeated rows: a product with a 0/1 matrix instead, for 32 rows at a time",
    finding="every row is repeated: the copies become a dim of their own, which fills no tile",
    change="multiply by a matrix that has 1 at [i, i // n], for 32 rows at a time",
    source="the TPU compiler's estimate (specs/rules.md, 10)",
    pattern=op("reshape", anything("copies")),
    roots=frozenset({"reshape"}),
    where=lambda match, root: _repeat(root) is not None,
    pays=_pays,
    build=_build,
    finite=("copies",),
    example=Example(
        before="return jnp.repeat(x, 4, axis=1)",
        after="""
            rows = (jnp.arange(128)[:, None] // 4 == jnp.arange(32)).astype(x.dtype)
            if t % 32:
                rows = (jnp.arange(4 * t)[:, None] // 4 == jnp.arange(t)).astype(x.dtype)
            blocks = x.reshape(b, -1, rows.shape[1], d)
            return jnp.einsum("ij,bnjd->bnid", rows, blocks, precision="highest").reshape(b, 4 * t, d)
        """,
        shapes="x: T[b,t,d]",
        sizes="b=8 t=512 d=1024",
        small="b=2 t=3 d=4",
        draw="b=1..3 t=2..5 d=1..5",
        types=("bf16", "f32"),
        away="return jnp.tile(x, (1, 4, 1))",
    ),
)
