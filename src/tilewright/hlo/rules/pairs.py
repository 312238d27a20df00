"""Pairs interleaved in the minor dim, and formulas of their first and second columns, computed in the full array."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker, is_elementwise, made_by, precision_for_zero_one
from tilewright.hlo.rules.matching import megabytes, number_of

#: How to make a value. All plans of a root are found before anything is made: where one of its values has no plan,
#: the rule leaves it.
Plan = Callable[[Maker], Value]
_MOST = 96  # values planned for one root

_TYPES = ("f32", "bf16", "f16", "f64")
_PART = {"complex<f32>": "f32", "complex<f64>": "f64"}


class Pairs:
    """What ends in ``root``, where two arrays alternate; ``plan`` is None where something has to stay apart.

    Where a formula needs the other column of a pair, it has it from the array shifted by one, or, with ``product``,
    from a product that swaps neighbours. ``moved`` are the arrays whose columns are needed in the other place; ``full``
    is the shape with both columns, ``half`` that of one of them.
    """

    def __init__(self, root: Node, product: bool = False) -> None:
        self.root, self.product = root, product
        self.moved: list[Value] = []
        self.columns = 0
        self.plans: dict[Hashable, Plan | None] = {}
        self.made: dict[Hashable, Value] = {}
        self.plan: tuple[Plan, Plan] | None = None
        found = alternating(root) if root.result.dtype in _TYPES else None
        if found is None:
            return
        parts, self.half, self.padded = found
        self.full = (*self.half[:-1], 2 * self.half[-1])
        even, odd = (self._planned(value, place) for place, value in enumerate(parts))
        fits = self.half[-1] >= 2 and self.columns and root.result.sizes[-1] % self.full[-1] == 0
        self.plan = (even, odd) if fits and even is not None and odd is not None else None

    def build(self, make: Maker) -> Value:
        """Both columns of each pair, chosen by the parity of the column; only where there is a plan."""
        assert self.plan is not None
        self.made.clear()
        place = make.binary("remainder", make.iota(self.full, len(self.full) - 1), make.full("2", "i32", self.full))
        first = make.compare(place, make.full("0", "i32", self.full), "EQ")
        even, odd = (plan(make) for plan in self.plan)
        both = make.select(first, even, odd)
        if self.padded:  # the sum of padded arrays has no -0.0
            both = make.binary("add", both, make.full("0.0", both.dtype, self.full))
        return make.reshape(both, self.root.result.sizes)

    def _planned(self, value: Value, place: int) -> Plan | None:
        """How to compute ``value``, an array of halves, in the columns of ``place`` of the full array."""
        key = (value, place)
        if key not in self.plans:
            self.plans[key] = None
            plan = self._plan(value, place) if len(self.plans) <= _MOST else None
            self.plans[key] = partial(self._once, key, plan) if plan is not None else None
        return self.plans[key]

    def _once(self, key: Hashable, plan: Plan, make: Maker) -> Value:
        if key not in self.made:
            self.made[key] = plan(make)
        return self.made[key]

    def _plan(self, value: Value, place: int) -> Plan | None:
        """How to compute ``value``, an array of halves, in the columns of ``place``: looked for, not looked up."""
        node = value.operation
        if node is None or not node.plain or value.shape not in (self.half, (*self.half, 1)):
            return None
        column = every_second_column(value)
        if column is not None and value.dtype in _TYPES:
            self.columns += 1
            if column[1] != place and column[0] not in self.moved:
                self.moved.append(column[0])
            return lambda make: self._shifted(make, *column, place)
        spreads = node.name == "broadcast_in_dim" and node.attributes["dims"] == tuple(range(len(self.half)))
        if (spreads or node.name == "reshape") and node.operands[0].shape in (self.half, (*self.half, 1)):
            return self._planned(node.operands[0], place)  # a unit dim at the end comes or goes
        if is_elementwise(node) and all(operand.shape == value.shape for operand in node.operands):
            plans = [plan for operand in node.operands if (plan := self._planned(operand, place)) is not None]
            if len(plans) < len(node.operands):
                return None
            return lambda make: make.elementwise(node, [plan(make) for plan in plans], self.full)
        if node.name in ("real", "imag"):
            return self._component(node.operands[0], node.name == "imag", place)
        if number_of(value) is not None and node.name == "constant":
            return lambda make: make.reshaped_constant(node, self.full)
        return self._table(node) if node.name == "broadcast_in_dim" and value.shape == self.half else None

    def _component(self, value: Value, imaginary: bool, place: int) -> Plan | None:
        """The real or imaginary part of an array of complex numbers: of ``complex``, a product of such, or a table."""
        node = value.operation
        if node is None or not node.plain or value.shape != self.half:
            return None
        if node.name == "complex":
            return self._planned(node.operands[imaginary], place)
        if node.name == "broadcast_in_dim":
            return self._table(node, "imag" if imaginary else "real")
        if node.name != "multiply":
            return None
        left, right = node.operands
        factors = [self._component(left, k, place) for k in (False, True)]
        factors += [self._component(right, k, place) for k in ((True, False) if imaginary else (False, True))]
        if None in factors:
            return None
        a, b, c, d = (factor for factor in factors if factor is not None)

        def product(make: Maker) -> Value:
            terms = make.binary("multiply", a(make), c(make)), make.binary("multiply", b(make), d(make))
            return make.binary("add" if imaginary else "subtract", *terms)

        return product

    def _table(self, node: Node, component: str = "") -> Plan | None:
        """A small array spread over all rows: its columns are repeated before that."""
        source, dims, last = node.operands[0], node.attributes["dims"], len(self.half) - 1

        def whole(make: Maker) -> Value:
            return make.operation(component, [source], source.sizes, _PART[source.dtype]) if component else source

        if last not in dims or source.sizes[dims.index(last)] == 1:
            return lambda make: make.broadcast(whole(make), self.full, dims)
        if dims[-1] != last or 4 * megabytes(source) > megabytes(node.result):
            return None
        wide = (*source.sizes, 2)

        def table(make: Maker) -> Value:
            twice = make.broadcast(whole(make), wide, range(len(dims)))
            return make.broadcast(make.reshape(twice, (*source.sizes[:-1], 2 * wide[-2])), self.full, dims)

        return table

    def _shifted(self, make: Maker, source: Value, parity: int, place: int) -> Value:
        """``source`` with its columns of one parity where those of ``place`` are."""
        by = 1 if self.product and parity != place else parity - place  # the same product serves both places
        return self._once(("shifted", source, by), lambda make: self._shift(make, source, by), make)

    def _shift(self, make: Maker, source: Value, by: int) -> Value:
        value = make.reshape(source, self.full)
        if not by:
            return value
        if self.product:
            return _swapped(make, value)
        high = [0] * (len(self.full) - 1) + [by]
        return make.pad(value, make.constant("0.0", value.dtype), [-size for size in high], high)


def _swapped(make: Maker, value: Value) -> Value:
    """Neighbouring columns swapped: a product with a permutation."""
    *lead, size = value.sizes
    shape = (size, size)
    other = make.binary("xor", make.iota(shape, 0), make.full("1", "i32", shape))
    matrix = make.convert(make.compare(other, make.iota(shape, 1), "EQ"), value.dtype)
    return make.dot(value, matrix, ((len(lead),), (0,)), precision=precision_for_zero_one(value.dtype))


def alternating(root: Node) -> tuple[list[Value], tuple[int, ...], bool] | None:
    """The two arrays that alternate in the root's minor dim, their shape, and whether zeros were added to them.

    They are stacked and reshaped, or, as gradients of slices are, padded with zeros and added.
    """
    if root.name == "add":
        parts = _padded(root, 1)
        return (parts, parts[0].sizes, True) if parts else None
    value = root.operands[0]
    if made_by(root.result, "reshape") is None or len(value.sizes) < 2:
        return None
    stack, add = made_by(value, "concatenate"), made_by(value, "add")
    if stack is not None and stack.attributes["dim"] == len(value.sizes) - 1:
        parts = list(stack.operands)
    else:
        parts = _padded(add, 0) if add is not None else []
    if len(parts) != 2 or any(part.sizes[-1] != 1 for part in parts):
        return None
    return parts, parts[0].sizes[:-1], stack is None


def _padded(add: Node, interior: int) -> list[Value]:
    """What fills the even and the odd columns of a sum of two padded arrays; nothing where it is another sum."""
    parts: dict[int, Value] = {}
    for operand in add.operands:
        pad = made_by(operand, "pad")
        if pad is None or number_of(pad.operands[1]) != 0:
            return []
        (*low, place), (*high, after), (*gaps, gap) = (pad.attributes[key] for key in ("low", "high", "interior"))
        if any((*low, *high, *gaps)) or gap != interior or {place, after} != {0, 1}:
            return []
        parts[place] = pad.operands[0]
    same = len(parts) == 2 and parts[0].sizes == parts[1].sizes
    return [parts[0], parts[1]] if same else []


def every_second_column(value: Value) -> tuple[Value, int] | None:
    """(x, k) where ``value`` holds columns k, k + 2, ... of x: ``x[..., k::2]``, or ``x.reshape(.., 2)[..., k]``."""
    reshape = made_by(value, "reshape")
    part = made_by(reshape.operands[0] if reshape is not None else value, "slice")
    if part is None:
        return None
    source, own = part.operands[0], part.attributes
    *starts, start = own["start"]
    if any(starts) or own["limit"][:-1] != source.sizes[:-1] or any(step != 1 for step in own["strides"][:-1]):
        return None
    if own["strides"][-1] == 2:
        half = (*source.sizes[:-1], source.sizes[-1] // 2)
        return (source, start) if start < 2 and source.sizes[-1] % 2 == 0 and value.sizes == half else None
    split = made_by(source, "reshape")
    if split is None or source.sizes[-1] != 2 or own["limit"][-1] != start + 1 or len(source.sizes) < 2:
        return None
    if split.operands[0].sizes[-1] != 2 * source.sizes[-2]:
        return None
    return split.operands[0], start
