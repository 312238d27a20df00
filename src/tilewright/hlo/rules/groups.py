"""Groups of the minor dim: what is computed in [.., groups, size], said on the array as it is."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker, is_elementwise
from tilewright.hlo.rules.matching import made_by, merge_of, number_of
from tilewright.hlo.rules.plans import Plan, Plans, as_it_is, elementwise
from tilewright.hlo.rules.windows import group_matrix, precision_for


class Groups:
    """What ends in ``root``, a reshape [.., groups, size] -> [.., columns], said without the dim of the groups.

    ``wide`` and ``narrow`` plan a value of [.., groups, size] in the flat shape, and one of [.., groups] as it is;
    they give None where something in it needs the groups as a dim. With ``largest`` maxima of groups are planned, too.
    """

    def __init__(self, root: Node, largest: bool = False) -> None:
        self.largest = largest
        self.maxima: list[Node] = []
        merge = merge_of(root.result)
        self.flat = root.result.sizes
        self.sums = 0
        self.plans = Plans()
        self.plan: Plan | None = None
        if merge is not None and merge.dim == len(self.flat) - 1 and len(merge.parts) == 2:
            self.parts = merge.source.sizes
            self.group = self.parts[-1]
            plan = self.wide(merge.source)
            self.plan = plan if (self.sums or self.maxima) and min(merge.parts) > 1 else None

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
                return self._over_groups(node)
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

    def _over_groups(self, node: Node) -> Plan | None:
        """A reduction of the groups of one array."""
        if node.attributes["dims"] != (len(self.parts) - 1,) or len(node.operands) != 2:
            return None
        if node.attributes.get("monoid") == "maximum" and self.largest:
            return self._maximum(node)
        return self._sum(node) if node.attributes.get("monoid") == "add" else None

    def _maximum(self, node: Node) -> Plan | None:
        inner, rank = self.wide(node.operands[0]), len(self.flat)
        if inner is None:
            return None
        self.maxima.append(node)
        window = (1,) * (rank - 1) + (self.group,)
        return lambda make: make.reduce_window(inner(make), node.operands[1], window, window, "maximum")

    def _sum(self, node: Node) -> Plan | None:
        value, minor = node.operands[0], len(self.parts) - 1
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
