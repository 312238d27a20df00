"""Every step held against XLA, on the machine's own inputs of that step."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import CheckFailed, UnsupportedError
from tilewright.hlo import Value
from tilewright.isa.compiler.rounding import SMALLEST, allowances, exact_product
from tilewright.isa.compiler.running import Execution
from tilewright.isa.lowering.steps import Step
from tilewright.isa.lowering.tables import folded_array

Array = np.ndarray[Any, Any]


def check_step(execution: Execution, step: Step) -> None:
    """Raise :class:`CheckFailed` where a step's values are not XLA's.

    What XLA makes of all its operations together is asked first; it may round less often, so each of them alone is
    asked then. Floats may differ at an element by what rounding may come to at that element.
    """
    if step.fallback:
        return
    if step.copied is not None:
        _check_copy(execution, step)
    if not step.outputs:
        return
    xla = execution.lowering.reading.xla
    arrays = [execution.value(v) for v in step.inputs]
    found = [execution.value(v) for v in step.outputs]
    values: dict[Value, Array]
    try:
        together = xla.of(step.nodes, step.inputs, step.outputs, arrays)
        if all(_equal(have, want) for have, want in zip(found, together, strict=True)):
            return
        values = xla.each(step.nodes, step.inputs, arrays)
    except UnsupportedError:  # some products of narrow floats, on a CPU
        values = xla.each(step.nodes, step.inputs, arrays, {"dot_general": exact_product})
        together = [values[v] for v in step.outputs]
    allowed = allowances(step.nodes, values)
    problems: list[str] = []
    for wanted in (together, [values[v] for v in step.outputs]):
        several = zip(step.outputs, found, wanted, strict=True)
        problems = [text for v, have, want in several if (text := difference(have, want, allowed.get(v)))]
        if not problems:
            return
    raise CheckFailed(f"layer {step.name} ({step.unit}): {problems[0]}", where="against XLA")


def _equal(have: Array, want: Array) -> bool:
    return have.dtype == want.dtype and have.shape == want.shape and have.tobytes() == want.tobytes()


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


def difference(have: Array, want: Array, allowed: Array | None) -> str:
    """What is wrong, "" where nothing is: equal, or apart by no more than ``allowed`` at that element."""
    if have.shape != want.shape or have.dtype != want.dtype:
        return f"{have.dtype}{list(have.shape)} where {want.dtype}{list(want.shape)} was expected"
    one, other = have.astype(np.float64), want.astype(np.float64)
    wrong = ~((one == other) | (np.isnan(one) & np.isnan(other)))
    if have.dtype.kind not in "iub":  # XLA makes 0 of such numbers on a CPU
        wrong &= ~((np.abs(one) < SMALLEST) & (np.abs(other) < SMALLEST))
    if allowed is not None:
        with np.errstate(invalid="ignore"):
            wrong &= ~(np.abs(one - other) <= allowed)
    if not wrong.any():
        return ""
    first = tuple(np.argwhere(wrong)[0].tolist())
    room = "" if allowed is None or not allowed[first] else f", {allowed[first]:.2g} apart at most"
    several = f"{int(wrong.sum())} of {wrong.size} values differ, first {list(first)}"
    return f"{several}: {have[first]}, XLA {want[first]}{room}"
