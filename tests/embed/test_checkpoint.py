"""Checkpoints: what is restored is what was saved, onto anything, after anything."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile

import jax
import numpy as np
import optax
import pytest
import tensorstore
from orbax.checkpoint._src.metadata import checkpoint as metadata

from tests.conftest import tries
from tests.embed import killed_saves
from tilewright.embed import (
    SGD,
    Adagrad,
    Adam,
    Checkpoints,
    EmbeddingState,
    Feature,
    Limits,
    RowwiseAdagrad,
    Table,
    Topology,
    from_tables,
    init,
    restore,
    restore_extra,
    save,
    saved_limits,
    saved_steps,
    stack,
    tables,
    whole_step,
)
from tilewright.embed.checkpoint import folder as folder_module
from tilewright.embed.checkpoint.folder import release
from tilewright.embed.checkpoint.store import ZarrColumns, text_proto
from tilewright.errors import TilewrightError, UsageError

ADAGRAD = Adagrad(0.1, 0.25)
TABLES = (
    Table("a", 403, 12, optimizer=ADAGRAD),
    Table("b", 77, 16, optimizer=ADAGRAD),
    Table("c", 1, 3, optimizer=SGD(0.1)),
    Table("d x/y", 150, 20, optimizer=RowwiseAdagrad(0.1)),
    Table("e", 900, 8, optimizer=Adam(0.1)),
)
EXTRA = {"dense": [np.arange(6, dtype=np.float32).reshape(2, 3)], "count": 5}


def model(sparsecores=4, chips=1, used=TABLES, **options):
    return stack([Feature(f"f {t.name}", t) for t in used], Topology(chips, sparsecores), **options)


def random_state(plan, step=41):
    rng = np.random.default_rng(step)
    numbers = jax.tree.map(lambda a: jax.device_put(rng.normal(size=a.shape).astype(np.float32)), shapes(plan))
    return EmbeddingState(jax.device_put(np.int32(step)), numbers.stacks, numbers.slots, plan)


def shapes(plan):
    """A new state's, as EmbeddingState says they are; test_some_tables_and_others_new has a state of ``init``."""

    def made(*shape, dtype=np.float32):
        return jax.ShapeDtypeStruct(shape, dtype)

    stacks, slots = {}, {}
    for name, stack_ in plan.stacks.items():
        rows, width = (stack_.shards, stack_.rows_per_shard), stack_.padded_width
        stacks[name] = made(*rows, width)
        each = 1 if isinstance(stack_.optimizer, RowwiseAdagrad) else width
        slots[name] = {slot: made(*rows, each) for slot in stack_.optimizer.slots}
    return EmbeddingState(made(dtype=np.int32), stacks, slots, plan)


def logical(state, slots=True):
    """{(table, slot): values}."""
    found = {(name, ""): value for name, value in tables(state).items()}
    for name, placement in state.stacking.tables.items():
        alone = EmbeddingState(state.step, state.stacks, state.slots, state.stacking)
        for slot in state.slots[placement.stack] if slots else ():
            only = {p.stack: state.slots[p.stack].get(slot, state.stacks[p.stack]) for p in [placement]}
            whole = EmbeddingState(state.step, state.stacks | only, state.slots, alone.stacking)
            found[name, slot] = tables(whole)[name]
    return {place: np.asarray(value) for place, value in found.items()}


def steps_in(folder):
    """What is in a folder of checkpoints, beside who owns it."""
    return sorted(set(os.listdir(folder)) - {"lock", "run.json"})


def assert_same(found, expected):
    assert set(found) == set(expected)
    for place, value in expected.items():
        assert np.array_equal(found[place], value), place


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with steps 5 and 9 of one model, and the state of step 9."""
    folder, plan = tmp_path_factory.mktemp("saved"), model()
    save(folder, random_state(plan, 5), 5, extra=EXTRA)
    state = random_state(plan)
    save(folder, state, 9, limits={"a_b": Limits(8, 4)}, extra=EXTRA).wait()
    return folder, state


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"sparsecores": 1},
        {"sparsecores": 3, "rotation": 2},
        {"sparsecores": 4, "chips": 2, "table_stacking": False},
        {"sparsecores": 2, "chips": 3, "rotation": 1},
        {"sparsecores": 2, "stacks": [["b", "a"]]},
        {"used": TABLES[::-1], "sparsecores": 5},
    ],
)
def test_a_state_is_restored_onto_any_topology_and_stacking(saved, plan):
    folder, state = saved
    found = restore(folder, model(**plan))
    assert_same(logical(found), logical(state))
    assert int(found.step) == 41
    assert jax.tree.map(np.shape, found) == jax.tree.map(np.shape, shapes(model(**plan)))


def test_steps_extra_and_limits(saved):
    folder, _ = saved
    assert saved_steps(folder) == [5, 9]
    assert_same(logical(restore(folder, model(), step=5)), logical(random_state(model(), 5)))
    found = restore_extra(folder, {"dense": [np.zeros((2, 3), np.float32)], "count": 0})
    assert np.array_equal(found["dense"][0], EXTRA["dense"][0])
    assert found["count"] == 5
    assert saved_limits(folder) == {"a_b": Limits(8, 4)}
    assert saved_limits(folder, step=5) == {}


def test_padding_is_as_a_new_state_has_it(saved):
    """What lies between the tables is zero, and in slots what they start from."""
    folder, _ = saved
    plan = model(3)
    found, again = restore(folder, plan), from_tables(plan, tables(restore(folder, plan)))
    assert_same(dict(found.stacks), dict(again.stacks))
    plain = np.asarray(found.slots["a_b"]["accumulator"]).copy()
    for name, rows in (("a", 403), ("b", 77)):
        place = plan.tables[name]
        for shard in range(3):
            first = (shard - place.rotation) % 3
            count = len(range(first, rows, 3))
            plain[shard, place.row_offset : place.row_offset + count, : place.table.width] = 0.25
    assert (plain == 0.25).all()


def test_anyone_reads_a_table(saved):
    """With tensorstore alone, by what the schema says."""
    folder, state = saved
    home = folder / "9" / "tables"
    schema = json.loads((home / "schema.json").read_text())
    assert (schema["schema_version"], schema["step"], schema["updates"], schema["shards"]) == (2, 9, 41, 4)
    by_name = {table["name"]: table for table in schema["tables"]}
    assert by_name["a"]["optimizer"] == {"name": "Adagrad", "learning_rate": 0.1, "initial_accumulator": 0.25}
    assert by_name["b"]["rotation"] == 0
    assert schema["features"]["f a"] == "a"
    for name, value in tables(state).items():
        entry = by_name[name]
        path = str(home / entry["rows"]["path"]) + "/"
        array = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}).result().read()
        assert np.array_equal(array.result().reshape(-1, entry["width"])[: entry["vocab"]], value)


def test_extra_is_params_and_an_optax_state(tmp_path):
    params = {"w": jax.numpy.ones((2, 3)), "layers": [jax.numpy.zeros(2), (np.float32(3), 5)]}
    kept = (params, optax.chain(optax.clip(1.0), optax.adam(0.1)).init(params))
    save(tmp_path, random_state(model(used=TABLES[2:3])), 0, extra=kept).wait()
    found = restore_extra(tmp_path, jax.eval_shape(lambda: kept))
    assert jax.tree.structure(found) == jax.tree.structure(kept)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(kept)))
    with pytest.raises(UsageError, match=r"0\.layers\.0 is nothing in it, \[2\] in the checkpoint"):
        restore_extra(tmp_path, ({"w": params["w"]}, kept[1]))


def test_training_goes_on_while_a_step_is_saved(tmp_path):
    """A donated update right after save changes nothing that is being written."""
    plan = model(used=TABLES[:1])
    state = jax.block_until_ready(random_state(plan))
    expected = logical(state)
    overwrite = jax.jit(lambda state: jax.tree.map(lambda a: a + 1, state), donate_argnums=0)
    saving = save(tmp_path, state, 1)
    for _ in range(3):
        state = jax.block_until_ready(overwrite(state))
    saving.wait()
    assert_same(logical(restore(tmp_path, plan)), expected)


def test_some_tables_and_others_new(saved):
    folder, state = saved
    plan = model(used=[*TABLES[1:], Table("new", 40, 16, optimizer=ADAGRAD)])
    with pytest.raises(UsageError, match=r"no new; more than the stacking: a; name those to restore: tables="):
        restore(folder, plan)
    with pytest.raises(UsageError, match="tables not restored: d x/y, e, new; give the key"):
        restore(folder, plan, tables=["b", "c"])
    found = logical(restore(folder, plan, tables=["b", "c"], key=jax.random.key(3)))
    made = init(plan, jax.random.key(3))
    assert jax.tree.map(np.shape, made) == jax.tree.map(np.shape, shapes(plan))
    fresh, old = logical(made), logical(state)
    assert_same(found, {place: (old if place[0] in "bc" else fresh)[place] for place in found})


def test_another_optimizer_starts_new_slots(saved):
    folder, state = saved
    plan = model(used=[Table("a", 403, 12, optimizer=Adam(0.2))])
    with pytest.raises(UsageError, match=r"saved with optimizer Adagrad \(accumulator\), the stacking has Adam"):
        restore(folder, plan, tables=["a"])
    found = restore(folder, plan, tables=["a"], slots=False)
    assert np.array_equal(tables(found)["a"], tables(state)["a"])
    assert not np.asarray(found.slots["a"]["momentum"]).any()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"vocab": 400}, "table 'a': vocab 403 in the checkpoint, 400 in the stacking; give the Table vocab=403"),
        ({"width": 13}, "table 'a': width 12 in the checkpoint, 13 in the stacking; give the Table width=12"),
    ],
)
def test_tables_that_do_not_fit(saved, change, text):
    sizes = {"vocab": 403, "width": 12} | change
    with pytest.raises(UsageError, match=text):
        restore(saved[0], model(used=[Table("a", **sizes, optimizer=ADAGRAD)]), tables=["a"])


def test_folders_that_are_no_checkpoints(saved, tmp_path):
    folder, state = saved
    for place, text in (
        (tmp_path, "no finished checkpoint in this folder"),
        (tmp_path / "none", "no such folder"),
        (folder / "9" / "tables" / "schema.json", "a file, not a folder of checkpoints"),
    ):
        with pytest.raises(UsageError, match=text):
            restore(place, model())
    assert saved_steps(tmp_path / "none") == []
    with pytest.raises(UsageError, match="no finished step 7; take one of 5, 9"):
        restore(folder, model(), step=7)
    with pytest.raises(UsageError, match="step 9 is there already; remove"):
        save(folder, state, 9)
    with pytest.raises(UsageError, match="step = -1 is not a whole number"):
        save(folder, state, -1)
    with pytest.raises(UsageError, match="the mesh has no axis 'y'; name one of x"):
        restore(folder, model(), mesh=jax.make_mesh((1,), ("x",)), axis="y")
    save(tmp_path, random_state(model(used=TABLES[2:3])), 1).wait()
    with pytest.raises(UsageError, match="nothing was saved beside the tables"):
        restore_extra(tmp_path, EXTRA)


def test_whatever_file_is_damaged(tmp_path):
    """Cut in half, emptied, flipped or lost: equal, or an error that names the file and the step to take instead."""
    plan = model(used=TABLES[:2])
    state = random_state(plan)
    expected, noticed = logical(state), 0
    save(tmp_path, state, 1)
    save(tmp_path, state, 2).wait()
    for path in sorted((tmp_path / "2" / "tables").rglob("*")):
        if path.is_dir():
            continue
        whole = path.read_bytes()
        middle = len(whole) // 2
        for damaged in (whole[:middle], b"", whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :], None):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            try:
                assert_same(logical(restore(tmp_path, plan)), expected)
            except TilewrightError as error:
                noticed += 1
                assert "damaged" in str(error) or "missing" in str(error)
                assert path.name in str(error)
                assert str(error).endswith("restore step 1, the newest that is whole")
            path.write_bytes(whole)
    assert noticed == 4 * (1 + 1 + 4 * (1 + 4)), "schema, checksums, and four arrays of four chunks"
    assert_same(logical(restore(tmp_path, plan, step=1)), expected)


def swap(one, other):
    """Two files or folders change places."""
    one.rename(one.with_name("between"))
    other.rename(one)
    one.with_name("between").rename(other)


SWAPS = {
    "chunks of two steps": ("9/tables/a/rows/c.0.1.0", "5/tables/a/rows/c.0.1.0"),
    "chunks of two shards": ("9/tables/a/rows/c.0.1.0", "9/tables/a/rows/c.0.2.0"),
    "rows and a slot": ("9/tables/a/rows/c.0.1.0", "9/tables/a/slots/accumulator/c.0.1.0"),
    "two slots": ("9/tables/e/slots/momentum", "9/tables/e/slots/velocity"),
    "two tables": ("9/tables/a/rows/zarr.json", "9/tables/e/rows/zarr.json"),
    "tables of two steps": ("9/tables", "5/tables"),
    "dense parameters of two steps": ("9/extra", "5/extra"),
    "checksums of two steps": ("9/checksums.json", "5/checksums.json"),
    "two steps": ("9", "5"),
    "steps of two runs": ("9", "other/9"),
    "tables of two runs": ("9/tables", "other/9/tables"),
    "dense parameters of two runs": ("9/extra", "other/9/extra"),
}


def restored_as(folder, plan, expected):
    """Tables that are not refused are right; then the dense parameters must be."""
    assert_same(logical(restore(folder, plan, 9)), expected)
    restore_extra(folder, EXTRA, 9)


@pytest.mark.parametrize("what", SWAPS)
def test_what_is_of_another_place_is_refused(what, mixed):
    """Every part whole in itself, but not the one that was saved there."""
    folder, plan, states = mixed
    one, other = (folder / place for place in SWAPS[what])
    swap(one, other)
    try:
        with pytest.raises(TilewrightError, match=r"damaged|missing") as error:
            restored_as(folder, plan, states[9])
        whole = "1" if "5/" in SWAPS[what][1] or what == "two steps" else "5"
        assert str(error.value).endswith(f"restore step {whole}, the newest that is whole")
        assert whole_step(folder) == int(whole)
    finally:
        swap(one, other)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A folder of steps 1, 5 and 9, another run's of 9 in it, and the numbers of the first."""
    folder, plan = tmp_path_factory.mktemp("mixed"), model(used=[TABLES[0], TABLES[4]])
    for step in (1, 5, 9):
        extra = {"dense": [EXTRA["dense"][0] + step], "count": 5}
        save(folder, random_state(plan, step), step, extra=extra)
    save(folder / "other", random_state(plan, 90), 9, extra=EXTRA).wait()
    assert saved_steps(folder) == [1, 5, 9]
    return folder, plan, {9: logical(random_state(plan, 9))}


def test_dense_parameters_that_are_damaged(mixed):
    """Cut, flipped or lost: not one bit of them is restored wrong."""
    folder, noticed = mixed[0], 0
    expected = restore_extra(folder, EXTRA)["dense"][0]
    assert np.array_equal(expected, EXTRA["dense"][0] + 9)
    for path in sorted((folder / "9" / "extra").rglob("*")):
        if path.is_dir():
            continue
        whole = path.read_bytes()
        middle = len(whole) // 2
        for damaged in (whole[:middle], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], None):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            with pytest.raises(UsageError, match=r"(damaged|missing) .*restore step 5, the newest that is whole"):
                restore_extra(folder, EXTRA)
            noticed += 1
            path.write_bytes(whole)
    assert noticed >= 3 * 5
    assert np.array_equal(restore_extra(folder, EXTRA)["dense"][0], expected)


def test_bare_metadata_is_no_step(tmp_path):
    """As two writers of one temporary folder left it."""
    for name in ("_CHECKPOINT_METADATA", "commit_success.txt"):
        (tmp_path / "1").mkdir(exist_ok=True)
        (tmp_path / "1" / name).write_text("{}")
    assert saved_steps(tmp_path) == []


def test_checkpoints_without_checksums_stay_readable(tmp_path, data_folder):
    """Saved by the version before; a remark says what is not promised."""
    with zipfile.ZipFile(data_folder / "embed_checkpoint_before.zip") as packed:
        packed.extractall(tmp_path)
    plan = model(used=[TABLES[1]], sparsecores=2)
    with pytest.warns(UserWarning, match="step 5 was saved without checksums of all files"):
        assert_same(logical(restore(tmp_path, model(used=[TABLES[1]], sparsecores=3))), logical(random_state(plan, 5)))
    with pytest.warns(UserWarning, match="step 5 was saved without checksums"):
        assert np.array_equal(restore_extra(tmp_path, EXTRA)["dense"][0], EXTRA["dense"][0])
    save(tmp_path, random_state(plan, 6), 6).wait()
    assert_same(logical(restore(tmp_path, plan)), logical(random_state(plan, 6)))
    (tmp_path / "6" / "checksums.json").unlink()
    with pytest.raises(UsageError, match=r"missing .*checksums.json.*restore step 5, the newest that is whole"):
        restore(tmp_path, plan)


OWNER = """
import sys, pathlib
from tilewright.embed.checkpoint.folder import own
own(pathlib.Path(sys.argv[1]))
print("owned", flush=True)
sys.stdin.read()
"""


def test_a_folder_has_one_owner(root, tmp_path):
    """Another process owns it, is refused nothing while it lives, and its lock is free when it is killed."""
    state = random_state(model(used=TABLES[2:3]))
    save(tmp_path, state, 1).wait()
    release(tmp_path)
    program = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(program, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "owned\n"
        half = tmp_path / "2.orbax-checkpoint-tmp-another"
        half.mkdir()
        refusal = rf"another training writes into this folder: process {other.pid} on .*; wait for its end"
        for begin in (lambda: save(tmp_path, state, 2), lambda: Checkpoints(str(tmp_path), 2)):
            with pytest.raises(UsageError, match=refusal):
                begin()
        assert half.is_dir(), "what another one is writing is not cleared away"
        assert saved_steps(tmp_path) == [1]
        other.kill()
    assert json.loads((tmp_path / "lock").read_text())["process"] == other.pid
    save(tmp_path, state, 2).wait()
    assert steps_in(tmp_path) == ["1", "2"]
    release(tmp_path)
    assert (tmp_path / "lock").read_text() == ""


def test_an_owner_elsewhere_is_named(tmp_path):
    """Whose lock is free here, which says nothing where file systems keep locks to a machine."""
    state = random_state(model(used=TABLES[2:3]))
    owner = {"host": "elsewhere", "boot": "another", "process": 7, "started": "1", "since": "yesterday"}
    (tmp_path / "lock").write_text(json.dumps(owner))
    with pytest.raises(UsageError, match=r"process 7 on elsewhere, since yesterday owns .* once it has ended, remove"):
        save(tmp_path, state, 1)
    (tmp_path / "lock").unlink()
    save(tmp_path, state, 1).wait()
    assert saved_steps(tmp_path) == [1]


def test_where_a_file_system_has_no_locks_the_name_decides(tmp_path, monkeypatch):
    """A process that runs, the same number with another start, and one that is gone."""
    monkeypatch.setattr(folder_module, "_lock", lambda file: False)
    parent = folder_module._myself() | {"process": os.getppid(), "started": folder_module._started(os.getppid())}
    (tmp_path / "lock").write_text(json.dumps(parent))
    with pytest.raises(UsageError, match=f"another training writes into this folder: process {os.getppid()} on"):
        folder_module.own(tmp_path)
    for dead in ({"started": "1"}, {"process": 1 << 22}):
        (tmp_path / "lock").write_text(json.dumps(parent | dead))
        folder_module.own(tmp_path)
        release(tmp_path)


def test_a_folder_made_anew_is_owned_anew(tmp_path):
    state, folder = random_state(model(used=TABLES[2:3])), tmp_path / "run"
    save(folder, state, 1).wait()
    first = (folder / "run.json").read_text()
    shutil.rmtree(folder)
    save(folder, state, 1).wait()
    assert (folder / "run.json").read_text() != first
    assert folder_module.owned(folder).holds(folder.resolve())
    (folder / "run.json").unlink()  # as where steps alone were copied: they say of which run they are
    save(folder, state, 2).wait()
    assert whole_step(folder) == 2


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (OSError(28, "No space left on device"), "the disk is full; finished steps are kept: 1; make room and save"),
        (ValueError("PERMISSION_DENIED: Error writing x [OS error 13: EACCES Permission denied]"), "no permission"),
        (OSError(30, "Read-only file system"), "the file system is read-only"),
        (OSError(5, "Input/output error"), "Input/output error"),
    ],
)
def test_a_disk_that_refuses(tmp_path, monkeypatch, failure, text):
    state = random_state(model(used=TABLES[:2]))
    save(tmp_path, state, 1).wait()

    def refuse(self, column, first, values):
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(ZarrColumns, "write", refuse)
        saving = save(tmp_path, state, 2)
        with pytest.raises(UsageError, match=text) as error:
            saving.wait()
        assert str(tmp_path / "2") in str(error.value)
        save(tmp_path, state, 3)
        with pytest.raises(UsageError, match=text):  # who did not wait is told by the next save
            save(tmp_path, state, 4)
    assert steps_in(tmp_path) == ["1"]
    save(tmp_path, state, 2).wait()
    assert saved_steps(tmp_path) == [1, 2]


def test_a_failed_save_leaves_no_thread(tmp_path, monkeypatch):
    """One that waits for a folder nobody makes would hold up the end of the program for minutes."""
    state = random_state(model(used=TABLES[2:3]))
    save(tmp_path, state, 1, EXTRA).wait()
    before, mkdir = set(threading.enumerate()), os.mkdir

    def refuse(path, *rest):
        if os.path.basename(path).startswith("extra"):
            raise OSError(28, "No space left on device")
        mkdir(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", refuse)
        with pytest.raises(UsageError, match="the disk is full; finished steps are kept: 1"):
            save(tmp_path, state, 2, EXTRA).wait()
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive(), thread
    assert steps_in(tmp_path) == ["1"]


@pytest.mark.parametrize("what", ["folder", "note", "note that fails"])
def test_a_failed_save_leaves_nothing_that_is_written_late(tmp_path, monkeypatch, what):
    """Orbax makes folders and writes about a step in threads, which may come to it when the step has failed."""
    state = random_state(model(used=TABLES[2:3]))
    save(tmp_path, state, 1, EXTRA).wait()
    makedirs, write = os.makedirs, metadata._MetadataStoreImpl.write

    def refuse(path, *rest, **more):
        if os.path.basename(path).startswith("extra"):
            raise OSError(28, "No space left on device")
        if os.path.basename(path).startswith("tables") and what == "folder":
            time.sleep(0.3)
        makedirs(path, *rest, **more)

    def late(*arguments):
        time.sleep(0.3)
        write(*arguments)
        if what == "note that fails":
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "makedirs", refuse)
        if what != "folder":
            patch.setattr(metadata._MetadataStoreImpl, "write", late)
        with pytest.raises(UsageError, match="the disk is full; finished steps are kept: 1"):
            save(tmp_path, state, 2, EXTRA).wait()
        time.sleep(0.5 if what == "folder" else 0)
        assert steps_in(tmp_path) == ["1"]
    save(tmp_path, state, 2, EXTRA).wait()
    assert saved_steps(tmp_path) == [1, 2]


def test_a_save_of_this_process_is_waited_for(tmp_path):
    """What asks for the steps right after a save finds it, without a word about waiting."""
    state = random_state(plan := model(used=TABLES[:2]))
    save(tmp_path, state, 1)
    assert saved_steps(tmp_path) == [1]
    save(tmp_path, state, 2)
    assert_same(logical(restore(tmp_path, plan)), logical(state))


def test_killed_in_mid_save_and_refused_by_the_system(root, tmp_path):
    """Each kill: the last finished step is there, whole, and none that was announced is lost.

    Then, in the same process, a file cut off by the system, no right to the folder, an end without waiting.
    """
    with tempfile.TemporaryDirectory() as refused:  # below folders that everybody may read
        os.chmod(refused, 0o755)
        limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
        program = [sys.executable, "-m", "tests.embed.killed_saves", str(tmp_path), str(tries(6)), "1"]
        program += [] if limited else [refused]
        done = subprocess.run(program, cwd=root, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        kills, *errors = done.stdout.splitlines()
        assert kills.startswith(f"{tries(6)} kills")
        assert len(saved_steps(tmp_path)) >= 1
        if limited:
            pytest.skip("a limit on files is set")
        cut, forbidden = errors
        start = f"UsageError {refused}/2: the checkpoint was not saved:"
        assert cut.startswith(f"{start} a file is larger than this process may write; finished steps are kept: 1;")
        assert forbidden.startswith(f"{start} no permission")
        assert "Traceback" not in done.stderr
        if not (3, 12) <= sys.version_info < (3, 12, 3):
            assert saved_steps(refused) == [1, 3]
        elif saved_steps(refused) != [1, 3]:  # these start no thread any more while the interpreter ends
            assert "3: the checkpoint was not saved: the program ended before it was written" in done.stderr
            assert steps_in(refused) == ["1"]
        found, plan = restore(refused, killed_saves.stacking(3)), killed_saves.stacking(4)
        assert_same(logical(found), logical(killed_saves.state_of(1, plan)))


@pytest.fixture(scope="module")
def peer(tmp_path_factory, data_folder):
    """Checkpoints that jax-tpu-embedding wrote on two devices of two SparseCores, and its own logical tables."""
    folder = tmp_path_factory.mktemp("peer")
    with zipfile.ZipFile(data_folder / "embed_peer_checkpoints.zip") as packed:
        packed.extractall(folder)
    with np.load(folder / "logical.npz") as arrays:
        return folder, {(k.split("/")[0], k.split("/")[1].replace("rows", "")): v for k, v in arrays.items()}


PEERS_TABLES = [
    Table(name, vocab, width, optimizer=ADAGRAD)
    for name, vocab, width in (("country", 18, 6), ("language", 30, 6), ("movie", 42, 9))
]


def test_the_peers_checkpoints_are_read(peer):
    folder, expected = peer
    assert saved_steps(folder / "nnx") == [7]
    for sparsecores in (1, 3, 4):
        found = restore(folder / "nnx", model(sparsecores, used=PEERS_TABLES))
        assert_same(logical(found), expected)
        assert int(found.step) == 7
    trained_with = model(2, 2, used=PEERS_TABLES)
    found = restore(folder / "linen", model(5, used=PEERS_TABLES), written_with=trained_with)
    assert_same(logical(found), expected)
    with pytest.raises(UsageError, match="neither tables of ours nor an embedding_spec"):
        restore(folder / "linen", trained_with)
    with pytest.raises(UsageError, match="'movie': saved with optimizer"):
        restore(folder / "nnx", model(used=[Table("movie", 42, 9)]), tables=["movie"])


def test_text_of_protocol_buffers():
    found = text_proto('a { s: "x \\" }" n: -3 f: 0.5 kind: ADAGRAD inner { } } a { n: 1 }')
    assert found == {"a": [{"s": ['x " }'], "n": [-3], "f": [0.5], "kind": ["ADAGRAD"], "inner": [{}]}, {"n": [1]}]}
    for text in ("a {", "a { b: 1 } }", "a b"):
        with pytest.raises(ValueError):
            text_proto(text)
