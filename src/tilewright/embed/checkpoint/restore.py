"""Restore a state onto any topology, stacking and mesh, a chunk of a column at a time."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh

from tilewright.embed.checkpoint.folder import EXTRA, finished_steps, read_error, saved_steps, step_folder
from tilewright.embed.checkpoint.schema import Saved, Schema, optimizer_json, read_saved
from tilewright.embed.checkpoint.store import Columns, Job, Logical, in_flight, our_tables, peer_tables, reads
from tilewright.embed.device import state
from tilewright.embed.host.arrays import Floats
from tilewright.embed.model.stacking import Stacking, TablePlacement
from tilewright.embed.model.tables import Feature, Limits, Quantization, Table, limits_of
from tilewright.errors import TilewrightError, UsageError, check_known


def restore(
    folder: str | os.PathLike[str],
    stacking: Stacking,
    step: int | None = None,
    *,
    tables: Iterable[str] | None = None,
    key: jax.Array | None = None,
    slots: bool = True,
    mesh: Mesh | None = None,
    axis: str | None = None,
    written_with: Stacking | None = None,
) -> state.EmbeddingState:
    """The state saved as ``step`` (the last finished one) in ``folder``, laid out as ``stacking`` says.

    Topology, stacks, rotations and padding may be others than when it was saved. With ``mesh`` and ``axis`` every
    shard is made on its device, and a process reads what its shards need, a chunk at a time.

    ``tables``: restore these only; the others of the stacking start as ``init(stacking, key)`` makes them. With
    ``slots=False`` the optimizer's slots start anew, so that it may be another optimizer.

    A checkpoint of jax-tpu-embedding is read where ``folder`` holds its steps: what its ``embedding_spec`` says of the
    stacks is taken, or, where none was saved (flax linen), ``written_with``: the stacking it was trained with.

    Raises :class:`UsageError` that says what does not fit (a table, its vocab or width, the optimizer) or which file is
    missing or damaged.

    >>> state = restore("run1", stack(features, Topology(8, 4)))  # doctest: +SKIP
    >>> int(state.step)  # doctest: +SKIP
    100
    """
    path = step_folder(folder, step)
    shards = state.Shards.over(stacking.topology, mesh, axis, "restore")
    saved, updates = _saved(path), int(path.name)
    if saved.schema is not None:
        stored, updates = our_tables(saved), saved.schema.updates
    else:
        try:
            stored = peer_tables(path, written_with)
        except _DAMAGE as error:
            raise read_error(error, str(path), _instead(path)) from error
    chosen = _chosen(stacking, stored, tables, str(path))
    if key is None and (fresh := [name for name in stacking.tables if name not in chosen]):
        how = "give the key they start from: restore(..., key=jax.random.key(0))"
        raise UsageError(f"tables not restored: {', '.join(fresh)}", where=str(path), how=how)
    for name in chosen:
        _check_fits(stacking.tables[name], stored[name], slots, f"{path}: table {name!r}")
    stacks: dict[str, jax.Array] = {}
    new_slots: dict[str, dict[str, jax.Array]] = {}
    try:
        for name, stack in stacking.stacks.items():
            own = {table.name: stored[table.name] for table in stack.tables if table.name in chosen}
            parts = shards.blank(state.stack_shape(stack))
            if len(own) < len(stack.tables):
                assert key is not None
                drawn = state.local_pieces(state.draw_stack(stacking, stack, key, shards))
                for place in (stacking.tables[table.name] for table in stack.tables if table.name not in own):
                    for (_, rows), (_, made) in zip(
                        state.table_parts(parts.items(), place), state.table_parts(drawn, place)
                    ):
                        rows[:] = made
            _fill(parts, stacking, {table: columns.rows for table, columns in own.items()})
            stacks[name], new_slots[name] = shards.array(parts.__getitem__), {}
            for slot, start in stack.optimizer.slots.items():
                # Padding and tables that are not restored hold what it starts from.
                if not slots or not own:
                    new_slots[name][slot] = shards.full(state.slot_shape(stack, slot), start)
                    continue
                parts = shards.blank(state.slot_shape(stack, slot), start)
                _fill(parts, stacking, {table: columns.slots[slot] for table, columns in own.items()})
                new_slots[name][slot] = shards.array(parts.__getitem__)
    except _DAMAGE as error:
        raise read_error(error, str(path), _instead(path)) from error
    return state.EmbeddingState(shards.scalar(updates), stacks, new_slots, stacking)


def restore_extra(folder: str | os.PathLike[str], like: Any, step: int | None = None) -> Any:
    """The ``extra`` of a save, as a pytree of the structure, shapes and shardings of ``like``.

    Raises :class:`UsageError` where nothing was saved beside the tables, or ``like`` does not fit it.

    >>> params = restore_extra("run1", {"params": params})["params"]  # doctest: +SKIP
    """
    path = step_folder(os.path.abspath(folder), step)  # Orbax takes no other path
    saved = _saved(path)
    if not (path / EXTRA).exists():
        how = "give save(..., extra=...) what is to be restored"
        raise UsageError("nothing was saved beside the tables", where=str(path), how=how)
    try:
        if saved.checksums is not None:
            saved.checksums.check_under(EXTRA)
        with closing(ocp.StandardCheckpointHandler()) as handler:
            there = _shapes(handler.metadata(path / EXTRA).tree)
            if (here := _shapes(like)) == there:
                arrays = jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, np.generic) else leaf, like)
                return handler.restore(path / EXTRA, args=ocp.args.StandardRestore(arrays))
    except Exception as error:  # Orbax raises many kinds for files that are damaged
        raise read_error(error, str(path / EXTRA), _instead(path)) from error
    first = next(name for name in sorted(there.keys() | here.keys()) if there.get(name) != here.get(name))
    shown = f"{first} is {here.get(first, 'nothing')} in it, {there.get(first, 'nothing')} in the checkpoint"
    problem = f"`like` does not fit what was saved: {shown}"
    raise UsageError(problem, where=str(path / EXTRA), how="give a `like` as it was saved")


def _shapes(tree: Any) -> dict[str, str]:
    """Every leaf's place and shape, in words that do not depend on the kinds of its containers."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): str(list(np.shape(leaf))) for path, leaf in leaves}


def saved_limits(folder: str | os.PathLike[str], step: int | None = None) -> dict[str, Limits]:
    """Stack -> limits that were saved with a step, none if none were.

    >>> saved_limits("run1")  # doctest: +SKIP
    {'user_item': Limits(max_ids_per_partition=64, max_unique_ids_per_partition=64)}
    """
    limits = _schema(step_folder(folder, step)).limits
    return {name: limits_of(entry, f"limits of stack {name!r}") for name, entry in limits.items()}


def saved_features(folder: str | os.PathLike[str], step: int | None = None) -> tuple[Feature, ...]:
    """The features of a saved step, their tables with combiner and quantisation; the optimizers are not among them.

    >>> state = restore("run1", stack(saved_features("run1"), Topology(1, 4)), slots=False)  # doctest: +SKIP
    """
    schema, tables = _schema(step_folder(folder, step)), {}
    for stored in schema.tables:
        quantization = None if stored.quantization is None else Quantization(**stored.quantization)
        tables[stored.name] = Table(stored.name, stored.vocab, stored.width, stored.combiner, quantization=quantization)
    return tuple(Feature(name, tables[table]) for name, table in schema.features.items())


def whole_step(folder: str | os.PathLike[str]) -> int | None:
    """The last finished step that is whole, every byte of it read and compared; None where none is.

    Of a step saved without checksums (by jax-tpu-embedding, or by us before there were any) less can be said.

    >>> state = restore("run1", stacking, whole_step("run1"))  # doctest: +SKIP
    """
    return next((step for step in reversed(saved_steps(folder)) if not damage(Path(folder) / str(step))), None)


def damage(path: Path) -> str:
    """What is wrong with a step's folder; nothing where it is whole."""
    try:
        saved = read_saved(path)
        if saved.checksums is not None:
            saved.checksums.check_under(EXTRA)
        for table in our_tables(saved).values():
            for columns in (table.rows, *table.slots.values()):
                in_flight(reads(columns, lambda column: lambda first, values: None))
    except TilewrightError as error:
        return error.what
    except _DAMAGE as error:
        return read_error(error, "", "").what
    return ""


_DAMAGE = (OSError, ValueError, KeyError, RuntimeError)
"""What a reader raises for files that are not as they were written."""


def _saved(path: Path) -> Saved:
    """What a step says of itself, and its checksums; one that has none is remarked on."""
    try:
        saved = read_saved(path)
    except TilewrightError as error:
        raise read_error(ValueError(error.what), error.where or str(path), error.how or _instead(path)) from None
    except _DAMAGE as error:
        raise read_error(error, str(path), _instead(path)) from error
    if saved.schema is not None and saved.checksums is None:
        text = f"step {path.name} was saved without checksums of all files: damage may go unnoticed ({path})"
        warnings.warn(text, stacklevel=3)
    return saved


def _instead(path: Path) -> str:
    """What to restore in place of a damaged step: the newest whole one of its folder."""
    others = [step for step in reversed(finished_steps(path.parent)) if str(step) != path.name]
    whole = next((step for step in others if not damage(path.parent / str(step))), None)
    if whole is not None:
        return f"restore step {whole}, the newest that is whole"
    return "no other step of this folder is whole" if others else "no other step is in this folder"


def _schema(path: Path) -> Schema:
    schema = _saved(path).schema
    if schema is None:
        how = "take a checkpoint that embed.save wrote"
        raise UsageError("it does not say what its features are", where=str(path), how=how)
    return schema


def _chosen(stacking: Stacking, stored: Mapping[str, Logical], tables: Iterable[str] | None, where: str) -> list[str]:
    """Names of the tables to restore."""
    if tables is not None:
        names = [tables] if isinstance(tables, str) else list(tables)
        for name in names:
            check_known(name, stacking.tables, f"no table {name!r} in the stacking", where="restore")
            check_known(name, stored, f"no table {name!r} in the checkpoint", where=where)
        return names
    missing, unknown = [n for n in stacking.tables if n not in stored], [n for n in stored if n not in stacking.tables]
    if missing or unknown:
        both = (("no", missing), ("more than the stacking:", unknown))
        text = "; ".join(f"{kind} {', '.join(some)}" for kind, some in both if some)
        common = [name for name in stacking.tables if name in stored]
        how = f"name those to restore: tables={common}" if common else "take another folder"
        if common and missing:
            how += ", and key= for the others"
        raise UsageError(f"the checkpoint has other tables than the stacking: {text}", where=where, how=how)
    return list(stacking.tables)


def _check_fits(placement: TablePlacement, stored: Logical, slots: bool, where: str) -> None:
    table = placement.table
    for what, here, there in (("vocab", table.vocab, stored.vocab), ("width", table.width, stored.width)):
        if here != there:
            how = f"give the Table {what}={there}"
            raise UsageError(f"{what} {there} in the checkpoint, {here} in the stacking", where=where, how=how)
    if not slots:
        return
    name = optimizer_json(table.optimizer)["name"]
    expected, found = set(table.optimizer.slots), set(stored.slots)
    if stored.optimizer not in (None, name) or expected != found:
        has = ", ".join(sorted(found)) or "no slots"
        problem = f"saved with optimizer {stored.optimizer or '?'} ({has}), the stacking has {name}"
        how = "give the table that optimizer, or slots=False to start new slots"
        raise UsageError(problem, where=where, how=how)


def _fill(parts: Mapping[state.Piece, Floats], stacking: Stacking, stored: Mapping[str, Columns]) -> None:
    """The local shards of a stack from every stored column that holds ids of one, read once.

    A column of S and one of S' shards share ids where they are equal modulo g = gcd(S, S'): every S'/g-th row of the
    one is every S/g-th row of the other.
    """
    jobs: list[Iterator[Job]] = []
    for name, columns in stored.items():
        placement = stacking.tables[name]
        targets = list(state.table_parts(parts.items(), placement))
        jobs.append(reads(columns, partial(_spreading, columns.shards, placement.shards, columns.width, targets)))
    in_flight(chain.from_iterable(jobs))


def _spreading(
    old: int, new: int, width: int, targets: list[tuple[int, Floats]], source: int
) -> Callable[[int, Any], None] | None:
    """What puts rows of column ``source`` of ``old`` into the local columns of ``new`` that share ids with it."""
    common = math.gcd(old, new)
    period, stride = new // common, old // common
    hits = [(column, rows) for column, rows in targets if (column - source) % common == 0]

    def spread(first: int, values: Any) -> None:
        for column, rows in hits:
            # Row j of the column is id source + old * j; it is this shard's where that is its column modulo `new`.
            phase = (column - source) // common * pow(stride, -1, period) % period
            skip = (phase - first) % period
            chosen = values[skip::period]
            if len(chosen):
                at = (source + old * (first + skip)) // new
                rows[at : at + (len(chosen) - 1) * stride + 1 : stride, :width] = chosen

    return spread if hits else None
