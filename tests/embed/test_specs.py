"""jax-tpu-embedding's specs by their attributes, stacks named by hand, and quantised lookups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest

from tilewright.embed import (
    SGD,
    Adagrad,
    Feature,
    Limits,
    Quantization,
    Table,
    Topology,
    from_tables,
    init,
    lookup,
    plan,
    preprocess,
    read_config,
    spec_batch_sizes,
    spec_limits,
    stack,
    tables,
    update,
)
from tilewright.embed.model.specs import as_feature
from tilewright.errors import UnsupportedError, UsageError


class SGDOptimizerSpec:
    def __init__(self, learning_rate=0.001):
        self.learning_rate = learning_rate

    def short_name(self):
        return "sgd"


class AdagradOptimizerSpec(SGDOptimizerSpec):
    def __init__(self, learning_rate=0.001, initial_accumulator_value=0.1):
        super().__init__(learning_rate)
        self.initial_accumulator_value = initial_accumulator_value

    def short_name(self):
        return "adagrad"


class NewOptimizerSpec(SGDOptimizerSpec):
    def short_name(self):
        return "new"


class CustomOptimizerSpec(SGDOptimizerSpec):
    """A function of the peer's kind: (gradient, row, slot, rate), all [1, width]."""

    def __init__(self, initializers, function):
        super().__init__(0.5)
        self.custom_computation_fn = function
        self.initializers = initializers

    def short_name(self):
        return "custom"

    def slot_variables_initializers(self):
        return self.initializers


@dataclass(frozen=True)
class QuantizationConfig:
    min_value: float
    max_value: float
    num_buckets: int


@dataclass
class StackedTableSpec:
    stack_name: str
    max_ids_per_partition: int = 256
    max_unique_ids_per_partition: int = 256


@dataclass
class TableSpec:
    name: str
    vocabulary_size: int
    embedding_dim: int
    initializer: Any
    optimizer: Any
    combiner: str
    max_ids_per_partition: int = 256
    max_unique_ids_per_partition: int = 256
    suggested_coo_buffer_size_per_device: int | None = None
    quantization_config: QuantizationConfig | None = None
    _stacked_table_spec: StackedTableSpec | None = None


@dataclass
class FeatureSpec:
    name: str
    table_spec: TableSpec
    input_shape: list[int] = field(default_factory=lambda: [16, 1])
    output_shape: list[int] = field(default_factory=lambda: [16, 8])


def specs():
    adagrad = AdagradOptimizerSpec(0.05, 0.2)
    user = TableSpec("user", 100, 8, None, adagrad, "sum", 40, 30)
    item = TableSpec("item", 50, 6, None, adagrad, "sum", 7, 7)
    other = TableSpec("other", 50, 8, None, SGDOptimizerSpec(lambda step: 0.1), "mean", 9, 8)
    other.quantization_config = QuantizationConfig(-1.0, 1.0, 256)
    return [FeatureSpec("u", user), FeatureSpec("i", item), FeatureSpec("o", other), FeatureSpec("i2", item)]


def test_specs_are_taken_as_they_are():
    given = specs()
    made = stack(given, Topology(2, 2), batch_size=spec_batch_sizes(given))
    assert list(made.stacks) == ["user_item", "other"]
    assert made.tables["user"].table == Table("user", 100, 8, "sum", Adagrad(0.05, 0.2))
    assert made.tables["other"].table.quantization == Quantization(-1, 1, 256)
    assert callable(made.tables["other"].table.optimizer.learning_rate)
    assert [f.table.name for f in made.features] == ["user", "item", "other", "item"]
    batch = {f.name: np.arange(16) for f in given}
    assert len(preprocess(batch, made).stats) == 2
    assert set(plan([batch], given, Topology(2, 2)).limits) == {"user_item", "other"}


def test_a_stacking_of_specs_is_one_to_plan_for():
    given = specs()
    made = stack(given, Topology(2, 2), batch_size=spec_batch_sizes(given))
    batch = {f.name: np.arange(16) for f in given}
    assert plan([batch], given, Topology(2, 2), stacking=made).stacking is made


def test_specs_may_be_nested_as_jax_lays_them_out():
    u, i, o, i2 = specs()
    made = stack({"z": [u, {"only": i}], "a": (o, i2)}, Topology(2, 2))
    assert [feature.name for feature in made.features] == ["o", "i2", "u", "i"]
    assert spec_batch_sizes({"z": u, "a": [i]}) == {"i": 16, "u": 16}


@dataclass
class FeatureIdTransformation:
    row_offset: int


def test_features_lie_where_their_row_offset_says():
    given = specs()
    for spec, offset in zip(given, (32, 0, 0, 16)):
        spec._id_transformation = FeatureIdTransformation(offset)
    assert [f.name for f in stack(given, Topology(2, 2), table_stacking=False).stacks["item"].features] == ["i", "i2"]
    given[1]._id_transformation, given[3]._id_transformation = (FeatureIdTransformation(k) for k in (16, 0))
    assert [f.name for f in stack(given, Topology(2, 2), table_stacking=False).stacks["item"].features] == ["i2", "i"]
    names = [f.name for f in stack(given, Topology(2, 2)).stacks["user_item"].features]
    assert names == ["u", "i", "i2"], "offsets in other stacks than ours say nothing of these"


def test_features_of_a_table_in_no_stack_lie_by_name():
    features = [Feature(name, table) for name, table in zip("zma", [Table("t", 40, 8)] * 3)]
    of = {"table_stacking": False}, {}, {"stacks": [["t"]], "table_stacking": False}
    orders = ["".join(f.name for f in stack(features, Topology(1, 4), **how).stacks["t"].features) for how in of]
    assert orders == ["amz", "zma", "zma"], "as prepare_feature_specs_for_training, auto_stack_tables, stack_tables"


def test_a_custom_function_of_one_row():
    def function(gradient, row, seen, rate):
        assert gradient.shape == row.shape == seen.shape == rate.shape == (1, 8)
        return row - rate * gradient / (seen + 1), seen + 1

    spec = CustomOptimizerSpec((jax.nn.initializers.constant(2.0),), function)
    optimizer = as_feature(FeatureSpec("f", TableSpec("t", 8, 8, None, spec, "sum"))).table.optimizer
    assert hash(optimizer) is not None
    assert dict(optimizer.slots) == {"slot_0": 2.0}
    made = stack([Feature("f", Table("t", 8, 8, optimizer=optimizer))], Topology(1, 2))
    state = from_tables(made, {"t": np.zeros((8, 8))})
    after = update(state, preprocess({"f": np.arange(4)}, made), {"f": np.ones((4, 8), np.float32)})
    np.testing.assert_allclose(tables(after)["t"][:, 0], [-0.5 / 3] * 4 + [0] * 4, rtol=1e-6)
    assert tables(after, "slot_0")["t"][:, 0].tolist() == [3.0] * 4 + [2.0] * 4


def test_limits_of_specs():
    given = specs()
    made = stack(given, Topology(2, 2))
    assert spec_limits(given, made) == {"other": Limits(9, 8)}, "limits of single tables say nothing of their stack"
    stacked = StackedTableSpec("user_item", 64, 50)
    for spec in given[:2]:
        spec.table_spec._stacked_table_spec = stacked
    assert spec_limits(given, made) == {"user_item": Limits(64, 50), "other": Limits(9, 8)}
    stacked.max_unique_ids_per_partition = 256
    assert spec_limits(given, made)["user_item"] == Limits(64, 64), "their default, which never binds"


def test_what_a_spec_cannot_be():
    new = TableSpec("t", 8, 8, None, NewOptimizerSpec(), "sum")
    with pytest.raises(UnsupportedError, match="optimizer 'new' of a TableSpec"):
        as_feature(FeatureSpec("f", new))
    uneven = CustomOptimizerSpec((jax.nn.initializers.normal(),), lambda *parts: parts[1:3])
    with pytest.raises(UnsupportedError, match="starts from different values"):
        as_feature(FeatureSpec("f", TableSpec("t", 8, 8, None, uneven, "sum")))
    with pytest.raises(UsageError, match="is not a table: it has no name"):
        as_feature(FeatureSpec("f", SGDOptimizerSpec()))
    for other in (3, "f", None):
        with pytest.raises(UsageError, match="is not a Feature"):
            stack([other], Topology(1, 1))


def model():
    made = [Table(name, 40, 8) for name in "abcd"]
    return [Feature(f"f{t.name}", t) for t in made]


def test_stacks_named_by_hand():
    made = stack(model(), Topology(1, 4), stacks=[["c", "a"]])
    assert list(made.stacks) == ["c_a", "b_d"]
    assert (made.tables["c"].row_offset, made.tables["a"].row_offset) == (0, 16)
    assert (made.tables["c"].rotation, made.tables["a"].rotation) == (0, 0)
    alone = stack(model(), Topology(1, 4), table_stacking=False, stacks=[["b", "d"], ["a"]])
    assert list(alone.stacks) == ["a", "b_d", "c"]
    batch = {f.name: np.arange(8) % 40 for f in model()}
    automatic = stack(model(), Topology(1, 4))
    keys = jax.random.key(0)
    value = tables(init(automatic, keys))
    for feature, found in lookup(from_tables(made, value), preprocess(batch, made)).items():
        np.testing.assert_array_equal(found, np.asarray(value[feature[1:]])[:8])


@pytest.mark.parametrize(
    ("stacks", "message"),
    [
        ([["a", "x"]], "'x', which is no table"),
        ([["a"], ["a"]], "table 'a' twice"),
        ([[]], "an empty stack"),
        (["ab"], "the text 'ab'"),
        ([["a", "wide"]], "padded width 8 and 16"),
        ([["a", "mean"]], "combiner sum and mean"),
        ([["a", "levels"]], "quantisation None and"),
    ],
)
def test_stacks_that_cannot_be(stacks, message):
    quantized = Table("levels", 8, 8, quantization=Quantization(0, 1, 2))
    odd = [Table("wide", 8, 9), Table("mean", 8, 8, combiner="mean"), quantized]
    features = [*model(), *(Feature(t.name, t) for t in odd)]
    with pytest.raises(UsageError, match=message):
        stack(features, Topology(1, 4), stacks=stacks)


def test_lookups_are_quantised_and_updates_are_not():
    levels = Quantization(-0.5, 0.5, 5)
    plain, rounded = (Table("t", 8, 8, optimizer=SGD(1.0), quantization=q) for q in (None, levels))
    value = {"t": np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)}
    ids = np.arange(8)
    got = {}
    for table in (plain, rounded):
        made = stack([Feature("f", table)], Topology(1, 2))
        host, state = preprocess({"f": ids}, made), from_tables(made, value)
        after = tables(update(state, host, {"f": np.ones((8, 8), np.float32)}))["t"]
        got[table.quantization] = np.asarray(lookup(state, host)["f"]), np.asarray(after)
    assert set(np.unique(got[levels][0]).tolist()) <= {-0.5, -0.25, 0.0, 0.25, 0.5}
    np.testing.assert_allclose(got[levels][0], levels.apply(value["t"], np), atol=1e-6)
    np.testing.assert_array_equal(got[levels][1], got[None][1])
    np.testing.assert_array_equal(got[None][0], value["t"])


@pytest.mark.parametrize("bad", [(0, 0, 4), (1, 0, 4), (0, 1, 1), (0, float("nan"), 4), (0, 1, 2.5), ("0", 1, 4)])
def test_quantisation_that_cannot_be(bad):
    with pytest.raises(UsageError):
        Quantization(*bad)


TOML = """
stacks = [["b", "a"]]
[[table]]
name = "a"
vocab = 8
width = 8
quantization_config_low = -1
quantization_config_high = 1.5
quantization_config_num_buckets = 256
[[table]]
name = "b"
vocab = 8
width = 8
quantization_config_low = -1
quantization_config_high = 1.5
quantization_config_num_buckets = 256
"""


def test_a_file_says_both(tmp_path):
    path = tmp_path / "model.toml"
    path.write_text(TOML)
    found = read_config(path)
    assert found.stacks == (("b", "a"),)
    assert found.features[0].table.quantization == Quantization(-1, 1.5, 256)
    for change, message in (
        (("quantization_config_high = 1.5\n", ""), "quantization_config_high missing"),
        (("= 256", "= 1"), "at least 2"),
        (('["b", "a"]', '["b", "x"]'), "'x', which is no table"),
        (('[["b", "a"]]', "3"), "stacks = 3"),
    ):
        path.write_text(TOML.replace(*change))
        with pytest.raises(UsageError, match=message):
            read_config(path)
