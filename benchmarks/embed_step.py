"""Lookups, row updates and whole training steps on CPU, beside fbgemm, PyTorch and plain JAX in the same process.

    ./run python benchmarks/embed_step.py [--threads 2] [--dims 16 64 128] [--repeat 12] [--part rows|step]

Rows: 26 tables, 520,000 Zipf ids, one id per sample or five. Ours: the jitted ``lookup`` and ``update`` of a batch
whose index is made; "index" is what making it costs the host, ahead of the step. fbgemm (fbgemm-gpu-cpu with the torch
it was built for, where importable): its table-batched bags with the fused exact optimizers; its update sorts the ids
itself. Plain JAX: ``take`` and sum, ``.at[].add``; for Adagrad the dense gradient that jax.grad gives.

Step: examples/dlrm.py's dense part with 26 tables. Ours: ``TrainStep``. PyTorch: ``EmbeddingBag`` with sparse gradients
and its own sparse SGD, the same layers; plain JAX: one jitted function of tables and parameters.

Times are least times of interleaved repetitions in ms, processor time of all threads and wall time. All sides start
from the same numbers and must end with the same. The limit: rows read and written once per distinct row, gradients and
activations once per id, at the speed of a plain copy of this machine, measured beside.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from itertools import pairwise

import numpy as np

TABLES, IDS, VOCAB = 26, 520_000, 100_000


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--repeat", type=int, default=12)
    parser.add_argument("--part", choices=("rows", "step"))
    return parser.parse_args()


class Clock:
    """Least processor and wall times of several sides, run in turn."""

    def __init__(self, repeat):
        self.repeat, self.sides = repeat, {}

    def run(self, **sides):
        best = {name: [np.inf, np.inf] for name in sides}
        for _ in range(self.repeat):
            for name, call in sides.items():
                cpu, wall = time.process_time(), time.perf_counter()
                call()
                spent = time.process_time() - cpu, time.perf_counter() - wall
                best[name] = [min(a, b) for a, b in zip(best[name], spent, strict=True)]
        return {name: (1e3 * cpu, 1e3 * wall) for name, (cpu, wall) in best.items()}


def zipf_ids(ids_per_sample, seed=0):
    """int32[tables, samples, ids]: a Zipf law of exponent 1.2 over the vocabulary, scattered."""
    rng = np.random.default_rng(seed)
    samples = IDS // TABLES // ids_per_sample // 8 * 8
    rank = (rng.zipf(1.2, TABLES * samples * ids_per_sample) - 1) % VOCAB
    return (rank * 2654435761 % VOCAB).astype(np.int32).reshape(TABLES, samples, ids_per_sample)


def copy_speed():
    """Bytes a second of a plain copy that fits no cache, reads and writes counted."""
    source, target = np.ones(1 << 24, np.float64), np.empty(1 << 24, np.float64)
    best = np.inf
    for _ in range(5):
        start = time.perf_counter()
        target[:] = source
        best = min(best, time.perf_counter() - start)
    return 2 * source.nbytes / best


def fbgemm():
    """fbgemm's pieces, or None."""
    try:
        import logging

        logging.disable(logging.WARNING)
        import torch
        from fbgemm_gpu import split_table_batched_embeddings_ops_training as ops
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    except Exception as error:  # whatever keeps it from loading
        print(f"fbgemm is left out: {type(error).__name__}: {str(error).splitlines()[0][:90]}")
        return None
    return torch, ops, EmbOptimType, EmbeddingLocation


def rows_case(width, ids, kind, clock, peer):
    """One line: lookup and update of one width and optimizer."""
    import jax
    import jax.numpy as jnp

    from tilewright.embed import (
        SGD,
        Adagrad,
        Feature,
        Table,
        Topology,
        device_batch,
        from_tables,
        lookup,
        preprocess,
        stack,
        tables,
        update,
    )

    optimizer = SGD(0.1) if kind == "sgd" else Adagrad(0.1, initial_accumulator=0.0)
    features = [Feature(f"f{k:02d}", Table(f"t{k:02d}", VOCAB, width, optimizer=optimizer)) for k in range(TABLES)]
    plan = stack(features, Topology(1, 4))
    rng = np.random.default_rng(1)
    values = rng.normal(size=(TABLES, VOCAB, width)).astype(np.float32)
    samples, per_sample = ids.shape[1:]
    host = preprocess({f"f{k:02d}": ids[k] for k in range(TABLES)}, plan)
    start = time.perf_counter()
    batch = device_batch(host)
    index = time.perf_counter() - start
    for _ in range(3):
        start = time.perf_counter()
        batch = device_batch(host)
        index = min(index, time.perf_counter() - start)
    state = from_tables(plan, {f"t{k:02d}": values[k] for k in range(TABLES)})
    batch = jax.device_put(batch)
    look, change = jax.jit(lookup), jax.jit(update, donate_argnums=0)
    grads = {f"f{k:02d}": rng.normal(size=(samples, width)).astype(np.float32) for k in range(TABLES)}
    grads = jax.device_put(grads)
    flat = jnp.asarray(ids)
    box = {"ours": state, "plain": (jnp.asarray(values), jnp.zeros_like(values))}
    listed = jnp.stack([grads[f"f{k:02d}"] for k in range(TABLES)])

    @jax.jit
    def plain_lookup(table, ids):
        return jax.vmap(lambda t, i: jnp.take(t, i, axis=0).sum(1))(table, ids)

    def plain_update(kept, ids, gradient):
        table, gathered = kept
        spread = jnp.broadcast_to(gradient[:, :, None], (*ids.shape, width)).reshape(TABLES, -1, width)
        add = jax.vmap(lambda t, i, g: t.at[i].add(g))
        if kind == "sgd":
            return add(table, ids.reshape(TABLES, -1), -0.1 * spread), gathered
        dense = add(jnp.zeros_like(table), ids.reshape(TABLES, -1), spread)
        gathered = gathered + dense * dense
        return table - 0.1 * dense / jnp.sqrt(jnp.where(gathered > 0, gathered, 1)), gathered

    plain_change = jax.jit(plain_update, donate_argnums=0)

    def our_update():
        box["ours"] = jax.block_until_ready(change(box["ours"], batch, grads))

    def plainly():
        box["plain"] = jax.block_until_ready(plain_change(box["plain"], flat, listed))

    forward = {
        "ours": lambda: jax.block_until_ready(look(box["ours"], batch)),
        "plain": lambda: jax.block_until_ready(plain_lookup(box["plain"][0], flat)),
    }
    backward = {"ours": our_update, "plain": plainly}
    if peer is not None:
        torch, ops, kinds, locations = peer
        device = ops.ComputeDevice.CPU
        bags = ops.SplitTableBatchedEmbeddingBagsCodegen(
            [(VOCAB, width, locations.HOST, device)] * TABLES,
            optimizer=kinds.EXACT_SGD if kind == "sgd" else kinds.EXACT_ADAGRAD,
            learning_rate=0.1,
            eps=1e-30,
        )
        for weight, value in zip(bags.split_embedding_weights(), values, strict=True):
            weight.copy_(torch.tensor(value))
        theirs = torch.tensor(ids.reshape(-1).astype(np.int64))
        offsets = torch.arange(0, ids.size + 1, per_sample)
        gradient = torch.tensor(np.concatenate([np.asarray(grads[f"f{k:02d}"]) for k in range(TABLES)], axis=1))
        kept = {}

        def peer_forward():
            kept["out"] = bags(theirs, offsets)

        def peer_backward():
            kept["out"].backward(gradient)

        forward["fbgemm"] = peer_forward
        peer_forward()
        first = kept["out"].detach().numpy().reshape(samples, TABLES, width)
        found = np.stack([np.asarray(v) for v in look(box["ours"], batch).values()], axis=1)
        assert np.allclose(first, found, rtol=1e-4, atol=1e-4), "fbgemm looks up something else"
    look_times = clock.run(**forward)
    same = np.asarray(plain_lookup(box["plain"][0], flat)).transpose(1, 0, 2)
    found = np.stack([np.asarray(v) for v in look(box["ours"], batch).values()], axis=1)
    assert np.allclose(same, found, rtol=1e-4, atol=1e-4), "plain JAX looks up something else"
    best = {name: [np.inf, np.inf] for name in [*backward, *(["fbgemm"] if peer else [])]}
    for _ in range(clock.repeat):
        for name in best:
            if name == "fbgemm":  # a backward pass needs a forward pass of its own, which is not timed
                peer_forward()
            cpu, wall = time.process_time(), time.perf_counter()
            peer_backward() if name == "fbgemm" else backward[name]()
            spent = time.process_time() - cpu, time.perf_counter() - wall
            best[name] = [min(a, b) for a, b in zip(best[name], spent, strict=True)]
    change_times = {name: (1e3 * cpu, 1e3 * wall) for name, (cpu, wall) in best.items()}
    ours = np.stack([np.asarray(v) for v in tables(box["ours"]).values()])
    assert np.allclose(ours, box["plain"][0], rtol=1e-3, atol=1e-3), "plain JAX updates otherwise"
    if peer is not None:
        other = np.stack([w.numpy() for w in bags.split_embedding_weights()])
        assert np.allclose(ours, other, rtol=1e-3, atol=1e-3), "fbgemm updates otherwise"
    distinct = sum(len(np.unique(row)) for row in ids)
    moved = 4 * width * (distinct * (2 if kind == "sgd" else 4) + TABLES * samples)
    return look_times, change_times, 1e3 * index, 4 * width * (distinct + TABLES * samples), moved


def rows(args):
    peer, clock, speed = fbgemm(), Clock(args.repeat), copy_speed()
    if peer is not None:
        peer[0].set_num_threads(args.threads)
    print(f"a plain copy here: {speed / 1e9:.1f} GB/s, reads and writes; {args.threads} threads")
    head = f"{'':37}{'ours':>16}{'fbgemm':>16}{'ratio':>7}{'plain JAX':>16}{'ratio':>7}{'limit':>8}{'index':>7}"
    print("least processor time (wall time) in ms; ratio: ours / theirs, processor time\n" + head)
    for per_sample in (1, 5):
        ids = zipf_ids(per_sample)
        for width in args.dims:
            for kind in ("sgd", "adagrad"):
                look, change, index, read, moved = rows_case(width, ids, kind, clock, peer)
                for what, times, limit in (("lookup", look, read), ("update", change, moved)):
                    cells = [f"{what:7}{kind:9}width {width:3}, {per_sample} a sample"]
                    ours = times["ours"]
                    cells.append(f"{ours[0]:8.1f} ({ours[1]:5.1f})")
                    for name in ("fbgemm", "plain"):
                        if name in times:
                            other = times[name]
                            cells.append(f"{other[0]:8.1f} ({other[1]:5.1f}){ours[0] / other[0]:7.2f}")
                        else:
                            cells.append(f"{'-':>16}{'':7}")
                    print("".join(cells) + f"{1e3 * limit / speed:8.1f}{index:7.1f}", flush=True)


# A whole step of a DLRM: 26 tables of width 32, two MLPs, pairwise products, SGD everywhere.

WIDTH, FIELDS, DENSE = 32, TABLES + 1, 13
BOTTOM, PAIRS = (DENSE, 256, 128, WIDTH), FIELDS * (FIELDS - 1) // 2
TOP = (PAIRS + WIDTH, 512, 256, 1)
RATE = 0.05


def layers(sizes, rng):
    """Weights and biases of an MLP, float32."""
    pairs = pairwise(sizes)
    return [((rng.normal(size=(a, b)) / a**0.5).astype(np.float32), np.zeros(b, np.float32)) for a, b in pairs]


def mlp(weights, x, relu):
    for w, b in weights[:-1]:
        x = relu(x @ w + b)
    return x @ weights[-1][0] + weights[-1][1]


def steps(args):
    """Training steps of one model on three sides; the loss of each after as many steps."""
    import jax
    import jax.numpy as jnp
    import optax

    from tilewright.embed import SGD, Feature, Table, Topology, device_batch, from_tables, preprocess, stack, train_step

    batch, rounds = 2048, 6
    rng = np.random.default_rng(0)
    names = [f"f{k:02d}" for k in range(TABLES)]
    values = rng.normal(size=(TABLES, VOCAB, WIDTH)).astype(np.float32) * 0.1
    weights = {"bottom": layers(BOTTOM, rng), "top": layers(TOP, rng)}
    ids = [((rng.zipf(1.2, (TABLES, batch)) - 1) % VOCAB).astype(np.int32) for _ in range(rounds)]
    numeric = rng.normal(size=(rounds, batch, DENSE)).astype(np.float32)
    labels = (rng.random((rounds, batch)) < 0.3).astype(np.float32)
    rows, columns = np.tril_indices(FIELDS, -1)

    def loss(params, vectors, numeric, labels):
        bottom = mlp(params["bottom"], numeric, jax.nn.relu)
        stacked = jnp.stack([bottom, *(vectors[name] for name in names)], axis=1)
        dots = jnp.einsum("bid,bjd->bij", stacked, stacked)[:, rows, columns]
        logits = mlp(params["top"], jnp.concatenate([bottom, dots], axis=1), jax.nn.relu)[:, 0]
        return optax.sigmoid_binary_cross_entropy(logits, labels).mean()

    features = [Feature(name, Table(f"t{name}", VOCAB, WIDTH, optimizer=SGD(RATE))) for name in names]
    plan = stack(features, Topology(1, 4))
    one = train_step(loss, optax.sgd(RATE))
    state = from_tables(plan, {f"t{name}": values[k] for k, name in enumerate(names)})
    box = {"ours": one.start(jax.tree.map(jnp.asarray, weights), state, donate=True), "losses": {}}

    def plainly(params, tables, ids, numeric, labels):
        def whole(params, tables):
            return loss(params, {name: tables[k][ids[k]] for k, name in enumerate(names)}, numeric, labels)

        value, changes = jax.value_and_grad(whole, argnums=(0, 1))(params, tables)
        return value, *jax.tree.map(lambda x, g: x - RATE * g, (params, tables), changes)

    plain_step = jax.jit(plainly, donate_argnums=(0, 1))
    box["plain"] = jax.tree.map(jnp.asarray, weights), [jnp.asarray(v) for v in values]

    def ours(k):
        host = preprocess({name: ids[k][i].reshape(-1, 1) for i, name in enumerate(names)}, plan)
        box["ours"], value = one.step(box["ours"], device_batch(host), numeric[k], labels[k])
        return float(value)

    def plain(k):
        value, *after = plain_step(*box["plain"], ids[k], numeric[k], labels[k])
        box["plain"] = after
        return float(value)

    sides = {"ours": ours, "plain JAX": plain}
    try:
        import torch

        torch.set_num_threads(args.threads)
        bags = torch.nn.ModuleList(
            torch.nn.EmbeddingBag.from_pretrained(torch.tensor(v), freeze=False, mode="sum", sparse=True)
            for v in values
        )
        dense = [torch.nn.Parameter(torch.tensor(x)) for part in weights.values() for pair in part for x in pair]
        depth = len(BOTTOM) - 1
        pairs = [(dense[2 * i], dense[2 * i + 1]) for i in range(len(dense) // 2)]
        optimizer = torch.optim.SGD([*bags.parameters(), *dense], lr=RATE)
        offsets = torch.arange(batch)
        lower = torch.tensor(rows), torch.tensor(columns)
        given = [torch.tensor(x) for x in numeric], [torch.tensor(x) for x in labels], [torch.tensor(x) for x in ids]

        def pytorch(k):
            optimizer.zero_grad(set_to_none=True)
            bottom = mlp(pairs[:depth], given[0][k], torch.relu)
            vectors = [bag(row.long(), offsets) for bag, row in zip(bags, given[2][k], strict=True)]
            stacked = torch.stack([bottom, *vectors], dim=1)
            dots = torch.bmm(stacked, stacked.transpose(1, 2))[:, lower[0], lower[1]]
            logits = mlp(pairs[depth:], torch.cat([bottom, dots], dim=1), torch.relu)[:, 0]
            value = torch.nn.functional.binary_cross_entropy_with_logits(logits, given[1][k])
            value.backward()
            optimizer.step()
            return float(value)

        sides["PyTorch"] = pytorch
    except ImportError:
        print("PyTorch is left out: not installed")
    best = {name: [np.inf, np.inf] for name in sides}
    for _ in range(args.repeat):
        for k in range(rounds):
            for name, side in sides.items():
                cpu, wall = time.process_time(), time.perf_counter()
                box["losses"].setdefault(name, []).append(side(k))
                spent = time.process_time() - cpu, time.perf_counter() - wall
                best[name] = [min(a, b) for a, b in zip(best[name], spent, strict=True)]
    for name, seen in box["losses"].items():
        assert np.allclose(seen, box["losses"]["ours"], rtol=2e-3, atol=2e-4), f"{name} computes something else"
    print(f"\na DLRM step, batch {batch}, {TABLES} tables of {VOCAB} x {WIDTH}, preprocessing included; least ms of")
    print("processor (wall) time; ratio: ours / theirs, wall time")
    for name, (cpu, wall) in best.items():
        print(f"{name:10}{1e3 * cpu:8.1f} ({1e3 * wall:5.1f}){best['ours'][1] / wall:8.2f}")


def main():
    args = parse()
    os.environ["TILEWRIGHT_THREADS"] = str(args.threads)
    if args.part != "step":
        rows(args)
    if args.part != "rows":
        steps(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
