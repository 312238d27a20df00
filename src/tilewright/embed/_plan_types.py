"""A plan's parts: plain frozen values that print, draw and become JSON elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.embed._formulas import MINIBATCH_FACTOR
from tilewright.embed._memory import SparseMemory
from tilewright.embed._savings_types import Feeding, Savings
from tilewright.embed._skew_types import Skew
from tilewright.embed._stacking import Stacking
from tilewright.embed._tables import Limits

__all__ = ["CurvePoint", "Heap", "Plan", "StackPlan", "TablePlan"]


@dataclass(frozen=True)
class TablePlan:
    """One table in HBM. Bytes count all chips; ``wasted`` shares are of ``padded_bytes``; ``packed_bytes``: were rows
    of 1 to 4 floats to share 32-byte lines, 8 // width to a line; ``unpacked_bytes``: had every row lines of its own.
    One of the two is ``padded_bytes``, as ``rows_per_line`` says: 1, or those of a packed table."""

    name: str
    stack: str
    vocab: int
    width: int
    padded_vocab: int
    padded_width: int
    data_bytes: int
    padded_bytes: int
    packed_bytes: int
    unpacked_bytes: int
    rows_per_line: int = 1

    @property
    def wasted_by_width(self) -> float:
        """The share of the padded bytes that is padding of rows to 8 floats: 7/8 for a width of 1."""
        return 1 - self.width / self.padded_width

    @property
    def wasted_by_vocab(self) -> float:
        """The share that is whole rows of padding (to 8 rows on every shard)."""
        return (1 - self.vocab / self.padded_vocab) * self.width / self.padded_width


@dataclass(frozen=True)
class StackPlan:
    """One stack: what the log asks of it, the limits chosen, the buffers and the compiler's verdicts.

    ============================  ==================================================================================
    ``observed``                  the largest counts of any partition (source x shard x batch)
    ``limits``                    the chosen quantile of the same
    ``mean_ids``                  entries of the average partition
    ``imbalance``                 entries of the fullest shard over those of the average shard, all batches together
    ``per_shard``                 entries every shard received, all batches together
    ``quantiles``                 (quantile, limits that hold it) of the partitions, ascending
    ``drop_rate``                 share of entries lost if ids above ``limits`` are dropped (replayed batches)
    ``partitions_over``           share of partitions above ``limits``
    ``slots``, ``pointers``       of one device's buffers, in the plain layout; ``buffer_bytes`` of both
    ``samples_per_sparsecore``    rows of the stack's activations on one SparseCore
    ``forward``, ``backward``     verdicts on lookup and update, None without a target
    ============================  ==================================================================================
    """

    name: str
    tables: tuple[str, ...]
    features: int
    padded_width: int
    rows_per_shard: int
    optimizer: str
    observed: Limits
    limits: Limits
    mean_ids: float
    imbalance: float
    drop_rate: float
    partitions_over: float
    slots: int
    pointers: int
    samples_per_sparsecore: int
    forward: SparseMemory | None
    backward: SparseMemory | None
    quantiles: tuple[tuple[float, Limits], ...]
    per_shard: tuple[int, ...]

    @property
    def programs(self) -> tuple[SparseMemory, ...]:
        """Lookup and update; none without a target."""
        return tuple(program for program in (self.forward, self.backward) if program)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of one batch on one device: three words per slot, one per pointer."""
        return 12 * self.slots + 4 * self.pointers


@dataclass(frozen=True)
class CurvePoint:
    """What limits at ``fraction`` of the observed maxima would mean: ``buffer_bytes`` of one batch on one device in the
    plain layout, ``minibatch_buffer_bytes`` in that of mini-batches; mini-batches and drops over the replayed batches.
    """

    fraction: float
    limits: Mapping[str, Limits]
    buffer_bytes: int
    batches_over: float
    minibatches_mean: float
    minibatches_max: int
    drop_rate: float

    @property
    def minibatch_buffer_bytes(self) -> int:
        """Every buffer is as many times as large as there are hash buckets."""
        return self.buffer_bytes * MINIBATCH_FACTOR


@dataclass(frozen=True)
class Heap:
    """HBM of one chip, in bytes: what stays (tables, optimizer slots, inputs fetched ahead, activations and their
    gradients on the way between SparseCores and TensorCore, what pipelining holds on top) and the stack in use,
    ``measured`` or ``modelled`` as ``stack_note`` says."""

    tables: int
    slots: int
    inputs: int
    exchange: int
    pipelined: int
    forward_stack: int
    backward_stack: int
    capacity: int
    stack_basis: str
    stack_note: str

    @property
    def total(self) -> int:
        """Heap and the larger of the two stacks."""
        kept = self.tables + self.slots + self.inputs + self.exchange + self.pipelined
        return kept + max(self.forward_stack, self.backward_stack)


@dataclass(frozen=True)
class Plan:
    """What embedding tables need on a topology, learnt from logged batches: see :func:`plan`."""

    stacking: Stacking
    target: str
    quantile: float
    batches: int
    samples: int
    replayed: int
    batches_over: float
    prefetched_batches: int
    stacks: tuple[StackPlan, ...]
    tables: tuple[TablePlan, ...]
    curve: tuple[CurvePoint, ...]
    heap: Heap
    skew: Skew
    savings: Savings
    feeding: Feeding

    @property
    def limits(self) -> dict[str, Limits]:
        """Stack -> the chosen limits, as ``preprocess`` takes them."""
        return {stack.name: stack.limits for stack in self.stacks}

    @property
    def batch(self) -> int:
        """Samples of one batch, of all chips together."""
        return self.samples // self.batches

    @property
    def verdict(self) -> str:
        """One sentence: whether everything compiles and fits, or what does not."""
        from tilewright.embed._plan_faces import verdict

        return verdict(self)

    @property
    def fits(self) -> bool | None:
        """Whether every stack compiles and a chip's HBM holds it all; None without a target."""
        if not self.target:
            return None
        return (
            all(m.compiles for stack in self.stacks for m in stack.programs) and self.heap.total <= self.heap.capacity
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as plain values with a ``schema_version``."""
        from tilewright.embed._plan_json import to_json

        return to_json(self)

    def write_limits(self, path: str | Path) -> None:
        """Write the chosen limits as JSON, for :func:`read_limits`."""
        import json

        from tilewright.embed._limits_file import write_text
        from tilewright.embed._plan_json import limits_file

        write_text(path, json.dumps(limits_file(self), indent=2) + "\n")
