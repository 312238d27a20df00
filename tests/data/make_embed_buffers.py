"""Writes embed_buffers.json.gz: the buffers that jax-tpu-embedding's C++ makes of random models and batches.

    PYTHON tests/data/make_embed_buffers.py [CASES [FILE]]     an environment with jax-tpu-embedding 0.2.0 (Python 3.12)

Features have shuffled names and share tables; optimizers, combiners, widths, batch sizes and numbers of SparseCores are
drawn too. Half of the models are stacked by its auto_stack_tables, half are not. Ids are ragged and int32; ``misread``
says what it makes of ragged int64.
"""

from __future__ import annotations

import gzip
import json
import logging
import sys
from pathlib import Path

import jax
import numpy as np
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec as specs

FILE = Path(__file__).resolve().parent / "embed_buffers.json.gz"
OPTIMIZERS = [
    specs.SGDOptimizerSpec(0.1),
    specs.AdagradOptimizerSpec(0.1),
    specs.AdagradOptimizerSpec(0.1, initial_accumulator_value=0.5),
    specs.AdamOptimizerSpec(0.1, beta_1=0.8),
    specs.AdagradMomentumOptimizerSpec(0.1, use_nesterov=True),
    specs.FTRLOptimizerSpec(0.1, l1_regularization_strength=0.25),
    specs.LaPropOptimizerSpec(0.1, eps=1e-8),
    specs.F2AOptimizerSpec(0.1, rho=0.25),
]


def table_spec(name, vocab, width, combiner="sum", optimizer=OPTIMIZERS[0]):
    zeros = jax.nn.initializers.zeros
    sizes = {"name": name, "vocabulary_size": vocab, "embedding_dim": width, "max_ids_per_partition": 1024}
    return specs.TableSpec(**sizes, initializer=zeros, optimizer=optimizer, combiner=combiner)


def feature_spec(name, table, batch):
    shapes = {"input_shape": [batch, 1], "output_shape": [batch, table.embedding_dim]}
    return specs.FeatureSpec(name=name, table_spec=table, **shapes)


def random_model(rng, sparsecores):
    """FeatureSpecs of a few tables, names in no order."""
    few = [OPTIMIZERS[k] for k in rng.choice(len(OPTIMIZERS), 2)]
    names = rng.permutation(list("abcdefghij"))
    tables = [
        table_spec(
            f"{names[k]}_table",
            int(rng.integers(1, 200)),
            int(rng.choice((4, 8, 12))),
            str(rng.choice(("sum", "mean", "sqrtn"))),
            few[rng.integers(2)],
        )
        for k in range(rng.integers(1, 4))
    ]
    chosen = list(range(len(tables))) + rng.integers(0, len(tables), rng.integers(1, 4)).tolist()
    names = rng.permutation(list("klmnopqrst"))
    return [
        feature_spec(f"{name}_feature", tables[k], sparsecores * int(rng.integers(1, 3)))
        for name, k in zip(names, rng.permutation(chosen))
    ]


def ragged(rows, dtype):
    value = np.empty(len(rows), object)
    for k, row in enumerate(rows):
        value[k] = np.array(row, dtype)
    return value


def buffers(features, ids, weights, devices, per_device, dtype=np.int32):
    """Stack -> row pointers and, up to the end of each source, ids, samples and gains."""
    weights = weights and [ragged(rows, np.float32) for rows in weights]
    made, _ = embedding.preprocess_sparse_dense_matmul_input(
        [ragged(rows, dtype) for rows in ids], weights, features, devices, devices, num_sc_per_device=per_device
    )
    found, shards = made.sparse_dense_matmul_input, devices * per_device
    result = {}
    for stack, pointers in found.lhs_row_pointers.items():
        ends = np.asarray(pointers).reshape(shards, max(shards, 8))
        used = {}
        for name in ("embedding_ids", "sample_ids", "gains"):
            sources = np.asarray(getattr(found, f"lhs_{name}")[stack]).reshape(shards, -1)
            used[name] = [cut(source, end, shards) for source, end in zip(sources, ends)]
        result[stack] = {"row_pointers": ends.tolist(), **used}
    return result


def cut(slots, ends, shards):
    """A source's entries, partition after partition, without padding."""
    begins = [0, *(-(-ends[: shards - 1] // 8) * 8)]
    parts = [slots[begin:end] for begin, end in zip(begins, ends[:shards])]
    return [float(x) if slots.dtype == np.float32 else int(x) for x in np.concatenate(parts)]


def case(rng):
    devices, per_device = int(2 ** rng.integers(0, 3)), int(rng.choice((2, 4)))
    sparsecores, stacking = devices * per_device, bool(rng.integers(2))
    features = random_model(rng, sparsecores)
    ids, weights = [], [] if rng.random() < 0.4 else None
    for feature in features:
        vocab, lengths = feature.table_spec.vocabulary_size, rng.integers(0, 4, feature.input_shape[0])
        ids.append([rng.integers(0, max(1, vocab // 2), n).tolist() for n in lengths])
        if weights is not None:
            weights.append([(rng.integers(1, 17, n) / 8).tolist() for n in lengths])
    if stacking:
        large = {f"stack_to_max_{kind}_per_partition": lambda name, batch: 1024 for kind in ("ids", "unique_ids")}
        embedding.auto_stack_tables(features, devices, per_device, **large)
    embedding.prepare_feature_specs_for_training(features, devices, per_device)
    return {
        "devices": devices,
        "per_device": per_device,
        "stacking": stacking,
        "features": [described(feature) for feature in features],
        "ids": ids,
        "weights": weights,
        "buffers": buffers(features, ids, weights, devices, per_device),
    }


def described(feature):
    """What the specs say once placed, for stand-ins with the same attributes."""
    table, setting = feature.table_spec, feature.table_spec.setting_in_stack
    optimizer = {"short_name": table.optimizer.short_name(), **vars(table.optimizer)}
    plain = {name: getattr(table, name) for name in ("name", "vocabulary_size", "embedding_dim", "combiner")}
    return {
        "name": feature.name,
        "batch": feature.input_shape[0],
        "row_offset": int(feature.id_transformation.row_offset),
        "table": {**plain, "optimizer": optimizer, "stack_name": setting.stack_name},
    }


def misread():
    """Three kinds of ragged rows of the same ids, as it reads them on two SparseCores: [sample, id] of every entry."""
    rows = [[1, 2], [3], [], [5, 6, 7], [8], [9], [10], [11]]
    read = {}
    for dtype in ("int32", "int64"):
        feature = feature_spec("f", table_spec("t", 64, 8), 8)
        embedding.prepare_feature_specs_for_training([feature], 1, 2)
        found = buffers([feature], [rows], None, 1, 2, np.dtype(dtype))["t"]
        entries = []
        for source in range(2):
            ends = found["row_pointers"][source]
            shards = [0] * ends[0] + [1] * (ends[1] - -(-ends[0] // 8) * 8)
            both = zip(found["sample_ids"][source], found["embedding_ids"][source], shards)
            entries += [[4 * source + sample, 2 * local + shard] for sample, local, shard in both]
        read[dtype] = sorted(entries)
    return {"rows": rows, "read": read}


def main():
    logging.disable(logging.WARNING)
    count, file = int(sys.argv[1]) if len(sys.argv) > 1 else 60, Path(sys.argv[2]) if len(sys.argv) > 2 else FILE
    rng = np.random.default_rng(15)
    made = {"misread": misread(), "cases": [case(rng) for _ in range(count)]}
    with gzip.GzipFile(file, "wb", mtime=0) as out:
        out.write(json.dumps(made).encode())


if __name__ == "__main__":
    main()
