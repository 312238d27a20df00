"""Simulated quantisation: what a lookup sees of a row, as if tables held few levels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tilewright.errors import UsageError

__all__ = ["Quantization"]


@dataclass(frozen=True)
class Quantization:
    """Rows are clipped to ``low .. high`` and rounded to ``num_buckets`` even levels, in lookups only.

    The guide's ``quantization_config_low``, ``_high`` and ``_num_buckets``. Updates see the rows as they are.

    >>> import numpy as np
    >>> Quantization(-1.0, 1.0, 5).apply(np.float32([-3, -0.3, 0.2, 0.8]), np).tolist()
    [-1.0, -0.5, 0.0, 1.0]
    """

    low: float
    high: float
    num_buckets: int

    def __post_init__(self) -> None:
        """At least two levels in a range that is one."""
        where = "quantization"
        buckets = self.num_buckets
        if isinstance(buckets, bool) or not hasattr(buckets, "__index__") or buckets.__index__() < 2:
            raise UsageError(f"num_buckets = {buckets!r} is not a whole number of at least 2", where=where)
        for name in ("low", "high"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise UsageError(f"{name} = {value!r} is not a finite number", where=where)
            object.__setattr__(self, name, float(value))
        if self.low >= self.high:
            raise UsageError(f"low {self.low} is not below high {self.high}", where=where)

    def apply(self, rows: Any, xp: Any) -> Any:
        """The rows as a lookup sees them; ``xp`` is numpy or jax.numpy."""
        step = (self.high - self.low) / (self.num_buckets - 1)
        return xp.round((xp.clip(rows, self.low, self.high) - self.low) / step) * step + self.low
