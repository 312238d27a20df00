"""Arrays flattened into one vector for an elementwise update, and taken apart again: each is updated by itself."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, made_by
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.storage.flattened import Flattened, flattened


def _is_end(user: Node) -> bool:
    return user.name == "slice" and user.plain


def _takers(end: Node) -> list[Node]:
    """What takes a piece over: the reshapes of a slice, where nothing else uses it, or the slice itself."""
    users = list(end.result.users)
    if any(user.name != "reshape" or not user.plain for user in users):
        return [end]
    return sorted((user for user in users if user.result.users), key=_position)


def _slice_of(taker: Node) -> Node | None:
    taken = taker if taker.name == "slice" else made_by(taker.operands[0], "slice")
    return taken if taken is not None and len(taken.operands[0].sizes) == 1 and taker in _takers(taken) else None


def _position(node: Node) -> int:
    return node.position


def _is_first(root: Node) -> bool:
    """Whether ``root`` takes the first piece out of its vector: one look at each vector is enough."""
    taken = _slice_of(root)
    if taken is None:
        return False
    takers = (_takers(user) for user in taken.operands[0].users if _is_end(user))
    return next((each[0] for each in takers if each), None) is root


def _update(root: Node) -> Flattened | None:
    """The update that ``root`` takes a piece out of."""
    taken = _slice_of(root)
    update = flattened(taken.operands[0], _is_end) if taken is not None else None
    if update is None or not update.steps:
        return None
    return update if all(_piece(update, end) is not None for end in update.ends) else None


def _piece(update: Flattened, end: Node) -> int | None:
    own = end.attributes
    return update.piece_at(own["start"][0], own["limit"][0]) if own["strides"][0] == 1 else None


def _together(match: Match, root: Node) -> Sequence[Node]:
    update = _update(root)
    ends = sorted(update.ends, key=_position) if update is not None else []
    return [taker for end in ends for taker in _takers(end)] or [root]


def _build(match: Match, root: Node, make: Maker) -> list[Value] | None:
    update = _update(root)
    if update is None:
        return None
    pieces: dict[int | None, dict[Value, Value]] = {}
    values = []
    for taker in _together(match, root):
        end = _slice_of(taker)
        piece = _piece(update, end) if end is not None else None
        if end is None or piece is None:
            return None
        if piece not in pieces:
            pieces[piece] = update.computed(piece, make)
        values.append(make.reshape(pieces[piece][end.operands[0]], taker.result.sizes))
    return values


RULE = Rule(
    name="flattened-update",
    phase="shape",
    summary="arrays flattened into one vector and taken apart again: each is updated by itself",
    finding="arrays are flattened into one vector, updated there and taken apart again",
    change="update every array by itself, jax.tree.map(update, params, grads), and flatten nothing",
    source="the TPU compiler's estimate for 2 to 16 arrays, and tt-mlir pull request 9227 for Tenstorrent's tiles",
    pattern=anything("taken"),
    roots=frozenset({"reshape", "slice"}),
    where=lambda match, root: _is_first(root) and _update(root) is not None,
    together=_together,
    build=_build,
    example=Example(
        before="""
            w, g = (jnp.concatenate([x.reshape(-1), y, z.reshape(-1)]) for x, y, z in ((a, b, c), (d, e, f)))
            w = 0.9 * w - 0.001 * g
            first, second = n * k, n * k + k
            return w[:first].reshape(n, k), w[first:second], w[second:].reshape(k, p)
        """,
        after="""
            return tuple(0.9 * x - 0.001 * y for x, y in ((a, d), (b, e), (c, f)))
        """,
        shapes="a: T[n,k]\nb: T[k]\nc: T[k,p]\nd: T[n,k]\ne: T[k]\nf: T[k,p]",
        sizes="n=1024 k=512 p=512",
        small="n=4 k=3 p=5",
        draw="n=2..5 k=2..6 p=2..4",
        away="""
            w, g = (jnp.concatenate([x.reshape(-1), y]) for x, y in ((a, b), (d, e)))
            w = 0.9 * w - 0.001 * g
            return w[: n * k - 1], w[n * k :]
        """,
    ),
)
