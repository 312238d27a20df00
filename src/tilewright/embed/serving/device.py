"""Lookups of an export as a function of jax: under jit, on any device, and through jax.export.

The coded rows are gathered as bytes and decoded where they arrive. What a row becomes has the bits of
``Export.lookup``; sums of several rows may be rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tilewright.embed.serving.format import StoredRows
from tilewright.embed.serving.read import Export
from tilewright.errors import UsageError

Rows = dict[str, jax.Array]
Lookup = Callable[[Rows, Mapping[str, Any]], dict[str, jax.Array]]


def device_lookup(served: Export) -> tuple[Rows, Lookup]:
    """The coded rows of every table {name: u8[vocab, bytes]}, and ``lookup(rows, batch)``, pure.

    ``batch``: feature -> int[samples, ids], ``(values, offsets)`` or ``(values, offsets, weights)``; shapes may be
    symbolic. Nothing can be raised on a device: an id outside its table gives a row of NaN.

    >>> rows, lookup = device_lookup(open_export("model.tables"))  # doctest: +SKIP
    >>> asked = {"user": jax.ShapeDtypeStruct((64, 1), "int32")}  # doctest: +SKIP
    >>> shipped = jax.export.export(jax.jit(lookup))(rows, asked)  # doctest: +SKIP
    """
    stored, path = served.stored, served.path

    def lookup(rows: Rows, batch: Mapping[str, Any]) -> dict[str, jax.Array]:
        if unknown := [name for name in batch if name not in stored]:
            raise UsageError(f"no feature called {unknown[0]!r}", where=path, how=f"one of {', '.join(stored)}")
        return {name: _looked_up(rows[stored[name].name], stored[name], given) for name, given in batch.items()}

    return {name: jnp.asarray(np.asarray(rows)) for name, rows in served.rows.items()}, lookup


def _looked_up(rows: jax.Array, table: StoredRows, given: Any) -> jax.Array:
    if not isinstance(given, tuple):
        ids = jnp.asarray(given)
        vectors = _vectors(rows, table, ids)
        return _divided(vectors.sum(axis=1), table.combiner, jnp.full((), ids.shape[1], jnp.float32))
    values, offsets = jnp.asarray(given[0]), jnp.asarray(given[1])
    samples = offsets.shape[0] - 1
    owner = jnp.searchsorted(offsets, jnp.arange(values.shape[0], dtype=offsets.dtype), side="right") - 1
    weights = jnp.asarray(given[2], jnp.float32) if len(given) > 2 else jnp.ones(values.shape, jnp.float32)
    powers = weights * weights if table.combiner == "sqrtn" else weights
    if table.combiner != "sum":
        total = jax.ops.segment_sum(powers, owner, samples)
        weights = weights / (jnp.sqrt(total) if table.combiner == "sqrtn" else total)[owner]
    return jax.ops.segment_sum(_vectors(rows, table, values) * weights[:, None], owner, samples)


def _divided(total: jax.Array, combiner: str, count: jax.Array) -> jax.Array:
    if combiner == "sum":
        return total
    gain = 1 / (jnp.sqrt(count) if combiner == "sqrtn" else count)
    return total * gain


def _vectors(rows: jax.Array, table: StoredRows, ids: jax.Array) -> jax.Array:
    """The rows of ``ids`` as f32[..., width]; NaN where there is none."""
    coding, inside = table.coding, (ids >= 0) & (ids < table.vocab)
    found = rows.at[jnp.where(inside, ids, 0)].get(mode="clip")
    if coding.encoding == "bf16":
        pairs = found.reshape(*found.shape[:-1], table.width, 2)
        values = jax.lax.bitcast_convert_type(pairs, jnp.bfloat16).astype(jnp.float32)
    else:
        codes = _codes(found[..., coding.head :], coding.bits, coding.encoding != "levels", table.width)
        if coding.encoding == "levels":
            # A table of the levels: XLA would make one instruction of product and sum, and other bits.
            values = jnp.take(jnp.asarray(coding.levels), codes, axis=0)
        elif coding.encoding == "table":
            values = codes * np.float32(table.scale)
        else:
            values = codes * jax.lax.bitcast_convert_type(found[..., : coding.head], jnp.float32)[..., None]
    return jnp.where(inside[..., None], values, jnp.nan)


def _codes(found: jax.Array, bits: int, signed: bool, width: int) -> jax.Array:
    """Signed codes as float32, levels as they are."""
    if bits == 4:
        found = jnp.stack([found & 15, found >> 4], axis=-1).reshape(*found.shape[:-1], -1)[..., :width]
        return ((found ^ 8).astype(jnp.int8) - 8).astype(jnp.float32) if signed else found
    return jax.lax.bitcast_convert_type(found, jnp.int8).astype(jnp.float32) if signed else found
