"""Data stored another way: arrays that need not be flattened, and advice where only the user can change the storage.

The advice builds nothing, and ``optimize`` passes it over; ``report`` and ``lint`` name the line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from operator import attrgetter
from typing import NamedTuple

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.base import regroups, starts
from tilewright.hlo.rewriting.maker import Maker, made_by
from tilewright.hlo.rules.matching import behind, is_step
from tilewright.hlo.rules.pairs import alternating, every_second_column
from tilewright.hlo.rules.rule import Rule

# Elementwise work on vectors that several arrays were flattened into. Each step is made once a piece, so both are kept
# within reason.

_MOST_STEPS, _MOST_PIECES = 256, 512


@dataclass(frozen=True)
class _Flattened:
    """Elementwise ``steps`` on whole vectors, in order; ``leaves``, what they begin with, and the pieces joined there.

    ``lengths`` are those of the pieces, the same in every leaf; ``ends`` what uses the results of the steps.
    """

    steps: tuple[Node, ...]
    leaves: dict[Value, list[Value]]
    lengths: tuple[int, ...]
    ends: tuple[Node, ...]

    @cached_property
    def places(self) -> dict[tuple[int, int], int]:
        """The piece that lies between a start and a limit of the vector."""
        ends = accumulate(self.lengths)
        return {(end - length, end): piece for piece, (length, end) in enumerate(zip(self.lengths, ends))}

    def computed(self, piece: int, make: Maker) -> dict[Value, Value]:
        """Every leaf and every step on one piece, in the shape that the piece had before it was flattened."""
        first = next(iter(self.leaves.values()))[piece]
        merged = made_by(first, "reshape")
        shape = merged.operands[0].sizes if merged is not None else first.sizes
        values = {leaf: make.reshape(pieces[piece], shape) for leaf, pieces in self.leaves.items()}
        for step in self.steps:
            operands = [values[v] if v in values else _number_along(v, shape, make) for v in step.operands]
            values[step.result] = make.elementwise(step, operands, shape)
        return values


def _flattened(vector: Value, is_end: Callable[[Node], bool]) -> _Flattened | None:
    """The work on flattened arrays that ``vector`` is part of; None where something else than an end uses it."""
    steps: dict[Node, None] = {}
    leaves: dict[Value, list[Value]] = {}
    ends: dict[Node, None] = {}
    open_ = [vector]
    while open_:
        value = open_.pop()
        if value in leaves:
            continue
        if made_by(value, "concatenate") is not None:
            leaves[value] = _joined(value)
            continue
        step = value.operation
        if step is None or step in steps or _is_number(value):
            if step is None and value.shape != ():
                return None
            continue
        if not is_step(step) or len(steps) == _MOST_STEPS:
            return None
        steps[step] = None
        open_ += step.operands
        for user in value.users:
            if is_end(user):
                ends[user] = None
            elif is_step(user):
                open_.append(user.result)
            else:
                return None
    lengths = {tuple(piece.sizes[0] for piece in pieces) for pieces in leaves.values()}
    if len(lengths) != 1 or not 1 < len(next(iter(lengths))) <= _MOST_PIECES:
        return None
    ordered = tuple(sorted(steps, key=attrgetter("position")))
    return _Flattened(ordered, leaves, lengths.pop(), tuple(sorted(ends, key=attrgetter("position"))))


def _joined(value: Value) -> list[Value]:
    """What a concatenation joins, and those it joins in turn: jnp.concatenate joins many arrays sixteen at a time."""
    pieces: list[Value] = []
    open_ = [value]
    while open_:
        part = open_.pop()
        inner = made_by(part, "concatenate")
        if inner is not None:
            open_ += reversed(inner.operands)
        else:
            pieces.append(part)
    return pieces


def _is_number(value: Value) -> bool:
    """Whether every element of the vector is the same number, so that the number serves each piece."""
    spread = made_by(value, "broadcast_in_dim")
    if spread is not None:
        return spread.operands[0].shape == ()
    source = value.operation
    if source is not None and source.name == "constant":
        return source.attributes["literal"].element is not None
    return value.shape == ()


def _number_along(value: Value, shape: Sequence[int], make: Maker) -> Value:
    """A number (see :func:`_is_number`) as an array of ``shape``; scalars stay scalars."""
    source = value.operation
    if value.shape == () or source is None:
        return value
    if source.name == "constant":
        return make.reshaped_constant(source, shape)
    return make.broadcast(source.operands[0], shape, ())


# Arrays flattened into one vector for an elementwise update, and taken apart again: each is updated by itself.


class _Update(NamedTuple):
    """An update of flattened arrays, and what takes pieces over again: (the taker, the vector, the piece's number)."""

    work: _Flattened
    takers: list[tuple[Node, Value, int]]


def _is_slice(user: Node) -> bool:
    return user.name == "slice" and user.plain


def _takers(end: Node) -> list[Node]:
    """What takes a piece over: the reshapes of a slice, where nothing else uses it, or the slice itself."""
    users = list(end.result.users)
    if any(user.name != "reshape" or not user.plain for user in users):
        return [end]
    return sorted((user for user in users if user.result.users), key=attrgetter("position"))


def _update(root: Node) -> _Update | None:
    """The update that ``root`` takes a piece out of, where it is the first that does: one look at each is enough."""
    taken = root if root.name == "slice" else made_by(root.operands[0], "slice")
    if taken is None or len(taken.operands[0].sizes) != 1 or root not in _takers(taken):
        return None
    vector = taken.operands[0]
    takers = (_takers(user) for user in vector.users if _is_slice(user))
    if next((each[0] for each in takers if each), None) is not root:
        return None
    work = _flattened(vector, _is_slice)
    if work is None or not work.steps:
        return None
    taken_over: list[tuple[Node, Value, int]] = []
    for end in work.ends:
        own = end.attributes
        piece = work.places.get((own["start"][0], own["limit"][0]))
        if piece is None or own["strides"][0] != 1:
            return None
        taken_over += [(taker, end.operands[0], piece) for taker in _takers(end)]
    return _Update(work, taken_over)


def _update_pieces(found: _Update, make: Maker) -> list[Value]:
    pieces: dict[int, dict[Value, Value]] = {}
    values = []
    for taker, vector, piece in found.takers:
        if piece not in pieces:
            pieces[piece] = found.work.computed(piece, make)
        values.append(make.reshape(pieces[piece][vector], taker.result.sizes))
    return values


FLATTENED_UPDATE = Rule(
    name="flattened-update",
    phase="shape",
    summary="arrays flattened into one vector and taken apart again: each is updated by itself",
    finding="arrays are flattened into one vector, updated there and taken apart again",
    change="update every array by itself, jax.tree.map(update, params, grads), and flatten nothing",
    source="the TPU compiler's estimate for 2 to 16 arrays, and tt-mlir pull request 9227 for Tenstorrent's tiles; "
    "optax.flatten",
    roots=("reshape", "slice"),
    find=_update,
    replaces=lambda found: [taker for taker, _, _ in found.takers],
    build=_update_pieces,
)

# Arrays flattened into one vector to be summed up: each is summed by itself, and the sums are added.

#: Elements of a piece from which on a reduction of its own pays.
_LEAST = 1 << 14


class _FlatSum(NamedTuple):
    """A reduction of a vector, and the work on flattened arrays that makes the vector."""

    reduce: Node
    work: _Flattened


def _flat_sum(root: Node) -> _FlatSum | None:
    vector = root.operands[0]
    if len(vector.sizes) != 1 or not regroups(root, allow_reassociation=True):
        return None
    work = _flattened(vector, lambda user: user is root)
    return _FlatSum(root, work) if work is not None else None


def _sum_pieces(found: _FlatSum, make: Maker) -> Value | None:
    root, work = found
    monoid, vector = root.attributes["monoid"], root.operands[0]
    begin = starts(monoid, root.operands[1], make)
    if begin is None:
        return None
    sums = [] if begin[0] is begin[1] else [begin[1]]
    for piece in range(len(work.lengths)):
        part = make.convert(work.computed(piece, make)[vector], begin[0].dtype)
        sums.append(make.reduce(part, begin[0], range(len(part.sizes)), monoid))
    return make.convert(make.total(sums, monoid), vector.dtype)


FLATTENED_SUM = Rule(
    name="flattened-sum",
    phase="shape",
    summary="arrays flattened into one vector and summed up: each is summed by itself",
    finding="arrays are flattened into one vector only to be summed up, as for a global norm",
    change="sum up every array by itself and add the sums: sum(jnp.sum(x * x) for x in jax.tree.leaves(grads))",
    source="the TPU compiler's estimate for 2 to 16 arrays, and tt-mlir pull request 9227 for Tenstorrent's tiles; "
    "optax.flatten",
    roots=("reduce",),
    find=_flat_sum,
    pays=lambda found: prod(found.reduce.operands[0].sizes) >= _LEAST * len(found.work.lengths),
    build=_sum_pieces,
    exact=False,
)

# Advice: variances in two passes, the mean first, then the distances from it. One pass changes the numerics.


def _two_passes(root: Node) -> Value | None:
    """The array whose squared distances from its own mean the root sums up, over the dims of the mean."""
    square = made_by(root.operands[0], "multiply", "chlo.square") if root.attributes.get("monoid") == "add" else None
    distances = [made_by(value, "subtract") for value in square.operands] if square is not None else [None]
    if distances[0] is None or any(d is None or d.operands != distances[0].operands for d in distances):
        return None
    x, mean = distances[0].operands
    total = made_by(behind(mean, "reshape", "broadcast_in_dim", "convert", "divide", "multiply"), "reduce")
    if total is None or total.attributes.get("monoid") != "add" or total.operands[0] is not x:
        return None
    return x if total.attributes["dims"] == root.attributes["dims"] else None


ONE_PASS_VARIANCE = Rule(
    name="one-pass-variance",
    phase="advice",
    summary="a variance in two passes over the array: sums of x and of x * x in one",
    finding="the variance reads the array a second time, after the mean",
    change="take jnp.mean(x) and jnp.mean(x * x) together and use mean(x * x) - mean(x) ** 2 in f32, if the mean is "
    "not far larger than the deviation (the numerics change)",
    source="the TPU compiler's estimate, 1.3 to 1.9 times in norms; the layer norms of ViT-B/16",
    roots=("reduce",),
    find=_two_passes,
    pays=lambda x: prod(x.sizes) >= 1 << 20,
    build=None,
)

# Advice: rotary embeddings of interleaved pairs. Only whoever stores the weights can put the pairs' halves apart.


def _columns(half: Value) -> set[tuple[Value, int]]:
    """The interleaved columns that a sum or difference of two products takes: (array, 0 or 1)."""
    ways = ("reshape", "broadcast_in_dim", "convert")
    total = made_by(behind(half, *ways), "add", "subtract")
    products = [made_by(behind(value, *ways), "multiply") for value in total.operands] if total is not None else []
    factors = [value for product in products if product is not None for value in product.operands]
    return {column for v in factors if (column := every_second_column(behind(v, "convert"))) is not None}


def _rotated_pairs(root: Node) -> Node | None:
    """A root that puts two sums of products of the same pairs side by side again."""
    found = alternating(root)
    if found is None or found[2] or root.result.sizes != (*found[1][:-1], 2 * found[1][-1]):
        return None
    first, second = map(_columns, found[0])
    return root if first == second and sorted(place for _, place in first) == [0, 1] else None


ROTARY_IN_HALVES = Rule(
    name="rotary-in-halves",
    phase="advice",
    summary="rotary embeddings of interleaved pairs: keep the pairs' first halves before their second ones",
    finding="a rotary embedding turns neighbouring elements, which are taken apart and put together in the lanes",
    change="permute the columns of Wq and Wk once, so that pairs lie half a head apart, and turn the two halves",
    source="the TPU compiler's estimate, a lower bound, for it puts no price on some of the slices before; Llama 3's "
    "reference code",
    roots=("reshape",),
    find=_rotated_pairs,
    build=None,
)

RULES = (FLATTENED_UPDATE, FLATTENED_SUM, ONE_PASS_VARIANCE, ROTARY_IN_HALVES)
