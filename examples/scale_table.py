"""How memory, traffic and the least time of a step grow on a pod, for docs/scale.md: one table per question.

    ./run python examples/scale_table.py chips|vocabulary|batch|width
    ./run python examples/scale_table.py measured          # 1 to 8 devices of this machine, counted in running programs

100 tables, Adagrad, v5p, one id a sample, uniform ids: what `tilewright embed plan --tables 100 ...` prints, in rows.
"""

import os
import sys
import time

CHIPS, ROWS, BATCH, WIDTH, TABLES = 256, 100_000_000, 131_072, 32, 100
SWEEPS = {
    "chips": [{"chips": c, "rows": ROWS * c // 256, "batch": 512 * c} for c in (1, 16, 64, 256, 1024, 4096)],
    "vocabulary": [{"rows": r} for r in (10**6, 10**7, 10**8, 10**9)],
    "batch": [{"batch": b} for b in (16_384, 65_536, 262_144, 1_048_576)],
    "width": [{"width": w} for w in (8, 16, 64, 128)],
}


def planned(chips=CHIPS, rows=ROWS, batch=BATCH, width=WIDTH):
    """The plan of one line."""
    from tilewright.embed import Adagrad, Feature, Table, Topology, plan_pod

    tables = [Table(f"t{k}", rows, width, optimizer=Adagrad(0.1)) for k in range(TABLES)]
    features = [Feature(table.name, table) for table in tables]
    return plan_pod(None, features, Topology.for_target("tpu-v5p", chips), batch, target="tpu-v5p")


def sweep(name):
    from tilewright.render import bytes_text, seconds_text

    print(f"{name:>13}{'parameters':>13}{'tables+slots':>14}{'inputs':>11}{'HBM stack':>11}{'traffic':>11}{'links':>11}"
          f"{'a step':>10}  fits")  # fmt: skip
    for line in SWEEPS[name]:
        made, value = planned(**line), line[{"vocabulary": "rows"}.get(name, name)]
        heap, step = made.heap, made.traffic
        parameters = sum(p.table.vocab * p.table.width for p in made.stacking.placements)
        cells = [heap.tables + heap.slots, heap.inputs, max(heap.forward_stack, heap.backward_stack)]
        cells += [round(step.hbm_bytes), round(step.link_bytes)]
        texts = "".join(f"{bytes_text(cell):>{width}}" for cell, width in zip(cells, (14, 11, 11, 11, 11), strict=True))
        print(f"{value:13,}{parameters:13.1e}{texts}{seconds_text(step.waited):>10}  {'yes' if made.fits else 'no'}")


def measured():
    """Bytes of real arrays and of the all-to-alls in the compiled step, beside the formulas."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    os.environ["XLA_FLAGS"] = flags.strip()
    import jax
    import numpy as np
    from jax.sharding import Mesh, PartitionSpec

    from tilewright.embed import (
        Adagrad,
        Feature,
        Table,
        Topology,
        device_batch,
        init,
        lookup,
        plan_pod,
        preprocess,
        stack,
        update,
    )  # fmt: skip

    print(f"{'devices':>8}{'tables+slots':>14}{'planned':>11}{'buffers':>10}{'planned':>10}{'rows':>8}{'planned':>9}"
          f"{'ms a step':>11}")  # fmt: skip
    for devices in (1, 2, 4, 8):
        features = [Feature(f"t{k}", Table(f"t{k}", 40_000, 32, optimizer=Adagrad(0.1))) for k in range(4)]
        topology, batch = Topology(devices, 1), 1024 * devices
        given = {f.name: np.random.default_rng(k).integers(0, 40_000, (batch, 1)) for k, f in enumerate(features)}
        made = plan_pod([given], features, topology, batch)
        stacking = stack(features, topology, batch_size=batch)
        host = preprocess(given, stacking, made.limits, "error")
        mesh = Mesh(np.asarray(jax.devices()[:devices]), ("chips",))
        state = init(stacking, jax.random.key(0), mesh=mesh, axis="chips")
        own = sum(a.addressable_shards[0].data.nbytes for a in jax.tree.leaves((state.stacks, state.slots)))
        arrays = [*host.row_pointers.values(), *host.embedding_ids.values(), *host.sample_ids.values(),
                  *host.gains.values()]  # fmt: skip
        asked = device_batch(host)
        rows = sum(int((i.rows < stacking.stacks[n].rows_per_shard).sum()) for n, i in asked.index.items()) / devices
        spec = PartitionSpec("chips")
        states = jax.tree.map(lambda a, spec=spec: spec if a.ndim else PartitionSpec(), state)
        gradients = {f.name: np.ones((batch, 32), np.float32) for f in features}

        def one(state, asked, gradients):
            return lookup(state, asked, axis="chips"), update(state, asked, gradients, axis="chips")

        step = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=(states, spec, spec), out_specs=(spec, states)))
        jax.block_until_ready(step(state, asked, gradients))
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            jax.block_until_ready(step(state, asked, gradients))
            times.append(time.perf_counter() - begin)
        sizes = own, made.heap.tables + made.heap.slots, sum(a.nbytes for a in arrays) // devices
        print(f"{devices:8}{sizes[0]:14,}{sizes[1]:11,}{sizes[2]:10,}{made.traffic.host_bytes:10,}{rows:8,.0f}"
              f"{made.traffic.rows:9,.0f}{1e3 * min(times):11.1f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in (*SWEEPS, "measured"):
        sys.exit(f"usage: scale_table.py {'|'.join((*SWEEPS, 'measured'))}")
    measured() if sys.argv[1] == "measured" else sweep(sys.argv[1])
