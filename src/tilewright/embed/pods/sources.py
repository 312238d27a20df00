"""Where a pod's plan takes batches from: anything that gives batches by number, so that workers can share a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from tilewright.embed.host.tables import HashedTables
from tilewright.embed.logs.log import Log, log_part, part_rows
from tilewright.errors import UsageError


@runtime_checkable
class BatchSource(Protocol):
    """Batches 0 .. ``batches`` - 1, any range of them in any process. It must be possible to pickle it."""

    @property
    def batches(self) -> int:
        """How many there are."""

    def read(self, first: int, last: int) -> Iterator[Mapping[str, Any]]:
        """The batches ``first`` .. ``last`` - 1, as ``preprocess`` takes them, one at a time in memory."""


@dataclass(frozen=True)
class MadeBatches:
    """Batches that a function makes from their numbers.

    >>> source = MadeBatches(3, lambda number: {"f": [[number]]})
    >>> list(source.read(1, 3))
    [{'f': [[1]]}, {'f': [[2]]}]
    """

    batches: int
    make: Callable[[int], Mapping[str, Any]]

    def read(self, first: int, last: int) -> Iterator[Mapping[str, Any]]:
        """See :class:`BatchSource`."""
        return (self.make(number) for number in range(first, last))


@dataclass(frozen=True)
class LogBatches:
    """The whole batches of logs in turn; of each the rows behind its last whole batch are left out. ``hashed``: which
    tables have fewer rows than the log has ids.

    Raises :class:`UsageError` for a log that cannot be read in parts.
    """

    logs: Sequence[Log]
    hashed: HashedTables | None = None

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Whole batches of every log."""
        return tuple(part_rows(log) // log.batch for log in self.logs)

    @property
    def batches(self) -> int:
        """How many there are."""
        total = sum(self.counts)
        if not total:
            log = self.logs[0]
            raise UsageError(f"less than one batch of {log.batch}", where=log.path, how="give a smaller --batch")
        return total

    def read(self, first: int, last: int) -> Iterator[Mapping[str, Any]]:
        """See :class:`BatchSource`."""
        at = 0
        for log, count in zip(self.logs, self.counts):
            begin, end = max(first - at, 0), min(last - at, count)
            if begin < end:
                for part in log_part(log, begin, end):
                    yield part.features if self.hashed is None else self.hashed.batch(part.features)
            at += count
