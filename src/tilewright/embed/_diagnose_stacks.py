"""How tables are grouped, and in which format they are held."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilewright.embed._diagnose_counters import Counters, StackCounters
from tilewright.embed._diagnose_types import Finding, Rule
from tilewright.embed._grouping import ACTIVATION_BYTES
from tilewright.render import bytes_text, count_text, percent_text
from tilewright.targets import target

__all__ = ["RULES"]

_FEWEST, _MOST = 5, 100
"""Tables a stack: the guide's advice."""
_FULL = 0.5
"""Tables and slots that take this share of HBM are worth a narrower format."""


def _too_few(counters: Counters) -> Iterator[Finding]:
    off = counters.knobs.disable_table_stacking
    kinds: dict[tuple[int, str, str], list[tuple[str, StackCounters]]] = {}
    for name, stack in counters.stacks.items():
        kinds.setdefault((stack.width, stack.optimizer, stack.combiner), []).append((name, stack))
    for (width, optimizer, _), members in kinds.items():
        small = [(name, stack) for name, stack in members if stack.tables < _FEWEST]
        tables, stacks = sum(stack.tables for _, stack in small), len(small)
        fit = _could_be(small, width)
        if not width or tables < _FEWEST or fit >= stacks:
            continue
        why = "table stacking is switched off" if off else "tables that could share a stack stand alone"
        yield Finding(
            "too-few-tables-stacked",
            "warning",
            f"{why}: each stack has its own buffers, programs and exchange between chips, whose latency nothing hides",
            (
                f"{'let' if off else 'stack'} the {count_text(tables)} tables of width {width}"
                + (f" ({optimizer})" if optimizer else "")
                + (" stack: disable_table_stacking = false" if off else f" into {fit} instead of {stacks} stacks"),
            ),
            evidence={
                "tables": tables,
                "stacks": stacks,
                "tables a stack": round(tables / stacks, 2),
                "stacks at 2 MiB of activations each": fit,
            },
            effect=f"{fit} exchanges each way a step instead of {stacks}",
        )


def _could_be(small: list[tuple[str, StackCounters]], width: int) -> int:
    """Stacks these would make within the activation bytes of a stack, and a hundred tables each: first fit."""
    sizes: list[tuple[int, int]] = []
    for _, stack in small:
        size = 4 * width * (stack.samples_per_sparsecore or 0)
        for i, (bytes_, tables) in enumerate(sizes):
            if bytes_ + size <= ACTIVATION_BYTES and tables + stack.tables <= _MOST:
                sizes[i] = bytes_ + size, tables + stack.tables
                break
        else:
            sizes.append((size, stack.tables))
    return len(sizes)


def _too_many(counters: Counters) -> Iterator[Finding]:
    for name, stack in counters.stacks.items():
        if stack.tables <= _MOST:
            continue
        parts = math.ceil(stack.tables / _MOST)
        yield Finding(
            "too-many-tables-stacked",
            "warning",
            "one logical table of so many grows until its limits meet the scratchpad's",
            (f"stack the {stack.tables} tables by hand into {parts} stacks of {math.ceil(stack.tables / parts)}",),
            subject=name,
            evidence={"tables": stack.tables, "the guide's most": _MOST},
            effect=f"limits of each stack near 1/{parts} of today's",
        )


def _float32(counters: Counters) -> Iterator[Finding]:
    names = [name for name, table in counters.tables.items() if table.dtype == "float32"]
    if not names:
        return
    hbm, seconds = counters.hbm, counters.seconds
    share = ((hbm.tables or 0) + hbm.slots) / hbm.capacity if hbm.capacity else 0.0
    bound = bool(
        seconds.sparsecore and seconds.tensorcore and seconds.sparsecore >= max(seconds.tensorcore, seconds.host or 0.0)
    )
    if share < _FULL and not bound:
        return
    sparse = target(counters.target).sparse if counters.target else None
    wider = sparse is not None and sparse.simd_bf16 > sparse.simd_f32
    evidence: dict[str, float] = {"float32 tables": len(names)}
    if share:
        evidence["share of HBM for tables and slots"] = round(share, 4)
    if bound:
        evidence |= {"sparsecore seconds": seconds.sparsecore or 0.0, "tensorcore seconds": seconds.tensorcore or 0.0}
    why = "the SparseCores are the slower unit" if bound else f"tables take {percent_text(share)} of HBM"
    half = f", {bytes_text((hbm.tables or 0) / 2)} a chip less" if hbm.tables else ""
    yield Finding(
        "float32",
        "warning" if bound else "note",
        f"rows are float32 and {why}: every row read, exchanged and updated is twice as long as in bfloat16",
        (
            "hold rows in bfloat16, or train with simulated quantisation (quantization_config_low, _high, "
            "_num_buckets = 256) and serve int8, a quarter of the bytes; compare the model's quality",
        ),
        evidence=evidence,
        effect=f"half the bytes of tables and exchange{half}"
        + (f"; {sparse.simd_bf16} lanes instead of {sparse.simd_f32} on {counters.target}" if sparse and wider else ""),
    )


RULES = (
    Rule(
        "too-few-tables-stacked",
        "guide section 10, table stacking: 5 to 100 tables",
        ("stack.tables", "stack.width"),
        "five tables or more of one kind stand in stacks of fewer than five, and could share one",
        _too_few,
    ),
    Rule(
        "too-many-tables-stacked",
        "guide section 10, table stacking: 5 to 100 tables",
        ("stack.tables",),
        "a stack has more than 100 tables",
        _too_many,
    ),
    Rule(
        "float32",
        "guide section 10, numerics and quantisation; section 13",
        ("tables", "hbm.capacity|seconds.sparsecore"),
        "the SparseCores are the slower unit, or tables fill half of HBM, and rows are float32",
        _float32,
    ),
)
