"""Save a state while training goes on: a thread writes the step by tensorstore and Orbax, then gives it its name."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from numpy.typing import NDArray

from tilewright.embed.checkpoint.folder import (
    EXTRA,
    SCHEMA,
    TABLES,
    begin_run,
    finished_steps,
    from_first,
    own,
    owned,
    release_all,
    waiting,
    write_error,
)
from tilewright.embed.checkpoint.schema import (
    Schema,
    chunk_file,
    part_name,
    read_checksums,
    schema_of,
    whole_file,
    write_checksums,
    write_part,
)
from tilewright.embed.checkpoint.store import METADATA, Job, ZarrColumns, in_flight, rows_of
from tilewright.embed.device.state import EmbeddingState, Piece, local_pieces, table_parts
from tilewright.embed.model.stacking import TablePlacement
from tilewright.embed.model.tables import Limits, count
from tilewright.errors import TilewrightError, UsageError

_WRITES = 8
"""More than Orbax writes about a pytree beside its arrays."""
_PATIENCE = 600
"""Seconds in which all processes come to a meeting."""
_calls = itertools.count()
"""Calls of :func:`save`, which all processes make alike; each names its own meetings."""
_HALF = ".orbax-checkpoint-tmp"
_LEFTOVER = re.compile(rf"\d+{re.escape(_HALF)}.*")


class Saving:
    """A save that is under way. :meth:`wait` blocks until the step is on disk and raises what went wrong."""

    def __init__(self, folder: Path, step: int) -> None:
        self.folder, self.step = folder, step
        self._thread: threading.Thread | None = None
        self._told = False
        self._error: TilewrightError | None = None

    def wait(self) -> None:
        """Block until the step is finished.

        Raises :class:`TilewrightError` where it could not be written: why, and which steps there are.
        """
        self.settle()
        if self._error is not None:
            self._told = True
            raise self._error

    def settle(self) -> None:
        """Block until nothing of it is under way, whatever became of it."""
        if self._thread is not None:
            self._thread.join()


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
    path, number = Path(os.path.abspath(folder)), next(_calls)
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
        try:
            _clear_leftovers(path)
            half = path / f"{step}{_HALF}-{own(path).name}"  # a name that no other writer has
            schema, run = schema_of(state, step, limits or {}), _run(path) if jax.process_index() == 0 else ""
            from_first(lambda: (half / TABLES).mkdir(parents=True))
            writing = _StepSave(half, _sources(state, schema), schema, run, number)
            if extra is not None:
                _orbax().save(half / EXTRA, args=ocp.args.StandardSave(extra))
            saving._thread = threading.Thread(target=_write, args=(saving, writing), name=f"saves step {step}")
            saving._thread.start()
        except Exception as error:
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
    """What writes ``extra`` while training goes on, from all processes."""
    global _checkpointer
    if _checkpointer is None:
        # Folders are made before anything is written, so that a wrong one is an error of save and not of wait. Made
        # meanwhile, one that cannot be made is waited for by the threads that write into it, for five minutes.
        options = ocp.AsyncOptions(create_directories_asynchronously=False)
        _checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler(), async_options=options)
        logging.getLogger("absl").addFilter(_not_told_twice)
    return _checkpointer


def _not_told_twice(record: logging.LogRecord) -> bool:
    """Orbax logs what a failed save raises, with its traceback; :meth:`Saving.wait` raises it."""
    return not re.search(r"Failed to run \d+ Handler Commit|_SignalingThread.run\(\) raised", str(record.msg))


def _finish_at_exit() -> None:
    """A program that ends without waiting finishes its last save.

    Python 3.12.0 to 3.12.2 starts no thread any more by then, which a save needs: there one under way may be lost.
    """
    if _last is not None:
        _last.settle()


def _tell_at_exit() -> None:
    """Say that the last save failed. No thread is left now, so what was half written stays away when removed."""
    if (last := _last) is None or last._error is None:
        return
    _clear_leftovers(last.folder)
    # Where threads no longer start, one that runs may yet have done the last thing asked of it: naming the folder.
    if not last._told and last.step not in _readable_steps(last.folder):
        print(f"tilewright: {last._error}", file=sys.stderr)


def _settle_in(folder: Path) -> None:
    """Wait for a save into ``folder``; that it failed is left for who waits for it, or saves next, to hear."""
    if (last := _last) is not None and last.folder == folder:
        last.settle()


waiting.append(_settle_in)


def _failed(saving: Saving, error: Exception) -> None:
    """Note why, when nothing is written any more, and remove what was.

    After an error Orbax does not wait for its other writes; each that failed, too, ends one call of it.
    """
    if (writer := _checkpointer) is not None:
        for _ in range(_WRITES):
            with suppress(Exception):
                writer.wait_until_finished()
                break
    if not isinstance(error, TilewrightError):
        error = write_error(error, str(saving.folder / str(saving.step)), _readable_steps(saving.folder))
    _clear_leftovers(saving.folder)
    saving._error = error


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


@dataclass(frozen=True)
class _StepSave:
    """A step on its way into the folder ``half``; ``extra`` is begun already."""

    half: Path
    sources: list[_Source]
    schema: Schema
    run: str
    number: int


def _sources(state: EmbeddingState, schema: Schema) -> list[_Source]:
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
    return sources


def _write(saving: Saving, step: _StepSave) -> None:
    """What the thread does: the parts of all processes, then the step's name."""
    try:
        _write_tables(step.half / TABLES, step)
        if _checkpointer is not None:
            _checkpointer.wait_until_finished()
        _meet(f"{step.number} is written")
        if jax.process_index() == 0:
            _give_name(step, saving.folder / str(saving.step))
        _meet(f"{step.number} has its name")
    except Exception as error:
        _failed(saving, error)


def _meet(name: str) -> None:
    """Wait until every process is here, from a thread of each; no device is used."""
    ocp.multihost.get_barrier_sync_fn()(key=f"tilewright save {name}", timeout_ms=1000 * _PATIENCE)


def _write_tables(folder: Path, step: _StepSave) -> None:
    """All columns of this process, and their checksums; the first process writes what describes them."""
    first = jax.process_index() == 0
    written: dict[str, str] = {}
    in_flight(job for source in step.sources for job in _jobs(folder, source, first, written))
    write_part(folder, jax.process_index(), {f"{TABLES}/{name}": text for name, text in written.items()})
    if first:
        step.schema.write(folder)


def _give_name(step: _StepSave, path: Path) -> None:
    """Write the last checksums and rename the folder, which fails where a step has that name; then look for the step
    as a reader would."""
    parts = [f"{TABLES}/{part_name(process)}" for process in range(jax.process_count())]
    extra = [str(file.relative_to(step.half)) for file in sorted((step.half / EXTRA).rglob("*")) if file.is_file()]
    write_checksums(step.half, step.schema.step, step.run, parts, [f"{TABLES}/{SCHEMA}", *extra])
    step.half.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    if read_checksums(path) is None:
        raise FileNotFoundError(f"{path} is not there, although it was written")


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


# A save needs executors; they are shut down before atexit's functions run.
getattr(threading, "_register_atexit", atexit.register)(_finish_at_exit)
atexit.register(release_all)  # after the next one
atexit.register(_tell_at_exit)
