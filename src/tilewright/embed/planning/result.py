"""A plan of a log or of a pod: verdict, limits file, JSON, counters, and how it is printed and drawn."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.tables import NarrowTables
from tilewright.embed.model.counters import Counters, HbmCounters, Seconds, StackCounters, TableCounters, plain
from tilewright.embed.model.formulas import BUCKETS, packed_table_bytes, padded_table_bytes
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.lookup_time import StackWork
from tilewright.embed.model.stacking import Stacking
from tilewright.embed.model.tables import Limits, limits_json
from tilewright.embed.planning import types
from tilewright.embed.planning.confidence import Confidence, Day
from tilewright.embed.planning.memory import RULE_VERSION
from tilewright.files import write_whole
from tilewright.render import (
    Bar,
    Card,
    Html,
    bar_chart,
    bytes_text,
    cards,
    count_text,
    percent_text,
    seconds_text,
    table,
)
from tilewright.render.delivery import Line, show
from tilewright.render.drawing import Curve, column_chart, line_chart
from tilewright.render.formats import Kind, counted
from tilewright.render.markup import join
from tilewright.render.page import Tone, details, note, paragraph
from tilewright.render.tables import Field, Heading, Table, cells, glance, glance_table
from tilewright.targets import target as find_target

_SHOWN = 20
"""Kinds of a pod's stacks that are printed."""
_LONG = 24
"""Rows above which a table of the page opens on a click."""
_FEW = 4
"""Tables that a verdict names; stacks, those that wait most, of which the page draws what every shard receives."""
_EXCHANGES = 3
"""Between chips in a step, of each stack: of ids, of their rows, of gradients."""
_MOSTLY_HELD = 0.5
"""Limits that a fresh batch may exceed with a greater chance are warned of."""


def _titled(title: str, fields: Sequence[Field], items: Sequence[Any]) -> Table:
    """The table of the fields that some item has."""
    known = [field for field in fields if any(field.of(item) is not None for item in items)]
    return Table(known, cells(known, items), title)


def _figure(rows: Table) -> Html:
    """The table, behind a click where it is long."""
    title, number = rows.title[:1].upper() + rows.title[1:], len(list(rows.rows))
    made = table(rows.columns, rows.rows, caption=title)
    return made if number <= _LONG else details(f"{title} ({number} rows)", made)


@dataclass(frozen=True)
class Plan:
    """What embedding tables need on a topology: see :func:`plan` and :func:`plan_pod`.

    ``batch``: samples, of all chips together. ``confidence``: how often a fresh batch exceeds the limits; None where
    they are a quantile (``batches_over`` then says how many of the log's exceed them) or where there was no log
    (``batches`` 0): they are then those of uniform ids.

    ``hot``: the rows of tables that every device holds and the limits leave out, beside ``dense_bytes`` of weights and
    constants. ``distinct``: of every stack the distinct ids of a batch, summed over the sources. ``narrow``: which
    tables are packed. HBM (:attr:`heap`), a step's :attr:`traffic` and the :attr:`tables` follow from all that.

    What follows is of a log whose partitions were all counted, not of a pod. ``uncut``: the share of the replayed
    batches that exceed the limits and that mini-batches cannot cut, and why.
    """

    stacking: Stacking
    target: str
    batch: int
    batches: int
    stacks: tuple[types.StackPlan, ...]
    distinct: Mapping[str, float]
    narrow: NarrowTables
    prefetched_batches: int
    pipelining: bool
    serialized_tables: int
    hot: Mapping[str, Longs]
    dense_bytes: int
    confidence: Confidence | None = None
    quantile: float = 1.0
    replayed: int = 0
    batches_over: float = 0.0
    uncut: float = 0.0
    uncut_because: str = ""
    curve: tuple[types.CurvePoint, ...] = ()
    skew: types.Skew = field(default_factory=types.Skew)
    savings: types.Savings = field(default_factory=types.Savings)
    feeding: types.Feeding | None = None

    @property
    def limits(self) -> dict[str, Limits]:
        """Stack -> the chosen limits, as ``preprocess`` takes them."""
        return {stack.name: stack.limits for stack in self.stacks}

    @property
    def samples(self) -> int:
        """Of all batches."""
        return self.batch * self.batches

    @property
    def basis(self) -> str:
        """Where the limits come from."""
        return "log" if self.batches else "uniform ids"

    @cached_property
    def heap(self) -> types.Heap:
        """HBM of one chip; all chips hold the same."""
        return self._heap(self.serialized_tables)

    def _heap(self, serialized: int) -> types.Heap:
        """The heap with so many stacks processed one after the other.

        With pipelining the SparseCores run lookup i and update i - 2 while the TensorCore runs step i - 1: two sets of
        activations and of gradients are on their way instead of one, and the inputs of two more batches wait for their
        gradients.
        """
        topology, groups, stacks = self.stacking.topology, self.stacking.stacks, self.stacks
        chips, per_chip = topology.chips, topology.sparsecores_per_chip
        batch = self._batch_bytes
        exchange = 2 * per_chip * sum(4 * s.padded_width * s.samples_per_sparsecore for s in stacks)
        hbm = find_target(self.target).whole.memory("hbm") if self.target else None
        forward, how_forward = types.live_bytes("forward", [s.forward for s in stacks if s.forward], serialized)
        backward, how_backward = types.live_bytes("backward", [s.backward for s in stacks if s.backward], serialized)
        how = [how for how in (how_forward, how_backward) if how]
        rows = [(group.vocab // chips, group) for group in groups.values()]
        held = ((len(ids) * topology.devices // chips, name) for name, ids in self.hot.items())
        rows += [(n, groups[self.stacking.tables[name].stack]) for n, name in held]
        return types.Heap(
            tables=4 * sum(n * group.padded_width for n, group in rows),
            slots=4 * sum(n * group.slot_floats for n, group in rows),
            inputs=self.prefetched_batches * batch,
            exchange=exchange,
            pipelined=exchange + 2 * batch if self.pipelining else 0,
            forward_stack=forward * per_chip,
            backward_stack=backward * per_chip,
            capacity=hbm.usable if hbm else 0,
            if_cut=(self.prefetched_batches + 2 * self.pipelining) * batch * (BUCKETS - 1),
            stack_basis="modelled" if how else "measured",
            stack_note="; ".join(how) or f"rules measured ahead of time against {RULE_VERSION}",
            dense=self.dense_bytes,
        )

    @cached_property
    def serialized_fits(self) -> int:
        """The least num_serialized_tables_to_optimize_hbm with which HBM holds it all; 0 where it does so anyway, or
        with none."""
        over = self.heap.capacity and self.heap.total > self.heap.capacity
        turns = range(2, len(self.stacks) + 1) if over else range(0)
        least = bisect_left(turns, True, key=lambda n: self._heap(n).total <= self.heap.capacity)
        return turns[least] if least < len(turns) else 0

    @cached_property
    def traffic(self) -> types.Traffic:
        """What a step moves, takes and waits for."""
        topology, chip = self.stacking.topology, self.target or None
        chips, shards, per_chip = topology.chips, topology.sparsecores, topology.sparsecores_per_chip
        rows = hbm = links = launches = row_work = id_work = 0.0
        waits = dict[str, float]()
        for group, stack in zip(self.stacking.groups, self.stacks):
            distinct, width, work = self.distinct[group.name], group.padded_width, StackWork.of(group, chip)
            here = distinct / chips
            rows += here
            hbm += 4 * (here * group.step_floats + 4 * width * stack.samples_per_sparsecore * per_chip)
            links += here * (4 + 8 * width) * (chips - 1) / chips
            entries = distinct if stack.mean_ids is None else stack.mean_ids * shards**2
            of_rows, of_ids = distinct / shards * work.row, entries / shards * work.id
            launches += work.launch
            row_work += of_rows * stack.wait
            id_work += of_ids * stack.wait + stack.samples_per_sparsecore * work.sample
            waits[group.name] = (of_rows + of_ids) * max(0.0, stack.wait - 1)
        if chip is None:
            return types.Traffic(rows, hbm, links, self._batch_bytes)
        whole, exchanges = find_target(chip).whole, 0.0
        hbm_memory = whole.memory("hbm")
        if (between := whole.links) and chips > 1:
            latency = (between.start_ns + between.hop_ns) / 1e9
            exchanges = links / between.bytes_per_second + _EXCHANGES * len(self.stacks) * latency
        least = max(exchanges, hbm / hbm_memory.bytes_per_second if hbm_memory else 0.0)
        sparse = launches + row_work + id_work
        return types.Traffic(
            *(rows, hbm, links, self._batch_bytes, launches, row_work, id_work, exchanges, least),
            seconds=max(sparse - sum(waits.values()), least),
            waited=max(sparse, least),
            waits=waits,
        )

    @property
    def _batch_bytes(self) -> int:
        """Bytes of one batch's buffers on one chip."""
        topology = self.stacking.topology
        return sum(stack.buffer_bytes for stack in self.stacks) * topology.devices // topology.chips

    @cached_property
    def tables(self) -> tuple[types.TablePlan, ...]:
        """The tables as the model has them, where the stacking put them (or their lines)."""
        models = {feature.table.name: feature.table for feature in self.narrow.original}
        made = []
        for place in self.stacking.placements:
            table, parts = models[place.table.name], self.narrow.rows_per_line.get(place.table.name, 1)
            made.append(
                types.TablePlan(
                    name=table.name,
                    stack=place.stack,
                    vocab=table.vocab,
                    width=table.width,
                    padded_vocab=place.padded_vocab * parts,
                    padded_width=place.padded_width // parts,
                    data_bytes=table.vocab * table.width * 4,
                    padded_bytes=padded_table_bytes(place.table.vocab, place.table.width, place.shards),
                    packed_bytes=packed_table_bytes(table.vocab, table.width, place.shards),
                    unpacked_bytes=padded_table_bytes(table.vocab, table.width, place.shards),
                    rows_per_line=parts,
                )
            )
        return tuple(made)

    @property
    def fits(self) -> bool | None:
        """Whether every stack compiles and a chip's HBM holds it all; None without a target."""
        if not self.target:
            return None
        compiles = all(program.compiles for stack in self.stacks for program in stack.programs)
        return compiles and self.heap.total <= self.heap.capacity

    @property
    def waits_for(self) -> str:
        """What a step waits for, fed by this host: ``launches``, ``rows``, ``ids``, ``links``, ``host``; "" without a
        target."""
        fed = self.feeding.host_seconds if self.feeding else 0.0
        return self.traffic.waits_for(fed) if self.traffic.waited else ""

    @cached_property
    def verdict(self) -> str:
        """One sentence: whether everything compiles and fits, or what does not."""
        if not self.target:
            return "no target given: limits and buffers only"
        figures = f"{bytes_text(self.heap.total)} of {bytes_text(self.heap.capacity)} HBM a chip"
        verdict = f"compiles and fits on {self.target}: {figures}"
        failing = ((stack, program) for stack in self.stacks for program in stack.programs if not program.compiles)
        if failed := next(failing, None):
            stack, program = failed
            best = program.largest_limits
            advice = "; limits of {} ids and {} distinct ids would compile".format(*vars(best).values()) if best else ""
            refused = f"stack {stack.label}, {program.op}: {program.reason}"
            verdict = f"does not compile on {self.target}: {refused}{advice}"
        elif self.heap.total > self.heap.capacity:
            verdict = f"does not fit on {self.target}: {figures}; take more chips, or smaller tables"
            if self._for_host:  # at most every row of a step is of these tables, and as wide as the widest
                sizes, widths, names = zip(*self._for_host)
                held, moved = bytes_text(sum(sizes)), bytes_text(round(4 * max(widths) * self.traffic.rows))
                few = ", ".join(names[:_FEW]) + ", ..." * (len(names) > _FEW)
                verdict += f"; or hold {few} on the host ({held} a chip; at most {moved} a step each way)"
        serial = f"; or set num_serialized_tables_to_optimize_hbm to {self.serialized_fits}, with which it fits"
        return verdict + (serial if self.serialized_fits else "")

    @property
    def for_host(self) -> tuple[str, ...]:
        """Tables, the largest first, without which HBM holds the rest: a place for them is the host's memory, which
        neither training here nor jax-tpu-embedding looks up from. () where HBM holds all, or not even the rest."""
        return tuple(name for *_, name in self._for_host)

    @cached_property
    def _for_host(self) -> list[tuple[int, int, str]]:
        """Of each such table: bytes of its rows and slots on one chip, floats of a row and its slots, name."""
        sizes = []
        for name, place in self.stacking.tables.items():
            group = self.stacking.stacks[place.stack]
            floats = group.padded_width + group.slot_floats
            sizes.append((4 * place.padded_vocab * floats // self.stacking.topology.chips, floats, name))
        sizes.sort(key=lambda size: -size[0])
        freed = [0, *accumulate(size for size, *_ in sizes)]
        fewest = bisect_left(freed, self.heap.total - self.heap.capacity if self.heap.capacity else 0)
        return sizes[:fewest] if fewest < len(freed) else []

    def counters(self, sparsecore: SparseCoreConfig | None = None) -> Counters:
        """The plan's counts, as :func:`diagnose` reads them, with the guide's knobs in use where they are given.

        Steps are the log's batches; ``seconds.host`` is this host's preprocessing time, ``hbm.moved`` the least traffic
        of a step, ``seconds.modelled`` what it takes without the dense part. Times measured on a chip
        are not in a plan: put them on top with :meth:`Counters.merged`.
        """
        topology, heap, feeding = self.stacking.topology, self.heap, self.feeding
        used = {name: ids for name, (ids, _) in self.skew.used.items()}
        return Counters(
            target=self.target,
            chips=topology.chips,
            sparsecores=topology.sparsecores,
            steps=self.batches,
            steps_over=self.batches_over,
            fresh_over=(sure.expected, sure.at_most) if (sure := self.confidence) else None,
            uncut=round(self.uncut * self.batches),
            uncut_because=self.uncut_because,
            buffer_bytes=self._batch_bytes,
            seconds=Seconds(
                host=feeding.host_seconds if feeding else None,
                modelled=self.traffic.waited or None,
                launches=self.traffic.launches or None,
                least=self.traffic.least or None,
            ),
            hbm=HbmCounters(
                **{name: getattr(heap, name) for name in ("tables", "slots", "dense", "inputs")},
                exchange=heap.exchange + heap.pipelined,
                forward_stack=heap.forward_stack if self.target else None,
                backward_stack=heap.backward_stack if self.target else None,
                capacity=heap.capacity or None,
                moved=round(self.traffic.hbm_bytes),
                moved_modelled=True,
            ),
            stacks={stack.name: self._stack_counters(stack) for stack in self.stacks},
            # a packed table as the lines it lives in
            tables={
                t.name: TableCounters(-(-t.vocab // t.rows_per_line), t.width * t.rows_per_line, used=used.get(t.name))
                for t in self.tables
            },
            sparsecore=sparsecore,
        )

    def _stack_counters(self, stack: types.StackPlan) -> StackCounters:
        hot = next((hot for hot in self.skew.hot if hot.stack == stack.name), None)
        remedies = [remedy for remedy in self.skew.remedies if remedy.stack == stack.name]
        shards, used = self.stacking.topology.sparsecores, self.skew.used
        apart = [(name, *used[name]) for name in stack.tables if name in used]
        common = [(name, by) for name, ids, by in apart if ids >= shards > 1 and math.gcd(by, shards) > 1]
        same = ["label", "optimizer", "samples_per_sparsecore", "mean_ids"]
        same += ["imbalance", "wait", "wait_rows", "wait_ids"] if stack.counted else []
        seen = {"observed": stack.observed, "typical": dict(stack.quantiles).get(types.TYPICAL)}
        pairs = {name: zip(("ids", "unique_ids"), vars(limits).values()) for name, limits in seen.items() if limits}
        return StackCounters(
            **{name: getattr(stack, name) for name in same},
            **vars(stack.limits),
            tables=len(stack.tables),
            width=stack.padded_width,
            **{f"{name}_{kind}": n for name, pair in pairs.items() for kind, n in pair},
            dropped_share=stack.drop_rate if stack.counted else None,
            wait_seconds=self.traffic.waits[stack.name] if self.traffic.waited and stack.counted else None,
            combiner=self.stacking.stacks[stack.name].combiner,
            rows=self.stacking.stacks[stack.name].vocab,
            hot=(hot.table, hot.id, hot.share) if hot else None,
            common=max(common, key=lambda pair: pair[1], default=None),
            remedies={remedy.change: (*vars(remedy.limits).values(), remedy.imbalance) for remedy in remedies},
            remedy_waits={remedy.change: remedy.wait for remedy in remedies},
        )

    def alike(self) -> list[list[types.StackPlan]]:
        """Stacks that differ in nothing but names together; where partitions were counted, every one is alone."""
        groups: dict[Any, list[types.StackPlan]] = {}
        for one in self.stacks:
            shape = len(one.tables), one.features, one.padded_width, one.rows_per_shard, one.samples_per_sparsecore
            groups.setdefault((one.name if one.counted else "", *shape, one.optimizer, one.limits), []).append(one)
        return sorted(groups.values(), key=lambda g: 0 if g[0].counted else -g[0].limits.max_ids_per_partition)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain values with a ``schema_version``; ``counters`` is what :func:`diagnose` reads.

        A pod's plan, whose partitions are not kept, says nothing of what would be counted of them.
        """
        topology = self.stacking.topology
        value = {
            "schema_version": 1,
            "kind": "embedding_plan",
            "counters": self.counters().to_json(),
            **{name: getattr(self, name) for name in ("batch", "batches", "samples", "basis", "fits", "verdict")},
            "target": self.target or None,
            "topology": {**vars(topology), "sparsecores": topology.sparsecores},
            "confidence": plain(self.confidence),
            "hbm_per_chip": plain(self.heap)
            | {"capacity_bytes": self.heap.capacity or None, "prefetched_batches": self.prefetched_batches},
            "num_serialized_tables_that_fit": self.serialized_fits or None,
            "tables_for_the_host": list(self.for_host),
            "hot_rows": {name: ids.tolist() for name, ids in self.hot.items()},
            "stacks": [stack.to_json() for stack in self.stacks],
            "tables": plain(self.tables),
            "step_per_chip": {**plain(self.traffic), "waits_for": self.waits_for or None, "basis": "modelled"},
        }
        if self.feeding is None:
            return value
        return value | {
            **{name: getattr(self, name) for name in ("quantile", "batches_over", "uncut", "uncut_because")},
            "replayed_batches": self.replayed,
            "curve": plain(self.curve),
            "skew": plain(self.skew),
            "savings": {
                "table_bytes": sum(table.padded_bytes for table in self.tables),
                "packed_table_bytes": sum(table.packed_bytes for table in self.tables),
                "packed_tables": [table.name for table in self.tables if table.gains],
                **plain(self.savings),
            },
            "feeding": plain(self.feeding) | {"step_seconds": self.feeding.step_seconds or None},
        }

    def limits_json(self) -> dict[str, Any]:
        """The content of the limits file: the chosen limits, and what they were learnt from."""
        return limits_json(
            self.limits,
            target=self.target or None,
            topology=dict(vars(self.stacking.topology)),
            rotation=self.stacking.rotations,
            **{name: getattr(self, name) for name in ("batch", "batches", "quantile", "basis")},
            narrow_packing=any(table.rows_per_line > 1 for table in self.tables),
            confidence=plain(self.confidence),
            hot_rows={name: ids.tolist() for name, ids in self.hot.items()},
        )

    def write_limits(self, path: str | Path) -> None:
        """Write the chosen limits as JSON, for :func:`read_limits`."""
        write_whole(path, json.dumps(self.limits_json(), indent=2) + "\n")

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdict, limits and what lies in HBM; ``html()`` is the whole page."""
        rows = self._rows([])
        tables = [glance_table(of.columns, of.rows, caption=of.title) for of in (rows["limits"], rows["heap"])]
        return glance(self._head, self.verdict, self._sure, *tables)

    def under(self, limits: Mapping[str, Limits]) -> Plan:
        """The plan with other limits (stack -> limits; the others stay): buffers, compilers' verdicts and HBM follow.

        What was observed stays, and so do the drops and mini-batches that were counted for the plan's own limits: those
        of others are counted by :func:`preprocess`.

        >>> from tilewright.embed import Feature, Limits, Table, Topology, plan
        >>> features, topology = [Feature("f", Table("t", vocab=64, width=8))], Topology(1, sparsecores_per_chip=2)
        >>> made = plan([{"f": [[0], [2], [4], [1]]}], features, topology, target="tpu-v5p")
        >>> made.stacks[0].slots, made.under({"t": Limits(1024, 1024)}).stacks[0].slots
        (32, 4096)
        """
        topology, chip, groups = self.stacking.topology, self.target or None, self.stacking.stacks
        stacks = tuple(
            replace(
                part, **types.fields_of_limits(groups[part.name], topology, limits.get(part.name, part.limits), chip)
            )
            for part in self.stacks
        )
        return replace(self, stacks=stacks)

    @property
    def _head(self) -> str:
        """What was planned, and from what."""
        topology = self.stacking.topology
        log = f"{counted(self.batches, 'batch', 'batches')}, {counted(self.samples, 'sample')}, "
        tables = f"{counted(len(self.tables), 'table')} in {counted(len(self.stacks), 'stack')}"
        chips = f"{counted(topology.sparsecores, 'SparseCore')} ({counted(topology.chips, 'chip')})"
        return f"{log if self.batches else ''}{tables} on {chips}"

    @property
    def _sure(self) -> str:
        """How sure the limits are."""
        if self.confidence is not None:
            return f"confidence: {self.confidence.sentence}"
        return "" if self.batches else "limits are those of uniform ids: a log says more"

    def print(self) -> None:
        """The plan's :meth:`lines` on the terminal."""
        show(self.lines())

    def lines(self) -> Iterator[Line]:
        """What the terminal shows: of several stacks only the most uneven is explained, :meth:`html` has all.

        Of a pod stacks that are alike stand in one row, and the first twenty kinds of them.
        """
        yield from (self._head, self.verdict)
        yield from filter(None, [self._sure])
        for rows in self._rows([max(self.stacks, key=lambda s: s.wait)]).values():
            yield from ("", rows)
        if (more := len(self.alike()) - _SHOWN) > 0 and self.feeding is None:
            yield f"... and {more} more kinds of stacks: --json has all"
        yield ""
        yield from self._notes()

    def _rows(self, explained: Sequence[types.StackPlan]) -> dict[str, Table]:
        """All tables of a plan; hot ids and remedies are those of the stacks ``explained``."""
        kinds, parts = self.alike(), self.heap_parts()
        parts.append(("in all, the larger stack" if self.target else "in all", self.heap.total))
        heap = Table(["what", ("bytes", "bytes")], parts, "HBM of one chip")
        if self.feeding is None:
            return {"limits": _titled("limits", types.StackPlan.COLUMNS, kinds[:_SHOWN]), "heap": heap}
        share, again = percent_text(self.quantile), f"{counted(self.replayed, 'batch', 'batches')} run again"
        hot = [(stack, hot) for stack in explained for hot in self.skew.hot if hot.stack == stack.name]
        remedies = [(stack, r) for stack in explained for r in self.skew.remedies if r.stack == stack.name]
        programs = [(stack, program) for stack in self.stacks for program in stack.programs]
        days = self.confidence.days if self.confidence else ()
        sizes = [(*row, 1 - row[2] / row[1] if row[1] else 0.0) for row in self.arrangements()]
        of_sizes: list[Heading] = ["arrangement", ("without", "bytes"), ("with", "bytes"), ("saved", "percent")]
        holding = "ids / distinct ids that hold a share of the partitions"
        tables = {
            "limits": _titled(f"limits holding {share} of the partitions", types.StackPlan.COLUMNS, kinds),
            "holding": _titled(holding, types.StackPlan.HOLDING, self.stacks),
            "days": _titled("later days against the limits of the days before", Day.COLUMNS, days),
            "programs": _titled("compiler, per SparseCore", types.StackPlan.PROGRAMS, programs),
            "heap": heap,
            "tables": _titled("tables", types.TablePlan.COLUMNS, self.tables),
            "savings": Table(of_sizes, sizes, "arrangements"),
            "curve": _titled(f"lower limits ({again})", types.CurvePoint.COLUMNS, self.curve),
            "remedies": _titled(f"what would even shards out ({again})", types.Remedy.COLUMNS, remedies),
            "hot": _titled("hottest ids of its fullest shard", types.HotId.COLUMNS, hot),
        }
        return {name: rows for name, rows in tables.items() if rows.rows}

    def arrangements(self) -> list[tuple[str, int, int]]:
        """(what, bytes without, bytes with): what stacking saves in buffers, and what narrow rows that share lines
        (would) save in tables."""
        saved = self.savings
        rows = [("stacking: buffers of one batch on a device", saved.separate_buffer_bytes, saved.stacked_buffer_bytes)]
        if narrow := [table for table in self.tables if table.gains or table.rows_per_line > 1]:
            name = f"narrow rows sharing lines: {len(narrow)} table{'s' if len(narrow) > 1 else ''}"
            rows.append((name, sum(t.unpacked_bytes for t in narrow), sum(t.packed_bytes for t in narrow)))
        return rows

    def heap_parts(self) -> list[tuple[str, int]]:
        """What lies in the HBM of one chip, and its bytes; of the two stacks one is in use at a time."""
        heap = self.heap
        parts = [("tables", heap.tables), ("optimizer slots", heap.slots), ("inputs fetched ahead", heap.inputs)]
        parts.append(("activations and gradients", heap.exchange))
        parts += [part for part in (("held for pipelining", heap.pipelined), ("dense weights", heap.dense)) if part[1]]
        stacks = [("stack of the lookup", heap.forward_stack), ("stack of the update", heap.backward_stack)]
        return parts + stacks * bool(self.target)

    def _notes(self) -> Iterator[str]:
        """What stands under the tables: rows on every device, batches that cannot be cut, what a packed line is, what
        of the memory is modelled and how, which layout it is of; then what a step moves, takes and waits for."""
        for name, ids in self.hot.items():
            few = ", ".join(map(str, ids[:8])) + (", ..." if len(ids) > 8 else "")
            yield f"held on every device: {count_text(len(ids))} rows of {name}: {few}"
        points = [("under these limits", self.uncut, self.uncut_because)]
        points += [(f"limits at {percent_text(p.fraction)}", p.uncut, p.uncut_because) for p in self.curve]
        for what, share, because in [point for point in points if point[1]][:1]:
            yield f"{what}: {percent_text(share)} of the batches cannot be cut, preprocess refuses them: {because}"
        if lines := [f"{t.rows_per_line} rows of {t.name}" for t in self.tables if t.rows_per_line > 1]:
            shown = "ids shown of these tables are lines: id // rows of the model's"
            yield f"packed: {', '.join(lines)} share a line; {shown}"
        heap = self.heap
        modelled = heap.stack_note.split("; ") if heap.stack_basis == "modelled" else []
        yield from (f"modelled: {line}" for line in dict.fromkeys(modelled))
        fits = " and does not fit" if heap.total <= heap.capacity < heap.total + heap.if_cut else ""
        yield (
            'layout: buffers, HBM and feeding are of plain batches, which overflow="drop" or "error" and '
            f'minibatch_layout="needed" make; laid out for mini-batches the inputs take {bytes_text(heap.if_cut)} more '
            f"a chip{fits}"
        )
        yield from self._step_notes()

    def _step_notes(self) -> Iterator[str]:
        """What a step moves, takes and waits for, and what this host feeds it with: what is measured, what modelled."""
        step, fed = self.traffic, self.feeding
        text = (
            f"a step of one chip: {bytes_text(round(step.hbm_bytes))} of HBM traffic, "
            f"{bytes_text(round(step.link_bytes))} over its links, {bytes_text(step.host_bytes)} from the host"
        )
        if step.waited:
            parts = ", ".join(f"{part} {seconds_text(took)}" for part, took in step.parts.items())
            text += f"; {seconds_text(step.sparse)} on the SparseCores ({parts})"
            text += f", {seconds_text(step.links)} on the links" if step.links else ""
            text += f", modelled: it waits for {step.waits_for()}"
        yield text
        if fed is not None:
            made_in, threads = seconds_text(fed.host_seconds), counted(fed.threads, "thread")
            keeps = ": fed by it alone, a step waits for the host" if self.waits_for == "host" else ": it keeps up"
            host = f"feeding: this host makes a batch of all chips in {made_in} (measured, {threads})"
            yield host + (keeps if step.waited else "")

    def html(self, part: Literal["all", "head", "body"] = "all") -> Html:
        """The plan of a log as blocks of a page: figures, tables and drawings. Put it into ``Page.section``.

        The head is the verdict and how sure it is, the body all else: a page may show them apart.
        """
        tone: Tone = "plain" if self.fits is None else "good" if self.fits else "bad"
        head = [note(self.verdict, tone=tone)]
        if sure := self.confidence:  # limits that every other batch may exceed are no ground for a green box alone
            text = f"Confidence: {sure.sentence}."
            more = "" if sure.week else " Plan with more batches, or raise the limits with --headroom."
            held = sure.batches > 1 and sure.at_most <= _MOSTLY_HELD
            head.append(paragraph(text) if held else note(text + more, tone="warn"))
        if part == "head":
            return join(head, "\n")
        blocks = [*(head if part == "all" else []), self._figures()]
        for name, rows in self._rows(self.stacks).items():
            if name == "heap":
                bars = [Bar(what, (float(size),)) for what, size in self.heap_parts()]
                blocks.append(bar_chart(bars, title=rows.title, kind="bytes"))
            else:
                blocks += self._lower_limits() if name == "curve" else [self._shares()] if name == "remedies" else []
                blocks.append(_figure(rows))
        return join([*blocks, *map(paragraph, self._notes())], "\n")

    def _figures(self) -> Html:
        wasted = 1 - sum(t.data_bytes for t in self.tables) / max(1, sum(t.padded_bytes for t in self.tables))
        of = f"of {bytes_text(self.heap.capacity)}" if self.heap.capacity else "heap only: no target"
        wait = max(stack.wait for stack in self.stacks)
        figures = [
            Card("stacks", str(len(self.stacks)), counted(len(self.tables), "table")),
            Card("HBM a chip", bytes_text(self.heap.total), of),
            Card("padding", percent_text(wasted), "of the tables' bytes"),
            Card("wait", f"{wait:.2f}", "fullest shard over the average, of a step's work"),
            Card("batches over", percent_text(self.batches_over), "exceed a limit"),
        ]
        return cards(figures)

    def _lower_limits(self) -> list[Html]:
        """What the curve of lower limits costs: mini-batches, ids lost, and the buffers it saves."""
        points, again = self.curve[::-1], counted(self.replayed, "batch", "batches")
        scale, unit = (2**20, "MiB") if self.curve[0].buffer_bytes >= 2**20 else (2**10, "KiB")

        def drawn(title: str, y_label: str, kind: Kind, scale: float = 1.0, **curves: str) -> Html:
            x, x_label = [p.fraction * 100 for p in points], "limits, percent of the observed maxima"
            of = {label: [getattr(p, name) for p in points] for label, name in curves.items()}
            lines = [Curve(n, x, [math.nan if y is None else y / scale for y in ys]) for n, ys in of.items()]
            return line_chart(lines, title=title, x_label=x_label, y_label=y_label, kind=kind)

        cut = f"Mini-batches per step under lower limits ({again} run again)"
        return [
            drawn(cut, "mini-batches", "number", mean="minibatches_mean", most="minibatches_max"),
            drawn("Ids lost, where they are dropped instead", "share of all entries", "percent", dropped="drop_rate"),
            drawn("Input buffers of one batch on one device", unit, "number", scale, buffers="buffer_bytes"),
        ]

    def _shares(self) -> Html:
        """What every shard receives, of the stacks that wait most."""
        loads = []
        for s in sorted(self.stacks, key=lambda s: -s.wait)[:_FEW]:
            shards, whole = len(s.per_shard), max(1, sum(s.per_shard))
            loads.append(Curve(s.label, range(shards), [n * shards / whole for n in s.per_shard]))
        title = "What every shard receives, over the average"
        return column_chart(loads, title=title, x_label="shard", y_label="times the average")
