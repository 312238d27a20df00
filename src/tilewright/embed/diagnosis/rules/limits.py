"""Limits against what batches ask of them: too low, too high, and what follows (mini-batches, drops, compilations)."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.embed.diagnosis.finding import Finding, rule
from tilewright.embed.model.formulas import BUCKETS, round8, slots_per_device
from tilewright.embed.model.tables import Limits
from tilewright.embed.planning.counters import Counters, StackCounters
from tilewright.embed.planning.memory import memory
from tilewright.errors import TilewrightError
from tilewright.render import bytes_text, count_text, percent_text, seconds_text

_TOO_HIGH = 2
"""Limits of so many times the observed maximum (rounded up to 8) are too high; or of the typical partition."""
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


@rule(
    "limits-too-low",
    "guide section 10, limits",
    needs=("stack.max_ids_per_partition", "stack.observed_ids"),
    when="a partition holds more than its limit",
)
def limits_too_low(counters: Counters) -> Iterator[Finding]:
    for name, stack in counters.stacks.items():
        limits = stack.limits
        if limits is None or stack.observed_ids is None:
            continue
        unique = stack.observed_unique_ids or 0
        if stack.observed_ids <= limits.max_ids_per_partition and unique <= limits.max_unique_ids_per_partition:
            continue
        ids = max(stack.observed_ids, unique, limits.max_ids_per_partition)
        needed = Limits(round8(ids), round8(max(unique, min(limits.max_unique_ids_per_partition, ids))))
        over, taken = stack_bytes(counters, stack, limits), stack_bytes(counters, stack, needed)
        effect = "no mini-batches, no drops and no errors of this stack"
        if over is not None and taken is not None:
            cost = f"{bytes_text(taken)} HBM stack per SparseCore"
            effect += f", for {cost} instead of {bytes_text(over)}" if taken > over else ", at no cost in HBM stack"
        advice = [
            f"set max_ids_per_partition of {name} to {needed.max_ids_per_partition} and max_unique_ids_per_partition "
            f"to {needed.max_unique_ids_per_partition} (the most seen, rounded up to 8)"
        ]
        if not _compiles(counters, stack, needed):
            advice.insert(0, "take more chips or a smaller batch: limits that hold these batches do not compile")
        yield Finding(
            "severe" if stack.drop_rate and stack.drop_rate >= _LOST else "warning",
            "partitions exceed their limits, so the host cuts mini-batches, drops ids or stops",
            tuple(advice),
            subject=name,
            evidence={
                "max_ids_per_partition": limits.max_ids_per_partition,
                "ids of the fullest partition": stack.observed_ids,
                "max_unique_ids_per_partition": limits.max_unique_ids_per_partition,
                "distinct ids of the fullest partition": unique,
            },
            effect=effect,
        )


def _compiles(counters: Counters, stack: StackCounters, limits: Limits) -> bool:
    if not (counters.target and counters.shards and stack.width > 1):
        return True
    return memory(counters.target, counters.shards, stack.width, limits).compiles


@rule(
    "limits-too-high",
    "guide section 10, limits",
    needs=("stack.max_ids_per_partition", "stack.observed_ids|stack.typical_ids"),
    when="a limit is twice what was seen, or twice what 99 of 100 partitions hold",
)
def limits_too_high(counters: Counters) -> Iterator[Finding]:
    for name, stack in counters.stacks.items():
        limits = stack.limits
        if limits is None or limits.max_ids_per_partition <= _SMALL:
            continue
        unique = min(stack.observed_unique_ids or stack.observed_ids or 1, stack.observed_ids or 1)
        if stack.observed_ids and limits.max_ids_per_partition >= _TOO_HIGH * round8(stack.observed_ids):
            yield _lower(counters, name, stack, Limits(round8(stack.observed_ids), round8(unique)), "")
        elif stack.typical_ids and limits.max_ids_per_partition >= _TOO_HIGH * round8(stack.typical_ids):
            unique = min(stack.typical_unique_ids or stack.typical_ids, stack.typical_ids)
            better = Limits(round8(stack.typical_ids), round8(unique))
            yield _lower(counters, name, stack, better, "; one partition in a hundred then exceeds them")


def _lower(counters: Counters, name: str, stack: StackCounters, better: Limits, price: str) -> Finding:
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
        (
            f"lower max_ids_per_partition of {name} to {better.max_ids_per_partition} and "
            f"max_unique_ids_per_partition to {better.max_unique_ids_per_partition}{price}",
        ),
        subject=name,
        evidence=evidence,
        effect=saved,
    )


@rule(
    "mini-batching",
    "guide section 11, mini-batching; section 10, limits",
    needs=("minibatches|steps_over", "steps"),
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
    "idle-mini-batching",
    "measured on jax-tpu-embedding 0.2.0: mini-batch buffers are 64 times as long",
    needs=("minibatches", "steps"),
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


@rule(
    "id-dropping",
    "guide section 11, id dropping; section 4, allow_id_dropping",
    needs=("stack.dropped_ids|stack.dropped_share",),
    when="an id is dropped (one in a hundred: severe)",
)
def id_dropping(counters: Counters) -> Iterator[Finding]:
    for name, stack in counters.stacks.items():
        rate = stack.drop_rate
        if not rate:
            continue
        evidence: dict[str, float] = {"share of the entries dropped": rate}
        if stack.dropped_ids:
            evidence["entries dropped"] = stack.dropped_ids
        advice = ["raise the limits of this stack: see limits-too-low"]
        if stack.observed_ids:
            advice = [
                f"set max_ids_per_partition of {name} to {round8(stack.observed_ids)}"
                + (
                    f" and max_unique_ids_per_partition to {round8(stack.observed_unique_ids)}"
                    if stack.observed_unique_ids
                    else ""
                )
            ]
        yield Finding(
            "severe" if rate >= _LOST else "warning",
            "ids above the limits are dropped: the model does not learn from them and predicts without them",
            (*advice, "or take overflow=minibatch, which keeps every id at the price of more rounds"),
            subject=name,
            evidence=evidence,
            effect=f"{percent_text(rate)} of the entries kept that are lost now",
        )


@rule(
    "recompilation",
    "guide section 11, compilation time",
    needs=("compilations", "steps"),
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
