"""Buffers against jax-tpu-embedding's C++ on random models with shuffled names (tests/data/make_embed_buffers.py)."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.embed import Topology, preprocess, stack
from tilewright.embed.model.specs import as_feature

FILE = Path(os.environ.get("EMBED_BUFFERS") or Path(__file__).parents[1] / "data" / "embed_buffers.json.gz")
RECORDED = json.loads(gzip.decompress(FILE.read_bytes()))


def stand_in(feature, placed):
    """A FeatureSpec's attributes; ``placed``: as they are once jax-tpu-embedding has placed it."""
    table = feature["table"]
    optimizer = dict(table["optimizer"])
    short_name = optimizer.pop("short_name")
    optimizer = SimpleNamespace(short_name=lambda: short_name, **optimizer)
    spec = SimpleNamespace(**{**table, "optimizer": optimizer})
    spec._setting_in_stack = SimpleNamespace(stack_name=table["stack_name"]) if placed else None
    transformation = SimpleNamespace(row_offset=feature["row_offset"]) if placed else None
    return SimpleNamespace(name=feature["name"], table_spec=spec, _id_transformation=transformation)


@pytest.mark.parametrize("how", ["features", "specs", "placed specs"])
@pytest.mark.parametrize("case", RECORDED["cases"])
def test_buffers_are_the_peers(case, how):
    topology = Topology(case["devices"], case["per_device"])
    sizes = {feature["name"]: feature["batch"] for feature in case["features"]}
    given = [stand_in(feature, placed=how == "placed specs") for feature in case["features"]]
    if how == "features":
        given = [as_feature(spec) for spec in given]
    stacking = stack(given, topology, case["stacking"], sizes)
    assert {f["name"]: f["table"]["stack_name"] for f in case["features"]} == {
        feature.name: name for name, group in stacking.stacks.items() for feature in group.features
    }
    host = preprocess({feature["name"]: value for feature, value in zip(case["features"], batch_of(case))}, stacking)
    for name, expected in case["buffers"].items():
        sources, shards = topology.sparsecores, topology.sparsecores
        pointers = np.asarray(host.row_pointers[name]).reshape(sources, max(shards, 8))
        np.testing.assert_array_equal(pointers, expected["row_pointers"])
        for source in range(sources):
            parts = [host.partition(name, source, shard) for shard in range(shards)]
            found = [np.concatenate(column) for column in zip(*parts)]
            for values, field in zip(found, ("embedding_ids", "sample_ids", "gains")):
                np.testing.assert_array_equal(values, np.asarray(expected[field][source], values.dtype))


def batch_of(case):
    """(values, offsets) or (values, offsets, weights) of every feature."""
    for k, rows in enumerate(case["ids"]):
        offsets = np.cumsum([0, *map(len, rows)])
        values = np.array([i for row in rows for i in row], np.int64)
        if case["weights"] is None:
            yield values, offsets
        else:
            yield values, offsets, np.array([w for row in case["weights"][k] for w in row], np.float32)


def test_a_table_in_no_stack_takes_its_features_by_name():
    lone = [c for c in RECORDED["cases"] if not c["stacking"]]
    names = [[f["name"] for f in c["features"]] for c in lone]
    assert any(given != sorted(given) for given in names), "the cases would not show it"


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64, np.int16])
def test_ragged_ids_of_any_width_are_read_as_they_are(dtype):
    """jax-tpu-embedding takes the bytes of ragged int64 for int32: every other number is a 0 that nobody gave."""
    recorded = RECORDED["misread"]
    rows = [np.array(row, dtype) for row in recorded["rows"]]
    feature = {"name": "f", "row_offset": 0, "table": {"name": "t", "vocabulary_size": 64, "embedding_dim": 8}}
    feature["table"] |= {"combiner": "sum", "optimizer": {"short_name": "sgd", "learning_rate": 0.1}, "stack_name": "t"}
    stacking = stack([stand_in(feature, placed=False)], Topology(1, 2))
    as_objects = np.empty(len(rows), object)
    as_objects[:] = rows
    for batch in (rows, as_objects):
        host = preprocess({"f": batch}, stacking)
        entries = []
        for source in range(2):
            for shard in range(2):
                local, sample, _ = host.partition("t", source, shard)
                entries += zip((4 * source + sample).tolist(), (2 * local + shard).tolist())
        assert sorted(map(list, entries)) == recorded["read"]["int32"]
    assert recorded["read"]["int64"] != recorded["read"]["int32"]
