"""What a plan says about uneven partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.embed._tables import Limits

__all__ = ["AS_IT_IS", "HotId", "Remedy", "Skew"]

AS_IT_IS = "as it is"


@dataclass(frozen=True)
class HotId:
    """An id of a stack's fullest shard: ``share`` of that shard's entries, ``entries`` in the replayed batches."""

    stack: str
    table: str
    id: int
    shard: int
    entries: int
    share: float


@dataclass(frozen=True)
class Remedy:
    """A stack's fullest partitions and imbalance in the replayed batches, if ``change`` were made."""

    stack: str
    change: str
    limits: Limits
    imbalance: float


@dataclass(frozen=True)
class Skew:
    """``hot``: the ids that fill the fullest shards; ``remedies``: what changes would give, "as it is" first;
    ``alone``: limits of every table, were it not stacked."""

    hot: tuple[HotId, ...]
    remedies: tuple[Remedy, ...]
    alone: Mapping[str, Limits]
