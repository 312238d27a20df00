"""NaN checks of the device side: what goes into a lookup or an update, and what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tilewright.embed._stacking import Stacking
from tilewright.embed._state import EmbeddingState
from tilewright.errors import CheckFailed

__all__ = ["check_by_feature", "check_state"]


def check_by_feature(values: dict[str, Any], stacking: Stacking, stage: str) -> None:
    """:class:`CheckFailed` for a NaN in {feature: [batch, width]}; names stage, feature, table and the first sample."""
    for feature in stacking.features:
        _check(values[feature.name], f"{stage}: feature {feature.name!r}, table {feature.table.name!r}", "sample")


def check_state(state: EmbeddingState, stage: str) -> None:
    """The same for the rows and optimizer slots of every stack."""
    for name, value in _arrays(state):
        _check(value.reshape(-1, value.shape[-1]), f"{stage}: {name}", "row over all shards")


def _arrays(state: EmbeddingState) -> Iterator[tuple[str, jax.Array]]:
    for name, stack in state.stacking.stacks.items():
        tables = ", ".join(table.name for table in stack.tables)
        yield f"stack {name!r} (tables {tables})", state.stacks[name]
        for slot, value in state.slots[name].items():
            yield f"slot {slot!r} of stack {name!r} (tables {tables})", value


def _check(value: Any, where: str, unit: str) -> None:
    """At once where the value is there; under ``jit`` when the program runs, as an error of its callback."""
    wrong = jnp.isnan(jnp.asarray(value)).any(axis=-1)

    def judge(found: Any) -> None:
        at = np.flatnonzero(np.asarray(found))
        if at.size:
            raise CheckFailed(f"NaN in {at.size} of {found.size}, first in {unit} {at[0]}", where=f"NaN check, {where}")

    if isinstance(wrong, jax.core.Tracer):
        jax.debug.callback(judge, wrong)
    else:
        judge(wrong)
