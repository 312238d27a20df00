"""What jax-tpu-embedding's host code prints when a batch exceeds its limits: it ends the process, or warns and drops.

Texts of 0.2.0. The one for distinct ids advises to raise max_ids_per_partition, which does not help.
"""

from __future__ import annotations

import re

from tilewright.embed._formulas import round8

__all__ = ["OVERFLOW", "overflow_figures"]

OVERFLOW = re.compile(
    r"(?:(?P<drops>Allowing ID dropping for table: (?P<warned>\S+) )observed|Observed) max (?P<unique>unique )?ids per "
    r"partition: (?P<observed>\d+)(?: for table: (?P<table>\S+))? is greater than the set max (?:unique )?ids per "
    r"partition: (?P<limit>\d+)"
)


def overflow_figures(match: re.Match[str], text: str) -> tuple[dict[str, int], str, tuple[str, ...]]:
    """Figures, meaning and advice for the table of ``match``: the most that any line of ``text`` says of it."""
    table, unique = match["table"] or match["warned"], bool(match["unique"])
    alike = [m for m in OVERFLOW.finditer(text) if (m["table"] or m["warned"]) == table and bool(m["unique"]) == unique]
    limit, most = int(match["limit"]), max(int(m["observed"]) for m in alike)
    knob = "max_unique_ids_per_partition" if unique else "max_ids_per_partition"
    figures = {f"{knob} of {table} (ids)": limit, "most observed (ids)": most, "lines that say so": len(alike)}
    kind = "distinct ids" if unique else "ids"
    then = "it drops what is above, the highest local ids first" if match["drops"] else "it ends the process"
    meaning = f"one SparseCore has {most:,} {kind} of {table} for one shard, and the limit is {limit:,}: {then}"
    advice = [f"set {knob} of {table} to at least {round8(most):,} (the most in this text, rounded up to 8)"]
    if unique:
        advice.append(
            "raise max_unique_ids_per_partition, not max_ids_per_partition as the text says (which must not be below)"
        )
    advice += [
        "find limits that hold a whole log before the run: `tilewright embed plan LOG --config MODEL -o limits.json`; "
        "later batches may ask for more than this one",
        "see whether they compile: `embed plan` says so, or memory(target, sparsecores, width, limits)",
        "or let the host cut mini-batches (enable_minibatching), which keeps every id",
    ]
    return figures, meaning, tuple(advice)
