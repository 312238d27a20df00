"""Max pooling of an image that was padded with zeros before: Keras' networks pad in an operation of its own."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, made_by, number_of, only_used_by, op
from tilewright.hlo.rules.rule import Example, Rule


def _pad(pool: Node) -> Node | None:
    """The padding that the pool's own padding can replace."""
    own, pad = pool.attributes, made_by(pool.operands[0], "pad")
    if pad is None or len(pool.operands) != 2 or own.get("monoid") != "maximum" or any(map(any, own["padding"])):
        return None
    if set(own["base_dilation"]) | set(own["window_dilation"]) != {1} or number_of(pool.operands[1]) != float("-inf"):
        return None
    low, high, inner = (pad.attributes[name] for name in ("low", "high", "interior"))
    if any(inner) or min(*low, *high) < 0 or not _least(pad):
        return None
    for d, size in enumerate(pad.operands[0].sizes):  # every window holds an element of the image
        window, stride, last = own["window"][d], own["strides"][d], pool.result.sizes[d] - 1
        if low[d] >= window or last * stride >= low[d] + size:
            return None
    return pad


def _least(pad: Node) -> bool:
    """Whether no element of the image is below what it is padded with: zeros around a relu's result, or -inf."""
    with_, relu = number_of(pad.operands[1]), made_by(pad.operands[0], "maximum")
    if with_ == float("-inf"):
        return True
    return with_ == 0 and relu is not None and any(number_of(side) == 0 for side in relu.operands)


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    pad, own = _pad(root), root.attributes
    if pad is None:
        return None
    around = list(zip(pad.attributes["low"], pad.attributes["high"]))
    image, least = pad.operands[0], root.operands[1]
    return make.reduce_window(image, least, own["window"], own["strides"], "maximum", around)


RULE = Rule(
    name="padded-max-pool",
    phase="work",
    summary="an image padded with zeros after a relu, then max pooling: the pooling window pads",
    finding="an image is written to memory once more, with a border of zeros, only to be pooled",
    change='give the pooling its padding: padding="same", or ((1, 1), (1, 1)) in lax.reduce_window',
    source="the TPU compiler's estimate: 1.27 for the stem of a ResNet on 4 pictures",
    pattern=op("reduce_window", anything("image"), anything("init")),
    roots=frozenset({"reduce_window"}),
    where=lambda match, root: _pad(root) is not None,
    pays=lambda match, root: only_used_by(match.image, root),  # a gradient reads the padded image, too
    build=_build,
    example=Example(
        before="""
            x = jnp.pad(jax.nn.relu(x), ((0, 0), (1, 1), (1, 1), (0, 0)))
            return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")
        """,
        after="""
            around = ((0, 0), (1, 1), (1, 1), (0, 0))
            return lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), around)
        """,
        shapes="x: T[b,h,w,c]",
        sizes="b=4 h=80 w=80 c=64",
        small="b=1 h=4 w=5 c=2",
        draw="b=1..2 h=3..6 w=3..6 c=1..3",
        away="""
            x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
            return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")
        """,
    ),
)
