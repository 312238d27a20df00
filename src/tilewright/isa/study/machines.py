"""sweep: the best choice for a matrix product on every machine of a family that differs in a few fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from math import prod
from typing import Any

from tilewright.errors import UsageError
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.study.tune import Tuning, autotune

_MOST = 200


@dataclass(frozen=True)
class Design:
    """One machine: the fields it differs in, and its tuning, or why it cannot be (``refused``)."""

    settings: dict[str, Any]
    tuning: Tuning | None
    refused: str = ""


def sweep(
    m: int,
    n: int,
    k: int,
    over: Mapping[str, Sequence[Any]],
    dtype: str = "s8",
    config: MatrixUnitConfig | None = None,
    watch: Callable[[int, int], None] | None = None,
    **how: Any,
) -> tuple[Design, ...]:
    """:func:`autotune` on every combination of values of the machine's fields; ``how``: its other options.

    Each machine is compared at its best, so a field is not blamed for options that suited another machine. In the order
    of ``over``, the last field fastest; ``watch(done, all)`` is told. Machines that cannot be are listed with the
    reason. Raises :class:`UsageError` for a field that does not exist and for more than 200 machines.

    >>> few = {"line": None, "columns": None, "order": "k_outer"}
    >>> for design in sweep(16, 64, 64, {"threads": (32, 64)}, **few):
    ...     print(design.settings, design.tuning.best.choice, design.tuning.best.cycles)
    {'threads': 32} ka2 kb1 k_outer t0 page 64x64 1 segments A by 8 1400
    {'threads': 64} ka2 kb1 k_outer t0 A by 8 1143
    """
    base, family = config or MatrixUnitConfig(), machines(over)
    designs = []
    for settings in family:
        designs.append(_design(base, settings, lambda c: autotune(m, n, k, dtype, c, **how)))
        if watch is not None:
            watch(len(designs), len(family))
    return tuple(designs)


def machines(over: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of values of the machine's fields, the last field fastest."""
    known = sorted(f.name for f in fields(MatrixUnitConfig))
    for name, values in over.items():
        if name not in known:
            raise UsageError(f"the machine has no field {name!r}", how=f"one of {', '.join(known)}")
        if not values:
            raise UsageError(f"no values for {name}")
    count = prod(len(values) for values in over.values())
    if count > _MOST:
        raise UsageError(f"{count} machines", how=f"at most {_MOST}: give fewer values")
    return [dict(zip(over, values, strict=True)) for values in product(*over.values())]


def _design(base: MatrixUnitConfig, settings: dict[str, Any], tune: Callable[[MatrixUnitConfig], Tuning]) -> Design:
    try:
        machine = replace(base, **settings)
    except UsageError as error:
        return Design(settings, None, str(error))
    return Design(settings, tune(machine))
