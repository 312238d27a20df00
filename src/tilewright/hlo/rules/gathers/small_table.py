"""Rows of a small table picked by index: a product with a one-hot matrix is faster than a gather."""

from __future__ import annotations

from math import prod

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, op
from tilewright.hlo.rules.rule import Example, Rule


def _rows(node: Node) -> bool:
    """A gather of whole rows of a table of two dims, its index in the last dim of the indices."""
    own, table, indices = node.attributes, node.operands[0], node.operands[1]
    if len(table.sizes) != 2 or own["batch"] or own["collapsed"] != (0,) or own["index_map"] != (0,):
        return False
    rank = len(indices.sizes)
    last = own["index_dim"] == rank - 1 and indices.sizes[-1:] == (1,)
    whole = own["sizes"] == (1, table.sizes[1]) and own["offset_dims"] == (len(node.result.sizes) - 1,)
    return whole and (last or own["index_dim"] == rank) and table.dtype in ("f32", "bf16")


def _build(match: Match, root: Node, make: Maker) -> Value:
    """A gather clamps its indices, so the one-hot rows are those of clamped indices."""
    table, shape = match.table, root.result.sizes[:-1]
    rows = table.sizes[0]
    flat = make.reshape(match.indices, (prod(shape),))
    low, high = (make.constant(text, flat.dtype) for text in ("0", str(rows - 1)))
    clamped = make.operation("clamp", [low, flat, high], flat.sizes, flat.dtype)
    wide = (prod(shape), rows)
    hot = make.compare(make.spread(clamped, wide, 0), make.along(wide, 1, flat.dtype), "EQ")
    exact = ("HIGHEST", "HIGHEST") if table.dtype == "f32" else ("DEFAULT", "DEFAULT")
    picked = make.dot(make.convert(hot, table.dtype), table, ((1,), (0,)), precision=exact)
    return make.reshape(picked, root.result.sizes)


RULE = Rule(
    name="small-table-gather",
    phase="shape",
    summary="rows gathered from a table of at most 128 narrow rows: a one-hot product",
    finding="narrow rows of a small table are gathered one by one",
    change="jax.nn.one_hot(i, rows, dtype=t.dtype) @ t (in f32 with precision='highest')",
    source="the TPU compiler's estimate (specs/rules.md, 19)",
    pattern=op("gather", anything("table"), anything("indices"), where=_rows),
    roots=frozenset({"gather"}),
    pays=lambda match, root: (
        match.table.sizes[0] <= 128 and match.table.sizes[1] < 128 and prod(root.result.sizes[:-1]) >= 4096
    ),
    build=_build,
    finite=("table",),
    example=Example(
        before="""
            return t[i]
        """,
        after="""
            return jnp.dot(jax.nn.one_hot(i, v, dtype=t.dtype), t, precision="highest")
        """,
        shapes="t: T[v,d]\ni: i32[n]",
        sizes="v=100 d=64 n=65536",
        small="v=5 d=3 n=4",
        draw="v=1..6 d=1..4 n=1..5",
        types=("bf16", "f32"),
        away="""
            return t[:, jnp.clip(i, 0, d - 1)]
        """,
    ),
)
