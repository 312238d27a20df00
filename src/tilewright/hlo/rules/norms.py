"""Group norm in two passes: sums over positions and groups of channels at once, in [batch, .., groups, size].

As a reshape the groups turn the layout of an image that convolutions want; summed over the positions first, each
channel by itself, they do not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker, is_elementwise, made_by
from tilewright.hlo.rules.matching import megabytes, number_of
from tilewright.hlo.rules.rule import Example, Rule

_MOST = 200  # values looked at for one root


@dataclass(eq=False)
class _InGroups:
    """All that is computed while the channels stand apart as [.., groups, size]: from reshapes to reshapes.

    ``dim`` is the groups' place, ``parts`` the shape in groups, ``flat`` the one with the channels in one dim.
    ``inside`` are the values in groups and what makes them; ``reshapes`` join the channels again, ``sums`` reduce.
    """

    dim: int
    parts: tuple[int, ...]
    flat: tuple[int, ...]
    inside: dict[Value, Node] = field(default_factory=dict)
    reshapes: list[Node] = field(default_factory=list)
    sums: list[Node] = field(default_factory=list)

    @property
    def ends(self) -> list[Node]:
        """The operations that lead out of the groups, reshapes in the program's order first: what is replaced."""
        return [*sorted(self.reshapes, key=lambda node: node.position), *self.sums]

    def over_both(self) -> list[Node]:
        """The sums over positions and a group's channels at once."""
        both = [node for node in self.sums if self.dim + 1 in node.attributes["dims"]]
        return [node for node in both if len(node.attributes["dims"]) > 1]

    def is_second_pass(self, value: Value) -> bool:
        """Whether ``value`` depends on numbers that were broadcast over the groups, such as their means."""
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
                if user in self.reshapes or user in self.sums:
                    continue
                if is_elementwise(user) and user.plain:
                    open_ += user.results
                elif user.name == "reshape" and _joined_dim(user) == self.dim and user.result.sizes == self.flat:
                    self.reshapes.append(user)
                elif user.name == "reduce" and user.plain and self._sums_up(user):
                    self.sums.append(user)
                else:
                    return False
        return True

    def _comes_in(self, node: Node) -> bool:
        """Whether the operation brings an array into the groups in a way that is possible without them, too."""
        if node.name == "reshape":  # the channels are the same dim of the source; what stands before may be cut anew
            sizes, tail = node.operands[0].sizes, len(self.flat) - self.dim
            return len(sizes) >= tail and sizes[len(sizes) - tail :] == self.flat[self.dim :]
        if node.name == "broadcast_in_dim":
            dims = [d for place, d in enumerate(node.attributes["dims"]) if node.operands[0].sizes[place] > 1]
            return dims == sorted(dims)
        return node.name == "constant" and number_of(node.result) is not None

    def _sums_up(self, node: Node) -> bool:
        zero = len(node.operands) == 2 and number_of(node.operands[1]) == 0
        return zero and node.attributes.get("monoid") == "add" and self.dim + 1 in node.attributes["dims"]

    def build(self, make: Maker) -> list[Value]:
        """The same on the channels as one dim: a value for each of the ends."""
        made: dict[Value, Value] = {}
        for value in _operands_first(self.inside):
            made[value] = self._on_channels(make, self.inside[value], made)
        return [made[end.operands[0]] if end.name == "reshape" else self._sum(make, end, made) for end in self.ends]

    def _on_channels(self, make: Maker, node: Node, made: dict[Value, Value]) -> Value:
        if is_elementwise(node):
            return make.elementwise(node, [made.get(operand, operand) for operand in node.operands], self.flat)
        if node.name == "constant":
            return make.reshaped_constant(node, self.flat)
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


def _operands_first(values: dict[Value, Node]) -> list[Value]:
    """The values, each after those that it is made of."""
    done: dict[Value, None] = {}
    open_ = list(values)
    while open_:
        value = open_[-1]
        missing = [x for x in values[value].operands if x in values and x not in done]
        if value in done or not missing:
            done[open_.pop()] = None
        open_ += missing if value not in done else []
    return list(done)


def _joined_dim(node: Node) -> int | None:
    """The dim of a reshape's result that joins two neighbouring dims of its operand, where all others stay."""
    if made_by(node.result, "reshape") is None:
        return None
    parts, flat = node.operands[0].sizes, node.result.sizes
    for d in range(len(parts) - 1):
        if min(parts[d : d + 2]) > 1 and flat == (*parts[:d], parts[d] * parts[d + 1], *parts[d + 2 :]):
            return d
    return None


def _in_groups(root: Node) -> _InGroups | None:
    """What ends in ``root``, a reshape that joins groups and their channels."""
    dim = _joined_dim(root)
    if dim is None:
        return None
    groups = _InGroups(dim, root.operands[0].sizes, root.result.sizes)
    return groups if groups.grow(root.operands[0]) and groups.over_both() else None


def _step_by_step(value: Value, onwards: bool) -> list[Node]:
    """What reads that which is computed of ``value`` element by element, or what makes that which it is computed of."""
    ends, open_, seen = [], [value], {value}
    while open_ and len(seen) < _MOST:
        each = open_.pop()
        for node in each.users if onwards else [each.operation] if each.operation is not None else []:
            if not is_elementwise(node):
                ends.append(node)
                continue
            fresh = [x for x in (node.results if onwards else node.operands) if x not in seen and x.sizes]
            seen.update(fresh)
            open_ += fresh
    return ends


def _pays(found: _InGroups) -> bool:
    """Two passes over images, channels last, and a convolution between these groups and others: alone all runs well."""
    if found.dim + 1 < len(found.flat) or megabytes(found.ends[0].result) < 0.25 or prod(found.flat[1:-1]) < 64:
        return False
    outer = [(node.result, True) for node in found.reshapes]
    outer += [(node.operands[0], False) for node in found.inside.values() if node.name == "reshape"]
    for value, onwards in outer:
        for node in _step_by_step(value, onwards):
            if node.name != "convolution":
                continue
            beyond = node.result if onwards else node.operands[0]
            if any(map(_joins_or_parts, _step_by_step(beyond, onwards))):
                return any(found.is_second_pass(node.operands[0]) for node in found.over_both())
    return False


def _joins_or_parts(node: Node) -> bool:
    return node.name == "reshape" and len(node.result.sizes) != len(node.operands[0].sizes)


GROUP_NORM = Rule(
    name="group-norm",
    phase="work",
    summary="sums over positions and a group's channels at once: over positions first, then over the group",
    finding="channels are taken apart into groups, so the array is laid out for groups and not for convolutions",
    change="sum over the positions first, x.sum((1, 2)), then over the groups of those few numbers",
    source="the TPU compiler's estimate, in a residual block with convolutions; dm-haiku's GroupNorm",
    roots=("reshape",),
    find=_in_groups,
    pays=_pays,
    replaces=lambda found: found.ends,
    build=lambda found, make: found.build(make),
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

RULES = (GROUP_NORM,)
