"""A log of 10^8 ids, made while it streams, planned for 256 chips: one process and four Ray workers, the same bits.

    ./run python benchmarks/embed_pods.py [--ids 100000000] [--fresh 400] [--no-ray]

Four tables, Zipf ids; batches of 65,536 samples. Prints seconds, ids a second and this process's most memory, checks
that both engines give the same plan, and holds fresh batches against its limits: their share above them must lie within
the bound that the plan gave. Then the pod of 4,096 chips with 1,000 tables, without a log. Exit code 1 where a promise
does not hold.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import numpy as np

from tilewright.embed import Adagrad, Feature, MadeBatches, Table, Topology, plan_pod
from tilewright.embed.pods.plan import batch_peaks

BATCH, VOCAB, TABLES = 1 << 16, 10_000_000, 4
FEATURES = [Feature(f"t{k}", Table(f"t{k}", VOCAB, 32, optimizer=Adagrad(0.1))) for k in range(TABLES)]


def batch(number):
    """Batch ``number`` of the log: {table: ids[samples, 1]}, a Zipf law of exponent about 1.3, scattered."""
    draw = np.random.default_rng(number)
    rank = np.minimum((1 - draw.random((TABLES, BATCH))) ** -3.0, 2.0**62).astype(np.int64) % VOCAB
    ids = rank * 2654435761 % VOCAB
    return {feature.name: ids[k].reshape(-1, 1) for k, feature in enumerate(FEATURES)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=int, default=100_000_000)
    parser.add_argument(
        "--fresh", type=int, default=400, help="batches that are not in the log, held against the limits"
    )
    parser.add_argument("--no-ray", action="store_true")
    args = parser.parse_args()
    source = MadeBatches(-(-args.ids // (TABLES * BATCH)), batch)
    topology = Topology.for_target("tpu-v5p", 256)
    plans, wrong = {}, False
    for engine in ("local",) if args.no_ray else ("local", "ray"):
        begin = time.perf_counter()
        plans[engine] = plan_pod(source, FEATURES, topology, BATCH, target="tpu-v5p", engine=engine, workers=4)
        seconds = time.perf_counter() - begin
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        ids = source.batches * TABLES * BATCH
        print(f"{engine}: {ids:,} ids in {seconds:.1f} s, {ids / seconds / 1e6:.1f} million a second; {most:.2f} GiB")
        wrong |= most > 1
    first = plans["local"]
    if "ray" in plans:
        same = plans["ray"].to_json() == first.to_json() and plans["ray"].limits_json() == first.limits_json()
        print(f"the same bits: {same}")
        wrong |= not same
    confidence = first.confidence
    print(f"{first.verdict}\nlimits {first.limits}\n{confidence.sentence}")
    allowed = [(l.max_ids_per_partition, l.max_unique_ids_per_partition) for l in first.limits.values()]
    above = 0
    for number in range(source.batches, source.batches + args.fresh):
        found, _ = batch_peaks(batch(number), first.stacking)
        above += bool((found[:, :2] > np.array(allowed)).any())
    print(f"{above} of {args.fresh} fresh batches exceed them: {above / max(1, args.fresh):.4f}")
    wrong |= above / max(1, args.fresh) > confidence.at_most
    begin = time.perf_counter()
    tables = [Table(f"t{k}", 10**9, 16, optimizer=Adagrad(0.1)) for k in range(1000)]
    topology, features = Topology.for_target("tpu-v5p", 4096), [Feature(table.name, table) for table in tables]
    pod = plan_pod(None, features, topology, 1 << 20, target="tpu-v5p")
    print(f"4,096 chips, 1,000 tables: {time.perf_counter() - begin:.1f} s; {pod.verdict}")
    sys.exit(wrong)


if __name__ == "__main__":
    main()
