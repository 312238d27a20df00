"""A view shared by rules: elementwise work on vectors that several arrays were flattened into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker, is_elementwise, is_static
from tilewright.hlo.rules.matching import made_by

_MOST_STEPS, _MOST_PIECES = 256, 512
"""Each step is made once a piece, so both are kept within reason."""


@dataclass(frozen=True)
class Flattened:
    """Elementwise ``steps`` on whole vectors, in order; ``leaves``, what they begin with, and the pieces joined there.

    ``lengths`` are those of the pieces, the same in every leaf; ``ends`` what uses the results of the steps.
    """

    steps: tuple[Node, ...]
    leaves: dict[Value, list[Value]]
    lengths: tuple[int, ...]
    ends: tuple[Node, ...]

    def piece_at(self, start: int, limit: int) -> int | None:
        """Which piece lies there, if one does exactly."""
        return self._borders.get((start, limit))

    @cached_property
    def _borders(self) -> dict[tuple[int, int], int]:
        ends = accumulate(self.lengths)
        return {(end - length, end): piece for piece, (length, end) in enumerate(zip(self.lengths, ends))}

    def computed(self, piece: int, make: Maker) -> dict[Value, Value]:
        """Every leaf and every step on one piece, in the shape that the piece had before it was flattened."""
        first = next(iter(self.leaves.values()))[piece]
        merged = made_by(first, "reshape")
        shape = merged.operands[0].sizes if merged is not None else first.sizes
        values = {leaf: make.reshape(pieces[piece], shape) for leaf, pieces in self.leaves.items()}
        for step in self.steps:
            operands = [values[v] if v in values else _narrowed(v, shape, make) for v in step.operands]
            values[step.result] = make.same(step, operands, shape)
        return values


def flattened(vector: Value, is_end: Callable[[Node], bool]) -> Flattened | None:
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
        if not _is_step(step) or len(steps) == _MOST_STEPS:
            return None
        steps[step] = None
        open_ += step.operands
        for user in value.users:
            if is_end(user):
                ends[user] = None
            elif _is_step(user):
                open_.append(user.result)
            else:
                return None
    lengths = {tuple(piece.sizes[0] for piece in pieces) for pieces in leaves.values()}
    if len(lengths) != 1 or not 1 < len(next(iter(lengths))) <= _MOST_PIECES:
        return None
    ordered = tuple(sorted(steps, key=lambda step: step.position))
    return Flattened(ordered, leaves, lengths.pop(), tuple(ends))


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


def _is_step(node: Node) -> bool:
    return is_elementwise(node) and node.plain and len(node.results) == 1 and is_static(node.result, *node.operands)


def _is_number(value: Value) -> bool:
    """One number all along: it serves every piece."""
    spread = made_by(value, "broadcast_in_dim")
    if spread is not None:
        return spread.operands[0].shape == ()
    source = value.operation
    if source is not None and source.name == "constant":
        return source.attributes["literal"].element is not None
    return value.shape == ()


def _narrowed(value: Value, shape: Sequence[int], make: Maker) -> Value:
    """The same number along ``shape``."""
    source = value.operation
    if value.shape == () or source is None:
        return value
    return make.relaid(source, shape) if source.name == "constant" else make.broadcast(source.operands[0], shape, ())
