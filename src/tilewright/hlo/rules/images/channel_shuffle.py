"""A channel shuffle just before a product: the weights' rows can be shuffled instead, and the activations stay."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, Regroup, op, regroup_of
from tilewright.hlo.rules.rule import Example, Rule


def shuffle_of(value: Value) -> Regroup | None:
    """``swapaxes(x.reshape(..., g, n), -1, -2).reshape(x.shape)``: the last dim's groups and places change roles."""
    cut = regroup_of(value)
    if cut is None or not value.sizes or value.sizes != cut.source.sizes or len(cut.parts[-1]) != 2:
        return None
    rest = len(cut.flat) - 2
    swapped = (*range(rest), rest + 1, rest)
    return cut if all(len(sizes) <= 1 for sizes in cut.parts[:-1]) and cut.order == swapped else None


def _weights(node: Node) -> tuple[Regroup, int] | None:
    """The shuffle of a product's (or 1x1 convolution's) left operand, and the dim of the weights that it meets."""
    cut = shuffle_of(node.operands[0])
    last = len(node.operands[0].sizes) - 1
    own = node.attributes
    if cut is None:
        return None
    if node.name == "dot_general":
        return (cut, own["rhs_contract"][0]) if own["lhs_contract"] == (last,) else None
    numbers = own["numbers"]
    return (cut, numbers[1].index("i")) if numbers[0].index("f") == last and own["groups"] == 1 else None


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    found = _weights(root)
    if found is None:
        return None
    cut, dim = found
    groups, size = cut.parts[-1]
    weights = root.operands[1]
    split = make.reshape(weights, (*weights.sizes[:dim], size, groups, *weights.sizes[dim + 1 :]))
    order = [*range(dim), dim + 1, dim, *range(dim + 2, len(split.sizes))]
    turned = make.reshape(make.transpose(split, order), weights.sizes)
    return make.operation(root.name, [cut.source, turned], root.result.sizes, root.result.dtype, dict(root.attributes))


RULE = Rule(
    name="channel-shuffle-into-weights",
    phase="work",
    summary="a channel shuffle before a product or convolution: the weights' rows are shuffled instead",
    finding="channels are shuffled in memory just before they are all multiplied",
    change="shuffle the rows of the weights once instead",
    source="the TPU compiler's estimate (specs/rules.md, 14)",
    pattern=op("dot_general convolution", where=lambda node: _weights(node) is not None),
    roots=frozenset({"dot_general", "convolution"}),
    build=_build,
    exact=False,
    example=Example(
        before="""
            y = x.reshape(b, h, w, g, n).swapaxes(-1, -2).reshape(b, h, w, g * n)
            return y @ k
        """,
        after="""
            return x @ k.reshape(n, g, o).swapaxes(0, 1).reshape(g * n, o)
        """,
        shapes="x: T[b,h,w,g*n]\nk: T[g*n,o]",
        sizes="b=32 h=28 w=28 g=4 n=60 o=240",
        small="b=2 h=2 w=2 g=2 n=3 o=4",
        draw="b=1..2 h=1..3 g=2..3 n=2..4 o=1..4",
        types=("bf16", "f32"),
        away="""
            y = x.reshape(b, h, w, g, n).swapaxes(-1, -2)
            return y.reshape(b, h * w, g * n).sum(1)
        """,
    ),
)
