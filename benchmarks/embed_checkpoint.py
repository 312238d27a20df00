"""Checkpoints beside raw Orbax on the same arrays, in one process: throughput, ratio, memory; both restore equal.

    ./run python benchmarks/embed_checkpoint.py [--megabytes 512] [--devices 1 8] [--repeat 5] [--folder DIR]

A model of 26 tables (vocabularies in geometric steps, widths 16 and 64, Adagrad) on eight SparseCores. Raw Orbax gets
the state's stacked arrays as they are, once with its own compression (zstd, its default) and once without; ours writes
logical tables. Times are minima over interleaved repetitions, from the call to the step's finished folder; "blocks" is
how long the call holds the training up. "memory" is how far a process of its own grew at most, in sizes of the state,
above the state that it saves or restores; for ours also with an update that overwrites the state meanwhile. Restores
read what was written just before, so from the page cache: what counts is the work, not the
disk. The disk's own speed, a plain file written and synced, stands below.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHARDS = 8


def model(megabytes, shards):
    """26 tables whose rows and accumulators take about so many megabytes."""
    import numpy as np

    from tilewright.embed import Adagrad, Feature, Table, Topology, stack

    share = np.geomspace(1, 10_000, 26)
    widths = [64 if k % 3 == 0 else 16 for k in range(26)]
    rows = share * (megabytes * 1e6 / 8 / float((share * widths).sum()))
    tables = [
        Table(f"t{k:02d}", max(3, int(n)), w, optimizer=Adagrad(0.1)) for k, (n, w) in enumerate(zip(rows, widths))
    ]
    return stack([Feature(f"f{t.name}", t) for t in tables], Topology(1, shards))


def random_state(stacking, place):
    """Numbers that do not compress, as trained rows do not."""
    import jax
    import numpy as np

    from tilewright.embed import init

    rng = np.random.default_rng(0)
    state = init(stacking, jax.random.key(0), **place)

    def fill(array):
        if not array.ndim:
            return array
        values = rng.standard_normal(array.shape, np.float32)
        return jax.device_put(values, array.sharding)

    return jax.tree.map(fill, state)


def memory(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1e3 for line in status if line.startswith(field))


def grown(run):
    """Megabytes by which the process grows at most while ``run`` runs."""
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    kept = run()
    del kept
    return memory("VmHWM") - before


class Orbax:
    def __init__(self, compressed):
        import orbax.checkpoint as ocp

        self.name = "raw Orbax" if compressed else "raw Orbax, no compression"
        handler = ocp.PyTreeCheckpointHandler(use_compression=compressed)
        self.ocp, self.checkpointer = ocp, ocp.AsyncCheckpointer(handler)

    def save(self, folder, state, step):
        tree = {"step": state.step, "stacks": state.stacks, "slots": state.slots}
        self.checkpointer.save(folder / str(step), args=self.ocp.args.PyTreeSave(tree))
        blocked = time.perf_counter()
        self.checkpointer.wait_until_finished()
        return blocked

    def restore(self, folder, state, place):
        import jax

        from tilewright.embed import EmbeddingState

        tree = {"step": state.step, "stacks": state.stacks, "slots": state.slots}
        like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), tree)
        how = self.ocp.checkpoint_utils.construct_restore_args(like)
        (step,) = folder.iterdir()
        args = self.ocp.args.PyTreeRestore(item=like, restore_args=how)
        return EmbeddingState(**self.checkpointer.restore(step, args=args), stacking=state.stacking)


class Ours:
    def __init__(self, stacking=None, place=None):
        self.stacking, self.place = stacking, place
        self.name = "tilewright" if stacking is None else f"tilewright, onto {stacking.topology.sparsecores} shards"

    def save(self, folder, state, step):
        from tilewright.embed import save

        saving = save(folder, state, step)
        blocked = time.perf_counter()
        saving.wait()
        return blocked

    def restore(self, folder, state, place):
        from tilewright.embed import restore

        return restore(folder, self.stacking or state.stacking, **(place if self.place is None else self.place))


def disk(folder, megabytes=256):
    block = os.urandom(1 << 24)
    start = time.perf_counter()
    with open(folder / "plain", "wb") as file:
        for _ in range(megabytes * 10**6 // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    os.unlink(folder / "plain")
    return size / 1e6 / (time.perf_counter() - start)


def run(args, devices):
    import jax
    import numpy as np

    from tilewright.embed import tables

    place = {} if devices == 1 else {"mesh": jax.make_mesh((devices,), ("x",)), "axis": "x"}
    state = random_state(model(args.megabytes, SHARDS), place)
    size = sum(a.nbytes for a in jax.tree.leaves(state)) / 1e6
    writers = [Ours(), Orbax(True), Orbax(False)]
    elsewhere = [Ours(model(args.megabytes, shards), {}) for shards in (4, 3)]
    saves = {w.name: [] for w in writers}
    restores = {w.name: [] for w in writers + elsewhere}
    folder = Path(tempfile.mkdtemp(dir=args.folder))
    speeds = []
    expected = {slot: tables(state, slot) for slot in (None, "accumulator")}
    for k in range(args.repeat):
        speeds.append(disk(folder))
        for writer in writers:
            home = folder / "run"
            home.mkdir()
            os.sync()  # what was written before is not this save's to wait for
            start = time.perf_counter()
            blocked = writer.save(home, state, k)
            took = time.perf_counter() - start
            on_disk = sum(p.stat().st_size for p in home.rglob("*") if p.is_file()) / 1e6
            saves[writer.name].append((took, blocked - start, on_disk))
            for reader in [writer, *(elsewhere if writer is writers[0] else [])]:
                start = time.perf_counter()
                again = jax.block_until_ready(reader.restore(home, state, place))
                restores[reader.name].append(time.perf_counter() - start)
                if k == 0:
                    for slot, values in expected.items():
                        for name, value in tables(again, slot).items():
                            assert np.array_equal(value, values[name]), (reader.name, slot, name)
                del again
            shutil.rmtree(home)
    shutil.rmtree(folder)
    print(f"\n{size:.0f} MB on {devices} device{'s' * (devices > 1)}; the disk takes {max(speeds):.0f} MB/s")
    print(f"{'':32s} {'save MB/s':>10s} {'of Orbax':>9s} {'blocks ms':>10s} {'on disk':>8s}")
    best = min(took for took, *_ in saves["raw Orbax"])
    for name, rows in saves.items():
        took, _, on_disk = min(rows)
        held = min(row[1] for row in rows) * 1e3
        print(f"{name:32s} {size / took:10.0f} {best / took:9.2f} {held:10.1f} {on_disk / size:8.2f}")
    print(f"{'':32s} {'restore':>10s} {'of Orbax':>9s}")
    best = min(restores["raw Orbax"])
    for name, took in restores.items():
        print(f"{name:32s} {size / min(took):10.0f} {best / min(took):9.2f}")


WRITERS = {"ours": Ours, "orbax": lambda: Orbax(True), "plain": lambda: Orbax(False)}


def measure(args, devices, what, folder):
    """One save or restore in a process of its own."""
    import jax

    who, what = what.split("-")
    with tempfile.TemporaryDirectory() as warm:  # imports and threads are not the state's
        small = random_state(model(1, SHARDS), {})
        WRITERS[who]().save(Path(warm), small, 0)
        WRITERS[who]().restore(Path(warm), small, {})
    place = {} if devices == 1 else {"mesh": jax.make_mesh((devices,), ("x",)), "axis": "x"}
    writer, plan = WRITERS[who](), model(args.megabytes, SHARDS)
    home = folder / who
    if what == "restore":
        from tilewright.embed import init

        like = jax.eval_shape(lambda: init(plan, jax.random.key(0)))
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        split = device if devices == 1 else jax.NamedSharding(place["mesh"], jax.P("x"))
        whole = device if devices == 1 else jax.NamedSharding(place["mesh"], jax.P())
        like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=split if a.ndim else whole), like)
        size = sum(a.size * 4 for a in jax.tree.leaves(like)) / 1e6
        extra = grown(lambda: jax.block_until_ready(writer.restore(home, like, place))) / size - 1
    else:
        state = random_state(plan, place)
        size = sum(a.nbytes for a in jax.tree.leaves(state)) / 1e6
        home.mkdir(exist_ok=True)

        def save():
            if what == "save":
                writer.save(home, state, 1)
                return None
            from tilewright.embed import save

            saving = save(home, state, 2)
            after = overwrite(state)
            saving.wait()
            return after

        overwrite = jax.jit(lambda state: jax.tree.map(lambda a: a + 1, state), donate_argnums=0)
        state = jax.block_until_ready(overwrite(overwrite(state)))
        extra = grown(save) / size
    print(f"{writer.name:32s} {what:>10s}: {extra:+.2f} of the state", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder", help="where to write (default: the system's folder for temporary files)")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        devices, *what = args.child
        if what:
            measure(args, int(devices), what[0], Path(what[1]))
        else:
            run(args, int(devices))
        return
    for devices in args.devices:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        settings = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        again = [sys.executable, *sys.argv, "--child", str(devices)]
        subprocess.run(again, env=settings, check=True)
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            for what in [f"{who}-{what}" for who in WRITERS for what in ("save", "restore")] + ["ours-update"]:
                subprocess.run([*again, what, folder], env=settings, check=True)


if __name__ == "__main__":
    main()
