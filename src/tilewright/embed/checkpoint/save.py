"""Save a state while training goes on: Orbax makes the step appear whole or not at all, tensorstore writes it."""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from numpy.typing import NDArray

from tilewright.embed.checkpoint.owner import begin_run, own, owned, release_all
from tilewright.embed.checkpoint.schema import (
    SCHEMA,
    Schema,
    chunk_file,
    part_name,
    read_checksums,
    schema_of,
    whole_file,
    write_checksums,
    write_part,
)
from tilewright.embed.checkpoint.steps import EXTRA, TABLES, finished_steps, waiting, write_error
from tilewright.embed.checkpoint.store import METADATA, Job, ZarrColumns, in_flight, rows_of
from tilewright.embed.device.state import EmbeddingState, Piece, local_pieces, table_parts
from tilewright.embed.model.stacking import TablePlacement
from tilewright.embed.model.tables import Limits, count
from tilewright.errors import TilewrightError, UsageError

_WRITES = 8
"""More than Orbax writes about a step beside its arrays."""
_PATIENCE = 10
"""Seconds in which a thread makes a folder."""
_HALF = ".orbax-checkpoint-tmp"
_LEFTOVER = re.compile(rf"\d+{re.escape(_HALF)}.*")


class Saving:
    """A save that is under way. :meth:`wait` blocks until the step is on disk and raises what went wrong."""

    def __init__(self, folder: Path, step: int) -> None:
        self.folder, self.step = folder, step
        self._done = self._told = False
        self._error: TilewrightError | None = None

    def wait(self) -> None:
        """Block until the step is finished.

        Raises :class:`TilewrightError` where it could not be written: why, and which steps there are.
        """
        with _lock:
            _settle(self)
        if self._error is not None:
            self._told = True
            raise self._error


_lock = threading.RLock()
_last: Saving | None = None
"""The last save that began; only this one can be under way."""
_checkpointer: ocp.AsyncCheckpointer | None = None


def save(
    folder: str | os.PathLike[str],
    state: EmbeddingState,
    step: int,
    extra: Any = None,
    *,
    limits: Mapping[str, Limits] | None = None,
) -> Saving:
    """Write a step of a training into ``folder``/``step`` and return at once, while the writing goes on.

    What is stored are the logical tables and slots, so they can be restored onto any topology and stacking, and read
    without this library; ``extra`` is any pytree of arrays to keep with them, such as dense parameters and the state
    of an optax optimizer (:func:`restore_extra` reads it), ``limits`` the limits of the stacks.

    The step's folder appears when everything is written: a process killed at any moment leaves the finished steps. A
    save waits for the one before it. Training may go on at once, donated states too: on a CPU nothing is copied, and
    what a donated update would overwrite it copies instead; from another device the state is copied to the host first.
    Over several processes each calls ``save`` and writes its own shards into one folder that all of them see.

    The process owns the folder from the first save until it ends: another process that wants to save there is refused.

    Raises :class:`UsageError` for a step that is there already, for a folder that another process owns, and, here or in
    :meth:`Saving.wait`, for a full disk or no permission.

    >>> saving = save("run1", state, step=100, extra={"params": params})  # doctest: +SKIP
    >>> saving.wait()  # before the program ends  # doctest: +SKIP
    >>> saved_steps("run1")  # doctest: +SKIP
    [100]
    """
    global _last
    path = Path(os.path.abspath(folder))
    step = count(step, "step", "save", least=0)
    if not isinstance(state, EmbeddingState):
        raise UsageError(f"{type(state).__name__} is not an embedding state", where="save")
    with _lock:
        if _last is not None and not _last._told:
            _last.wait()
        own_folder(path)
        if (path / str(step)).exists():
            how = f"remove {path / str(step)}, or save another step or into another folder"
            raise UsageError(f"step {step} is there already", where=str(path), how=how)
        saving = _last = Saving(path, step)
        before = set(threading.enumerate())
        try:
            _clear_leftovers(path)
            schema, run = schema_of(state, step, limits or {}), _run(path) if jax.process_index() == 0 else ""
            items: dict[str, Any] = {TABLES: _tables_save(state, schema, run)}
            if extra is not None:
                items[EXTRA] = ocp.args.StandardSave(extra)
            _orbax().save(path / str(step), _StepSave(**items))
        except Exception as error:
            _finish_writing()
            for thread in set(threading.enumerate()) - before:
                if thread.name.startswith("asyncio_"):  # it may be making a folder beside the one that failed
                    thread.join(_PATIENCE)
            _failed(saving, error)
            saving._told = True
            assert saving._error is not None
            raise saving._error from error
        return saving


def own_folder(path: Path) -> None:
    """Make this process the owner of a folder of checkpoints.

    Raises :class:`UsageError` where another one is, or the folder cannot be written.
    """
    try:
        own(path)
    except OSError as error:
        raise write_error(error, str(path), _readable_steps(path)) from error


def _run(path: Path) -> str:
    """The id of a folder's run. Where its file was left behind, by a copy of the steps alone, they have it as well."""
    for step in reversed(finished_steps(path)):
        with suppress(TilewrightError, OSError, ValueError):
            if (saved := read_checksums(path / str(step))) is not None:
                return begin_run(path, saved.run)
    return begin_run(path, None)


def _orbax() -> ocp.AsyncCheckpointer:
    global _checkpointer
    if _checkpointer is None:
        items = {TABLES: _TablesHandler(), EXTRA: ocp.StandardCheckpointHandler()}
        # Folders are made before anything is written, so that a wrong one is an error of save and not of wait. Made
        # meanwhile, one that cannot be made is waited for by the threads that write into it, for five minutes.
        options = ocp.AsyncOptions(create_directories_asynchronously=False)
        handler = _StepHandler(composite_options=ocp.CompositeOptions(async_options=options), **items)
        _checkpointer = ocp.AsyncCheckpointer(handler, async_options=options, temporary_path_class=_HalfWritten)
        logging.getLogger("absl").addFilter(_not_told_twice)
        # Orbax needs executors to finish a save; they are shut down before atexit's functions run.
        getattr(threading, "_register_atexit", atexit.register)(_finish_at_exit)
        atexit.register(release_all)  # after the next one
        atexit.register(_tell_at_exit)
    return _checkpointer


def _not_told_twice(record: logging.LogRecord) -> bool:
    """Orbax logs what a failed save raises, with its traceback; :meth:`Saving.wait` raises it."""
    return not re.search(r"Failed to run \d+ Handler Commit|_SignalingThread.run\(\) raised", str(record.msg))


def _finish_at_exit() -> None:
    """A program that ends without waiting finishes its last save.

    Python 3.12.0 to 3.12.2 starts no thread any more by then, which Orbax needs: there a save under way is lost.
    """
    with _lock:
        if _last is not None:
            _settle(_last, clear=False)


def _tell_at_exit() -> None:
    """Say that the last save failed. No thread is left now, so what was half written stays away when removed."""
    if (last := _last) is None or last._error is None:
        return
    _clear_leftovers(last.folder)
    # Where threads no longer start, one that runs may yet have done the last thing asked of it: naming the folder.
    if not last._told and last.step not in _readable_steps(last.folder):
        print(f"tilewright: {last._error}", file=sys.stderr)


def _settle(saving: Saving, clear: bool = True) -> None:
    """Wait for a save and keep what became of it; one that is not under way is settled."""
    if saving._done:
        return
    try:
        _orbax().wait_until_finished()
    except Exception as error:
        _finish_writing()
        _failed(saving, error, clear)
    saving._done = True


def _finish_writing() -> None:
    """Wait for what is still written about a step that failed, so that its folder can be removed.

    After an error Orbax does not wait for its other writes; each that failed, too, ends one call of it.
    """
    for _ in range(_WRITES if _checkpointer is not None else 0):
        with suppress(Exception):
            _orbax().wait_until_finished()
            return


def _settle_in(folder: Path) -> None:
    """Wait for a save into ``folder``; that it failed is left for who waits for it, or saves next, to hear."""
    with _lock:
        if _last is not None and _last.folder == folder:
            _settle(_last)


waiting.append(_settle_in)


def _failed(saving: Saving, error: Exception, clear: bool = True) -> None:
    saving._done, saving._error = True, error if isinstance(error, TilewrightError) else None
    if saving._error is None:
        saving._error = write_error(error, str(saving.folder / str(saving.step)), _readable_steps(saving.folder))
    if clear:
        _clear_leftovers(saving.folder)


def _readable_steps(folder: Path) -> list[int]:
    try:
        return finished_steps(folder)
    except TilewrightError:
        return []


def _clear_leftovers(folder: Path) -> None:
    """Remove what a killed or failed save left half written; the room it takes may be what is missing.

    Only the owner of a folder knows that nobody writes there any more.
    """
    if jax.process_index() == 0 and owned(folder) is not None and folder.is_dir():
        for entry in folder.iterdir():
            if _LEFTOVER.fullmatch(entry.name):
                shutil.rmtree(entry, ignore_errors=True)


@dataclass(frozen=True)
class _Source:
    """What this process holds of one table or slot."""

    path: str
    vocab: int
    width: int
    placement: TablePlacement
    pieces: list[tuple[Piece, NDArray[Any]]]


@dataclass
class _TablesSave(ocp.args.CheckpointArgs):  # type: ignore[misc]
    schema: Schema
    sources: list[_Source]
    run: str


def _tables_save(state: EmbeddingState, schema: Schema, run: str) -> _TablesSave:
    """The state as it is now, on the host: on a CPU views, which keep donated updates from overwriting them."""
    for array in jax.tree.leaves((state.stacks, state.slots)):
        if isinstance(array, jax.Array):
            array.copy_to_host_async()
    held = {name: local_pieces(array) for name, array in state.stacks.items()}
    slots = {name: {slot: local_pieces(a) for slot, a in arrays.items()} for name, arrays in state.slots.items()}
    sources: list[_Source] = []
    for table in schema.tables:
        placement = state.stacking.tables[table.name]
        arrays = [(table.rows, held[table.stack])]
        arrays += [(stored, slots[table.stack][slot]) for slot, stored in table.slots.items()]
        sources += [_Source(stored.path, table.vocab, stored.width, placement, own) for stored, own in arrays]
    return _TablesSave(schema, sources, run)


def _write(folder: Path, writing: _TablesSave) -> None:
    """All columns of this process, and their checksums; the first process writes what describes them."""
    first = jax.process_index() == 0
    written: dict[str, str] = {}
    in_flight(job for source in writing.sources for job in _jobs(folder, source, first, written))
    write_part(folder, jax.process_index(), {f"{TABLES}/{name}": text for name, text in written.items()})
    if first:
        writing.schema.write(folder)


def _jobs(folder: Path, source: _Source, first: bool, written: dict[str, str]) -> Iterator[Job]:
    def note(chunk: Path, _: Any) -> None:
        written[os.fspath(chunk)[len(os.fspath(folder)) + 1 :]] = chunk_file(chunk)

    shards = source.placement.shards
    columns = ZarrColumns(folder / source.path, source.vocab, shards, source.width)
    columns.create(first)
    if first:
        written[f"{source.path}/{METADATA}"] = whole_file(folder / source.path / METADATA)
    # Padding below the last id of a column is written too, so that every chunk is whole.
    rows, step = rows_of(source.vocab, shards), columns.chunk_rows()
    for column, values in table_parts(source.pieces, source.placement):
        for start in range(0, rows, step):
            chunk = values[start : min(start + step, rows), : source.width]
            write = partial(columns.write, column, start, chunk)
            yield chunk.nbytes, write, partial(note, columns.chunk(column, start))


class _Job:
    """What Orbax waits for in its own thread; the writing is done there."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run: Callable[[], None] | None = run

    def result(self, timeout: int | None = None) -> None:
        run, self._run = self._run, None  # Orbax keeps the job, which must not keep the state
        if run is not None:
            run()


class _Jobs:
    """All that Orbax waits for, over when nothing writes any more, so that what an error left can be removed."""

    def __init__(self, jobs: list[Any]) -> None:
        self._jobs = jobs

    def result(self, timeout: int | None = None) -> None:
        errors: list[Exception] = []
        for job in self._jobs:
            try:
                if not (errors and isinstance(job, _Job)):  # ours have not begun
                    job.result(timeout)
            except Exception as error:
                errors.append(error)
        self._jobs = []
        if errors:
            raise errors[0]


class _StepHandler(ocp.CompositeCheckpointHandler):  # type: ignore[misc]
    """Tables and the rest of a step for Orbax's checkpointer."""

    async def async_save(self, directory: Any, args: _StepSave) -> list[_Jobs]:
        tables = args[TABLES]
        self._finishing = tables.schema.step, tables.run
        return [_Jobs(await super().async_save(directory, args))]

    def finalize(self, directory: Any) -> None:
        """Called once, in the first process, when all have written."""
        super().finalize(directory)
        folder, (step, run) = Path(os.fspath(directory)), self._finishing
        parts = [f"{TABLES}/{part_name(process)}" for process in range(jax.process_count())]
        extra = [str(path.relative_to(folder)) for path in sorted((folder / EXTRA).rglob("*")) if path.is_file()]
        write_checksums(folder, step, run, parts, [f"{TABLES}/{SCHEMA}", *extra])


class _HalfWritten(ocp.path.atomicity.AtomicRenameTemporaryPath):  # type: ignore[misc]
    """The folder of a step that is being written, under a name that no other writer has."""

    @classmethod
    def from_final(cls, final_path: Any, **options: Any) -> Any:
        owner = owned(Path(os.fspath(final_path.parent)))
        assert owner is not None
        return cls(final_path.parent / f"{final_path.name}{_HALF}-{owner.name}", final_path, **options)

    async def finalize(self) -> None:
        """Give it its own name, which fails where a step has it; then it is looked for as a reader would."""
        await super().finalize()
        path = Path(os.fspath(self.get_final()))
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        if read_checksums(path) is None:
            raise FileNotFoundError(f"{path} is not there, although it was written")


@ocp.args.register_with_handler(_StepHandler, for_save=True, for_restore=True)
class _StepSave(ocp.args.Composite):  # type: ignore[misc]
    pass


class _TablesHandler(ocp.AsyncCheckpointHandler):  # type: ignore[misc]
    """Tables and slots for Orbax's checkpointer."""

    async def async_save(self, directory: Any, args: _TablesSave) -> list[_Job]:
        return [_Job(partial(_write, Path(os.fspath(directory)), args))]

    def save(self, directory: Any, args: _TablesSave) -> None:
        _write(Path(os.fspath(directory)), args)

    def restore(self, directory: Any, args: Any = None) -> Any:
        raise NotImplementedError("embed.restore reads the tables")


ocp.args.register_with_handler(_TablesHandler, for_save=True, for_restore=True)(_TablesSave)
