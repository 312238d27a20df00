"""Work on interleaved pairs, as a rotary embedding does it: the elements of a pair lie side by side in a dim of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.hlo.graphs.dims import only_unit_dims_differ
from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker, is_elementwise, is_static
from tilewright.hlo.rules.matching import Match, Pattern, made_by
from tilewright.hlo.rules.rule import Example, Rule

_FEW, _WIDEST, _LONGEST = 8, 512, 64
_FLOATS = ("bf16", "f16", "f32", "f64")


@dataclass(frozen=True)
class Pairs:
    """Elementwise ``steps`` on arrays that end in (n, k), and what they begin with.

    ``spread``: element s of every pair of ``x``, k times; ``tables``: what is broadcast along the dims in front;
    ``numbers``: one number all along; ``others``: arrays that are only reshaped.
    """

    steps: tuple[Node, ...]
    x: Value
    spread: dict[Value, int]
    tables: dict[Value, Node]
    numbers: dict[Value, Node]
    others: tuple[Value, ...]


class _OnPairs(Pattern):
    def accepts(self, value: Value, match: Match) -> bool:
        pairs = pairs_of(value)
        if pairs is not None:
            match.found |= {"x": pairs.x, "pairs": pairs}
        return pairs is not None


def pairs_of(value: Value) -> Pairs | None:
    """The work that ends in ``value``, a reshape that merges the pairs again."""
    merged = made_by(value, "reshape")
    if merged is None:
        return None
    top = merged.operands[0]
    if len(top.sizes) < 2 or top.sizes[:-2] != value.sizes[:-1] or not 1 < top.sizes[-1] <= _FEW < value.sizes[-1]:
        return None
    steps: dict[Node, None] = {}
    spread: dict[Value, int] = {}
    tables: dict[Value, Node] = {}
    numbers: dict[Value, Node] = {}
    others: dict[Value, None] = {}
    sources: list[Value] = []
    open_ = [top]
    while open_:
        each = open_.pop()
        step = each.operation
        wide = made_by(each, "broadcast_in_dim")
        if (element := _element_of_pair(wide, value.sizes)) is not None:
            sources.append(element[0])
            spread[each] = element[1]
        elif wide is not None and wide.operands[0].shape == ():
            numbers[each] = wide
        elif wide is not None:
            if not _is_table(wide):
                return None
            tables[each] = wide
        elif step is not None and _is_step(step, top.sizes):
            if step in steps:
                continue
            if len(steps) == _LONGEST or any(
                user is not merged and not _is_step(user, top.sizes) for user in each.users
            ):
                return None
            steps[step] = None
            open_ += step.operands
        else:
            others[each] = None
    if not steps or not sources or any(source is not sources[0] for source in sources):
        return None
    if sources[0].dtype not in _FLOATS:
        return None
    return Pairs(
        tuple(sorted(steps, key=lambda step: step.position)), sources[0], spread, tables, numbers, tuple(others)
    )


def _is_step(node: Node, shape: Sequence[int]) -> bool:
    return (
        is_elementwise(node) and node.plain and len(node.results) == 1 and is_static(*node.operands)
        and all(value.sizes == tuple(shape) for value in (node.result, *node.operands))
    )  # fmt: skip


def _is_table(wide: Node) -> bool:
    """Pairs that are broadcast along dims in front of them."""
    rank = len(wide.result.sizes)
    dims, source = list(wide.attributes["dims"]), wide.operands[0]
    return dims == sorted(dims) and dims[-2:] == [rank - 2, rank - 1] and source.sizes[-2:] == wide.result.sizes[-2:]


def _element_of_pair(wide: Node | None, merged: Sequence[int]) -> tuple[Value, int] | None:
    """(x, s) where ``wide`` holds element s of every pair in the last dim of x, once for each element of the pair."""
    if wide is None or not wide.operands[0].sizes:
        return None
    narrow, shape = wide.operands[0], wide.result.sizes
    dims = list(wide.attributes["dims"])
    kept = [narrow.sizes[dims.index(d)] if d in dims else 1 for d in range(len(shape))]
    if dims != sorted(dims) or kept != [*shape[:-1], 1]:
        return None
    while (inner := made_by(narrow, "reshape")) is not None:
        if not only_unit_dims_differ(inner.operands[0].sizes, narrow.sizes):
            return None
        narrow = inner.operands[0]
    taken = made_by(narrow, "slice")
    split = made_by(taken.operands[0], "reshape") if taken is not None else None
    if taken is None or split is None or set(taken.attributes["strides"]) != {1}:
        return None
    last = len(taken.operands[0].sizes) - 1
    parts, start = taken.operands[0].sizes, taken.attributes["start"]
    whole = [d for d in range(last) if narrow.sizes[d] == parts[d]]
    x = split.operands[0]
    if len(whole) != last or narrow.sizes[last] != 1 or parts[last] != shape[-1] or x.sizes != tuple(merged):
        return None
    in_pairs = [size for size in parts if size != 1] == [size for size in shape if size != 1]
    return (x, start[last]) if in_pairs else None


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    """Everything on whole rows: an element of the pairs is spread by a product with a 0/1 matrix."""
    pairs: Pairs = match.pairs
    shape = root.result.sizes
    few = root.operands[0].sizes[-1]
    precision = ("HIGHEST", "HIGHEST") if pairs.x.dtype in ("f32", "f64") else ("DEFAULT", "DEFAULT")
    values: dict[Value, Value] = {}
    made: dict[int, Value] = {}
    for value, element in pairs.spread.items():
        if element not in made:
            chooses = make.array(_matrix(shape[-1], few, element), pairs.x.dtype)
            made[element] = make.dot(pairs.x, chooses, ((len(shape) - 1,), (0,)), precision=precision)
        values[value] = made[element]
    for value, wide in pairs.tables.items():
        values[value] = make.broadcast(_rows(wide.operands[0], make), shape, wide.attributes["dims"][:-1])
    for value, wide in pairs.numbers.items():
        values[value] = make.broadcast(wide.operands[0], shape, ())
    for value in pairs.others:
        values[value] = make.reshape(value, shape)
    for step in pairs.steps:
        values[step.result] = make.same(step, [values[operand] for operand in step.operands], shape)
    return values[root.operands[0]]


def _rows(table: Value, make: Maker) -> Value:
    """A table [.., n, k] as [.., n * k]; an element of a last dim, table[.., s], is taken from such rows, too."""
    *front, count, few = table.sizes
    thin = made_by(table, "reshape")
    taken = made_by(thin.operands[0], "slice") if thin is not None else None
    whole = taken.operands[0] if taken is not None else None
    if taken is None or whole is None or taken.result.sizes != (*table.sizes, 1) or whole.sizes[:-1] != table.sizes:
        return make.reshape(table, (*front, count * few))
    start = taken.attributes["start"][-1]
    rows = make.reshape(whole, (*front, count * few, whole.sizes[-1]))
    return make.reshape(make.part(rows, len(rows.sizes) - 1, start, start + 1), (*front, count * few))


def _matrix(size: int, few: int, element: int) -> np.ndarray[Any, Any]:
    """Column c takes element ``element`` of the pair that c is in."""
    rows, columns = np.arange(size)[:, None], np.arange(size)
    return np.where(rows == columns // few * few + element, 1.0, 0.0)


RULE = Rule(
    name="spread-pairs",
    phase="shape",
    summary="elementwise work on interleaved pairs: whole rows and 0/1 products instead of a last dim of two",
    finding="elements of pairs are taken apart and spread in a last dim of two, where a tile is mostly padding",
    change="keep whole rows: x @ p spreads one element of every pair, p a 0/1 matrix; or store the halves apart",
    source="tt-xla issue 5965: pairs take 512 times their bytes; the TPU compiler's estimate: 1.5 to 10 times",
    pattern=_OnPairs(),
    roots=frozenset({"reshape"}),
    where=lambda match, root: root.result.sizes[-1] <= _WIDEST,
    build=_build,
    finite=("x",),
    example=Example(
        before="""
            pairs = x.reshape(b, s, h, d, 1, 2)
            turned = table[..., 0] * pairs[..., 0] + table[..., 1] * pairs[..., 1]
            return turned.reshape(b, s, h, 2 * d)
        """,
        after="""
            place = jnp.arange(2 * d)
            first, second = ((place[:, None] == place // 2 * 2 + k).astype(x.dtype) for k in range(2))
            rows = table.reshape(b, s, 1, 2 * d, 2)
            return rows[..., 0] * jnp.dot(x, first, precision="highest") + rows[..., 1] * jnp.dot(
                x, second, precision="highest"
            )
        """,
        shapes="x: T[b,s,h,2*d]\ntable: T[b,s,1,d,2,2]",
        sizes="b=2 s=1024 h=16 d=64",
        small="b=2 s=3 h=2 d=5",
        draw="b=1..2 s=1..3 h=1..3 d=5..8",
        types=("f32", "bf16"),
        away="""
            pairs = x.reshape(b, s, h, 2, d)
            turned = table[..., 0, 0] * pairs[..., 0, :] + table[..., 1, 1] * pairs[..., 1, :]
            return turned.reshape(b, s, h, d)
        """,
    ),
)
