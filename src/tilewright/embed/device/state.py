"""Tables and optimizer slots as a pytree: stacked, sharded, each row exactly where the stacking says."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.optimizers import Optimizer, slot_width
from tilewright.embed.model.stacking import Stack, Stacking, TablePlacement
from tilewright.errors import UsageError

_CHUNK = 1 << 20


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EmbeddingState:
    """All embedding tables of a model, as the SparseCores hold them. A pytree; ``stacking`` is its static part.

    With S shards::

        step               i32[]                                   updates made so far
        stacks[name]       f32[S, rows_per_shard, padded width]    rows of all tables of the stack
        slots[name][slot]  the same shape                          what the optimizer keeps for each element
                           f32[S, rows_per_shard, 1]               or for each row

    The leading axis is the shard, so ``PartitionSpec("axis")`` on ``stacks`` and ``slots`` puts every shard on its
    device; inside ``shard_map`` the arrays hold the local shards only.
    """

    step: jax.Array
    stacks: dict[str, jax.Array]
    slots: dict[str, dict[str, jax.Array]]
    stacking: Stacking = field(metadata={"static": True})


def _rows(placement: TablePlacement) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Shard and local row of every row of a table, from its index map, a chunk at a time."""
    layout, vocab = placement.layout(), placement.table.vocab
    shard, local = np.empty(vocab, np.int32), np.empty(vocab, np.int32)
    for start in range(0, vocab, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, vocab), dtype=np.int64)
        places = layout.addresses(np.stack([rows, np.zeros_like(rows)], axis=-1))
        shard[start : start + len(rows)], local[start : start + len(rows)] = places[:, 0], places[:, 1]
    return shard, local


def _shape(stack: Stack) -> tuple[int, int, int]:
    return stack.shards, stack.rows_per_shard, stack.padded_width


def slot_shape(stack: Stack, slot: str) -> tuple[int, int, int]:
    """Shape of an optimizer slot: the stack's, or one number per row."""
    return stack.shards, stack.rows_per_shard, slot_width(stack.optimizer, slot, stack.padded_width)


def _fresh(stacking: Stacking, stacks: dict[str, jax.Array]) -> EmbeddingState:
    """A state at step 0 with new slots."""
    slots = {}
    for name, stack in stacking.stacks.items():
        optimizer: Optimizer = stack.optimizer
        slots[name] = {
            slot: jnp.full(slot_shape(stack, slot), start, jnp.float32) for slot, start in optimizer.slots.items()
        }
    return EmbeddingState(jnp.zeros((), jnp.int32), stacks, slots, stacking)


def init(stacking: Stacking, key: jax.Array, sparsecore: SparseCoreConfig | None = None) -> EmbeddingState:
    """A new state: rows drawn from ``key``, slots at their start, step 0.

    A table with an ``initializer`` gets ``initializer(key, (vocab, width), float32)``. Any other is drawn from a
    normal distribution of deviation 1 / sqrt(width), cut at two deviations (TPU embedding's default). The value of a
    row depends on the key, the table's name, the row and the width alone: any topology starts from the same model.

    ``sparsecore``: with ``initialize_tables_on_host`` (and not ``enable_fast_table_initialization``) the host's
    processor makes the tables in its memory and copies them to jax's default device when they are whole, so that the
    device needs no room for what making them takes; otherwise, and without the argument, the device makes them.
    """
    if sparsecore and sparsecore.initialize_tables_on_host and not sparsecore.enable_fast_table_initialization:
        (target,) = jnp.zeros(()).devices()
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            on_host = init(stacking, key)
        copied: EmbeddingState = jax.device_put(on_host, target)
        return copied
    stacks = {name: _draw_stack(stacking, stack, key) for name, stack in stacking.stacks.items()}
    return _fresh(stacking, stacks)


def _draw_stack(stacking: Stacking, stack: Stack, key: jax.Array) -> jax.Array:
    shards, rows, width = _shape(stack)
    owner = np.zeros((shards, rows), np.int32)  # which table a place belongs to: 0 none, k + 1 table k
    logical = np.zeros((shards, rows), np.int32)
    widths, keys, special = [0], [key], []
    for k, table in enumerate(stack.tables):
        shard, local = _rows(stacking.tables[table.name])
        owner[shard, local], logical[shard, local] = k + 1, np.arange(table.vocab)
        widths.append(table.width)
        keys.append(jax.random.fold_in(key, zlib.crc32(table.name.encode())))
        if table.initializer is not None:
            values = jnp.asarray(table.initializer(keys[-1], (table.vocab, table.width), jnp.float32))
            special.append((shard, local, _checked(values, table.name, (table.vocab, table.width))))
    words = jax.vmap(lambda of_table: jax.random.bits(of_table, (2,), jnp.uint32))(jnp.stack(keys))
    drawn: jax.Array = _draw(words, jnp.asarray(widths), jnp.asarray(owner), jnp.asarray(logical), width)
    for shard, local, values in special:
        drawn = drawn.at[shard, local].set(jnp.pad(values, ((0, 0), (0, width - values.shape[1]))))
    return drawn


@jax.jit(static_argnames="width")
def _draw(words: jax.Array, widths: jax.Array, owner: jax.Array, logical: jax.Array, width: int) -> jax.Array:
    """Truncated normal rows f32[S, rows, width]; zero where nothing lives.

    The uniform number under each element is a hash of its table's two random words, its row and its column: a counter
    based generator, cheaper to compile and to run than a key for every row.
    """
    first, second = words[owner, 0], words[owner, 1]
    row = _mixed(first ^ _mixed(logical.astype(jnp.uint32) + second))
    column = jnp.arange(width, dtype=jnp.uint32) * jnp.uint32(0x9E3779B9)
    bits = _mixed(row[..., None] ^ _mixed(column + second[..., None]))
    uniform = ((bits >> 8).astype(jnp.float32) + 0.5) * 2.0**-24
    inside = 2 * jax.scipy.special.ndtr(2.0) - 1  # the mass within two deviations
    values = jnp.sqrt(2.0) * jax.lax.erf_inv(inside * (2 * uniform - 1))
    used = widths[owner][..., None]
    return jnp.where(jnp.arange(width) < used, values * jax.lax.rsqrt(used.astype(jnp.float32)), 0.0)


def _mixed(bits: jax.Array) -> jax.Array:
    """MurmurHash3's finaliser: every input bit flips every output bit with probability near a half."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)


def _checked(values: Any, name: str, shape: tuple[int, int]) -> Any:
    if tuple(np.shape(values)) != shape:
        raise UsageError(f"an array of shape {list(np.shape(values))}, not {list(shape)}", where=f"table {name!r}")
    return values


def from_tables(stacking: Stacking, tables: Mapping[str, Any]) -> EmbeddingState:
    """A state at step 0 that holds ``tables`` = {name: array[vocab, width]}; slots at their start, padding zero.

    Raises :class:`UsageError` for a missing or unknown table, or a wrong shape.
    """
    if set(tables) != set(stacking.tables):
        missing, unknown = sorted(set(stacking.tables) - set(tables)), sorted(set(tables) - set(stacking.tables))
        text = "; ".join(
            f"{kind} {', '.join(names)}" for kind, names in (("no", missing), ("unknown", unknown)) if names
        )
        raise UsageError(f"the tables do not match the stacking: {text}", where="from_tables")
    stacks = {}
    for name, stack in stacking.stacks.items():
        whole = np.zeros(_shape(stack), np.float32)
        for table in stack.tables:
            values = _checked(np.asarray(tables[table.name]), table.name, (table.vocab, table.width))
            shard, local = _rows(stacking.tables[table.name])
            whole[shard, local, : table.width] = values
        stacks[name] = jnp.asarray(whole)
    return _fresh(stacking, stacks)


def tables(state: EmbeddingState, slot: str | None = None) -> dict[str, jax.Array]:
    """The logical tables {name: f32[vocab, width]} of a state; with ``slot`` the optimizer's slot of that name
    (f32[vocab, 1] where it keeps one number per row).

    >>> state = init(stacking, jax.random.key(0))  # doctest: +SKIP
    >>> tables(from_tables(stacking, tables(state)))["user"].shape  # doctest: +SKIP
    (1000, 12)
    """
    by_table = {}
    for name, placement in state.stacking.tables.items():
        source = state.stacks[placement.stack] if slot is None else state.slots[placement.stack].get(slot)
        if source is None:
            have = ", ".join(state.slots[placement.stack]) or "none"
            raise UsageError(f"no slot {slot!r} (there is {have})", where=f"table {name!r}")
        shard, local = _rows(placement)
        traced = isinstance(source, jax.core.Tracer)  # outside jit numpy gathers: nothing to compile per table
        whole = source if traced else np.asarray(source)
        by_table[name] = jnp.asarray(whole[shard, local, : placement.table.width])
    return by_table
