"""Statistics over groups of the minor dim: grouped layer norm, a norm a head, shares of a group's sum."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker, is_elementwise
from tilewright.hlo.rules.matching import Match, anything, made_by, merge_of, number_of, op
from tilewright.hlo.rules.plans import Plan, Plans, as_it_is, elementwise
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import group_matrix, megabytes, precision_for


class _Groups:
    """What ends in ``root``, a reshape [.., groups, size] -> [.., columns], said without the dim of the groups.

    ``wide`` and ``narrow`` plan a value of [.., groups, size] in the flat shape, and one of [.., groups] as it is;
    they give None where something in it needs the groups as a dim.
    """

    def __init__(self, root: Node) -> None:
        merge = merge_of(root.result)
        self.flat = root.result.sizes
        self.sums = 0
        self.plans = Plans()
        self.plan: Plan | None = None
        if merge is not None and merge.dim == len(self.flat) - 1 and len(merge.parts) == 2:
            self.parts = merge.source.sizes
            self.group = self.parts[-1]
            plan = self.wide(merge.source)
            self.plan = plan if self.sums and min(merge.parts) > 1 else None

    def wide(self, value: Value) -> Plan | None:
        """The plan of a value of [.., groups, size]."""
        return self.plans.of(("wide", value), lambda: self._wide(value))

    def narrow(self, value: Value) -> Plan | None:
        """The plan of a value of [.., groups] or [.., groups, 1]."""
        return self.plans.of(("narrow", value), lambda: self._narrow(value))

    def _wide(self, value: Value) -> Plan | None:
        node, flat = value.operation, self.flat
        if node is None or not node.plain or value.sizes != self.parts:
            return None
        if is_elementwise(node):
            return elementwise(node, [self.wide(x) if x.sizes else as_it_is(x) for x in node.operands], flat)
        if node.name == "reshape" and node.operands[0].shape and node.operands[0].sizes[-1] == flat[-1]:
            source = node.operands[0]
            return lambda make: make.reshape(source, flat)
        if node.name == "constant" and number_of(value) is not None:
            return lambda make: make.relaid(node, flat)
        return self._spread(node) if node.name == "broadcast_in_dim" else None

    def _spread(self, node: Node) -> Plan | None:
        """A broadcast: of weights to every group or row, of one number a row, or of one a group."""
        source, minor = node.operands[0], len(self.parts) - 1
        kept = [place for d, place in enumerate(node.attributes["dims"]) if source.sizes[d] > 1]
        squeezed = [size for size in source.sizes if size > 1]
        if kept != sorted(kept):
            return None
        if all(place >= minor - 1 for place in kept):

            def weights(make: Maker) -> Value:
                once = make.broadcast(make.reshape(source, squeezed), self.parts[-2:], [d - minor + 1 for d in kept])
                return make.spread(make.reshape(once, self.flat[-1:]), self.flat, minor - 1)

            return weights if kept else lambda make: make.broadcast(make.reshape(source, ()), self.flat, ())
        if all(place < minor - 1 for place in kept):
            return lambda make: make.broadcast(make.reshape(source, squeezed), self.flat, kept)
        inner = self.narrow(source)
        if minor in kept or inner is None or source.dtype not in ("bf16", "f32"):
            return None

        def product(make: Maker) -> Value:
            matrix = group_matrix(make, self.flat[-1], self.group, source.dtype, wide=True)
            return make.dot(inner(make), matrix, ((minor - 1,), (0,)), precision=precision_for(source.dtype))

        return product

    def _narrow(self, value: Value) -> Plan | None:
        node, shape = value.operation, self.parts[:-1]
        if value.sizes not in (shape, (*shape, 1)):
            return None
        if node is not None and node.plain:
            if node.name == "reduce":
                return self._sum(node)
            if is_elementwise(node):
                return elementwise(node, [self.narrow(x) if x.sizes else as_it_is(x) for x in node.operands], shape)
            moves = node.name == "reshape" or (
                node.name == "broadcast_in_dim" and node.attributes["dims"] == tuple(range(len(shape)))
            )
            if moves and node.operands[0].shape in (shape, (*shape, 1)):
                return self.narrow(node.operands[0])
            if node.name == "broadcast_in_dim" and not node.operands[0].sizes:
                return lambda make: make.broadcast(node.operands[0], shape, ())
        return lambda make: make.reshape(value, shape)

    def _sum(self, node: Node) -> Plan | None:
        value, minor = node.operands[0], len(self.parts) - 1
        if node.attributes.get("monoid") != "add" or node.attributes["dims"] != (minor,) or len(node.operands) != 2:
            return None
        if number_of(node.operands[1]) != 0 or value.dtype not in ("bf16", "f32"):
            return None
        if value.sizes[-1] == 1:  # gradients sum over the unit dim that keepdims has added
            return self.narrow(value)
        inner = self.wide(value)
        if inner is None:
            return None
        self.sums += 1

        def product(make: Maker) -> Value:
            flat = inner(make)
            convert = made_by(flat, "convert")
            if convert is not None and convert.operands[0].dtype == "bf16":
                flat = convert.operands[0]  # products of bf16 add up in f32
            matrix = group_matrix(make, self.flat[-1], self.group, flat.dtype)
            precision = precision_for(flat.dtype)
            return make.dot(flat, matrix, ((minor - 1,), (0,)), dtype=node.result.dtype, precision=precision)

        return product


def _pays(match: Match, root: Node) -> bool:
    """Groups that leave lanes empty, in arrays large enough that the products are not the longer part."""
    sizes = root.operands[0].sizes
    return 8 <= sizes[-1] <= 64 and root.result.sizes[-1] <= 1024 and megabytes(root.result) >= 8


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    plan = _Groups(root).plan
    return plan(make) if plan is not None else None


RULE = Rule(
    name="group-statistics",
    phase="shape",
    summary="sums over groups of the minor dim, spread again: products with a 0/1 matrix instead of reshapes",
    finding="the minor dim is taken apart into groups: each fills part of a tile's lanes, and the array is copied",
    change="leave the columns as they are: sum by x @ m with m[i, i // n] = 1, spread again by @ m.T",
    source="the TPU compiler's estimate (specs/rules.md, 8)",
    pattern=op("reshape", anything("groups")),
    roots=frozenset({"reshape"}),
    where=lambda match, root: _Groups(root).plan is not None,
    pays=_pays,
    build=_build,
    finite=("groups",),
    exact=False,
    example=Example(
        before="""
            y = x.astype("float32").reshape(n, g, 64)
            y = (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
            return y.reshape(n, 64 * g).astype(x.dtype)
        """,
        after="""
            m = (jnp.arange(64 * g)[:, None] // 64 == jnp.arange(g)).astype("float32")
            y, dot = x.astype("float32"), lambda a, b: jnp.dot(a, b, precision="highest")
            y = y - dot(dot(y, m) / 64, m.T)
            return (y * dot(lax.rsqrt(dot(y * y, m) / 64 + 1e-5), m.T)).astype(x.dtype)
        """,
        shapes="x: T[n,64*g]",
        sizes="n=16384 g=16",
        small="n=2 g=2",
        draw="n=1..3 g=2..3",
        types=("bf16", "f32"),
        away="""
            y = x.reshape(n, g, 64)
            return (y / y.max(-1, keepdims=True)).reshape(n, 64 * g)
        """,
    ),
)
