"""Hot rows beside a state: taken out of it, looked up and learnt on every device, put back to be saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tilewright.embed.device.state import EmbeddingState
from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.tables import HotEntries
from tilewright.embed.model.optimizers import by_row, hyperparameters_at
from tilewright.embed.model.stacking import Stacking, TablePlacement
from tilewright.errors import UsageError

jax.tree_util.register_dataclass(HotEntries, ["samples", "rows", "gains", "shares"], [])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HotState:
    """Of every table with hot rows: ``rows`` f32[hot, padded width], and ``slots``, its optimizer's. Over several
    devices each holds all of it."""

    rows: dict[str, jax.Array]
    slots: dict[str, dict[str, jax.Array]]


def take_hot(state: EmbeddingState, hot: Mapping[str, Longs]) -> HotState:
    """The hot rows of a state and their slots, as they are now.

    >>> rows = take_hot(state, hot_rows(batches, features, above=0.01))  # doctest: +SKIP
    """
    rows, slots = {}, {}
    for name, place, at in _homes(state.stacking, hot):
        rows[name] = state.stacks[place.stack][at]
        slots[name] = {slot: values[at] for slot, values in state.slots[place.stack].items()}
    return HotState(rows, slots)


def put_hot(state: EmbeddingState, held: HotState, hot: Mapping[str, Longs]) -> EmbeddingState:
    """The state with the hot rows at home again: what is saved, exported, or looked up without them."""
    stacks, slots = dict(state.stacks), {name: dict(of_stack) for name, of_stack in state.slots.items()}
    for name, place, at in _homes(state.stacking, hot):
        stacks[place.stack] = stacks[place.stack].at[at].set(held.rows[name])
        for slot, values in held.slots[name].items():
            slots[place.stack][slot] = slots[place.stack][slot].at[at].set(values)
    return EmbeddingState(state.step, stacks, slots, state.stacking)


def lookup_hot(
    held: HotState, entries: Mapping[str, HotEntries], activations: Mapping[str, Any], stacking: Stacking
) -> dict[str, jax.Array]:
    """Activations of a lookup without the hot ids, with these added."""
    whole = dict(activations)
    for feature in stacking.features:
        if feature.name in entries:
            part, cold = entries[feature.name], whole[feature.name]
            vectors = held.rows[feature.table.name][part.rows, : feature.table.width] * part.gains[:, None]
            cold = cold if part.shares is None else cold * part.shares[:, None]
            whole[feature.name] = cold.at[part.samples].add(vectors, mode="drop")
    return whole


def update_hot(
    state: EmbeddingState,
    held: HotState,
    entries: Mapping[str, HotEntries],
    gradients: Mapping[str, Any],
    axis: str | None = None,
) -> tuple[HotState, dict[str, Any]]:
    """The hot rows after one step of their optimizers, and the gradients for the update of all others.

    ``state``: before that update, for its count of steps. Gradients of a row are summed over samples and features,
    and over the devices of ``axis`` where there is one; rows nobody asked for stay as they are.
    """
    cold, rows, slots = dict(gradients), dict(held.rows), dict(held.slots)
    sums = {name: (jnp.zeros_like(values), jnp.zeros(len(values), jnp.float32)) for name, values in held.rows.items()}
    for feature in state.stacking.features:
        if feature.name not in entries:
            continue
        part, gradient = entries[feature.name], jnp.asarray(gradients[feature.name])
        there = part.samples < len(gradient)
        own = gradient.at[part.samples].get(mode="fill", fill_value=0) * part.gains[:, None]
        total, asked = sums[feature.table.name]
        padded = jnp.pad(own, ((0, 0), (0, total.shape[1] - own.shape[1])))
        sums[feature.table.name] = total.at[part.rows].add(padded), asked.at[part.rows].add(there)
        if part.shares is not None:
            cold[feature.name] = gradient * part.shares[:, None]
    for name, (total, asked) in sums.items():
        place = state.stacking.tables[name]
        optimizer = place.table.optimizer
        if axis is not None:  # summed over all devices
            total, asked = jax.lax.psum((total, asked), axis)  # type: ignore[no-untyped-call]
        rate = hyperparameters_at(optimizer, state.step)
        seen = place.table.width if by_row(optimizer) else total.shape[1]
        before = held.rows[name][:, :seen], {slot: values[:, :seen] for slot, values in held.slots[name].items()}
        new, fresh = optimizer.apply(*before, total[:, :seen], rate)
        touched = asked[:, None] > 0
        rows[name] = held.rows[name].at[:, :seen].set(jnp.where(touched, new, before[0]))
        slots[name] = {
            slot: values.at[:, :seen].set(jnp.where(touched, fresh[slot], before[1][slot]))
            for slot, values in held.slots[name].items()
        }
    return HotState(rows, slots), cold


def _homes(stacking: Stacking, hot: Mapping[str, Longs]) -> Iterator[tuple[str, TablePlacement, tuple[Longs, Longs]]]:
    """Of every table with hot rows its placement, and (shard, local row) of every id: the layout's map."""
    for name, given in hot.items():
        if name not in stacking.tables:
            raise UsageError(f"no table {name!r}", where="hot rows", how=f"one of {', '.join(stacking.tables)}")
        place, ids = stacking.tables[name], np.asarray(given)
        if len(ids) == 0 or ids[0] < 0 or ids[-1] >= place.table.vocab or (np.diff(ids) <= 0).any():
            raise UsageError("hot ids that do not rise inside the table", where=f"table {name!r}")
        places = place.layout().addresses(np.stack([ids, np.zeros_like(ids)], axis=-1))
        yield name, place, (places[:, 0], places[:, 1])
