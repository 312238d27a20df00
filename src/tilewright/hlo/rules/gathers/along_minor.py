"""One element a row, picked by index: a masked sum reads the row where it is computed, a gather wants it in memory."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, made_by, one_of_each_row, op
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import megabytes


def _one_of_each_row(node: Node) -> bool:
    """``take_along_axis`` over the last dim with one index a row."""
    return node.operands[0].dtype in ("f32", "bf16", "f16") and one_of_each_row(node) is not None


def _build(match: Match, root: Node, make: Maker) -> Value:
    """The gather clamps its indices; what is not picked counts as -0.0, the identity of a sum, so the bits stay."""
    values = match.values
    shape = values.sizes
    column = one_of_each_row(root)
    assert column is not None
    rows = make.reshape(column, shape[:-1])
    low, high = (make.constant(text, rows.dtype) for text in ("0", str(shape[-1] - 1)))
    clamped = make.operation("clamp", [low, rows, high], rows.sizes, rows.dtype)
    there = make.broadcast(clamped, shape, range(len(shape) - 1))
    hit = make.compare(make.along(shape, len(shape) - 1, rows.dtype), there, "EQ")
    return make.reshape(_picked(values, hit, make), root.result.sizes)


def _picked(values: Value, hit: Value, make: Maker) -> Value:
    """The picked element of each row. ``x - row`` is picked as ``picked(x) - row``: the logits are read, not a copy."""
    node = made_by(values, "subtract", "add", "multiply", "divide", "convert")
    if node is not None and node.name == "convert" and node.operands[0].dtype in ("f32", "bf16", "f16"):
        return make.convert(_picked(node.operands[0], hit, make), values.dtype)
    row = _row(node.operands[1], make) if node is not None and len(node.operands) == 2 else None
    if node is not None and row is not None:
        return make.binary(node.name, _picked(node.operands[0], hit, make), row)
    nothing = make.constant("-0.0", values.dtype)
    kept = make.select(hit, values, make.broadcast(nothing, values.sizes, ()))
    return make.reduce(kept, nothing, (len(values.sizes) - 1,), "add")


def _row(value: Value, make: Maker) -> Value | None:
    """What ``value`` spreads along the last dim, as an array of the other dims; None where it does not."""
    node = made_by(value, "broadcast_in_dim")
    if node is None:
        return None
    small, dims, last = node.operands[0], node.attributes["dims"], len(value.sizes) - 1
    if last in dims:
        at = dims.index(last)
        if small.sizes[at] != 1:
            return None
        small = make.reshape(small, (*small.sizes[:at], *small.sizes[at + 1 :]))
        dims = tuple(d for d in dims if d != last)
    return make.broadcast(small, value.sizes[:-1], dims)


RULE = Rule(
    name="take-along-minor",
    phase="work",
    summary="take_along_axis with one index a row: a masked sum",
    finding="one element of each row is gathered, so the rows (of a cross entropy, mostly) must be written to memory",
    change="jnp.where(jnp.arange(classes) == labels[:, None], values, 0).sum(-1), or logsumexp minus that",
    source="the TPU compiler's estimate (specs/rules.md, 21)",
    pattern=op("gather", anything("values"), anything("indices"), where=_one_of_each_row),
    roots=frozenset({"gather"}),
    pays=lambda match, root: (
        # Of a few MB the compiler keeps all in fast memory: whole models showed no gain.
        match.values.sizes[-1] >= 128 and match.values.operation is not None and megabytes(match.values) >= 16
    ),
    build=_build,
    example=Example(
        before="""
            picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1)
            return -picked[:, 0].astype(jnp.float32).mean()
        """,
        after="""
            hit = jnp.arange(c) == labels[:, None]
            loss = jax.nn.logsumexp(logits, axis=-1) - jnp.where(hit, logits, 0).sum(-1)
            return loss.astype(jnp.float32).mean()
        """,
        shapes="logits: T[n,c]\nlabels: i32[n]",
        sizes="n=8192 c=32000",
        small="n=4 c=7",
        draw="n=1..5 c=1..9",
        types=("f32", "bf16"),
        away="""
            return jnp.take_along_axis(logits, jnp.stack([labels, labels], axis=1), axis=-1)
        """,
    ),
)
