"""Tables and optimizer slots as a pytree: stacked, each row where the stacking says, made where its shards live."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from tilewright.embed.host.arrays import Floats, Longs
from tilewright.embed.host.tables import HotEntries
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.optimizers import Optimizer, slot_width
from tilewright.embed.model.stacking import Stack, Stacking, TablePlacement
from tilewright.embed.model.tables import Topology
from tilewright.errors import UsageError, check_known

# Where the shards of a stack live, and arrays made there piece by piece, so that no process holds them all.

Piece: TypeAlias = range
"""Consecutive shards that lie on one device."""


@dataclass(frozen=True)
class Shards:
    """The S shards of every stack: on jax's default device, or split evenly over the devices of a mesh axis.

    >>> Shards(4).pieces()
    (range(0, 4),)
    """

    count: int
    sharding: NamedSharding | None = None

    @classmethod
    def over(cls, topology: Topology, mesh: Mesh | None, axis: str | None, where: str) -> Shards:
        """The shards of a topology on ``mesh``; without one on the default device.

        Raises :class:`UsageError` at ``where`` for an axis the mesh does not have, or whose devices S does not divide
        over.
        """
        count = topology.sparsecores
        if mesh is None:
            if axis is not None:
                raise UsageError(f"axis {axis!r} without a mesh", where=where, how="give mesh and axis together")
            return cls(count)
        if axis not in mesh.shape:
            problem = f"the mesh has no axis {axis!r}" if axis is not None else "a mesh without an axis"
            raise UsageError(problem, where=where, how=f"name one of {', '.join(map(str, mesh.axis_names))}")
        devices = mesh.shape[axis]
        if count % devices:
            problem = f"{count} shards do not divide over the {devices} devices of axis {axis!r}"
            raise UsageError(problem, where=where, how="take an axis, or a topology, of which one divides the other")
        # Written as jit writes the shardings of its results, so that a step is not compiled again for its own state.
        others = (None, None) if AxisType.Explicit in mesh.axis_types else ()
        return cls(count, NamedSharding(mesh, PartitionSpec(axis, *others)))  # type: ignore[no-untyped-call]

    @property
    def per_device(self) -> int:
        """Shards that one device holds."""
        if self.sharding is None:
            return self.count
        return int(self.sharding.shard_shape((self.count, 1, 1))[0])

    def pieces(self) -> tuple[Piece, ...]:
        """The shards this process holds, a piece for every device (replicas count once), in order."""
        return tuple(sorted(self._devices(), key=lambda piece: piece.start))

    def _devices(self) -> dict[Piece, list[jax.Device]]:
        if self.sharding is None:
            return {range(self.count): []}
        devices: dict[Piece, list[jax.Device]] = {}
        for device, index in self.sharding.addressable_devices_indices_map((self.count, 1, 1)).items():
            assert index is not None
            devices.setdefault(range(self.count)[index[0]], []).append(device)
        return devices

    def array(self, make: Callable[[Piece], Floats]) -> jax.Array:
        """The array [S, ...] whose shards ``make`` yields, [shards of the piece, ...] of a piece.

        On a CPU an array of :func:`aligned` is not copied.
        """
        if self.sharding is None:
            whole: jax.Array = jax.device_put(make(range(self.count)))
            return whole
        parts, shape = [], None
        for piece, devices in self._devices().items():
            values = make(piece)
            shape = (self.count, *values.shape[1:])
            parts += [jax.device_put(values, device) for device in devices]
        if shape is None:
            how = "take a mesh with at least one device of every process"
            raise UsageError("no device of the mesh is in this process", where="mesh", how=how)
        return jax.make_array_from_single_device_arrays(shape, self.sharding, parts)

    def blank(self, shape: tuple[int, ...], start: float = 0.0) -> dict[Piece, Floats]:
        """Memory of every local piece of an array [S, ...] of this shape, filled with ``start``, for :meth:`array`."""
        parts = {piece: aligned((len(piece), *shape[1:])) for piece in self.pieces()}
        for part in parts.values() if start else ():
            part.fill(start)
        return parts

    def full(self, shape: tuple[int, ...], value: float) -> jax.Array:
        """A float32 array [S, ...] that holds ``value`` everywhere, made where it lives."""
        return jax.numpy.full(shape, value, jax.numpy.float32, device=self.sharding)

    def scalar(self, value: int) -> jax.Array:
        """An int32, on every device of the mesh."""
        whole = None if self.sharding is None else NamedSharding(self.sharding.mesh, PartitionSpec())  # type: ignore[no-untyped-call]
        return jax.numpy.full((), value, jax.numpy.int32, device=whole)


def local_pieces(array: Any) -> list[tuple[Piece, NDArray[Any]]]:
    """What this process holds of an array [S, ...] split over its first axis; on a CPU views, not copies.

    Raises :class:`UsageError` for an array that is split over another axis.
    """
    if not isinstance(array, jax.Array):
        return [(range(len(array)), np.asarray(array))]
    held = []
    for shard in array.addressable_shards:
        if shard.replica_id:
            continue
        if shard.data.shape[1:] != array.shape[1:]:
            problem = f"an array {list(array.shape)} split into {list(shard.data.shape)}"
            raise UsageError(problem, where="state", how="split stacks and slots over their first axis only")
        held.append((range(array.shape[0])[shard.index[0]], np.asarray(shard.data)))
    return held


def aligned(shape: tuple[int, ...]) -> Floats:
    """Zeros whose memory jax takes over without a copy (it begins at a multiple of 64 bytes)."""
    size = 4 * int(np.prod(shape, dtype=np.int64))
    memory = np.zeros(size + 64, np.uint8)
    first = -memory.ctypes.data % 64
    return memory[first : first + size].view(np.float32).reshape(shape)


def table_parts(
    pieces: Iterable[tuple[Piece, NDArray[Any]]], placement: TablePlacement
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Of every shard in ``pieces`` of a stack: c, and the table's local rows, padding behind them.

    The shard holds the ids c, c + S, c + 2 S, ... of the table, one a row.
    """
    first, last = placement.row_offset, placement.row_offset + placement.rows_per_shard
    for piece, values in pieces:
        for at, shard in enumerate(piece):
            yield (shard - placement.rotation) % placement.shards, values[at, first:last]


# The state.


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


def stack_shape(stack: Stack) -> tuple[int, int, int]:
    """(S, rows of a shard, padded width) of a stack's rows."""
    return stack.shards, stack.rows_per_shard, stack.padded_width


def slot_shape(stack: Stack, slot: str) -> tuple[int, int, int]:
    """Shape of an optimizer slot: the stack's, or one number per row."""
    return stack.shards, stack.rows_per_shard, slot_width(stack.optimizer, slot, stack.padded_width)


def _fresh(
    stacking: Stacking, stacks: dict[str, jax.Array], shards: Shards, host: jax.Device | None = None
) -> EmbeddingState:
    """A state at step 0 with new slots, made where they live or on the device ``host``."""

    def filled(shape: tuple[int, ...], start: float) -> jax.Array:
        if host is None:
            return shards.full(shape, start)
        return shards.array(lambda piece: np.full((len(piece), *shape[1:]), start, np.float32))

    slots: dict[str, dict[str, jax.Array]] = {}
    for name, stack in stacking.stacks.items():
        optimizer: Optimizer = stack.optimizer
        slots[name] = {slot: filled(slot_shape(stack, slot), start) for slot, start in optimizer.slots.items()}
    return EmbeddingState(shards.scalar(0), stacks, slots, stacking)


def init(
    stacking: Stacking,
    key: jax.Array,
    sparsecore: SparseCoreConfig | None = None,
    *,
    mesh: Mesh | None = None,
    axis: str | None = None,
) -> EmbeddingState:
    """A new state: rows drawn from ``key``, slots at their start, step 0.

    A table with an ``initializer`` gets ``initializer(key, (vocab, width), float32)``. Any other is drawn from a
    normal distribution of deviation 1 / sqrt(width), cut at two deviations (TPU embedding's default). The value of a
    row depends on the key, the table's name, the row and the width alone: any topology starts from the same model.

    ``mesh`` and ``axis``: the shards are split over that axis, each made on its device, in every process its own only
    (an ``initializer`` makes its table whole, one table at a time). Without them the state is on the default device.

    ``sparsecore``: with ``initialize_tables_on_host`` (and not ``enable_fast_table_initialization``) the host's
    processor makes the tables in its memory, a device's shards of a stack at a time, and copies them, so that the
    device needs no room for what making them takes; otherwise, and without the argument, the device makes them.

    >>> mesh = jax.make_mesh((4,), ("chips",))  # doctest: +SKIP
    >>> state = init(stacking, jax.random.key(0), mesh=mesh, axis="chips")  # doctest: +SKIP
    """
    shards = Shards.over(stacking.topology, mesh, axis, "init")
    on_host = sparsecore and sparsecore.initialize_tables_on_host and not sparsecore.enable_fast_table_initialization
    host = jax.local_devices(backend="cpu")[0] if on_host else None
    stacks = {name: draw_stack(stacking, stack, key, shards, host) for name, stack in stacking.stacks.items()}
    return _fresh(stacking, stacks, shards, host)


def draw_stack(
    stacking: Stacking, stack: Stack, key: jax.Array, shards: Shards, host: jax.Device | None = None
) -> jax.Array:
    """The rows of one stack of a new state."""
    placements = [stacking.tables[table.name] for table in stack.tables]
    keys = {table.name: jax.random.fold_in(key, zlib.crc32(table.name.encode())) for table in stack.tables}
    special = [p for p in placements if p.table.initializer is not None]
    drawn = _drawn(stack, placements, keys, shards, host) if len(special) < len(placements) else None
    if not special:
        assert drawn is not None
        return drawn

    def values_of(placement: TablePlacement) -> Any:
        table = placement.table
        values = table.initializer(keys[table.name], (table.vocab, table.width), jnp.float32)
        return _checked(values, table.name, (table.vocab, table.width))

    if isinstance(key, jax.core.Tracer):
        rows = jnp.zeros(stack_shape(stack), jnp.float32) if drawn is None else drawn
        for placement in special:
            rows = _with_table(rows, values_of(placement), placement)
        return rows
    parts = shards.blank(stack_shape(stack))
    if drawn is not None:
        for piece, values in local_pieces(drawn):
            parts[piece][:] = values
        del drawn
    for placement in special:
        _write(parts, placement, np.asarray(values_of(placement)))
    return shards.array(parts.__getitem__)


def _drawn(
    stack: Stack,
    placements: list[TablePlacement],
    keys: Mapping[str, jax.Array],
    shards: Shards,
    host: jax.Device | None,
) -> jax.Array:
    """Every row of a stack from the library's own distribution."""
    _, rows, width = stack_shape(stack)
    columns = ("rotation", "row_offset", "table.vocab", "table.width")
    plan = np.array([attrgetter(*columns)(p) for p in placements], np.int32)
    stacked = jnp.stack([keys[p.table.name] for p in placements])
    words = jax.vmap(lambda of_table: jax.random.bits(of_table, (2,), jnp.uint32))(stacked)
    # Every process has the same words; numpy's arrays may go to a mesh of many processes.
    arguments = (words if isinstance(words, jax.core.Tracer) else np.asarray(words), plan)
    fixed = {"count": shards.per_device, "rows": rows, "width": width, "shards": stack.shards}
    draw: Callable[..., jax.Array] = partial(_draw, **fixed)
    if host is not None:

        def made_on_host(piece: Piece) -> Floats:
            with jax.default_device(host):
                return np.asarray(draw(*arguments, piece.start))

        return shards.array(made_on_host)
    if shards.sharding is None:
        return draw(*arguments, 0)
    mesh, spec = shards.sharding.mesh, shards.sharding.spec

    def own(words: jax.Array, plan: jax.Array) -> jax.Array:
        return draw(words, plan, jax.lax.axis_index(spec[0]) * shards.per_device)

    everywhere = PartitionSpec()  # type: ignore[no-untyped-call]
    mapped = jax.shard_map(own, mesh=mesh, in_specs=everywhere, out_specs=spec, check_vma=False)
    placed: jax.Array = jax.jit(mapped)(*arguments)
    return placed


@partial(jax.jit, static_argnames=("count", "rows", "width", "shards"))
def _draw(
    words: jax.Array, plan: jax.Array, first: Any, *, count: int, rows: int, width: int, shards: int
) -> jax.Array:
    """Truncated normal rows f32[count, rows, width] of the shards from ``first`` on; zero where nothing lives.

    ``plan`` has a line for every table of the stack: rotation, row offset, vocab, width; ``words`` two random words.
    The uniform number under each element is a hash of its table's words, its row and its column: a counter based
    generator, cheaper to compile and to run than a key for every row.
    """
    rotation, offset, vocab, used = plan.T
    place = jnp.arange(rows, dtype=jnp.int32)
    owner = jnp.searchsorted(offset, place, side="right") - 1
    shard = first + jnp.arange(count, dtype=jnp.int32)[:, None]
    logical = (shard - rotation[owner]) % shards + (place - offset[owner]) * shards
    first_word, second_word = words[owner, 0], words[owner, 1]
    row = _mixed(first_word ^ _mixed(logical.astype(jnp.uint32) + second_word))
    column = jnp.arange(width, dtype=jnp.uint32) * jnp.uint32(0x9E3779B9)
    bits = _mixed(row[..., None] ^ _mixed(column + second_word[:, None]))
    uniform = ((bits >> 8).astype(jnp.float32) + 0.5) * 2.0**-24
    inside = 2 * jax.scipy.special.ndtr(2.0) - 1  # the mass within two deviations
    values = jnp.sqrt(2.0) * jax.lax.erf_inv(inside * (2 * uniform - 1))
    columns = jnp.where(logical < vocab[owner], used[owner], 0)[..., None]
    return jnp.where(jnp.arange(width) < columns, values * jax.lax.rsqrt(columns.astype(jnp.float32)), 0.0)


def _mixed(bits: jax.Array) -> jax.Array:
    """MurmurHash3's finaliser: every input bit flips every output bit with probability near a half."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)


def _checked(values: Any, name: str, shape: tuple[int, int]) -> Any:
    if tuple(np.shape(values)) != shape:
        raise UsageError(f"an array of shape {list(np.shape(values))}, not {list(shape)}", where=f"table {name!r}")
    return values


def _write(parts: Mapping[Piece, Floats], placement: TablePlacement, values: NDArray[Any]) -> None:
    """A logical table into the pieces of its stack."""
    for column, rows in table_parts(parts.items(), placement):
        own = values[column :: placement.shards]
        rows[: len(own), : placement.table.width] = own


def from_tables(
    stacking: Stacking, tables: Mapping[str, Any], *, mesh: Mesh | None = None, axis: str | None = None
) -> EmbeddingState:
    """A state at step 0 that holds ``tables`` = {name: array[vocab, width]}; slots at their start, padding zero.

    With ``mesh`` and ``axis`` the shards are split over that axis and each is made on its device. A table may be
    anything that numpy reads, a memory-mapped file too.

    Raises :class:`UsageError` for a missing or unknown table, or a wrong shape.
    """
    if set(tables) != set(stacking.tables):
        missing, unknown = sorted(set(stacking.tables) - set(tables)), sorted(set(tables) - set(stacking.tables))
        both = (("no", missing), ("unknown", unknown))
        text = "; ".join(f"{kind} {', '.join(names)}" for kind, names in both if names)
        raise UsageError(f"the tables do not match the stacking: {text}", where="from_tables")
    shards = Shards.over(stacking.topology, mesh, axis, "from_tables")
    stacks = {}
    for name, stack in stacking.stacks.items():
        parts = shards.blank(stack_shape(stack))
        for table in stack.tables:
            values = _checked(np.asarray(tables[table.name]), table.name, (table.vocab, table.width))
            _write(parts, stacking.tables[table.name], values)
        stacks[name] = shards.array(parts.__getitem__)
    return _fresh(stacking, stacks, shards)


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
        by_table[name] = _traced(source, placement) if isinstance(source, jax.core.Tracer) else _read(source, placement)
    return by_table


def _with_table(rows: jax.Array, values: jax.Array, placement: TablePlacement) -> jax.Array:
    """The rows of a stack with those of one table, under jit."""
    shards, (vocab, width) = placement.shards, values.shape
    padded = jnp.pad(values.astype(rows.dtype), ((0, placement.padded_vocab - vocab), (0, 0)))
    by_column = padded.reshape(-1, shards, width).swapaxes(0, 1)
    by_shard = jnp.roll(by_column, placement.rotation, axis=0)
    return jax.lax.dynamic_update_slice(rows, by_shard, (0, placement.row_offset, 0))


def _traced(source: jax.Array, placement: TablePlacement) -> jax.Array:
    first, shards = placement.row_offset, placement.shards
    rows = source[:, first : first + placement.rows_per_shard, : placement.table.width]
    by_column = jnp.roll(rows, -placement.rotation, axis=0)
    return by_column.swapaxes(0, 1).reshape(rows.shape[1] * shards, -1)[: placement.table.vocab]


def _read(source: Any, placement: TablePlacement) -> jax.Array:
    """Outside jit numpy gathers: nothing to compile per table."""
    if isinstance(source, jax.Array) and not source.is_fully_addressable:
        problem = "its shards are spread over several processes"
        how = "save a checkpoint and read the table from it"
        raise UsageError(problem, where=f"table {placement.table.name!r}", how=how)
    width = min(placement.table.width, source.shape[2])
    whole = np.empty((placement.table.vocab, width), source.dtype)
    for column, rows in table_parts(local_pieces(source), placement):
        own = whole[column :: placement.shards]
        own[:] = rows[: len(own), :width]
    return jnp.asarray(whole)


# Hot rows beside a state: taken out of it, and put back to be saved.

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


def _homes(stacking: Stacking, hot: Mapping[str, Longs]) -> Iterator[tuple[str, TablePlacement, tuple[Longs, Longs]]]:
    """Of every table with hot rows its placement, and (shard, local row) of every id: the layout's map."""
    for name, given in hot.items():
        check_known(name, stacking.tables, f"no table {name!r}", where="hot rows")
        place, ids = stacking.tables[name], np.asarray(given)
        if len(ids) == 0 or ids[0] < 0 or ids[-1] >= place.table.vocab or (np.diff(ids) <= 0).any():
            raise UsageError("hot ids that do not rise inside the table", where=f"table {name!r}")
        places = place.layout().addresses(np.stack([ids, np.zeros_like(ids)], axis=-1))
        yield name, place, (places[:, 0], places[:, 1])
