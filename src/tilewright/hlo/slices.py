"""``partition``: what one device of a slice holds, sends and takes time for, before anyone has the slice."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.hlo.program import Program
from tilewright.hlo.proving.tpu import chip_topology, compiled_for_tpu
from tilewright.hlo.reporting.buffers import lifetimes
from tilewright.hlo.reporting.types import Suggestion
from tilewright.hlo.semantics.collectives import Collective, collectives, slice_of
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.partitioning import Replicated, by_shardy, partitioned
from tilewright.hlo.semantics.runs import Runs, count_runs
from tilewright.hlo.timing.estimate import estimate
from tilewright.hlo.timing.step import StepTime, lanes
from tilewright.layout import Mesh
from tilewright.layout.meshes.text import DeviceGroups
from tilewright.layout.meshes.torus import Link, Slice
from tilewright.render import Page, Step, bytes_text, percent_text, seconds_text, steps, table
from tilewright.render.formats import counted, place_text
from tilewright.render.tables import Heading, Table
from tilewright.targets import Target
from tilewright.targets import target as find_target

_OPINIONS: tuple[Heading, ...] = (
    *("", ("step", "seconds"), ("exposed", "seconds"), ("a device holds", "bytes")),
    *(("arguments", "bytes"), ("sent by a device", "bytes"), "exchanges"),
)
_KEYS = ("by", "step", "exposed", "peak_bytes", "arguments_bytes", "sent_bytes", "exchanges")
_EXCHANGES: tuple[Heading, ...] = ("exchange", "over", ("runs", "count"), ("sent by a device", "bytes"), "line")


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
    source: Program | None = field(default=None, repr=False)  # what was cut
    sizes: Mapping[str, int] = field(default_factory=dict, repr=False)  # in bytes, as the TPU's compiler says them

    @cached_property
    def arguments_bytes(self) -> int:
        said = self.sizes.get("argument")
        return said or self._bytes(op.shape for op in self.program.entry.operations if op.opcode == "parameter")

    @cached_property
    def outputs_bytes(self) -> int:
        root = self.program.entry.root
        return self.sizes.get("output") or self._bytes(iter(root.operand_shapes if root is not None else ()))

    def _bytes(self, shapes: Iterator[str]) -> int:
        context = Context(self.program, self.target)
        return sum(layout.size_bytes for shape in shapes for layout in context.layouts(shape))

    @cached_property
    def peak_bytes(self) -> int:
        own = sum(self.sizes.values()) - 2 * self.sizes.get("alias", 0)  # what is written over counts once
        return own or lifetimes(self.program, self.target).peak

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        return collectives(self.program, self.target)

    @cached_property
    def step(self) -> StepTime:
        return estimate(self.program, self.target)

    @cached_property
    def runs(self) -> Mapping[str, Runs]:
        """Computation -> how often it runs."""
        return count_runs(self.program)[0]

    @cached_property
    def sent_bytes(self) -> int:
        """What a device sends in a step."""
        return sum(each.bytes * self.runs[each.computation].count for each in self.collectives)

    @cached_property
    def slice(self) -> Slice | None:
        """The chips, where the devices stand on them, and the links; None for one device."""
        return slice_of(self.program, self.target)

    @cached_property
    def link_bytes(self) -> Counter[Link]:
        """What passes each link one way in a step, in bytes: (slice and chip, dim, 1 or -1) -> bytes, modelled."""
        found, on = Counter[Link](), self.slice
        for each in self.collectives:
            if on is None or not each.groups:
                continue
            n = max(map(len, each.groups), default=1)
            whole = each.bytes if each.op == "collective-permute" else each.bytes * n / max(1, n - 1)
            size = whole / 2 if each.op == "all-reduce" else whole  # of one that is kept in part half passes
            for link, load in on.loads(each.op, each.groups, size).items():
                found[link] += load * self.runs[each.computation].count
        return found

    def opinions(self, compiled: bool = False) -> list[dict[str, Any]]:
        """What XLA's partitioner makes of the program, what Shardy's own passes do, and where asked the TPU's compiler.

        Each as a row of plain values; of one that refuses it, only why, in place of its exchanges. Steps are modelled
        of what each makes; bytes of the compiler are its own figures, all others ours. Raises UnsupportedError where
        it is asked for and not installed.
        """
        source, found = self.source or self.program, list[dict[str, Any]]()

        def compiler() -> Partition:
            program, sizes = compiled_for_tpu(source, self.target.name)
            return replace(self, program=program, sizes=sizes)

        ways: dict[str, Callable[[], Partition]] = {
            "XLA (jaxlib)": lambda: self,
            "Shardy's passes": lambda: replace(self, program=by_shardy(source)[0]),
        }
        if compiled:
            chip_topology(self.target.name)
            ways["TPU's compiler"] = compiler
        for by, ask in ways.items():
            try:
                part = ask()
                step = {"step": part.step.device_seconds, "exposed": part.step.exposed_seconds}
            except TilewrightError as error:
                why = f"refused: {error.what}{f': {error.how}' if error.how else ''}"
                found.append({"by": by, "exchanges": why})
                continue
            counts = sorted(Counter(each.op for each in part.collectives).items())
            row = step | {key: getattr(part, key) for key in _KEYS[3:6]}
            row["exchanges"] = ", ".join(f"{op} {n}" for op, n in counts) or "none"
            found.append({"by": next((n for n in part.program.notes if n.startswith("compiled by ")), by), **row})
        return found

    def head(self) -> str:
        """The step, what of it is exposed, and what a device holds, in one line."""
        hbm, step = self.target.memory("hbm"), self.step
        share = percent_text(step.exposed_seconds / step.device_seconds) if step.device_seconds else "none"
        holds = f"a device holds {bytes_text(self.peak_bytes)}{f' of {bytes_text(hbm.usable)}' if hbm else ''}"
        return f"a step {seconds_text(step.device_seconds)}, {share} of it exposed communication; {holds}"

    def lines(
        self, changes: Sequence[Suggestion] = (), top: int = 10, opinions: Sequence[Mapping[str, Any]] = ()
    ) -> Iterator[str | Table]:
        """For a terminal: the head, the changes that pay most, who else cuts it how, the exchanges by their bytes."""
        yield f"{self.program.name} on {counted(self.devices, 'device')} of {self.target.name}: {self.head()}"
        yield from ["   # " + "saves".rjust(9) + "  what pays most"] * bool(changes)
        for number, each in enumerate(changes[:3], 1):
            place = f"{place_text(each.source)}  " if each.source else ""
            saved = seconds_text((each.saved_us or 0.0) / 1e6)
            words = f"{number:>4} {saved:>9}  {place}{each.what}: {each.how}"
            yield from textwrap.wrap(words, 120, subsequent_indent=" " * 16, break_on_hyphens=False)
        if opinions:
            yield ""
            yield Table(_OPINIONS, [tuple(map(each.get, _KEYS)) for each in opinions])
        yield ""
        yield Table(_EXCHANGES, self._exchanges()[:top])

    def _exchanges(self) -> list[tuple[object, ...]]:
        """Exchanges of one kind, group and line as one, the most bytes first."""
        sums = defaultdict[tuple[str, str, str], list[int]](lambda: [0, 0])
        mesh = Mesh(dict(zip(self.slice.names, self.slice.mesh, strict=True))) if self.slice else None
        for each in self.collectives:
            parts = DeviceGroups(each.groups).axes(mesh) if mesh and each.groups else None
            axes = "+".join(part.axis for part in parts or () if each.op != "collective-permute")
            found = sums[each.op, axes or f"{len(each.groups)} groups", place_text(str(each.source or ""))]
            times = self.runs[each.computation].count
            found[0], found[1] = found[0] + times, found[1] + times * each.bytes
        ordered = sorted(sums.items(), key=lambda item: -item[1][1])
        return [(op, axes, times, sent, line) for (op, axes, line), (times, sent) in ordered]

    def to_html(self, changes: Sequence[Suggestion] = (), opinions: Sequence[Mapping[str, Any]] = ()) -> str:
        """A page: the changes, who else cuts it how, the torus and its links, the exchanges, the step's lanes."""
        page = Page(f"{self.program.name} on {counted(self.devices, 'device')} of {self.target.name}", self.head())
        told = [
            Step(f"{each.what}: {each.how}", why=each.source, worth=seconds_text((each.saved_us or 0.0) / 1e6))
            for each in changes
        ]
        page.section("changes", "What pays most", *([steps(told)] if told else ["nothing that was tried pays"]))
        if opinions:
            rows = [tuple(map(each.get, _KEYS)) for each in opinions]
            page.section("opinions", "Who cuts it how", table(_OPINIONS, rows))
        if self.slice is not None and self.link_bytes and prod(self.slice.torus) <= 256:
            page.section("torus", "Bytes over each link", f"It is of {self.slice}.", self.slice.to_svg(self.link_bytes))
        page.section("exchanges", "Exchanges", table(_EXCHANGES, self._exchanges()))
        page.section("lanes", "Lanes over the step", *lanes([("", self.step)]))
        return page.html()


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
    return Partition(one.program, one.devices, machine, one.replicated, program)
