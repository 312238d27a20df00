"""Host preprocessing against the straightforward numpy program, in one run, results compared bit for bit.

    ./run python benchmarks/preprocess.py [--batch 4096] [--hot 1] [--sparsecores 4 8 16] [--repeat 20]

Where jax-tpu-embedding is importable (it is no dependency) its C++ joins as a second peer. Times are minima over
interleaved repetitions; "noise" is the median above that minimum. The floor reads every id and writes every used slot
once, on one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from tilewright.embed import Feature, Table, Topology, preprocess, stack
from tilewright.threads import thread_count

PAD = 2**31 - 1


def zipf(rng, size, vocab, exponent=1.05):
    """Ids of a bounded Zipf law, scattered over the vocabulary."""
    u = rng.random(size)
    rank = ((vocab ** (1 - exponent) - 1) * u + 1) ** (1 / (1 - exponent))
    return ((np.clip(rank.astype(np.int64), 1, vocab) * 2654435761) % vocab).astype(np.int32)


def make(features, batch, hot, sparsecores, stacked):
    """A plan of tables from 1e2 to 1e7 rows, and one batch."""
    rng = np.random.default_rng(0)
    vocabs = np.round(np.geomspace(1e2, 1e7, features)).astype(int)
    per_chip = min(4, sparsecores)
    tables = [Table(f"t{k:02d}", int(v), 16) for k, v in enumerate(vocabs)]
    plan = stack(
        [Feature(f"f{k:02d}", t) for k, t in enumerate(tables)],
        Topology(sparsecores // per_chip, per_chip),
        table_stacking=stacked,
    )
    return plan, {f"f{k:02d}": zipf(rng, (batch, hot), t.vocab) for k, t in enumerate(tables)}


def numpy_preprocess(batch, plan, slots):
    """The obvious program: lexsort, unique by comparing neighbours, then place; slots[stack] per source."""
    shards = plan.topology.sparsecores
    out = {}
    for name, group in plan.stacks.items():
        pointers = np.empty((shards, max(shards, 8)), np.int32)
        ids = np.full((shards, slots[name]), PAD, np.int32)
        samples = np.full((shards, slots[name]), PAD, np.int32)
        gains = np.full((shards, slots[name]), np.nan, np.float32)
        for source in range(shards):
            parts, at = [], 0
            for feature in group.features:
                place, values = plan.tables[feature.table.name], batch[feature.name]
                each = len(values) // shards
                mine = values[source * each : (source + 1) * each]
                shard = (mine % shards + place.rotation) % shards
                sample = np.broadcast_to(np.arange(at, at + each)[:, None], mine.shape)
                parts.append((shard.ravel(), (mine // shards + place.row_offset).ravel(), sample.ravel()))
                at += each
            shard, row, sample = (np.concatenate(x) for x in zip(*parts))
            order = np.lexsort((sample, row, shard))
            shard, row, sample = shard[order], row[order], sample[order]
            new = np.ones(len(row), bool)
            new[1:] = (shard[1:] != shard[:-1]) | (row[1:] != row[:-1]) | (sample[1:] != sample[:-1])
            first = np.flatnonzero(new)
            shard, row, sample = shard[first], row[first], sample[first]
            gain = np.diff(np.append(first, len(order)))
            counts = np.bincount(shard, minlength=shards)
            begins = np.concatenate([[0], np.cumsum((counts + 7) // 8 * 8)])
            where = np.arange(len(row)) + np.repeat(begins[:-1] - np.cumsum(counts) + counts, counts)
            ids[source, where], samples[source, where], gains[source, where] = row, sample, gain
            pointers[source, :shards] = begins[:-1] + counts
            pointers[source, shards:] = begins[-1]
        # Pads inside the used part are INT_MAX and NaN already.
        out[name] = pointers, ids, samples, gains
    return out


def same(host, peer, plan):
    """Whether all buffers are equal, bit for bit."""
    shards = plan.topology.sparsecores
    for name, (pointers, ids, samples, gains) in peer.items():
        mine = (host.row_pointers[name], host.embedding_ids[name], host.sample_ids[name], host.gains[name])
        for a, b in zip(mine, (pointers, ids, samples, gains)):
            if not np.array_equal(np.asarray(a).reshape(shards, -1), b, equal_nan=a.dtype == np.float32):
                return False
    return True


def cpp_peer(batch, plan, capacity):
    """The C++ of jax-tpu-embedding on the same batch as (function, check), or None where it is not importable."""
    try:
        from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as cpp
        from jax_tpu_embedding.sparsecore.lib.nn import embedding, embedding_spec
    except ImportError:
        return None
    topology = plan.topology
    shards, per_device = topology.sparsecores, topology.sparsecores_per_device
    optimizer = embedding_spec.SGDOptimizerSpec(learning_rate=0.01)
    specs = []
    for feature in plan.features:
        table, size = feature.table, batch[feature.name].shape
        limit = capacity[plan.tables[table.name].stack]
        spec = embedding_spec.TableSpec(
            name=table.name,
            vocabulary_size=table.vocab,
            embedding_dim=table.width,
            initializer=lambda: None,
            optimizer=optimizer,
            combiner="sum",
            max_ids_per_partition=limit,
            max_unique_ids_per_partition=limit,
        )
        specs.append(
            embedding_spec.FeatureSpec(
                name=feature.name, table_spec=spec, input_shape=size, output_shape=(size[0], table.width)
            )
        )
    if any(len(group.tables) > 1 for group in plan.stacks.values()):
        most = max(capacity.values())
        embedding.auto_stack_tables(
            specs,
            global_device_count=topology.devices,
            num_sc_per_device=per_device,
            stack_to_max_ids_per_partition=lambda *_: most,
            stack_to_max_unique_ids_per_partition=lambda *_: most,
            activation_mem_bytes_limit=1 << 40,
        )
    embedding.prepare_feature_specs_for_training(specs, topology.devices, per_device)
    arrays = [batch[feature.name] for feature in plan.features]

    def run():
        return cpp.preprocess_sparse_dense_matmul_input(
            arrays,
            None,
            specs,
            topology.devices,
            topology.devices,
            num_sc_per_device=per_device,
            allow_id_dropping=False,
            batch_number=1,
        )

    def check(host):
        pointers, *slots = run()[:4]
        for name in plan.stacks:
            ends = np.asarray(pointers[name]).reshape(shards, -1)
            if not np.array_equal(ends, host.row_pointers[name].reshape(shards, -1)):
                return False
            for ours, flat in zip((host.embedding_ids, host.sample_ids, host.gains), slots):
                a, b = ours[name].reshape(shards, -1), np.asarray(flat[name]).reshape(shards, -1)
                for source in range(shards):
                    used = (int(ends[source, shards - 1]) + 7) // 8 * 8
                    if not np.array_equal(a[source, :used], b[source, :used], equal_nan=a.dtype == np.float32):
                        return False
        return True

    return run, check


def interleaved(programs, repeat):
    """{name: seconds of every run}, the programs taking turns."""
    times = {name: [] for name in programs}
    for _ in range(repeat):
        for name, program in programs.items():
            begin = time.perf_counter()
            program()
            times[name].append(time.perf_counter() - begin)
    return times


def floor_program(batch, used):
    """Read every id, write every used slot (12 bytes)."""
    flat = np.concatenate([ids.ravel() for ids in batch.values()])
    target = np.empty(used * 3, np.int32)
    return lambda: (flat.sum(), target.fill(7))


def compare(args, sparsecores, stacked):
    """One case: run, check, print."""
    plan, batch = make(args.features, args.batch, args.hot, sparsecores, stacked)
    host = preprocess(batch, plan)
    slots = {name: host.embedding_ids[name].size // sparsecores for name in plan.stacks}
    assert same(host, numpy_preprocess(batch, plan, slots), plan), "numpy's buffers differ"
    used = sum(int(s.required_buffer_size.sum()) for s in host.stats.values())
    programs = {
        "tilewright": lambda: preprocess(batch, plan),
        "numpy": lambda: numpy_preprocess(batch, plan, slots),
        "floor": floor_program(batch, used),
    }
    cpp = cpp_peer(batch, plan, {name: n // sparsecores for name, n in slots.items()})
    if cpp:
        assert cpp[1](host), "jax-tpu-embedding's buffers differ"
        programs["C++"] = cpp[0]
    times = interleaved(programs, args.repeat)
    best = {name: min(t) for name, t in times.items()}
    ids = args.features * args.batch * args.hot
    noise = statistics.median(times["tilewright"]) / best["tilewright"] - 1
    line = f"S {sparsecores:3d} {'stacked' if stacked else 'separate':8s} {ids} ids: {best['tilewright'] * 1e3:6.2f} ms"
    line += f" (noise {noise:4.0%}), {best['tilewright'] / ids * 1e9:5.1f} ns/id, "
    line += f"{best['floor'] / best['tilewright']:4.0%} of the floor's speed, "
    line += f"numpy {best['numpy'] / best['tilewright']:5.2f}x"
    print(line + (f", C++ {best['C++'] / best['tilewright']:5.2f}x" if cpp else ""), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=int, default=26)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--hot", type=int, default=1)
    parser.add_argument("--sparsecores", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--repeat", type=int, default=20)
    args = parser.parse_args()
    print(f"{thread_count()} threads; x = the peer's time / ours; all buffers equal")
    for sparsecores in args.sparsecores:
        for stacked in (True, False):
            compare(args, sparsecores, stacked)


if __name__ == "__main__":
    main()
