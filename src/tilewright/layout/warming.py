"""Compile every kernel of the layout package, so that a first use does not wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tilewright.kernels import Job, do_jobs
from tilewright.layout.kinds.tiled import tiled
from tilewright.layout.move import JOIN, SHORTS, TRANSPOSE, UNZIP, ZIP
from tilewright.layout.move.move_kernels import address_of_primitive


def _elements(size: int) -> None:
    address_of_primitive(TRANSPOSE, size)
    for rows in (2, 4, 8):
        address_of_primitive(ZIP, size, rows)
        address_of_primitive(UNZIP, size, rows)


def warm(report: Callable[[str, float], None] | None = None) -> None:
    """Compile all kernels of this package, or load them from the cache (see :mod:`tilewright.kernels`).

    ``report`` is told each kernel's name and the seconds it took.
    """
    jobs: list[Job] = [
        ("offsets", lambda: tiled((8, 8), "u8").offsets(np.zeros((1 << 13, 2), np.int64))),
        ("moves", lambda: tiled((3, 5), "u8").pack(np.zeros((3, 5), np.uint8))),
        ("short runs", lambda: [address_of_primitive(kind, run) for kind in (SHORTS, JOIN) for run in (16, 32)]),
    ]
    for size in (1, 2, 4, 8):
        jobs.append((f"interleaving of {8 * size}-bit elements", partial(_elements, size)))
    do_jobs(jobs, report)
