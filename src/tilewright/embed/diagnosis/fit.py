"""What fits: limits against what batches ask of them, a tile's scratchpad, the HBM stack and heap, padding."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tilewright.embed.diagnosis.explain import advice_for
from tilewright.embed.diagnosis.finding import Finding, rule, stack_rule
from tilewright.embed.model.counters import Counters, HbmCounters, StackCounters
from tilewright.embed.model.formulas import BUCKETS, gather_operand_floats, padded_table_bytes, round8, slots_per_device
from tilewright.embed.model.tables import Limits
from tilewright.embed.planning.memory import live_stacks, memory
from tilewright.errors import TilewrightError
from tilewright.render import bytes_text, count_text, percent_text, seconds_text
from tilewright.targets import target

# Limits that are too low or too high, and what follows: mini-batches, drops, compilations.

_TOO_HIGH = 2
"""Limits of so many times the observed maximum (rounded up to 8) are too high; or of the typical partition."""
_UNSURE, _OFTEN = 0.5, 0.1
"""Chances of a fresh batch over the limits, at most and about: worth a note, a warning."""
_SMALL = 64
"""Limits this low cost nothing worth saving."""
_LOST = 0.01
"""A drop rate that is severe; below it, a warning."""


def stack_bytes(counters: Counters, stack: StackCounters, limits: Limits) -> int | None:
    """HBM stack per SparseCore of a stack's larger program at ``limits``, by the measured rule."""
    if not (counters.target and counters.shards and stack.width):
        return None
    chip, shards = counters.target, counters.shards
    try:
        return max(memory(chip, shards, stack.width, limits, op).stack_bytes for op in stack.operations)
    except TilewrightError:
        return None


def _limits_of(name: str, limits: Limits) -> str:
    """Both limits of the stack ``name``, as advice says them."""
    ids, unique = limits.max_ids_per_partition, limits.max_unique_ids_per_partition
    return f"max_ids_per_partition of {name} to {ids} and max_unique_ids_per_partition to {unique}"


@stack_rule(
    "guide section 10, limits",
    needs="stack.max_ids_per_partition stack.observed_ids",
    when="a partition holds more than its limit",
)
def limits_too_low(counters: Counters, name: str, stack: StackCounters) -> Iterator[Finding]:
    limits = stack.limits
    if limits is None or stack.observed_ids is None:
        return
    unique = stack.observed_unique_ids or 0
    if stack.observed_ids <= limits.max_ids_per_partition and unique <= limits.max_unique_ids_per_partition:
        return
    ids = max(stack.observed_ids, unique, limits.max_ids_per_partition)
    needed = Limits(round8(ids), round8(max(unique, min(limits.max_unique_ids_per_partition, ids))))
    over, taken = stack_bytes(counters, stack, limits), stack_bytes(counters, stack, needed)
    effect = "no mini-batches, no drops and no errors of this stack"
    if over is not None and taken is not None:
        cost = f"{bytes_text(taken)} HBM stack per SparseCore"
        effect += f", for {cost} instead of {bytes_text(over)}" if taken > over else ", at no cost in HBM stack"
    advice = [f"set {_limits_of(name, needed)} (the most seen, rounded up to 8)"]
    known = counters.target and counters.shards and stack.width > 1
    if known and not memory(counters.target, counters.shards, stack.width, needed).compiles:
        advice.insert(0, "take more chips or a smaller batch: limits that hold these batches do not compile")
    yield Finding(
        "severe" if stack.drop_rate and stack.drop_rate >= _LOST else "warning",
        "partitions exceed their limits, so the host cuts mini-batches, drops ids or stops",
        tuple(advice),
        evidence={
            **vars(limits),
            "ids of the fullest partition": stack.observed_ids,
            "distinct ids of the fullest partition": unique,
        },
        effect=effect,
    )


@rule(
    "guide section 7, observed limits; the log's batches, held against each other",
    needs="fresh_over",
    when="a fresh batch exceeds the log's limits with a chance that may be a half (about a tenth: a warning)",
)
def limits_unsure(counters: Counters) -> Iterator[Finding]:
    about, most = counters.fresh_over or (0.0, 0.0)
    if most > _UNSURE:
        yield Finding(
            "warning" if about >= _OFTEN else "note",
            f"so few batches do not vouch for their limits: a fresh one exceeds them with a chance of about "
            f"{about:.2g}, at most {most:.2g} with 95 % confidence",
            (
                "plan with 150 batches or more: where none of the held-out ones is over, fewer than one in ten will be",
                "or leave room: `embed plan --headroom 0.1`",
            ),
        )


@stack_rule(
    "guide section 10, limits",
    needs="stack.max_ids_per_partition stack.observed_ids|stack.typical_ids",
    when="a limit is twice what was seen, or twice what 99 of 100 partitions hold",
)
def limits_too_high(counters: Counters, name: str, stack: StackCounters) -> Iterator[Finding]:
    limits = stack.limits
    if limits is None or limits.max_ids_per_partition <= _SMALL:
        return
    unique = min(stack.observed_unique_ids or stack.observed_ids or 1, stack.observed_ids or 1)
    if stack.observed_ids and limits.max_ids_per_partition >= _TOO_HIGH * round8(stack.observed_ids):
        yield _lower_limits(counters, name, stack, Limits(round8(stack.observed_ids), round8(unique)), "")
    elif stack.typical_ids and limits.max_ids_per_partition >= _TOO_HIGH * round8(stack.typical_ids):
        unique = min(stack.typical_unique_ids or stack.typical_ids, stack.typical_ids)
        better = Limits(round8(stack.typical_ids), round8(unique))
        yield _lower_limits(counters, name, stack, better, "; one partition in a hundred then exceeds them")


def _lower_limits(counters: Counters, name: str, stack: StackCounters, better: Limits, price: str) -> Finding:
    limits = stack.limits
    assert limits is not None
    now, then = stack_bytes(counters, stack, limits), stack_bytes(counters, stack, better)
    saved = ""
    if now is not None and then is not None:
        saved = f"{bytes_text(then)} HBM stack per SparseCore instead of {bytes_text(now)}; "
    slots = counters.shards and 12 * slots_per_device(
        limits.max_ids_per_partition - better.max_ids_per_partition, counters.shards, 1
    )
    saved += f"{bytes_text(slots)} fewer of input per SparseCore and batch" if slots else "less HBM stack and input"
    evidence: dict[str, float] = {"max_ids_per_partition": limits.max_ids_per_partition}
    for text, value in (("most ids seen", stack.observed_ids), ("ids of 99 % of the partitions", stack.typical_ids)):
        if value is not None:
            evidence[text] = value
    peaks = "peaks that few partitions reach" if price else "counts that no batch reaches"
    return Finding(
        "note",
        f"the limits are sized for {peaks}: scratchpad, HBM stack and input buffers are laid out for them",
        (f"lower {_limits_of(name, better)}{price}",),
        evidence=evidence,
        effect=saved,
        bytes=max(0, (now or 0) - (then or 0)) * counters.shards,
    )


@rule(
    "guide section 11, mini-batching; section 10, limits",
    needs="minibatches|steps_over steps",
    when="steps are cut (two mini-batches a step: severe), or cannot be (severe)",
)
def mini_batching(counters: Counters) -> Iterator[Finding]:
    steps, minibatches = (counters.steps or 0) - counters.uncut, counters.minibatches
    over = counters.steps_over or 0.0
    share = {} if counters.steps_over is None else {"share of the steps over a limit": over}
    if counters.uncut and counters.steps:
        refused = counters.uncut / counters.steps
        yield Finding(
            "severe",
            "one hash bucket alone exceeds a limit, mini-batches cannot cut it, and preprocess refuses the batch"
            + (f": {counters.uncut_because}" if counters.uncut_because else ""),
            (
                "raise the limits named by limits-too-low",
                "or cut along the samples (preprocess_samples), or set allow_id_dropping, which drops and counts ids",
            ),
            evidence={"share of the steps that cannot be cut": refused, **share},
            effect=f"{percent_text(refused)} of the batches are made that are refused now",
        )
    elif minibatches is None and over:
        yield Finding(
            "severe" if over >= 0.5 else "warning",
            f"{percent_text(over)} of the batches exceed a limit: each is cut into mini-batches, loses ids or fails",
            ("raise the limits named by limits-too-low, or plan with a higher --quantile",),
            evidence=share,
        )
    if minibatches is not None and steps and minibatches > steps:
        mean = minibatches / steps
        yield Finding(
            "severe" if mean >= 2 else "warning",
            "batches exceed limits, so every step looks up and updates in several rounds",
            ("raise the limits named by limits-too-low, or spread hot ids (see skew): one round then does",),
            evidence={"mini-batches per step": round(mean, 4), **share},
            effect=f"1 round of lookup and update a step instead of {mean:.2f}",
        )


@rule(
    "measured on jax-tpu-embedding 0.2.0: mini-batch buffers are 64 times as long",
    needs="minibatches steps",
    when="the mini-batch layout is on and never needed",
)
def idle_mini_batching(counters: Counters) -> Iterator[Finding]:
    if not counters.minibatch_layout or counters.minibatches != counters.steps:
        return
    size = counters.buffer_bytes
    then = f"{bytes_text(size / BUCKETS)} a batch and chip instead of {bytes_text(size)}" if size else ""
    yield Finding(
        "warning",
        f"buffers are laid out for mini-batches, which makes them {BUCKETS} times as long, and no batch needed one",
        ('preprocess with minibatch_layout="needed", which lays out only a batch that is cut',),
        evidence={"steps": counters.steps or 0, **({"buffer bytes": size} if size else {})},
        effect=then,
    )


@stack_rule(
    "guide section 11, id dropping; section 4, allow_id_dropping",
    needs="stack.dropped_ids|stack.dropped_share",
    when="an id is dropped (one in a hundred: severe)",
)
def id_dropping(counters: Counters, name: str, stack: StackCounters) -> Iterator[Finding]:
    rate = stack.drop_rate
    if not rate:
        return
    evidence: dict[str, float] = {"share of the entries dropped": rate}
    if stack.dropped_ids:
        evidence["entries dropped"] = stack.dropped_ids
    advice = ["raise the limits of this stack: see limits-too-low"]
    if stack.observed_ids:
        advice = [f"set max_ids_per_partition of {name} to {round8(stack.observed_ids)}"]
        if unique := stack.observed_unique_ids:
            advice[0] += f" and max_unique_ids_per_partition to {round8(unique)}"
    yield Finding(
        "severe" if rate >= _LOST else "warning",
        "ids above the limits are dropped: the model does not learn from them and predicts without them",
        (*advice, "or take overflow=minibatch, which keeps every id at the price of more rounds"),
        evidence=evidence,
        effect=f"{percent_text(rate)} of the entries kept that are lost now",
    )


@rule(
    "guide section 11, compilation time",
    needs="compilations steps",
    when="more than one program is compiled (a fifth of the time: severe)",
)
def recompilation(counters: Counters) -> Iterator[Finding]:
    compiled, steps = counters.compilations or 0, counters.steps or 0
    if compiled <= 1 or not steps:
        return
    seconds = counters.seconds
    share = seconds.compile / (seconds.compile + seconds.step * steps) if seconds.compile and seconds.step else None
    evidence: dict[str, float] = {"programs compiled": compiled, "steps": steps}
    effect = f"1 program instead of {compiled}"
    if seconds.compile:
        evidence["seconds compiling"] = seconds.compile
        effect += f", {seconds_text(seconds.compile * (1 - 1 / compiled))} less compiling"
    if share is not None:
        evidence["share of the time"] = round(share, 4)
    severe = share >= 0.2 if share is not None else compiled * 10 >= steps
    frequent = "every change of limits or buffer sizes compiles the program anew"
    yield Finding(
        "severe" if severe else "warning",
        frequent + (f" ({count_text(compiled)} times in {count_text(steps)} steps)"),
        (
            "fix the limits before the run: `embed plan LOG -o limits.json` over a log long enough to hold the peaks",
            "if limits are learnt while training (FDO), round them up to powers of two and change them once an epoch",
        ),
        evidence=evidence,
        effect=effect,
    )


# What does not fit: a tile's scratchpad, the HBM stack, the HBM heap.

_NEARLY = 0.9
"""HBM this full leaves no room for a larger batch, fragments or a longer prefetch."""


@stack_rule(
    "guide section 10, SPMEM overflow; rules measured against libtpu 0.0.50.1",
    needs="target stack.max_ids_per_partition stack.width",
    when="a stack's lookup or update does not compile at its limits",
)
def spmem_overflow(counters: Counters, name: str, stack: StackCounters) -> Iterator[Finding]:
    limits = stack.limits
    if limits is None or not stack.width or not counters.shards:
        return
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
            evidence={
                **vars(limits),
                "bytes needed per tile": program.tile_bytes,
                "bytes of a tile": program.tile_limit,
            },
            effect="compiles with {} ids and {} distinct ids".format(*vars(best).values()) if best else "",
        )
        break


@stack_rule(
    "guide section 10, SPMEM overflow; section 14, gather operands in HBM",
    needs="target stack.samples_per_sparsecore stack.width",
    when="samples * width / 16 floats exceed a tile's scratchpad",
)
def gather_operand(counters: Counters, name: str, stack: StackCounters) -> Iterator[Finding]:
    sparse = target(counters.target).sparse
    if sparse is None or not sparse.tile_spmem_bytes:
        return
    samples, room = stack.samples_per_sparsecore or 0, sparse.tile_spmem_bytes
    needed = 4 * gather_operand_floats(samples, stack.width, sparse.tiles)
    if needed <= room:
        return
    yield Finding(
        "note",
        "one tile's share of the activations exceeds its scratchpad: a compiler that does not stage gather operands in "
        'HBM refuses with "Gather operand too large"',
        (
            "use libtpu 0.0.50.1 or newer, which stages them in HBM",
            f"or cut the batch to {room / needed:.0%}, take {math.ceil(needed / room)} times the chips, stack fewer "
            "features",
        ),
        evidence={"samples per SparseCore": samples, "bytes needed per tile": needed, "bytes of a tile": room},
    )


@rule(
    "guide section 10, HBM stack overflow; section 9",
    needs="hbm.forward_stack|hbm.backward_stack hbm.capacity",
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
    serial = next((turns for turns, size in enumerate(serialized_stack(counters)) if turns > 1 and size <= free), 0)
    if serial > turns:
        advice.append(
            f"set xla_sc_num_serialized_tables_to_optimize_hbm from {turns} to {serial}: fewer stacks are live at a "
            "time, and a step takes longer"
        )
    if names:
        advice.append(f"lower the limits, of {names[0]} first, to {free / hbm.stack:.0%} or less: the stack follows")
    advice.append(f"take {_chips_that_fit(counters, hbm)} chips: tables and partitions both get smaller")
    yield Finding(
        "severe",
        "tables and inputs leave less HBM than the programs' stack takes: it fails when it is compiled or run",
        tuple(advice),
        evidence={"bytes of stack": hbm.stack, "bytes free beside the heap": free, "bytes of HBM": capacity},
        effect=f"{bytes_text(hbm.stack - free)} to save",
        change={"sparsecore": {"num_serialized_tables_to_optimize_hbm": serial}} if serial > turns else {},
    )


def serialized_stack(counters: Counters) -> list[int]:
    """HBM stack with 0, 1, 2, ... stacks processed in turn, in bytes.

    The largest are taken to be live; all count alike where their sizes do not follow from the limits.
    """
    known = [limits and stack_bytes(counters, s, limits) for s in counters.stacks.values() for limits in (s.limits,)]
    sizes = [size for size in known if size]
    if len(sizes) < len(known) or not known:
        sizes = [1] * max(1, len(known))
    sizes.sort(reverse=True)
    live = [sum(sizes[: live_stacks(len(sizes), turns)]) for turns in range(len(sizes) + 1)]
    now = live[min(counters.knobs.num_serialized_tables_to_optimize_hbm, len(sizes))]
    return [round(counters.hbm.stack * size / now) for size in live]


def _chips_that_fit(counters: Counters, hbm: HbmCounters) -> int:
    """The fewest times as many chips (powers of two) on which heap and stack fit; tables divide, the stack at least."""
    divided, room = hbm.heap - hbm.dense + hbm.stack, (hbm.capacity or 0) - hbm.dense
    return counters.chips * next((2**k for k in range(1, 12) if divided / 2**k <= room), 4096)


@rule(
    "guide section 10, HBM heap exhaustion; section 11, memory analysis",
    needs="hbm.tables hbm.capacity",
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
    advice.append(f"take {_chips_that_fit(counters, hbm)} chips: each holds its share of the rows")
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
    "guide section 10, padding overhead",
    needs="tables",
    when="a tenth of the tables' bytes pads rows to 8 floats (a hundredth of HBM: a warning)",
)
def padding_of_width(counters: Counters) -> Iterator[Finding]:
    shards = max(1, counters.shards)
    padded = {name: table.padded_bytes(shards) for name, table in counters.tables.items()}
    lost = {n: padded[n] - padded[n] * t.width // t.padded_width for n, t in counters.tables.items()}
    for finding, worst in _padding(counters, "rows are padded to 8 floats", lost):
        table = counters.tables[worst[0]]
        wider, packs, advice = table.padded_width, max(1, 8 // table.width), list[str]()
        if packs > 1:
            advice.append(
                f"let {packs} rows of {table.width} floats share each 32-byte line instead of one (narrow_packing)"
            )
        if table.width % 8:
            many = "" if len(worst) == 1 else f" (and {len(worst) - 1} more tables)"
            times = f"{wider / table.width:.2f}"
            advice.append(f"make {worst[0]} {wider} wide{many}: the model learns {times} times as much")
        evidence = {**finding.evidence, **({"rows a line": packs} if packs > 1 else {})}
        yield replace(finding, advice=tuple(advice), evidence=evidence)


@rule(
    "guide section 10, padding overhead",
    needs="tables sparsecores|target",
    when="a tenth of the tables' bytes pads vocabularies (a hundredth of HBM: a warning)",
)
def padding_of_vocabulary(counters: Counters) -> Iterator[Finding]:
    shards = max(1, counters.shards)
    lost = {n: t.padded_bytes(shards) - 4 * t.vocab * t.padded_width for n, t in counters.tables.items()}
    for finding, worst in _padding(counters, "vocabularies are padded to 8 rows a shard", lost):
        rows = Counter[int]()  # of the tables that these would be, joined into one per width
        for table in map(counters.tables.__getitem__, worst):
            rows[table.padded_width] += table.vocab
        left = sum(padded_table_bytes(vocab, width, shards) - 4 * vocab * width for width, vocab in rows.items())
        advice = f"join the small vocabularies into one table of offset ids: {bytes_text(left)} of padding are left"
        if len(worst) == 1:
            advice = "hold so small a table in the dense model: a product with one-hot rows costs less than a lookup"
        yield replace(finding, advice=(advice,))


def _padding(counters: Counters, cause: str, lost_by: dict[str, int]) -> Iterator[tuple[Finding, list[str]]]:
    """A finding without advice, and the tables with padding, those with most first; nothing where all padding together
    is not worth one."""
    shards = max(1, counters.shards)
    worst = sorted((name for name in lost_by if lost_by[name]), key=lambda name: -lost_by[name])
    lost, total = sum(lost_by.values()), sum(table.padded_bytes(shards) for table in counters.tables.values())
    if not worst or lost < _SHARE * total:
        return
    per_chip, capacity = lost / counters.chips, counters.hbm.capacity or 0
    table = counters.tables[worst[0]]
    others = "" if len(worst) == 1 else f" and {len(worst) - 1} others"
    finding = Finding(
        "warning" if capacity and per_chip >= _WARNING * capacity else "note",
        f"{cause}, which is {percent_text(lost / total)} of the tables' bytes: {worst[0]} "
        f"({table.vocab:,} x {table.width}){others}",
        (),
        subject=worst[0] if len(worst) == 1 else "",
        evidence={
            "bytes of padding": lost,
            "share of the tables": round(lost / total, 4),
            "tables concerned": len(worst),
        },
        effect=f"up to {bytes_text(lost)} of HBM, all chips together",
        bytes=lost,
    )
    yield finding, worst
