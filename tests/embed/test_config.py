"""One TOML file for a model, the guide's knobs as flags, and what is refused."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.embed import (
    F2A,
    FTRL,
    SGD,
    Adagrad,
    AdagradMomentum,
    Adam,
    Feature,
    LaProp,
    Limits,
    LogColumn,
    RowwiseAdagrad,
    SparseCoreConfig,
    Table,
    Topology,
    read_config,
)
from tilewright.errors import UsageError

WHOLE = """
target = "tpu-v6e"
chips = 4
batch = 512

[[table]]
name = "user"
vocab = 1_000
width = 32
combiner = "mean"
optimizer = { kind = "adagrad", learning_rate = 0.05 }

[[table]]
name = "item"
vocab = 50
width = 8
optimizer = "sgd"

[[feature]]
name = "user"
ids = "hash"

[[feature]]
name = "seen"
table = "item"
column = "items_seen"
weights = "seconds"

[limits.user]
max_ids_per_partition = 12
max_unique_ids_per_partition = 7

[sparsecore]
allow_id_dropping = true
max_ids_per_table = { user = 100 }
maximum_parallel_iterations = 3
detect_nan = true
"""


def written(tmp_path, text):
    path = tmp_path / "model.toml"
    path.write_text(text)
    return path


def test_a_whole_file(tmp_path):
    made = read_config(written(tmp_path, WHOLE))
    user = Table("user", 1000, 32, "mean", Adagrad(0.05))
    assert made.features == (Feature("user", user), Feature("seen", Table("item", 50, 8, optimizer=SGD())))
    assert (made.target, made.chips, made.batch, made.topology) == ("tpu-v6e", 4, 512, Topology(4, 2))
    assert made.columns == {"user": LogColumn(ids="hash"), "seen": LogColumn("items_seen", "seconds")}
    assert made.limits == {"user": Limits(12, 7)}
    knobs = made.sparsecore
    assert (knobs.allow_id_dropping, knobs.maximum_parallel_iterations, knobs.max_ids_per_table) == (
        True,
        3,
        {"user": 100},
    )
    assert made.plan_options["prefetched_batches"] == 3
    assert knobs.flags() == ("--xla_sc_detect_nan=true",)
    assert hash(made) == hash(pickle.loads(pickle.dumps(made)))


def test_the_least_a_file_needs(tmp_path):
    made = read_config(written(tmp_path, '[[table]]\nname = "t"\nvocab = 9\nwidth = 4\n'))
    assert made.features == (Feature("t", Table("t", 9, 4)),)
    assert (made.target, made.chips, made.batch, made.limits) == ("tpu-v5p", 1, 4096, None)
    assert made.sparsecore == SparseCoreConfig()
    assert made.sparsecore.initialize_tables_on_host
    assert not made.sparsecore.enable_fast_table_initialization


@pytest.mark.parametrize(("off", "stacks"), [("false", ["t_u"]), ("true", ["t", "u"])])
def test_the_guides_knob_decides_over_stacks(tmp_path, off, stacks):
    text = LEAST + LEAST.replace('"t"', '"u"') + f"[sparsecore]\ndisable_table_stacking = {off}\n"
    assert list(read_config(written(tmp_path, text)).stacking().stacks) == stacks


def test_packing_of_narrow_tables(tmp_path):
    text = LEAST + '[[table]]\nname = "u"\nvocab = 9\nwidth = 8\ncombiner = "mean"\n'
    made = read_config(written(tmp_path, "narrow_packing = true\n" + text))
    assert (made.narrow_packing, made.narrow.rows_per_line) == (True, {"t": 2})
    assert [f.table.vocab for f in made.narrow.features] == [5, 9]
    plain = read_config(written(tmp_path, text))
    assert (plain.narrow_packing, plain.narrow.features) == (False, plain.features)
    assert plain.narrow.rows_per_line == {}


LEAST = '[[table]]\nname = "t"\nvocab = 9\nwidth = 4\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("= 3", "not TOML"),
        ("", "no table"),
        ("[table]\nname = 3", "two brackets"),
        ("chip = 3\n" + LEAST, "unknown key 'chip'; did you mean chips?"),
        ("chips = 0\n" + LEAST, "chips = 0"),
        ('batch = "8"\n' + LEAST, "batch = '8': expected a whole number"),
        ("target = 3\n" + LEAST, "target = 3: expected a text, got a whole number"),
        ("narrow_packing = 1\n" + LEAST, "narrow_packing = 1: expected true or false"),
        (LEAST + LEAST, "two tables of one name"),
        ('[[table]]\nname = "t"\nwidth = 3', "table 't': vocab missing"),
        (LEAST + "rows = 4", "table 't': unknown key 'rows'"),
        (LEAST.replace("9", "0"), "table 't': vocab = 0"),
        (LEAST + 'optimizer = "adamw"', "unknown optimizer 'adamw'; known: sgd, adagrad"),
        (LEAST + 'optimizer = { kind = "sgd", rate = 1 }', "unknown key 'rate'; known keys: learning_rate"),
        (LEAST + "optimizer = 3", "optimizer = 3"),
        (LEAST + '[[feature]]\nname = "f"', "no table called 'f'; tables are t"),
        (LEAST + '[[feature]]\nname = "t"\nids = "x"', "ids = 'x'"),
        (LEAST + '[[feature]]\nname = "t"\nweights = 3', "weights = 3: expected a text"),
        (LEAST + LEAST.replace('"t"', '"u"') + '[[feature]]\nname = "t"', "no feature uses table 'u'"),
        (LEAST + "[limits.t]\nmax_ids_per_partition = 4", "limits of 't': max_unique_ids_per_partition missing"),
        (LEAST + "[limits.t]\nmax_ids_per_partition = 4\nmax_unique_ids_per_partition = 5", "5 is above"),
        ("limits = 3\n" + LEAST, "write [limits]"),
        (LEAST + "[sparsecore]\ndetect_nans = true", "unknown key 'detect_nans'; did you mean detect_nan?"),
        (LEAST + "[sparsecore]\ndetect_nan = 1", "detect_nan = '1' is neither true nor false"),
        (LEAST + '[sparsecore]\nassert_level = "all"', "assert_level = 'all'; one of none, bounds"),
        (LEAST + "[sparsecore]\nmax_ids_file = 3", "max_ids_file = 3 is not a text"),
        (LEAST + "[sparsecore]\nmax_ids_per_table = 3", "is not a table of names and numbers"),
        (LEAST + "[sparsecore]\nmax_ids_per_chip_per_sample = 0", "max_ids_per_chip_per_sample = 0"),
        (
            LEAST + "[sparsecore]\nmax_ids_per_table = { t = 3 }\nmax_unique_ids_per_table = { t = 4 }",
            "max_unique_ids_per_table 4 is above max_ids_per_table 3",
        ),
    ],
)
def test_files_that_are_refused(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as error:
        read_config(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_no_file(tmp_path):
    with pytest.raises(UsageError, match="cannot read it"):
        read_config(tmp_path / "none.toml")


knobs = st.builds(
    SparseCoreConfig,
    disable_full_embedding_pipelining=st.booleans(),
    num_serialized_tables_to_optimize_hbm=st.integers(0, 99),
    max_ids_file=st.sampled_from(["", "limits.json", "a folder/limits.json"]),
    estimate_max_ids=st.booleans(),
    enable_id_bound_check=st.booleans(),
    detect_nan=st.booleans(),
    assert_level=st.sampled_from(["none", "bounds"]),
    buffer_contents_sanitizer_config=st.sampled_from(
        ["", "cores_to_sanitize: [TC, SC_SCS, SC_TILE], sanitizer_mode: LOCAL_ONLY"]
    ),
    verify_launch_id_across_cores=st.booleans(),
)


@given(knobs)
def test_flags_survive_the_environment(config):
    """What is printed is what is read back, between flags of others."""
    text = " ".join(["--xla_tpu_other=1", *config.flags(), "--xla_flag"])
    back, rest = SparseCoreConfig().with_flags(text)
    assert back == config
    assert rest == ("--xla_tpu_other=1", "--xla_flag")


def test_forms_of_flags():
    read = SparseCoreConfig().with_flags
    assert read("--xla_sc_detect_nan")[0].detect_nan
    assert not read("-xla_sc_detect_nan=false")[0].detect_nan
    assert read("--xla_sc_num_serialized_tables_to_optimize_hbm 4")[0].num_serialized_tables_to_optimize_hbm == 4
    assert read("") == (SparseCoreConfig(), ())
    for text, message in (
        ("--xla_sc_detect_nan=perhaps", "not true or false"),
        ("--xla_sc_num_serialized_tables_to_optimize_hbm=-1", "not a whole number"),
        ("--xla_sc_assert_level=some", "assert_level"),
        ("--a='b", "cannot be split"),
        ("loose", "'loose' is not a flag"),
    ):
        with pytest.raises(UsageError, match=message):
            read(text)


@pytest.mark.parametrize(
    ("entry", "optimizer"),
    [
        ('"adam"', Adam()),
        ('"rowwise_adagrad"', RowwiseAdagrad()),
        ('{ kind = "adam", learning_rate = 0.1, b2 = 0.99 }', Adam(0.1, b2=0.99)),
        (
            '{ kind = "ftrl", l1_regularization = 1, multiply_linear_by_learning_rate = true }',
            FTRL(0.01, -0.5, 1, 0, 0, 0.1, True),
        ),
        ('{ kind = "adagrad_momentum", use_nesterov = true }', AdagradMomentum(use_nesterov=True)),
        ('{ kind = "laprop", epsilon = 1e-8 }', LaProp(epsilon=1e-8)),
        ('{ kind = "f2a", rho = 0.25 }', F2A(rho=0.25)),
    ],
)
def test_every_optimizer_in_a_file(tmp_path, entry, optimizer):
    path = tmp_path / "model.toml"
    path.write_text(f'[[table]]\nname = "t"\nvocab = 8\nwidth = 8\noptimizer = {entry}\n')
    assert read_config(path).features[0].table.optimizer == optimizer
