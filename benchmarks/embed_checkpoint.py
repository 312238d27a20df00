"""Checkpoints beside raw Orbax on the same arrays, in one process: throughput, ratio, memory; both restore equal.

    ./run python benchmarks/embed_checkpoint.py [--megabytes 512] [--devices 1 8] [--repeat 5] [--folder DIR]

A model of 26 tables (vocabularies in geometric steps, widths 16 and 64, Adagrad) on eight SparseCores. Raw Orbax gets
the state's stacked arrays as they are, once with its own compression (zstd, its default) and once without; ours writes
logical tables. Times are minima over interleaved repetitions, from the call to the step's finished folder; "blocks" is
how long the call holds the training up. "memory" is how far the process grew above the state (of a restore: above the
restored state). Restores read what was written just before, so from the page cache: what counts is the work, not the
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


class Grown:
    """Megabytes by which the process grew at most since the start of the block."""

    def __enter__(self):
        Path("/proc/self/clear_refs").write_text("5")
        self.before = memory("VmRSS")
        return self

    def __exit__(self, *_):
        self.megabytes = memory("VmHWM") - self.before


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
            with Grown() as grown:
                start = time.perf_counter()
                blocked = writer.save(home, state, k)
                saves[writer.name].append((time.perf_counter() - start, blocked - start, grown))
            on_disk = sum(p.stat().st_size for p in home.rglob("*") if p.is_file()) / 1e6
            saves[writer.name][-1] += (on_disk,)
            for reader in [writer, *(elsewhere if writer is writers[0] else [])]:
                with Grown() as grown:
                    start = time.perf_counter()
                    again = jax.block_until_ready(reader.restore(home, state, place))
                    took = time.perf_counter() - start
                restores[reader.name].append((took, grown))
                if k == 0:
                    for slot, values in expected.items():
                        for name, value in tables(again, slot).items():
                            assert np.array_equal(value, values[name]), (reader.name, slot, name)
                del again
            shutil.rmtree(home)
    shutil.rmtree(folder)
    print(f"\n{size:.0f} MB on {devices} device{'s' * (devices > 1)}; the disk takes {max(speeds):.0f} MB/s")
    print(f"{'':32s} {'save MB/s':>10s} {'of Orbax':>9s} {'blocks ms':>10s} {'on disk':>8s} {'memory':>7s}")
    best = min(time for time, *_ in saves["raw Orbax"])
    for name, rows in saves.items():
        took, blocked, _, on_disk = min(rows, key=lambda row: row[0])
        grown = max(row[2].megabytes for row in rows)
        share = f"{size / took:10.0f} {best / took:9.2f} {min(r[1] for r in rows) * 1e3:10.1f}"
        print(f"{name:32s} {share} {on_disk / size:8.2f} {grown / size:+7.2f}")
    print(f"{'':32s} {'restore':>10s} {'of Orbax':>9s} {'':>10s} {'':>8s} {'memory':>7s}")
    best = min(time for time, *_ in restores["raw Orbax"])
    for name, rows in restores.items():
        took = min(row[0] for row in rows)
        grown = max(row[1].megabytes for row in rows) / size - 1
        print(f"{name:32s} {size / took:10.0f} {best / took:9.2f} {'':>10s} {'':>8s} {grown:+7.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder", help="where to write (default: the system's folder for temporary files)")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run(args, args.child)
        return
    for devices in args.devices:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        settings = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        subprocess.run([sys.executable, *sys.argv, "--child", str(devices)], env=settings, check=True)


if __name__ == "__main__":
    main()
