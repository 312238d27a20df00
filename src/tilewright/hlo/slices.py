"""``partition``: what one device of a slice holds, sends and takes time for, before anyone has the slice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.hlo.program import Program
from tilewright.hlo.reporting.buffers import lifetimes
from tilewright.hlo.semantics.collectives import Collective, collectives
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.partitioning import Replicated, partitioned
from tilewright.hlo.timing.estimate import estimate
from tilewright.hlo.timing.step import StepTime
from tilewright.targets import Target
from tilewright.targets import target as find_target


@dataclass(frozen=True)
class Partition:
    """A program as one of its devices runs it.

    ===================  =====================================================================================
    ``program``          one device's program
    ``devices``          how many there are
    ``target``           what one of them is
    ``arguments_bytes``  of the shards of its arguments, padding included: predicted layouts
    ``outputs_bytes``    of the shards of its results, those written over arguments included
    ``peak_bytes``       the most that lives at once, by the model of the report's peaks
    ``collectives``      what it exchanges (:func:`tilewright.hlo.collectives`)
    ``replicated``       what the partitioner had to put whole on every device, with lines
    ``step``             how long a step takes (:class:`tilewright.hlo.StepTime`), modelled
    ===================  =====================================================================================
    """

    program: Program = field(repr=False)
    devices: int
    target: Target = field(repr=False)
    replicated: tuple[Replicated, ...] = field(repr=False)

    @cached_property
    def arguments_bytes(self) -> int:
        return self._bytes(op.shape for op in self.program.entry.operations if op.opcode == "parameter")

    @cached_property
    def outputs_bytes(self) -> int:
        root = self.program.entry.root
        return self._bytes(iter(root.operand_shapes if root is not None else ()))

    def _bytes(self, shapes: Iterator[str]) -> int:
        context = Context(self.program, self.target)
        return sum(layout.size_bytes for shape in shapes for layout in context.layouts(shape))

    @cached_property
    def peak_bytes(self) -> int:
        return lifetimes(self.program, self.target).peak

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        return collectives(self.program, self.target)

    @cached_property
    def step(self) -> StepTime:
        return estimate(self.program, self.target)


def partition(program: Program, target: Target | str) -> Partition:
    """One device's part of a StableHLO program with shardings, on a slice of ``target`` devices.

    Its shardings and its number of devices are those in its text (Shardy's or ``mhlo.sharding``). XLA's own partitioner
    makes it, as jaxlib's CPU backend has it, in a process of its own; layouts, padding and time are ours. The TPU's
    compiler makes the same exchanges in most programs; in others it takes a gather that feeds a product apart into
    permutes. A program without shardings is one device's already. Raises UnsupportedError where it cannot be
    partitioned, MissingExtra without jax.

    >>> from tilewright.hlo import load
    >>> text = '''module @m attributes {mhlo.num_partitions = 4 : i32} {
    ...   sdy.mesh @mesh = <["d"=4]>
    ...   func.func public @main(%x: tensor<64x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>})
    ...       -> (tensor<64x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
    ...     return %x : tensor<64x256xf32>
    ...   }
    ... }'''
    >>> part = partition(load(text), "tpu-v5e")
    >>> part.arguments_bytes, part.outputs_bytes, [(each.op, each.groups, each.bytes) for each in part.collectives]
    (16384, 65536, [('all-gather', ((0, 1, 2, 3),), 49152)])
    """
    machine = find_target(target) if isinstance(target, str) else target
    one = partitioned(program)
    return Partition(one.program, one.devices, machine, one.replicated)
