"""Parts of the minor dim added up, or the largest taken: as a reshape they are copied, as slices they are read."""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

from tilewright.hlo.graphs.dims import runs
from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.base import is_identity
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, made_by, op
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import megabytes

_MOST = 16


class _Parts(NamedTuple):
    """``source``, in the shape of the result but for its minor dim, which holds ``number`` parts."""

    source: Value
    number: int


def _parts(root: Node) -> _Parts | None:
    """Whether the root reduces the outer factor of the minor dim: ``x.reshape(.., 4, n).max(-2)``."""
    value = root.operands[0]
    convert = made_by(value, "convert")
    reshape = made_by(convert.operands[0] if convert is not None else value, "reshape")
    place = len(value.sizes) - 2
    if reshape is None or len(root.operands) != 2 or root.attributes["dims"] != (place,):
        return None
    found = runs(reshape.operands[0].sizes, value.sizes) or ()
    last = len(reshape.operands[0].sizes) - 1
    if not any(run.source == (last,) and run.target == (place, place + 1) for run in found):
        return None
    count = value.sizes[place]
    fresh = is_identity(root.attributes["monoid"], root.operands[1], exact=False)
    return _Parts(reshape.operands[0], count) if count <= _MOST and fresh else None


def _pays(match: Match, root: Node) -> bool:
    parts = _parts(root)
    return parts is not None and root.result.sizes[-1] >= 64 and megabytes(parts.source) >= 1


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    parts = _parts(root)
    if parts is None:
        return None
    *lead, width = root.result.sizes
    whole = make.reshape(parts.source, (*lead, parts.number * width))
    taken = [make.part(whole, len(lead), k * width, (k + 1) * width) for k in range(parts.number)]
    each = [make.convert(part, root.result.dtype) for part in taken]
    return reduce(lambda left, right: make.binary(root.attributes["monoid"], left, right), each)


RULE = Rule(
    name="reduced-parts",
    phase="shape",
    summary="parts of the minor dim reduced by a reshape: slices, added or compared, instead",
    finding="the minor dim is taken apart into a few long parts to reduce them, which copies the array",
    change="add (or compare) slices of the columns: x[..., :n] + x[..., n:2 * n] + ...",
    source="the TPU compiler's estimate",
    pattern=op(
        "reduce", anything("parts"), where=lambda node: node.attributes.get("monoid") in ("add", "maximum", "minimum")
    ),
    roots=frozenset({"reduce"}),
    where=lambda match, root: _parts(root) is not None,
    pays=_pays,
    build=_build,
    exact=False,
    example=Example(
        before="return x.reshape(n, 4, d).max(1)",
        after="""
            a, b, c, e = jnp.split(x, 4, axis=1)
            return jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, e))
        """,
        shapes="x: T[n,4*d]",
        sizes="n=16384 d=256",
        small="n=2 d=3",
        draw="n=1..4 d=1..5",
        types=("bf16", "f32"),
        away="return x.reshape(n, d, 4).max(2)",
    ),
)
