"""A product whose operand is put together just before it: each part could meet its own rows of the weights."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, made_by, op
from tilewright.hlo.rules.rule import Example, Rule

_LANES = 128
#: With many parts (the columns of a recommender) the compiler's estimates show no gain.
_MOST = 4


def _side(root: Node) -> tuple[int, Node] | None:
    """Which operand is a concatenation along the one contracted dim: (0 or 1, the concatenation)."""
    own = root.attributes
    if len(own["lhs_contract"]) != 1:
        return None
    for side, contract in enumerate((own["lhs_contract"], own["rhs_contract"])):
        parts = made_by(root.operands[side], "concatenate")
        if parts is not None and parts.attributes["dim"] == contract[0] and len(parts.operands) <= _MOST:
            return side, parts
    return None


def _spread_over(part: Value, contract: int, batch: tuple[int, ...]) -> tuple[Value, tuple[int, ...]] | None:
    """What a part repeats over free dims: (the small array, its dims in the part), None where it repeats nothing."""
    node = made_by(part, "broadcast_in_dim")
    if node is None or not node.operands[0].sizes:
        return None
    small, dims = node.operands[0], node.attributes["dims"]
    if list(dims) != sorted(dims):
        return None
    kept = [k for k, d in enumerate(dims) if small.sizes[k] == part.sizes[d]]
    stretched = [k for k in range(len(dims)) if k not in kept]
    if any(small.sizes[k] != 1 for k in stretched) or {contract, *batch} - {dims[k] for k in kept}:
        return None
    return (small, dims) if len(kept) < len(part.sizes) else None


def _pays(match: Match, root: Node) -> bool:
    found = _side(root)
    assert found is not None
    side, parts = found
    dim = parts.attributes["dim"]
    batch = root.attributes[("lhs_batch", "rhs_batch")[side]]
    if any(_spread_over(part, dim, batch) for part in parts.operands):
        return True
    return any(part.sizes[dim] % _LANES for part in parts.operands[:-1]) and root.operands[side].sizes[dim] >= _LANES


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    found = _side(root)
    if found is None:
        return None
    side, parts = found
    own, dim = root.attributes, parts.attributes["dim"]
    other = root.operands[1 - side]
    other_dim = own[("rhs_contract", "lhs_contract")[side]][0]
    batch = (own["lhs_batch"], own["rhs_batch"])
    contract = (own["lhs_contract"], own["rhs_contract"])
    narrow = root.result.dtype in ("bf16", "f16")
    total, start = None, 0
    for part in parts.operands:
        rows = make.part(other, other_dim, start, start + part.sizes[dim])
        start += part.sizes[dim]
        spread = _spread_over(part, dim, batch[side])
        operand, lifted = part, None
        if spread is not None:  # the product of what is repeated is repeated instead
            small, dims = spread
            kept = [d for k, d in enumerate(dims) if small.sizes[k] == part.sizes[d] or d in (dim, *batch[side])]
            operand = make.reshape(small, [part.sizes[d] for d in kept])
            lifted = kept
        at = {d: k for k, d in enumerate(lifted)} if lifted is not None else {d: d for d in range(len(part.sizes))}
        dims_of = [list(batch[0]), list(batch[1])], [list(contract[0]), list(contract[1])]
        for lists in dims_of:
            lists[side] = [at[d] for d in lists[side]]
        left, right = (operand, rows) if side == 0 else (rows, operand)
        product = make.dot(
            left, right, (dims_of[1][0], dims_of[1][1]), (dims_of[0][0], dims_of[0][1]),
            dtype="f32" if narrow else root.result.dtype, precision=own["precision"],
        )  # fmt: skip
        if lifted is not None:
            product = make.broadcast(product, root.result.sizes, _places(root, side, lifted))
        total = product if total is None else make.binary("add", total, product)
    assert total is not None
    return make.convert(total, root.result.dtype)


def _places(root: Node, side: int, kept: list[int]) -> list[int]:
    """Dims of the whole result that the product of a part without some free dims has."""
    own = root.attributes
    taken = [(*own["lhs_batch"], *own["lhs_contract"]), (*own["rhs_batch"], *own["rhs_contract"])]
    free = [[d for d in range(len(v.sizes)) if d not in taken[k]] for k, v in enumerate(root.operands)]
    count = len(own["lhs_batch"])
    first = [count, count + len(free[0])]
    places = list(range(count))
    for k in range(2):
        places += [first[k] + n for n, d in enumerate(free[k]) if k != side or d in kept]
    return places


RULE = Rule(
    name="product-of-concatenation",
    phase="work",
    summary="concatenate(x, y) @ W becomes x @ W[:k] + y @ W[k:]",
    finding="arrays are put together in memory only to be multiplied once, at a boundary that is no multiple of 128",
    change="multiply each part by its own rows of the weights and add: x @ W[:k] + y @ W[k:]",
    source="the TPU compiler's estimate (specs/rules.md, 22)",
    pattern=op("dot_general", where=lambda node: _side(node) is not None),
    roots=frozenset({"dot_general"}),
    pays=_pays,
    build=_build,
    exact=False,
    example=Example(
        before="""
            return jnp.concatenate([x, y], axis=-1) @ w
        """,
        after="""
            return x @ w[:k] + y @ w[k:]
        """,
        shapes="x: T[n,k]\ny: T[n,m]\nw: T[k+m,d]",
        sizes="n=16384 k=1000 m=24 d=512",
        small="n=3 k=5 m=2 d=4",
        draw="n=1..4 k=1..6 m=1..6 d=1..4",
        types=("bf16", "f32"),
        away="""
            return jnp.concatenate([x, 2 * x], axis=0) @ w[:k]
        """,
    ),
)
