"""Compile every kernel of the matrix unit, so that a first use does not wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.isa.execute.run import MatrixUnit
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.multiply.matmul import matmul
from tilewright.isa.study.profile import profile
from tilewright.kernels import Job, do_jobs

_WALKS = """segment ur1, $S
segment ur2, $T
tid r0
cmp.lt p1, r0, 3
@p1, mm8.t1 r8, ur1:rf0:0x00, r20
clr r8, 4
mm8.t1 r8, ur2:rf0:0x00, r20"""
_LOADED = "segment ur1, $S\nld r0, ur1:rf0:0x00\nmm8.sa.sb r0, ur1:rf8:0x00, r256\nhalt"
_PAGES_THERE_AND_BACK = "segment ur1, $S\ndmaout ur1\ndmain ur1\nhalt"


def _multiply(dtype: str, depth: int = 4, rows: int = 4, **options: Any) -> None:
    a, b = np.ones((rows, depth), dtype), np.ones((depth, rows), dtype)
    matmul(a, b, config=MatrixUnitConfig(threads=16, **options))


def warm(report: Callable[[str, float], None] | None = None) -> None:
    """Compile all kernels of this package, or load them from the cache; ``report`` is told each one's name and seconds.

    >>> names = []
    >>> warm(lambda name, seconds: names.append(name))
    >>> names[0]
    'mm of integers'
    """
    small = MatrixUnit(MatrixUnitConfig(threads=4))
    poisoned = MatrixUnit(MatrixUnitConfig(threads=4, uninitialized="poison"))
    jobs: tuple[Job, ...] = (
        ("mm of integers", lambda: _multiply("int8", loads_through_l1=True)),
        ("mm of many integers", lambda: _multiply("int8", 40)),
        ("mm of floats", lambda: _multiply("float32", 32, 32)),
        ("vectors", lambda: small.run("vf.add r0, r1, r2, 4\nvi.add r0, r1, r2, 4\nhalt")),
        ("pages moved out and in", lambda: small.run(_PAGES_THERE_AND_BACK, {"S": np.zeros(16, np.int32)})),
        ("walks that retain lines", lambda: poisoned.run(_WALKS, dict.fromkeys("ST", np.zeros((8, 64), np.int8)))),
        ("a profile", lambda: profile(_LOADED, {"S": np.zeros((4, 4), np.int8)}, MatrixUnitConfig(threads=4))),
    )
    do_jobs(jobs, report)
