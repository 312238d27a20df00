"""Errors of memory other than a tile's scratchpad rules: HBM that is full, a gather operand of an older compiler."""

from __future__ import annotations

import math
import re

from tilewright.embed._memory import RULE_VERSION
from tilewright.render import bytes_text

__all__ = ["GATHER", "HBM", "gather_figures", "hbm_figures"]

_SIZE = r"([\d.,]+)\s*([KMGT]i?B?|B|bytes)?"
HBM = re.compile(
    rf"(?:Ran out of memory in memory space hbm|[Ee]xceeded hbm capacity)[^\0]{{0,60}}?Used {_SIZE} of {_SIZE} hbm"
)
GATHER = re.compile(r"Gather operand too large[^\n]*")
_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _bytes(number: str, unit: str | None) -> int:
    return round(float(number.replace(",", "")) * _UNITS["" if unit in (None, "bytes") else unit[0]])


def hbm_figures(match: re.Match[str]) -> tuple[dict[str, int], str, tuple[str, ...]]:
    """Figures, meaning and advice of "Ran out of memory in memory space hbm. Used 110.5G of 95.74G hbm"."""
    used, capacity = _bytes(match[1], match[2]), _bytes(match[3], match[4])
    over, times = used - capacity, max(2, math.ceil(used / max(1, capacity)))
    figures = {"used": used, "HBM of the chip": capacity, "too much": over}
    meaning = (
        f"heap (tables, optimizer slots, inputs fetched ahead, dense weights) and stack of one chip need "
        f"{bytes_text(over)} more than its HBM"
    )
    advice = (
        "see which it is: `tilewright embed plan LOG --config MODEL` splits HBM into tables, slots, inputs and "
        "stack (the compiler's own estimate of the stack is a 32-bit number and wraps above 4 GiB)",
        "stack too large: set xla_sc_num_serialized_tables_to_optimize_hbm to 1 or more, or lower the limits: the "
        f"stack follows max_unique_ids_per_partition; {bytes_text(over)} must go",
        f"tables too large: take {times} times the chips, each then holds 1/{times} of the rows",
        "inputs too large: lower maximum_parallel_iterations, or preprocess without the mini-batch layout, which is 64 "
        "times as long",
    )
    return figures, meaning, advice


def gather_figures(match: re.Match[str]) -> tuple[dict[str, int], str, tuple[str, ...]]:
    """Figures, meaning and advice of "Gather operand too large ..."; its two numbers, where it has them."""
    sizes = sorted(int(n.replace(",", "")) for n in re.findall(r"\d[\d,]{3,}", match.group()))
    figures = {"operand of one tile": sizes[-1], "TileSpmem per tile": sizes[-2]} if len(sizes) > 1 else {}
    if figures:
        share, times = sizes[-2] / sizes[-1], math.ceil(sizes[-1] / sizes[-2])
        fewer = f"cut the batch to {share:.0%} or take {times} times the chips: both divide the samples per SparseCore"
    else:
        fewer = "halve the batch or double the chips: both halve the samples per SparseCore"
    meaning = "samples per SparseCore * width / 16 floats, gathered by one tile, do not fit in its TileSpmem"
    advice = (
        f"use a newer compiler: {RULE_VERSION} stages gather operands in HBM and does not raise this error",
        fewer,
        "put fewer features into one stack: its samples are those of all its features",
    )
    return figures, meaning, advice
