"""Lookups of int8 tables on CPU beside fbgemm's int8 table batch, in the same process: median and 99th percentile.

    ./run python benchmarks/embed_serving.py [--threads 1] [--rows 200000] [--dim 64] [--seconds 1.0]

26 tables, Zipf ids. Ours: ``open_export(path).lookup({feature: ids[samples, ids]})``, everything from the arrays of a
request to a dict of results. fbgemm (fbgemm-gpu-cpu, where importable): ``IntNBitTableBatchedEmbeddingBagsCodegen``,
INT8 rows and float32 results, given the ids and offsets of all tables in one tensor, made ahead. Requests differ from
call to call. Rows are made such that their scales have few bits, for fbgemm keeps them in float16: then both sides hold
the same numbers, and what they return is compared. fbgemm must be beside: PYTHONPATH=... where it is installed.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time

import numpy as np

TABLES = 26


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each case and side")
    return parser.parse_args()


def exact_rows(rows, dim, rng):
    """Codes int8[rows, dim], some of them 127, and scales of 11 bits: rows that both sides hold exactly."""
    codes = rng.integers(-127, 128, (rows, dim), dtype=np.int8)
    codes[:, 0] = 127
    return codes, (rng.integers(1024, 2048, rows) * 2.0**-20).astype(np.float32)


def requests(samples, per_sample, rows, rng, count=64):
    """``count`` requests int64[tables, samples, ids]: a Zipf law of exponent 1.2, scattered."""
    rank = rng.zipf(1.2, (count, TABLES, samples, per_sample)) - 1
    return rank % rows * 2654435761 % rows


def fbgemm(codes, scales, threads):
    try:
        logging.disable(logging.WARNING)
        import torch
        from fbgemm_gpu.split_embedding_configs import SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen
    except Exception as error:  # whatever keeps it from loading
        print(f"fbgemm is left out: {type(error).__name__}: {str(error).splitlines()[0][:90]}")
        return None
    torch.set_num_threads(threads)
    (rows, dim), location = codes[0].shape, EmbeddingLocation.HOST
    bags = IntNBitTableBatchedEmbeddingBagsCodegen(
        [("", rows, dim, SparseType.INT8, location)] * TABLES, device="cpu", output_dtype=SparseType.FP32
    )
    bags.initialize_weights()
    for (weights, numbers), code, scale in zip(
        bags.split_embedding_weights(split_scale_shifts=True), codes, scales, strict=True
    ):
        weights.copy_(torch.tensor(code.view(np.uint8) ^ 0x80))  # its codes begin at 0
        numbers.copy_(torch.tensor(np.stack([scale, -128 * scale], axis=1).astype(np.float16).view(np.uint8)))
    return torch, bags


def timed(calls, seconds):
    """Seconds of single calls of each side, in turn, until each had its time."""
    times = {name: [] for name in calls}
    for call in calls.values():
        for k in range(8):
            call(k)
    end, k = time.perf_counter() + seconds * len(calls), 0
    while time.perf_counter() < end:
        for name, call in calls.items():
            begin = time.perf_counter()
            call(k)
            times[name].append(time.perf_counter() - begin)
        k += 1
    return times


def main():
    args = parse()
    os.environ["TILEWRIGHT_THREADS"] = str(args.threads)
    from tilewright.embed import Feature, Table, Topology, export, from_tables, open_export, stack

    rng = np.random.default_rng(0)
    made = [exact_rows(args.rows, args.dim, rng) for _ in range(TABLES)]
    names = [f"f{k:02d}" for k in range(TABLES)]
    plan = stack([Feature(name, Table(name, args.rows, args.dim)) for name in names], Topology(1, 4))
    path = os.path.join(tempfile.gettempdir(), f"embed_serving_{os.getpid()}.tables")
    state = from_tables(plan, {name: code * scale[:, None] for name, (code, scale) in zip(names, made, strict=True)})
    written = export(path, state)
    del state
    served = open_export(path)
    os.unlink(path)
    peer = fbgemm([code for code, _ in made], [scale for _, scale in made], args.threads)
    share = written.file_bytes / written.float_bytes
    print(f"{TABLES} tables of {args.rows:,} rows, dim {args.dim}; the file is {share:.3f} of the float32 bytes")
    print(f"{args.threads} threads; microseconds of a call, the median and the 99th percentile")
    print(
        f"{'samples':>8}{'ids':>5}{'ours p50':>12}{'p99':>10}{'fbgemm p50':>13}{'p99':>10}{'ratio p50':>11}{'p99':>7}"
    )
    worse = 0
    for samples, per_sample in ((1, 1), (1, 20), (16, 1), (128, 1), (128, 20), (1024, 1), (2048, 20)):
        asked = requests(samples, per_sample, args.rows, rng)
        ours = [{name: np.ascontiguousarray(ids[k]) for k, name in enumerate(names)} for ids in asked]
        calls = {"ours": lambda k, ours=ours: served.lookup(ours[k % len(ours)])}
        if peer is not None:
            torch, bags = peer
            theirs = [torch.tensor(ids.reshape(-1).astype(np.int32)) for ids in asked]
            offsets = torch.arange(0, asked[0].size + 1, per_sample, dtype=torch.int32)
            calls["fbgemm"] = lambda k, bags=bags, theirs=theirs, offsets=offsets: bags(
                theirs[k % len(theirs)], offsets
            )
            for k in range(2):
                found = np.stack(list(served.lookup(ours[k]).values()), axis=1)
                expected = bags(theirs[k], offsets).numpy().reshape(samples, TABLES, args.dim)
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        times = {name: 1e6 * np.percentile(of, (50, 99)) for name, of in timed(calls, args.seconds).items()}
        mine = times["ours"]
        line = f"{samples:8}{per_sample:5}{mine[0]:12.1f}{mine[1]:10.1f}"
        if peer is not None:
            ratios = mine / times["fbgemm"]
            worse += int((ratios > 1).any())
            line += f"{times['fbgemm'][0]:13.1f}{times['fbgemm'][1]:10.1f}{ratios[0]:11.2f}{ratios[1]:7.2f}"
        print(line, flush=True)
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
