"""Mini-batches over the vocabulary: where they begin, and what all processes of a step must agree on.

The 64 hash buckets of the ids are the leaves of a binary tree; each node may carry a split bit::

    bits 0 .. 31    pairs of buckets, left to right
    bits 32 .. 47   fours
    ...
    bit 62          the root

A bucket begins a new mini-batch iff the node whose right half begins there has its bit, so mini-batches are runs of
consecutive buckets and there is one more of them than there are bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["BUCKETS", "Agree", "Agreement", "minibatch_starts"]

BUCKETS = 64


def minibatch_starts(bits: int, buckets: int = BUCKETS) -> list[int]:
    """First bucket of every mini-batch.

    >>> minibatch_starts(0b1010001, buckets=8)
    [0, 1, 2, 4]
    """
    starts = [0]
    node, size = 0, 2
    while size <= buckets:
        for left in range(0, buckets, size):
            if bits >> node & 1:
                starts.append(left + size // 2)
            node += 1
        size *= 2
    return sorted(starts)


@dataclass(frozen=True)
class Agreement:
    """What all processes that feed one step must agree on: split bits ORed, buffer sizes the largest.

    ``max_ids`` holds, per stack in order, the entries a partition of the buffers must have room for.

    >>> Agreement.join([Agreement(1, (8, 16)), Agreement(4, (32, 8))])
    Agreement(split_bits=5, max_ids=(32, 16))
    """

    split_bits: int
    max_ids: tuple[int, ...]

    @staticmethod
    def join(parts: Iterable[Agreement]) -> Agreement:
        """The agreement of several processes, given what each of them proposes."""
        parts = list(parts)
        bits = 0
        for part in parts:
            bits |= part.split_bits
        return Agreement(bits, tuple(max(sizes) for sizes in zip(*(p.max_ids for p in parts))))


Agree: TypeAlias = Callable[[Agreement], Agreement]
"""Called once per batch by every process with its own proposal; returns the joined one."""
