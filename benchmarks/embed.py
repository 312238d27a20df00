"""Host preprocessing beside jax-tpu-embedding's C++ and numpy, in one run, results compared bit for bit.

    ./run python benchmarks/embed.py [--threads 1 2] [--sparsecores 4 16 256] [--batch 16384] [--repeat 15]

Twelve cases: 26 features with Zipf ids of vocabularies from 1e4 to 1e7, one id per sample or several (1 to 20, as
DLRM-v2's features have them), for every number of SparseCores, stacked and separate. A host feeds at most four chips
of four SparseCores, so with 256 the batch is that of one host of sixteen; ``--all-sources`` gives one host all 256.

jax-tpu-embedding is no dependency. Its C++ joins where it is importable, with ids, limits and buffers as ours; so run
this in an environment that has it (Python 3.11: 0.1.0, Python 3.12: 0.2.0). For every number of threads the program
starts itself anew on as many cores, so that both sides have the same.

Times are minima over interleaved repetitions; "noise" is our median above our minimum. The floor reads every id and
writes every used slot once, on one thread: the least any program moves. "sort" is kernel 1 (ids to keys, counting
sort, merge), "write" kernel 2 (runs to padded buffers), as shares of ours; what is missing to 100 % is Python.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from functools import partial

import numpy as np

PAD = 2**31 - 1
MULTI = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 20, 20, 10, 3, 1, 1)
"""Ids per sample of DLRM-v2's 26 features, at most 20."""


def zipf(rng, size, vocab, exponent=1.05):
    """Ids of a bounded Zipf law, scattered over the vocabulary."""
    u = rng.random(size)
    rank = ((vocab ** (1 - exponent) - 1) * u + 1) ** (1 / (1 - exponent))
    return ((np.clip(rank.astype(np.int64), 1, vocab) * 2654435761) % vocab).astype(np.int32)


class Case:
    """The plan, this host's batch, and which SparseCores it feeds."""

    def __init__(self, args, sparsecores, hot, stacked):
        import logging

        from tilewright.embed import Feature, Table, Topology, stack

        logging.disable(logging.WARNING)  # the peer says at length which tables it stacks
        rng = np.random.default_rng(0)
        vocabs = np.round(np.geomspace(1e4, 1e7, len(hot))).astype(int)
        tables = [Table(f"t{k:02d}", int(v), 16) for k, v in enumerate(vocabs)]
        self.per_chip = min(4, sparsecores)
        self.chips = sparsecores // self.per_chip
        self.shards = sparsecores
        self.local = sparsecores if args.all_sources else min(sparsecores, 16)
        self.plan = stack(
            [Feature(f"f{k:02d}", t) for k, t in enumerate(tables)],
            Topology(self.chips, self.per_chip),
            table_stacking=stacked,
        )
        self.batch = {f"f{k:02d}": zipf(rng, (args.batch, h), t.vocab) for k, (h, t) in enumerate(zip(hot, tables))}
        self.ids = sum(ids.size for ids in self.batch.values())

    def ours(self):
        from tilewright.embed import preprocess

        return preprocess(self.batch, self.plan, sources=range(self.local), local_batch=True)


def numpy_preprocess(case, slots):
    """The obvious program: lexsort, unique by comparing neighbours, then place; slots[stack] per source."""
    shards, out = case.shards, {}
    for name, group in case.plan.stacks.items():
        pointers = np.empty((case.local, max(shards, 8)), np.int32)
        ids = np.full((case.local, slots[name]), PAD, np.int32)
        samples = np.full((case.local, slots[name]), PAD, np.int32)
        gains = np.full((case.local, slots[name]), np.nan, np.float32)
        for source in range(case.local):
            parts, at = [], 0
            for feature in group.features:
                place, values = case.plan.tables[feature.table.name], case.batch[feature.name]
                each = len(values) // case.local
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


def same(case, host, peer):
    """Whether all buffers are equal, bit for bit."""
    for name, theirs in peer.items():
        mine = (host.row_pointers[name], host.embedding_ids[name], host.sample_ids[name], host.gains[name])
        for a, b in zip(mine, theirs):
            if not np.array_equal(np.asarray(a).reshape(case.local, -1), b, equal_nan=a.dtype == np.float32):
                return False
    return True


def cpp_peer(case, capacity):
    """jax-tpu-embedding's C++ on the same batch as (function, check), or None where it is not importable."""
    try:
        from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as cpp
        from jax_tpu_embedding.sparsecore.lib.nn import embedding, embedding_spec
    except ImportError:
        return None
    optimizer = embedding_spec.SGDOptimizerSpec(learning_rate=0.01)
    specs = []
    for feature in case.plan.features:
        table, (batch, hot) = feature.table, case.batch[feature.name].shape
        batch *= case.shards // case.local
        limit = capacity[case.plan.tables[table.name].stack]
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
        shapes = {"input_shape": (batch, hot), "output_shape": (batch, table.width)}
        specs.append(embedding_spec.FeatureSpec(name=feature.name, table_spec=spec, **shapes))
    if any(len(group.tables) > 1 for group in case.plan.stacks.values()):
        most = max(capacity.values())
        embedding.auto_stack_tables(
            specs,
            global_device_count=case.chips,
            num_sc_per_device=case.per_chip,
            stack_to_max_ids_per_partition=lambda *_: most,
            stack_to_max_unique_ids_per_partition=lambda *_: most,
            activation_mem_bytes_limit=1 << 40,
        )
    embedding.prepare_feature_specs_for_training(specs, case.chips, case.per_chip)
    arrays = [case.batch[feature.name] for feature in case.plan.features]

    def run(dropping=False):
        return cpp.preprocess_sparse_dense_matmul_input(
            arrays,
            None,
            specs,
            case.local // case.per_chip,
            case.chips,
            num_sc_per_device=case.per_chip,
            allow_id_dropping=dropping,
            batch_number=1,
        )

    # The peer's own way to buffers that fit: run once, let it size them by what it saw.
    observed = embedding.SparseDenseMatmulInputStats.from_cc(run(dropping=True)[-1])
    embedding.update_preprocessing_parameters(specs, observed, case.per_chip)

    def check(host):
        pointers, *slots = run()[:4]
        for name in case.plan.stacks:
            ends = np.asarray(pointers[name]).reshape(case.local, -1)
            if not np.array_equal(ends, host.row_pointers[name].reshape(case.local, -1)):
                return False
            for ours, flat in zip((host.embedding_ids, host.sample_ids, host.gains), slots):
                a, b = ours[name].reshape(case.local, -1), np.asarray(flat[name]).reshape(case.local, -1)
                for source in range(case.local):
                    used = (int(ends[source, case.shards - 1]) + 7) // 8 * 8
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


def floor_program(case, used):
    """Read every id, write every used slot (12 bytes)."""
    flat = np.concatenate([ids.ravel() for ids in case.batch.values()])
    target = np.empty(used * 3, np.int32)
    return lambda: (flat.sum(), target.fill(7))


def stages(case, repeat):
    """Shares of our time in kernel 1 and kernel 2: the fastest of some runs with both timed."""
    from tilewright.embed.host import buffers as _buffers
    from tilewright.embed.host import tally as _tally

    spent = {}

    def timed(name, function):
        def run(*args):
            begin = time.perf_counter()
            try:
                return function(*args)
            finally:
                spent[name] = spent.get(name, 0.0) + time.perf_counter() - begin

        return run

    sort, write = _tally.run_all, _buffers.Buffers.write
    _tally.run_all, _buffers.Buffers.write = timed("sort", sort), timed("write", write)
    best = (math.inf, 0.0, 0.0)
    for _ in range(repeat):
        spent.clear()
        begin = time.perf_counter()
        case.ours()
        best = min(best, (time.perf_counter() - begin, spent["sort"], spent["write"]))
    _tally.run_all, _buffers.Buffers.write = sort, write
    return best[1] / best[0], best[2] / best[0]


def compare(args, sparsecores, hot, stacked):
    """One case: run, check, print; the C++'s time over ours, or None."""
    case = Case(args, sparsecores, hot, stacked)
    host = case.ours()
    slots = {name: host.embedding_ids[name].size // case.local for name in case.plan.stacks}
    used = sum(int(s.required_buffer_size.sum()) for s in host.stats.values())
    programs = {"ours": case.ours, "floor": floor_program(case, used)}
    if args.numpy:
        assert same(case, host, numpy_preprocess(case, slots)), "numpy's buffers differ"
        programs["numpy"] = lambda: numpy_preprocess(case, slots)
    cpp = cpp_peer(case, {name: n // sparsecores for name, n in slots.items()})
    if cpp:
        assert cpp[1](host), "jax-tpu-embedding's buffers differ"
        programs["C++"] = cpp[0]
    del host
    times = interleaved(programs, args.repeat)
    best = {name: min(t) for name, t in times.items()}
    noise = statistics.median(times["ours"]) / best["ours"] - 1
    ratio = {name: best[name] / best["ours"] for name in best}
    row = [f"{sparsecores:4d}", f"{case.local:4d}", "one " if len(set(hot)) == 1 else "many"]
    row += ["stacked " if stacked else "separate", f"{case.ids:8d}", f"{best['ours'] * 1e3:7.2f}", f"{noise:5.0%}"]
    row += [f"{best['ours'] / case.ids * 1e9:6.1f}", f"{used / case.ids:5.2f}", f"{ratio['floor']:5.0%}"]
    row += [f"{share:5.0%}" for share in stages(case, args.repeat)]
    row += [f"{ratio['numpy']:6.1f}" if args.numpy else "     -", f"{ratio['C++']:5.2f}" if cpp else "    -"]
    print("| " + " | ".join(row) + " |", flush=True)
    return ratio.get("C++")


def report(args):
    """All cases on the cores this process has."""
    print(f"\n{args.threads[0]} thread(s), batch {args.batch}; x: the peer's time / ours; buffers equal bit for bit\n")
    columns = "  S |feeds|ids  |tables   |ids      |ours ms |noise |ns/id  |slots/id|floor|sort  |write |numpy x|C++ x"
    print("| " + columns.replace("|", " | ") + " |")
    print("|---" * 14 + "|")
    ratios = [
        compare(args, sparsecores, hot, stacked)
        for hot in ((1,) * len(MULTI), MULTI)
        for sparsecores in args.sparsecores
        for stacked in (True, False)
    ]
    known = [r for r in ratios if r is not None]
    if known:
        mean = math.exp(sum(map(math.log, known)) / len(known))
        print(f"\nC++: least {min(known):.2f}x, geometric mean {mean:.2f}x over {len(known)} cases")
    else:
        print("\njax-tpu-embedding is not importable here: no C++ column")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sparsecores", type=int, nargs="+", default=[4, 16, 256])
    parser.add_argument("--batch", type=int, default=16384)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--all-sources", action="store_true", help="this host feeds every SparseCore")
    parser.add_argument("--numpy", action="store_true", help="time numpy too (slow)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        report(args)
        return
    for threads in args.threads:
        cores = sorted(os.sched_getaffinity(0))[:threads]
        environment = os.environ | {"TILEWRIGHT_THREADS": str(threads)}
        environment["SPARSECORE_INPUT_PREPROCESSING_THREADS"] = str(threads)
        given = ["--sparsecores", *map(str, args.sparsecores)]
        given += [f"--batch={args.batch}", f"--repeat={args.repeat}", f"--threads={threads}", "--child"]
        given += ["--all-sources"] * args.all_sources + ["--numpy"] * args.numpy
        command = [sys.executable, __file__, *given]
        subprocess.run(command, env=environment, check=True, preexec_fn=partial(os.sched_setaffinity, 0, cores))


if __name__ == "__main__":
    main()
