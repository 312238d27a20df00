"""What one step moves on a pod, per chip, and the least time that takes: closed forms over what was counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.embed.model.stacking import Stacking
from tilewright.targets import Target, target


@dataclass(frozen=True)
class Traffic:
    """Of one step and one chip; with C chips, W floats a row (padded), s floats of slots:

    ================  ==============================================================================================
    ``rows``          U, rows asked of the chip, once for every source SparseCore that asks: distinct ids / C
    ``hbm_bytes``     4 * (U * (3 W + 2 s) + 4 * W * samples): a row is read for the lookup; row and slots are read and
                      written for the update; activations and their gradients are written and read
    ``link_bytes``    out of the chip: U * (4 + 8 W) * (C - 1) / C: an id, its vector, and its gradient
    ``host_bytes``    the batch's buffers, from the host
    ``seconds``       the slower of HBM and links at full rate; 0.0 without a target that says both
    ================  ==============================================================================================
    """

    rows: float
    hbm_bytes: float
    link_bytes: float
    host_bytes: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain values, marked as what they are."""
        return {**vars(self), "basis": "modelled"}


def traffic_of(
    stacking: Stacking,
    samples: Mapping[str, int],
    distinct: Mapping[str, float],
    buffer_bytes: int,
    chip: str | Target | None,
) -> Traffic:
    """``samples`` and ``distinct``: of every stack, rows of activations on one SparseCore, and distinct ids of a batch
    summed over the sources."""
    topology = stacking.topology
    chips, per_chip = topology.chips, topology.sparsecores_per_chip
    rows = hbm = links = 0.0
    for group in stacking.groups:
        here, width = distinct[group.name] / chips, group.padded_width
        rows += here
        hbm += 4 * (here * (3 * width + 2 * group.slot_floats) + 4 * width * samples[group.name] * per_chip)
        links += here * (4 + 8 * width) * (chips - 1) / chips
    host, seconds = buffer_bytes * topology.devices // chips, 0.0
    if chip is not None:
        memory, between = target(chip).memory("hbm"), target(chip).links
        rates = [(hbm, memory.bytes_per_second if memory else 0), (links, between.bytes_per_second if between else 0)]
        if all(rate for _, rate in rates):
            seconds = max(amount / rate for amount, rate in rates)
    return Traffic(rows, hbm, links, host, seconds)
