"""Every step held against XLA, on the machine's own inputs of that step."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import CheckFailed
from tilewright.hlo import Value
from tilewright.isa.compiler.running import Execution
from tilewright.isa.lowering.steps import Step
from tilewright.isa.lowering.tables import folded_array

Array = np.ndarray[Any, Any]
_EPS = {"float32": 2.0**-24, "bfloat16": 2.0**-9, "float16": 2.0**-12}


def check_step(execution: Execution, step: Step) -> None:
    """Raise :class:`CheckFailed` where a step's values are not XLA's."""
    if step.fallback:
        return
    if step.copied is not None:
        _check_copy(execution, step)
    if not step.outputs:
        return
    xla = execution.lowering.reading.xla
    arrays = [execution.value(v) for v in step.inputs]
    found = [execution.value(v) for v in step.outputs]
    problems: list[str] = []
    for evaluate in (xla.of, xla.one_by_one):
        wanted = evaluate(step.nodes, step.inputs, step.outputs, arrays)
        allowed = _allowed(step, arrays)
        several = zip(step.outputs, found, wanted, strict=True)
        problems = [text for v, have, want in several if (text := difference(v, have, want, allowed))]
        if not problems:
            return
    raise CheckFailed(f"layer {step.name} ({step.unit}): {problems[0]}", where="against XLA")


def _check_copy(execution: Execution, step: Step) -> None:
    assert step.copied is not None
    source, table, groups = step.copied
    value = next(v for v, places in execution.lowering.places.items() if any(p.table == table for p in places))
    have = execution.machine.tensor(table)
    root = execution.lowering.reading.root(value)
    before = [p.table for p in execution.lowering.places.get(root, []) if p.table != table]
    if not before:
        return
    want = folded_array(execution.value(value), groups) if value is not root else None
    if want is None:
        first = execution.lowering.places[root][0].table
        want = folded_array(execution.fetched(root, first, execution.lowering.groups[first]), groups)
    if have.tobytes() != want.view(have.dtype).tobytes():
        where = np.argwhere(have != want.view(have.dtype))
        raise CheckFailed(f"layer {step.name} (copy of {source.table}): wrong from {where[0].tolist()} of {table} on")


def _allowed(step: Step, arrays: list[Array]) -> float:
    """Rounding errors, in units of the last place, that a sum of this depth may have in another order."""
    return 4.0 + 2.0 * float(np.sqrt(step.depth)) + 2.0 * len(step.nodes)


def difference(value: Value, have: Array, want: Array, allowed: float) -> str:
    """What is wrong, "" where nothing is: integers equal, floats within ``allowed`` roundings of their size."""
    if have.shape != want.shape or have.dtype != want.dtype:
        return f"{have.dtype}{list(have.shape)} where {want.dtype}{list(want.shape)} was expected"
    eps = _EPS.get(have.dtype.name)
    if eps is None:
        wrong = have != want
        if not wrong.any():
            return ""
    else:
        one, other = have.astype(np.float64), want.astype(np.float64)
        finite = np.isfinite(other)
        size = float(np.abs(other[finite]).max(initial=0.0))
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        wrong = ~(same | (finite & (np.abs(one - other) <= allowed * eps * max(size, 1e-30))))
        if not wrong.any():
            return ""
    first = tuple(np.argwhere(wrong)[0].tolist())
    return f"{int(wrong.sum())} of {wrong.size} values differ, first {list(first)}: {have[first]}, XLA {want[first]}"
