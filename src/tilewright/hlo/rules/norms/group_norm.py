"""Group norm in two passes: sums over positions and groups of channels at once, in [batch, .., groups, size]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker, is_elementwise
from tilewright.hlo.rules.matching import Match, anything, merge_of, number_of, op
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import megabytes

_MOST = 200  # values looked at for one root


@dataclass(eq=False)
class Apart:
    """All that is computed while the channels stand apart as [.., groups, size]: from reshapes to reshapes.

    ``dim`` is the groups' place; ``outs`` are the reshapes that join the channels again and the reductions.
    """

    dim: int
    parts: tuple[int, ...]
    flat: tuple[int, ...]
    inside: dict[Value, Node] = field(default_factory=dict)
    outs: list[Node] = field(default_factory=list)

    def sums(self) -> list[Node]:
        """The reductions over positions and a group's channels at once."""
        both = [node for node in self.outs if node.name == "reduce" and self.dim + 1 in node.attributes["dims"]]
        return [node for node in both if len(node.attributes["dims"]) > 1]

    def centred(self, value: Value) -> bool:
        """Whether ``value`` depends on numbers that were spread over the groups: a second pass."""
        open_, seen = [value], {value}
        while open_:
            node = self.inside.get(open_.pop())
            if node is None:
                continue
            if node.name == "broadcast_in_dim" and node.operands[0].sizes:
                return True
            open_ += [operand for operand in node.operands if operand not in seen]
            seen.update(open_)
        return False

    def grow(self, start: Value) -> bool:
        """Find all of it from one of its values; False where something needs the groups as a dim."""
        open_ = [start]
        while open_:
            value = open_.pop()
            node = value.operation
            if value in self.inside:
                continue
            if node is None or not node.plain or value.sizes != self.parts or len(self.inside) > _MOST:
                return False
            self.inside[value] = node
            if is_elementwise(node):
                open_ += [operand for operand in node.operands if operand.sizes]
            elif not self._comes_in(node):
                return False
            for user in dict.fromkeys(value.users):
                if not self._leads_on(user, open_):
                    return False
        return True

    def _comes_in(self, node: Node) -> bool:
        if node.name == "reshape":  # the channels are the same dim of the source; what stands before may be cut anew
            sizes, tail = node.operands[0].sizes, len(self.flat) - self.dim
            return len(sizes) >= tail and sizes[len(sizes) - tail :] == self.flat[self.dim :]
        if node.name == "broadcast_in_dim":
            dims = [d for place, d in enumerate(node.attributes["dims"]) if node.operands[0].sizes[place] > 1]
            return dims == sorted(dims)
        return node.name == "constant" and number_of(node.result) is not None

    def _leads_on(self, user: Node, open_: list[Value]) -> bool:
        if user in self.outs:
            return True
        if is_elementwise(user) and user.plain:
            open_ += user.results
            return True
        if user.name == "reshape":
            out = merge_of(user.result)
            joins = out is not None and user.result.sizes == self.flat and out.dim == self.dim
        else:
            joins = user.name == "reduce" and user.plain and self._sums_up(user)
        if joins:
            self.outs.append(user)
        return joins

    def _sums_up(self, node: Node) -> bool:
        kept = {self.dim, self.dim + 1} - set(node.attributes["dims"])
        zero = len(node.operands) == 2 and number_of(node.operands[1]) == 0
        return zero and node.attributes.get("monoid") == "add" and self.dim + 1 not in kept

    # Building.

    def build(self, make: Maker, order: Sequence[Node]) -> list[Value]:
        """The same on the channels as one dim: a value for each of ``order``."""
        made: dict[Value, Value] = {}
        for value in in_program_order(self.inside):
            made[value] = self._said(make, self.inside[value], made)
        return [made[out.operands[0]] if out.name == "reshape" else self._sum(make, out, made) for out in order]

    def _said(self, make: Maker, node: Node, made: dict[Value, Value]) -> Value:
        if is_elementwise(node):
            return make.same(node, [made.get(operand, operand) for operand in node.operands], self.flat)
        if node.name == "constant":
            return make.relaid(node, self.flat)
        source = node.operands[0]
        if node.name == "reshape":
            return make.reshape(source, self.flat)
        places = [d for place, d in enumerate(node.attributes["dims"]) if source.sizes[place] > 1]
        narrow = make.reshape(source, [size for size in source.sizes if size > 1])
        if not {self.dim, self.dim + 1} & set(places):
            return make.broadcast(narrow, self.flat, [d - (d > self.dim) for d in places])
        kept = sorted({*places, self.dim, self.dim + 1})
        spread = make.broadcast(narrow, [self.parts[d] for d in kept], [kept.index(d) for d in places])
        joined = [d - (d > self.dim) for d in kept if d != self.dim + 1]
        return make.broadcast(make.reshape(spread, [self.flat[d] for d in joined]), self.flat, joined)

    def _sum(self, make: Maker, node: Node, made: dict[Value, Value]) -> Value:
        """Positions first, each channel for itself; then the few numbers of a group."""
        dims = node.attributes["dims"]
        value, zero = made[node.operands[0]], node.operands[1]
        if self.dim in dims:
            return make.reduce(value, zero, sorted({d - (d > self.dim) for d in dims}), "add")
        first = [d - (d > self.dim) for d in dims if d != self.dim + 1]
        channels = make.reduce(value, zero, first, "add") if first else value
        at = self.dim - sum(d < self.dim for d in dims)
        apart = (*channels.sizes[:at], *self.parts[self.dim : self.dim + 2], *channels.sizes[at + 1 :])
        return make.reduce(make.reshape(channels, apart), zero, [at + 1], "add")


def in_program_order(values: dict[Value, Node]) -> list[Value]:
    """Operands before their users."""
    done: dict[Value, None] = {}
    open_ = list(values)
    while open_:
        value = open_[-1]
        missing = [x for x in values[value].operands if x in values and x not in done]
        if value in done or not missing:
            done[open_.pop()] = None
        open_ += missing if value not in done else []
    return list(done)


def _apart(root: Node) -> Apart | None:
    """What ends in ``root``, a reshape that joins groups and their channels."""
    merge = merge_of(root.result)
    if merge is None or len(merge.parts) != 2 or min(merge.parts) < 2:
        return None
    apart = Apart(merge.dim, merge.source.sizes, root.result.sizes)
    return apart if apart.grow(merge.source) and apart.sums() else None


def _together(match: Match, root: Node) -> list[Node]:
    apart = _apart(root)
    assert apart is not None
    reshapes = [node for node in apart.outs if node.name == "reshape"]
    return sorted(reshapes, key=lambda node: node.position) + [node for node in apart.outs if node not in reshapes]


def _build(match: Match, root: Node, make: Maker) -> list[Value] | None:
    apart = _apart(root)
    return apart.build(make, _together(match, root)) if apart is not None else None


def _convolved(value: Value) -> bool:
    """Whether a convolution reads ``value``, or what is computed of it element by element."""
    open_, seen = [value], {value}
    while open_ and len(seen) < _MOST:
        for user in open_.pop().users:
            if user.name == "convolution":
                return True
            if is_elementwise(user) and user.result not in seen:
                seen.add(user.result)
                open_.append(user.result)
    return False


def _pays(match: Match, root: Node) -> bool:
    """Two passes over images with their channels last, before a convolution: all else runs well as it is."""
    apart = _apart(root)
    assert apart is not None
    if not any(_convolved(out.result) for out in apart.outs if out.name == "reshape"):
        return False
    if apart.dim + 1 < len(apart.flat) or megabytes(root.result) < 0.25 or prod(root.result.sizes[1:-1]) < 64:
        return False
    return any(apart.centred(node.operands[0]) for node in apart.sums())


RULE = Rule(
    name="group-norm",
    phase="work",
    summary="sums over positions and a group's channels at once: over positions first, then over the group",
    finding="channels are taken apart into groups, so the array is laid out for groups and not for convolutions",
    change="sum over the positions first, x.sum((1, 2)), then over the groups of those few numbers",
    source="the TPU compiler's estimate, in a residual block with convolutions",
    pattern=op("reshape", anything("groups")),
    roots=frozenset({"reshape"}),
    where=lambda match, root: _apart(root) is not None,
    pays=_pays,
    together=_together,
    build=_build,
    exact=False,
    families=("tpu",),
    example=Example(
        before="""
            def norm(x):
                y = x.reshape(b, s, s, g, r)
                y = (y - y.mean((1, 2, 4), keepdims=True)) * lax.rsqrt(y.var((1, 2, 4), keepdims=True) + 1e-5)
                return y.reshape(x.shape)
            conv = lambda x: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            return x + conv(jax.nn.silu(norm(conv(jax.nn.silu(norm(x))))))
        """,
        after="""
            def norm(x):
                over = lambda v: jnp.repeat(v.sum((1, 2)).reshape(b, g, r).sum(2) / (s * s * r), r, -1)[:, None, None]
                y = x - over(x)
                return y * lax.rsqrt(over(y * y) + 1e-5)
            conv = lambda x: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            return x + conv(jax.nn.silu(norm(conv(jax.nn.silu(norm(x))))))
        """,
        shapes="x: T[b,s,s,g*r]\nw: T[3,3,g*r,g*r]",
        sizes="b=4 s=32 g=32 r=8",
        small="b=2 s=3 g=2 r=2",
        draw="b=1..2 s=2..3 g=2..3 r=2..3",
        types=("f32", "bf16"),
        away="""
            y = x.reshape(b, s, s, g, r)
            return (y / y.max((1, 2, 4), keepdims=True)).reshape(x.shape)
        """,
        away_shapes="x: T[b,s,s,g*r]",
    ),
)
