"""Maxout: the largest of every few neighbours in the minor dim, written as a reshape to groups of 2 or 4."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, number_of, op
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import Windows, megabytes, precision_for, windows_of

_MOST = 8
_ELEMENTWISE = {"maximum": float("-inf"), "minimum": float("inf")}


def _windows(root: Node) -> Windows | None:
    """Windows along the minor dim alone, of a type that products have."""
    windows = windows_of(root)
    if windows is None or windows.dims != (len(windows.shape) - 1,) or windows.window[-1] > _MOST:
        return None
    fresh = number_of(root.operands[1]) == _ELEMENTWISE[root.attributes["monoid"]]
    return windows if fresh and windows.source.dtype == windows.dtype and windows.dtype in ("bf16", "f32") else None


def _pays(match: Match, root: Node) -> bool:
    windows = _windows(root)
    if windows is None or windows.shape[-1] * windows.window[-1] > 4096:
        return False
    return megabytes(windows.source) >= 1


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    """One product picks the first of every group, one the second, and so on."""
    windows = _windows(root)
    if windows is None:
        return None
    group, columns, last = windows.window[-1], windows.shape[-1], len(windows.shape) - 1
    values, shape = make.reshape(windows.source, windows.shape), (columns, columns // group)
    rows = make.along(shape, 0)
    firsts = make.binary("multiply", make.along(shape, 1), make.full(str(group), "i32", shape))
    best = None
    for member in range(group):
        chosen = make.binary("add", firsts, make.full(str(member), "i32", shape))
        matrix = make.convert(make.compare(rows, chosen, "EQ"), values.dtype)
        picked = make.dot(values, matrix, ((last,), (0,)), precision=precision_for(values.dtype))
        best = picked if best is None else make.binary(root.attributes["monoid"], best, picked)
    return best


RULE = Rule(
    name="maxout",
    phase="shape",
    summary="the largest of every few columns, written as a reshape: 0/1 products pick them, then maxima",
    finding="the minor dim is taken apart into groups of a few columns, which leave most lanes of a tile empty",
    change="group the columns the other way round, x.reshape(.., k, groups).max(-2), or pick them by 0/1 products",
    source="the TPU compiler's estimate (specs/rules.md, 9)",
    pattern=op("reduce", anything("groups"), where=lambda node: node.attributes.get("monoid") in _ELEMENTWISE),
    roots=frozenset({"reduce"}),
    where=lambda match, root: _windows(root) is not None,
    pays=_pays,
    build=_build,
    finite=("groups",),
    example=Example(
        before="return x.reshape(n, d, 4).max(-1)",
        after="""
            picked = [
                jnp.dot(x, (jnp.arange(4 * d)[:, None] == 4 * jnp.arange(d) + k).astype(x.dtype), precision="highest")
                for k in range(4)
            ]
            return jnp.maximum(jnp.maximum(picked[0], picked[1]), jnp.maximum(picked[2], picked[3]))
        """,
        shapes="x: T[n,4*d]",
        sizes="n=16384 d=256",
        small="n=2 d=3",
        draw="n=1..4 d=1..5",
        types=("bf16", "f32"),
        away="return x.reshape(n, 4, d).max(1)",
    ),
)
