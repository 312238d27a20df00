"""Patches of an image, cut out by a reshape and a transpose and multiplied: that is a convolution with a stride."""

from __future__ import annotations

from math import prod

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, Regroup, op, regroup_of
from tilewright.hlo.rules.rule import Example, Rule


def _patches(root: Node) -> tuple[Regroup, dict[str, int]] | None:
    """The regrouping of a product's left operand, and its parts by letter: b, 0, 1 (patches), p, q (in one), f."""
    own = root.attributes
    left, weights = root.operands
    if own["lhs_batch"] or own["lhs_contract"] != (len(left.sizes) - 1,) or len(weights.sizes) != 2:
        return None
    cut = regroup_of(left)
    if cut is None or len(cut.source.sizes) != 4 or sorted(map(len, cut.parts)) != [1, 1, 2, 2]:
        return None
    spatial = [d for d, sizes in enumerate(cut.parts) if len(sizes) == 2]
    first = [cut.owner.index(d) for d in spatial]
    rest = [k for k, d in enumerate(cut.owner) if d not in spatial]
    batch, feature = (rest[0], rest[1]) if cut.order[0] == rest[0] else (rest[1], rest[0])
    letters = {"b": batch, "0": first[0], "1": first[1], "p": first[0] + 1, "q": first[1] + 1, "f": feature}
    if cut.order[:3] != tuple(letters[c] for c in "b01") or left.sizes[-1] != prod(cut.flat[k] for k in cut.order[3:]):
        return None
    return cut, letters


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    found = _patches(root)
    if found is None:
        return None
    cut, letters = found
    own, weights = root.attributes, root.operands[1]
    names = {letters["p"]: "0", letters["q"]: "1", letters["f"]: "i"}
    if own["rhs_contract"] == (1,):
        weights = make.transpose(weights, (1, 0))
    kernel = make.reshape(weights, (*(cut.flat[k] for k in cut.order[3:]), weights.sizes[1]))
    by_dim = {cut.owner[letters[c]]: c for c in "b01f"}
    numbers = "".join(by_dim[d] for d in range(4)), "".join(names[k] for k in cut.order[3:]) + "o", "b01f"
    strides = (cut.flat[letters["p"]], cut.flat[letters["q"]])
    value = make.convolution(
        cut.source, kernel, numbers, strides, dtype=root.result.dtype, precision=own["precision"]
    )  # fmt: skip
    return make.reshape(value, root.result.sizes)


def _pays(match: Match, root: Node) -> bool:
    found = _patches(root)
    assert found is not None
    cut, letters = found
    return cut.flat[letters["f"]] < 128 and cut.flat[letters["p"]] * cut.flat[letters["q"]] >= 4


RULE = Rule(
    name="patches-as-convolution",
    phase="work",
    summary="patches cut out by reshape and transpose, then a product: a convolution with a stride",
    finding="patches are written to memory in another order before they are multiplied",
    change="lax.conv_general_dilated(x, w.reshape(p, p, channels, -1), (p, p), 'VALID', ...)",
    source="the TPU compiler's estimate (specs/rules.md, 13)",
    pattern=op("dot_general", where=lambda node: _patches(node) is not None),
    roots=frozenset({"dot_general"}),
    pays=_pays,
    build=_build,
    exact=False,
    example=Example(
        before="""
            patches = x.reshape(b, h, p, w, p, c).transpose(0, 1, 3, 2, 4, 5)
            return patches.reshape(b, h * w, p * p * c) @ k
        """,
        after="""
            kernel = k.reshape(p, p, c, o)
            y = lax.conv_general_dilated(x, kernel, (p, p), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            return y.reshape(b, h * w, o)
        """,
        shapes="x: T[b,h*p,w*p,c]\nk: T[p*p*c,o]",
        sizes="b=32 h=14 w=14 p=16 c=3 o=768",
        small="b=2 h=2 w=3 p=2 c=3 o=4",
        draw="b=2..3 h=2..3 w=2..3 c=2..3 o=1..4",
        types=("bf16", "f32"),
        away="""
            windows = x.reshape(b, h, p, w, p, c).transpose(0, 2, 4, 1, 3, 5)
            return windows.reshape(b, p * p, h * w * c) @ jnp.ones((h * w * c, o), x.dtype)
        """,
    ),
)
