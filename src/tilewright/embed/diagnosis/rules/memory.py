"""What does not fit: a tile's scratchpad, the HBM stack, the HBM heap."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tilewright.embed.diagnosis.explain import advice_for
from tilewright.embed.diagnosis.finding import Finding, rule
from tilewright.embed.diagnosis.rules.limits import stack_bytes
from tilewright.embed.model.formulas import gather_operand_floats, padded_table_bytes, round8
from tilewright.embed.model.tables import Limits
from tilewright.embed.planning.counters import Counters, HbmCounters
from tilewright.embed.planning.memory import live_stacks, memory
from tilewright.render import bytes_text, percent_text
from tilewright.targets import target

_NEARLY = 0.9
"""HBM this full leaves no room for a larger batch, fragments or a longer prefetch."""


@rule(
    "spmem-overflow",
    "guide section 10, SPMEM overflow; rules measured against libtpu 0.0.50.1",
    needs=("target", "stack.max_ids_per_partition", "stack.width"),
    when="a stack's lookup or update does not compile at its limits",
)
def spmem_overflow(counters: Counters) -> Iterator[Finding]:
    if not counters.shards:
        return
    for name, stack in counters.stacks.items():
        limits = stack.limits
        if limits is None or not stack.width:
            continue
        for op in stack.operations:
            program = memory(counters.target, counters.shards, stack.width, limits, op)
            if program.compiles:
                continue
            best = program.largest_limits
            rounded = Limits(round8(limits.max_ids_per_partition), round8(limits.max_unique_ids_per_partition))
            yield Finding(
                "severe",
                f"the {'lookup' if op == 'forward' else 'update'} does not compile: buffers sized by the limits exceed "
                f"a tile's scratchpad ({program.basis})",
                advice_for(program.rule, rounded, best, ids_known=True),
                subject=name,
                evidence={
                    "max_ids_per_partition": limits.max_ids_per_partition,
                    "max_unique_ids_per_partition": limits.max_unique_ids_per_partition,
                    "bytes needed per tile": program.tile_bytes,
                    "bytes of a tile": program.tile_limit,
                },
                effect=f"compiles with {best.max_ids_per_partition} ids and {best.max_unique_ids_per_partition} "
                "distinct ids"
                if best
                else "",
            )
            break


@rule(
    "gather-operand",
    "guide section 10, SPMEM overflow; section 14, gather operands in HBM",
    needs=("target", "stack.samples_per_sparsecore", "stack.width"),
    when="samples * width / 16 floats exceed a tile's scratchpad",
)
def gather_operand(counters: Counters) -> Iterator[Finding]:
    sparse = target(counters.target).sparse
    if sparse is None or not sparse.tile_spmem_bytes:
        return
    for name, stack in counters.stacks.items():
        floats = gather_operand_floats(stack.samples_per_sparsecore or 0, stack.width, sparse.tiles)
        if 4 * floats <= sparse.tile_spmem_bytes:
            continue
        share = sparse.tile_spmem_bytes / (4 * floats)
        yield Finding(
            "note",
            "one tile's share of the activations exceeds its scratchpad: a compiler that does not stage gather "
            'operands in HBM refuses with "Gather operand too large"',
            (
                "use libtpu 0.0.50.1 or newer, which stages them in HBM",
                f"or cut the batch to {share:.0%}, take {math.ceil(1 / share)} times the chips, stack fewer features",
            ),
            subject=name,
            evidence={
                "samples per SparseCore": stack.samples_per_sparsecore or 0,
                "bytes needed per tile": 4 * floats,
                "bytes of a tile": sparse.tile_spmem_bytes,
            },
        )


@rule(
    "hbm-stack-overflow",
    "guide section 10, HBM stack overflow; section 9",
    needs=("hbm.forward_stack|hbm.backward_stack", "hbm.capacity"),
    when="the heap fits and the programs' stack beside it does not",
)
def hbm_stack_overflow(counters: Counters) -> Iterator[Finding]:
    hbm, capacity = counters.hbm, counters.hbm.capacity or 0
    if hbm.heap > capacity or hbm.heap + hbm.stack <= capacity:
        return
    free = capacity - hbm.heap
    names = sorted(counters.stacks, key=lambda name: -(counters.stacks[name].max_ids_per_partition or 0))
    advice = []
    turns = counters.knobs.num_serialized_tables_to_optimize_hbm
    serial = _serialized(counters, free)
    if serial > turns:
        advice.append(
            f"set xla_sc_num_serialized_tables_to_optimize_hbm from {turns} to {serial}: fewer stacks are live at a "
            "time, and a step takes longer"
        )
    if names:
        advice.append(f"lower the limits, of {names[0]} first, to {free / hbm.stack:.0%} or less: the stack follows")
    advice.append(f"take {_chips(counters, hbm)} chips: tables and partitions both get smaller")
    yield Finding(
        "severe",
        "tables and inputs leave less HBM than the programs' stack takes: it fails when it is compiled or run",
        tuple(advice),
        evidence={"bytes of stack": hbm.stack, "bytes free beside the heap": free, "bytes of HBM": capacity},
        effect=f"{bytes_text(hbm.stack - free)} to save",
    )


def serialized_share(counters: Counters, serialized: int) -> float:
    """The stack with ``serialized`` stacks processed in turn, in what it takes as the counters were taken.

    The largest are taken to be live; all count alike where their sizes do not follow from the limits.
    """
    known = [limits and stack_bytes(counters, s, limits) for s in counters.stacks.values() for limits in (s.limits,)]
    sizes = [size for size in known if size]
    if len(sizes) < len(known) or not known:
        sizes = [1] * max(1, len(known))
    sizes.sort(reverse=True)
    now, then = counters.knobs.num_serialized_tables_to_optimize_hbm, serialized
    return sum(sizes[: live_stacks(len(sizes), then)]) / sum(sizes[: live_stacks(len(sizes), now)])


def _serialized(counters: Counters, free: int) -> int:
    """The fewest stacks to process one after the other so that what is then live fits; 0 where no number does."""
    numbers = range(2, len(counters.stacks) + 1)
    return next((n for n in numbers if counters.hbm.stack * serialized_share(counters, n) <= free), 0)


def _chips(counters: Counters, hbm: HbmCounters) -> int:
    """The fewest times as many chips (powers of two) on which heap and stack fit; tables divide, the stack at least."""
    times = 2
    while times < 4096:
        split = ((hbm.tables or 0) + hbm.slots + hbm.inputs + hbm.exchange + hbm.stack) / times + hbm.dense
        if split <= (hbm.capacity or 0):
            break
        times *= 2
    return counters.chips * times


@rule(
    "hbm-heap-exhaustion",
    "guide section 10, HBM heap exhaustion; section 11, memory analysis",
    needs=("hbm.tables", "hbm.capacity"),
    when="the heap exceeds HBM (severe), or nine tenths of HBM are taken",
)
def hbm_heap_exhaustion(counters: Counters) -> Iterator[Finding]:
    hbm, capacity = counters.hbm, counters.hbm.capacity or 0
    full = (hbm.heap + hbm.stack) / capacity
    over = hbm.heap > capacity
    if not over and not _NEARLY <= full <= 1:
        return
    parts = {
        "tables": hbm.tables or 0,
        "optimizer slots": hbm.slots,
        "dense weights": hbm.dense,
        "inputs fetched ahead": hbm.inputs,
        "exchange": hbm.exchange,
    }
    largest = max(parts, key=lambda name: parts[name])
    advice = []
    ahead = counters.knobs.maximum_parallel_iterations
    if ahead > 1 and hbm.inputs > 0.01 * capacity:
        saved = hbm.inputs / ahead
        advice.append(f"set maximum_parallel_iterations from {ahead} to {ahead - 1}: {bytes_text(saved)} less")
    if largest == "optimizer slots" or (hbm.slots and hbm.slots >= 0.4 * hbm.heap):
        advice.append(f"take SGD for the largest tables: {bytes_text(hbm.slots)} of optimizer slots less")
    advice.append(f"take {_chips(counters, hbm)} chips: each holds its share of the rows")
    advice.append("hash the largest vocabularies into fewer rows, or make their rows narrower")
    free = capacity - hbm.heap - hbm.stack
    yield Finding(
        "severe" if over else "warning",
        f"tables, inputs and stack take {percent_text(full)} of HBM, {largest} most of it"
        + ("" if over else ": little is left for a larger batch or for fragments"),
        tuple(advice),
        evidence={**{f"bytes of {name}": size for name, size in parts.items() if size}, "bytes of HBM": capacity},
        effect=f"{bytes_text(-free)} too much" if free < 0 else f"{bytes_text(free)} left",
    )


# Bytes that are padding: rows up to 8 floats, vocabularies up to 8 rows on every shard.

_SHARE = 0.1
"""Padding worth a finding: this share of all tables' bytes; of HBM a hundredth is a warning."""
_WARNING = 0.01


@rule(
    "padding-of-width",
    "guide section 10, padding overhead",
    needs=("tables",),
    when="a tenth of the tables' bytes pads rows to 8 floats (a hundredth of HBM: a warning)",
)
def padding_of_width(counters: Counters) -> Iterator[Finding]:
    shards = max(1, counters.shards)
    padded = {name: table.padded_bytes(shards) for name, table in counters.tables.items()}
    lost = {n: padded[n] - padded[n] * t.width // t.padded_width for n, t in counters.tables.items()}
    worst = _worst(counters, lost)
    if not worst:
        return
    table = counters.tables[worst[0]]
    wider, packs = table.padded_width, 8 // table.width if table.width < 8 else 1
    advice = []
    if packs > 1:
        advice.append(
            f"let {packs} rows of {table.width} floats share each 32-byte line instead of one (narrow_packing)"
        )
    if table.width % 8:
        many = "" if len(worst) == 1 else f" (and {len(worst) - 1} more tables)"
        advice.append(f"make {worst[0]} {wider} wide{many}: the model learns {wider / table.width:.2f} times as much")
    finding = _padding(counters, "rows are padded to 8 floats", lost, worst, tuple(advice))
    yield replace(finding, evidence={**finding.evidence, "rows a line": packs}) if packs > 1 else finding


@rule(
    "padding-of-vocabulary",
    "guide section 10, padding overhead",
    needs=("tables", "sparsecores|target"),
    when="a tenth of the tables' bytes pads vocabularies (a hundredth of HBM: a warning)",
)
def padding_of_vocabulary(counters: Counters) -> Iterator[Finding]:
    shards = max(1, counters.shards)
    lost = {n: t.padded_bytes(shards) - 4 * t.vocab * t.padded_width for n, t in counters.tables.items()}
    worst = _worst(counters, lost)
    if not worst:
        return
    joined = bytes_text(_joined(counters, worst, shards))
    advice = f"join the small vocabularies into one table of offset ids: {joined} of padding are left"
    if len(worst) == 1:
        advice = "hold so small a table in the dense model: a product with one-hot rows costs less than a lookup"
    yield _padding(counters, "vocabularies are padded to 8 rows a shard", lost, worst, (advice,))


def _total(counters: Counters) -> int:
    return sum(table.padded_bytes(max(1, counters.shards)) for table in counters.tables.values())


def _worst(counters: Counters, lost: dict[str, int]) -> list[str]:
    """The tables that lose bytes, those that lose most first; none where all that is lost is not worth a finding."""
    worst = sorted((name for name in lost if lost[name]), key=lambda name: -lost[name])
    return worst if sum(lost.values()) >= _SHARE * _total(counters) else []


def _joined(counters: Counters, names: list[str], shards: int) -> int:
    """Padding left if the tables of each width were one."""
    rows: dict[int, int] = {}
    for name in names:
        table = counters.tables[name]
        rows[table.padded_width] = rows.get(table.padded_width, 0) + table.vocab
    return sum(padded_table_bytes(vocab, width, shards) - 4 * vocab * width for width, vocab in rows.items())


def _padding(
    counters: Counters, cause: str, lost_by: dict[str, int], worst: list[str], advice: tuple[str, ...]
) -> Finding:
    lost, total = sum(lost_by.values()), _total(counters)
    per_chip, capacity = lost / counters.chips, counters.hbm.capacity or 0
    table = counters.tables[worst[0]]
    others = "" if len(worst) == 1 else f" and {len(worst) - 1} others"
    return Finding(
        "warning" if capacity and per_chip >= _WARNING * capacity else "note",
        f"{cause}, which is {percent_text(lost / total)} of the tables' bytes: {worst[0]} "
        f"({table.vocab:,} x {table.width}){others}",
        advice,
        subject=worst[0] if len(worst) == 1 else "",
        evidence={
            "bytes of padding": lost,
            "share of the tables": round(lost / total, 4),
            "tables concerned": len(worst),
        },
        effect=f"up to {bytes_text(lost)} of HBM, all chips together",
    )
