"""The pieces of a run, each by itself."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import ROOT
from tilewright.embed import Feature, Table, Topology, preprocess, stack
from tilewright.errors import CheckFailed, UsageError
from tilewright.isa import MatrixUnitConfig
from tilewright.machine import load_model, run
from tilewright.machine.model import auc, load_data
from tilewright.machine.stages import Product, compare, find_products, run_product
from tilewright.render.formats import finite

EXAMPLE = ROOT / "examples" / "dlrm.py"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=30))
def test_auc_is_the_share_of_pairs_in_order(rows):
    clicked = [score for label, score in rows if label]
    other = [score for label, score in rows if not label]
    found = auc([label for label, _ in rows], [score for _, score in rows])
    if not clicked or not other:
        assert np.isnan(found)
        return
    pairs = [(a > b) + (a == b) / 2 for a, b in itertools.product(clicked, other)]
    assert found == pytest.approx(sum(pairs) / len(pairs))


def test_products_are_found_through_nested_functions():
    def layer(x, w):
        return jax.nn.relu(x @ w)

    def loss(w, x):
        inner = jax.jit(layer)(x, w["a"])
        return jnp.einsum("bi,bj->bij", inner, inner).sum() + (inner @ w["b"]).sum()

    draw = np.random.default_rng(0)
    w = {"a": draw.standard_normal((5, 4), np.float32), "b": draw.standard_normal((4, 2), np.float32)}
    x = draw.standard_normal((3, 5), np.float32)
    found = find_products(jax.value_and_grad(loss), w, x)
    assert found.left == ()
    assert any(product.a.ndim == 3 for product in found.taken)
    assert [p.name for p in found.taken if p.a.ndim == 2][:2] == ["[3,5] @ [5,4]", "[3,4] @ [4,2]"]
    for product in found.taken:
        expected = product.a.astype(np.float64) @ product.b.astype(np.float64)
        assert np.allclose(product.value, expected, rtol=1e-5, atol=1e-5)


def test_loops_and_branches_are_left_out_and_counted():
    def model(w, x):
        x, _ = jax.lax.scan(lambda c, layer: (jnp.tanh(c @ layer), None), x, w["stack"])
        x = jax.lax.fori_loop(0, 3, lambda _, c: c @ w["square"], x)
        x = jax.lax.cond(x.sum() > 0, lambda v: v @ w["square"], lambda v: v, x)
        return (x @ w["out"]).sum() + (x.astype(jnp.bfloat16) @ w["out"].astype(jnp.bfloat16)).sum()

    draw = np.random.default_rng(2)
    w = {"stack": draw.standard_normal((3, 4, 4), np.float32), "square": np.eye(4, dtype=np.float32)}
    w["out"] = draw.standard_normal((4, 2), np.float32)
    x = draw.standard_normal((5, 4), np.float32)
    found = find_products(model, w, x)
    assert [p.name for p in found.taken] == ["[5,4] @ [4,2]", "bfloat16 [5,4] @ [4,2]"]
    assert [(each.why, each.macs) for each in found.left] == [
        ("inside a loop", 240),
        ("inside a loop", 240),
        ("inside a branch", 80),
    ]
    assert sum(each.macs for each in found.left) == 560
    assert sum(each.macs for each in found.taken) == 80
    chain = x
    for layer in w["stack"]:
        chain = np.tanh(chain @ layer)
    assert np.allclose(found.taken[0].a, chain, atol=1e-5)


def test_attention_bytes_and_convolutions_are_taken_and_run():
    def model(q, k, image, kernel, numbers, weights):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        names = ("NCHW", "OIHW", "NCHW")
        maps = jax.lax.conv_general_dilated(
            image, kernel, (2, 1), ((1, 0), (1, 1)), dimension_numbers=names, feature_group_count=2
        )
        sums = jax.lax.dot_general(numbers, weights, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)
        narrow = jnp.dot(numbers, numbers.T, preferred_element_type=jnp.int8)
        wider = jax.lax.conv_general_dilated(
            image, kernel, (1, 1), ((2, 2), (2, 2)), (2, 2), dimension_numbers=names, feature_group_count=2
        )
        return scores, maps, sums, narrow, wider

    draw = np.random.default_rng(3)
    q, k = (draw.standard_normal((3, 5, 4, 6)).astype(jnp.bfloat16) for _ in range(2))
    image, kernel = draw.standard_normal((2, 4, 6, 5), np.float32), draw.standard_normal((8, 2, 3, 3), np.float32)
    numbers, weights = (draw.integers(-128, 128, shape).astype(np.int8) for shape in ((5, 9), (7, 9)))
    found = find_products(model, q, k, image, kernel, numbers, weights)
    names = [product.name for product in found.taken]
    assert names == ["bfloat16 [12,5,6] @ [12,6,5]", "[2,6,5,4] by [3,3,2,8]", "int8 [5,9] @ [9,7]"]
    assert [each.why for each in found.left] == ["sums of int8", "a convolution with holes in its input"]
    assert found.left[0].macs == 225
    for product in found.taken:
        done = run_product(product, MatrixUnitConfig(threads=16))
        assert done.values_equal, product.name
        assert done.counts_equal
        assert done.counts.macs == product.macs


def test_values_that_are_no_numbers_are_compared_and_written():
    def overflow(x):
        return {"a": jnp.asarray(x) * np.float32(1e38) * 10, "b": jnp.log(-jnp.asarray(x))}

    x = np.linspace(1, 2, 8, dtype=np.float32)
    assert compare(overflow, jax.jit(overflow), [(x,)])[:2] == (0, 0)
    with pytest.raises(CheckFailed):
        compare(overflow, lambda x: {**overflow(x), "a": x}, [(x,)])
    inf, nan = float("inf"), float("nan")
    assert finite({"a": [1.0, nan], "b": (inf, 2), "c": {"d": -inf}}) == {
        "a": [1.0, None],
        "b": [None, 2],
        "c": {"d": None},
    }


def test_a_wrong_value_is_seen():
    draw = np.random.default_rng(1)
    a, b = draw.standard_normal((20, 30), np.float32), draw.standard_normal((30, 10), np.float32)
    right = run_product(Product("x", a, b, a @ b), MatrixUnitConfig())
    assert right.values_equal
    assert right.counts_equal
    spoiled = a @ b
    spoiled[3, 4] += 1e-3
    assert not run_product(Product("x", a, b, spoiled), MatrixUnitConfig()).values_equal


def test_a_rewrite_that_is_wrong_is_refused():
    def fine(x):
        return {"sum": x.sum(), "twice": 2 * x}

    def off(x):
        return {"sum": x.sum(), "twice": 2.001 * x}

    x = np.linspace(1, 2, 64, dtype=np.float32)
    assert compare(fine, jax.jit(fine), [(x,)]) == (0, 0, 2)
    with pytest.raises(CheckFailed, match="twice") as caught:
        compare(fine, off, [(x,)])
    assert caught.value.exit_code == 1
    with pytest.raises(CheckFailed):
        compare(fine, lambda x: jax.tree.map(lambda y: y * jnp.nan, fine(x)), [(x,)])


def test_a_model_file_is_checked(tmp_path):
    assert load_model(EXAMPLE).name == "dlrm"
    cases = {
        "features = 1": "does not define features, init, loss, optimizer",
        "import not_there": "ModuleNotFoundError",
        "x = (": "SyntaxError",
    }
    for text, message in cases.items():
        path = tmp_path / "model.py"
        path.write_text(text)
        with pytest.raises(UsageError, match=message):
            load_model(path)
    with pytest.raises(UsageError, match="no such model file"):
        load_model(tmp_path / "absent.py")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("return optax.sigmoid_binary_cross_entropy(logits, labels).mean(), logits", "return logits.mean()", "loss"),
        ("TOP = (PAIRS + WIDTH, ", "TOP = (PAIRS, ", "loss fails: TypeError"),
        ("return optax.adam(1e-3)", "return 1 / 0", "optimizer fails: ZeroDivisionError"),
        ('"gain": jnp.ones(WIDTH)', '"gain": jnp.ones(nothing)', "init fails: NameError"),
    ],
)
def test_a_wrong_model_is_one_clear_error(tmp_path, old, new, message):
    text = EXAMPLE.read_text()
    assert old in text
    path = tmp_path / "model.py"
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match=message):
        run(path, steps=1)


def test_features_of_another_name_are_refused(tmp_path):
    path = tmp_path / "model.py"
    text = EXAMPLE.read_text().replace('Feature(f"C{i}"', 'Feature(f"c{i}"')
    path.write_text(text)
    with pytest.raises(UsageError, match="C1 to C26"):
        run(path, steps=1)


FEATURES = [Feature(f"C{i}", Table(f"t{i}", 50, 8)) for i in range(1, 27)]


def test_generated_rows_are_seeded_and_held_out():
    one, again, other = (load_data(None, FEATURES, 64, 5, seed) for seed in (3, 3, 4))
    assert one.held_out
    assert np.array_equal(one.train.categorical, again.train.categorical)
    assert not np.array_equal(one.train.categorical, other.train.categorical)
    assert len(one.train) == 5 * 64
    assert len(one.evaluate) % 64 == 0
    batches = list(one.training_batches(64, 12))
    assert len(batches) == 12
    assert np.array_equal(batches[0].labels, batches[5].labels)  # round again


def test_a_log_of_clicks(click_log):
    path = str(click_log)
    rows = load_data(path, FEATURES, 32, 5)
    assert (len(rows.train), rows.held_out) == (192, False)
    made = preprocess(rows.train[:32].features(), stack(FEATURES, Topology(1, 4)))
    assert made.num_minibatches == 1
    with pytest.raises(UsageError, match="fewer than one batch"):
        load_data(path, FEATURES, 512, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "0 steps"),
        ({"batch": 30}, "does not divide over 4 SparseCores"),
        ({"batch": 0}, "does not divide"),
        ({"chips": 0}, "chips"),
        ({"target": "tpu-v5q"}, "did you mean tpu-v5p"),
        ({"target": "cpu"}, "no SparseCores"),
        ({"scale": 0}, "scale"),
        ({"seed": -1}, "seed"),
        ({"data": "/no/such/file.csv"}, "cannot read"),
    ],
)
def test_wrong_arguments_are_one_clear_error(options, message):
    with pytest.raises(UsageError, match=message):
        run(EXAMPLE, **options)
