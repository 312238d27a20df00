"""tilewright.optimize: the same meaning under jit, grad and vmap, through rewritten programs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilewright
from tests.hlo.norms import field_norm, gradient, group_norm, struct
from tests.hlo.stablehlo_values import big_reshapes
from tilewright.errors import UnsupportedError, UsageError
from tilewright.hlo import from_jax, load, optimize, verify


def network(params, batch):
    """A pytree in, a pytree out, an integer argument on the way."""
    normed = field_norm(batch["x"], params["scale"], params["bias"])
    return {"loss": (normed[batch["row"]] ** 3).mean(), "normed": normed}


def loss(params, batch):
    return network(params, batch)["loss"]


@pytest.fixture(scope="module")
def data():
    x = np.random.default_rng(3).normal(size=(16, 9, 32)).astype(np.float32)
    params = {"scale": np.full(32, 1.5, np.float32), "bias": np.ones(32, np.float32)}
    return params, {"x": x, "row": np.array([1, 3, 3], np.int32)}


def normed(x, scale, bias):
    """field_norm by numpy."""
    y = np.asarray(x).reshape(*x.shape[:2], 4, -1)
    y = (y - y.mean((1, 3), keepdims=True)) / np.sqrt(y.var((1, 3), keepdims=True) + np.float32(1e-5))
    return y.reshape(x.shape) * scale + bias


@pytest.fixture(scope="module")
def outputs(data):
    """What the network gives, by numpy."""
    params, batch = data
    y = normed(batch["x"], params["scale"], params["bias"])
    return {"loss": (y[batch["row"]] ** 3).mean(), "normed": y}


def close(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), found, expected)
    assert jax.tree.structure(found) == jax.tree.structure(expected)


@pytest.fixture(scope="module")
def fast_loss():
    return tilewright.optimize(loss, target="vector8x128")


def test_value_pytrees_and_cache(data, outputs):
    fast = tilewright.optimize(network, target="vector8x128")
    close(fast(*data), outputs)
    assert fast.fallback(*data) == ""
    assert fast.optimized(*data) is fast.optimized(*data)
    assert fast.optimized(*data).moved_after < fast.optimized(*data).moved_before / 4
    assert "rewritten: f32[16,9,4,8]" in fast.explain(*data)


def test_gradient_goes_through_a_rewritten_program(data, fast_loss):
    fast, slow = (jax.jit(jax.value_and_grad(f)).lower(*data) for f in (fast_loss, loss))
    close(fast.compile()(*data), slow.compile()(*data))
    assert big_reshapes(fast.as_text(), 16 * 9 * 32) < big_reshapes(slow.as_text(), 16 * 9 * 32)


def test_vmap_and_vmap_of_gradient(data, fast_loss):
    params, batch = data
    batches = {"x": np.stack([batch["x"], batch["x"] * 2]), "row": np.stack([batch["row"]] * 2)}
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0)))(params, batches)
    for wrap, expected in ((lambda f: f, values), (jax.grad, gradients)):
        close(jax.vmap(wrap(fast_loss), in_axes=(None, 0))(params, batches), expected)


def test_second_derivative(data, fast_loss):
    params, batch = data

    def curvature(f):
        return jax.grad(lambda s: jax.grad(lambda t: f({**params, "scale": t}, batch))(s).sum())

    close(curvature(fast_loss)(params["scale"]), jax.jit(curvature(loss))(params["scale"]))


def test_decorator_and_keyword_arguments(data):
    @tilewright.optimize(target="vector8x128")
    def group_sums(x, *, power):
        return (x**2 * power).reshape(16, 9, 4, 8).sum((1, 3))

    x = data[1]["x"]
    close(group_sums(x, power=2.0), (x**2 * 2.0).reshape(16, 9, 4, 8).sum((1, 3)))
    assert group_sums.__name__ == "group_sums"


def test_falls_back_to_the_original_and_says_why(data, capsys):
    x = data[1]["x"]

    def chatty(x):
        jax.debug.print("seen")
        return x.reshape(16, 9, 4, 8).sum((1, 3))

    fast = tilewright.optimize(chatty, target="vector8x128")
    close(fast(x), chatty(x))  # both say it
    jax.effects_barrier()
    assert "it has effects (Debug: host callbacks" in fast.fallback(x)
    assert fast.explain(x) == f"the original is called: {fast.fallback(x)}"
    assert capsys.readouterr().out.count("seen") == 2

    plain = tilewright.optimize(jnp.sin, target="vector8x128")
    close(plain(x), np.sin(x))
    assert "no region of it gains" in plain.fallback(x)
    assert plain.optimized(x).rewrites == ()


def test_a_program_that_cannot_be_rewritten_still_runs(data, outputs, monkeypatch):
    def refuse(text):
        raise UnsupportedError("a construct from the future", where="line 3")

    monkeypatch.setattr("tilewright.hlo.running.read_stablehlo", refuse)
    fast = tilewright.optimize(network, target="vector8x128")
    close(fast(*data), outputs)
    assert fast.explain(*data) == (
        "the original is called: it cannot be rewritten (line 3: a construct from the future)"
    )


def test_a_fault_inside_never_breaks_the_users_function(data, outputs, monkeypatch):
    """optimize says it as an UnsupportedError; a function falls back to the original, with the reason."""

    def stumble(*args):
        raise ValueError("unexpected buffer size")

    monkeypatch.setattr("tilewright.hlo.optimization.write_functions", stumble)
    with pytest.raises(UnsupportedError, match="failed with ValueError: unexpected buffer size"):
        optimize(from_jax(network, *data), "vector8x128")
    fast = tilewright.optimize(network, target="vector8x128")
    close(fast(*data), outputs)
    assert "ValueError: unexpected buffer size" in fast.fallback(*data)

    monkeypatch.undo()
    monkeypatch.setattr("tilewright.hlo.running.with_module", stumble)
    fast = tilewright.optimize(network, target="vector8x128")
    close(fast(*data), outputs)
    assert fast.fallback(*data) == "it cannot be rewritten (ValueError: unexpected buffer size)"


def test_targets_without_whole_programs_are_refused_at_once():
    with pytest.raises(UnsupportedError, match="rule"):
        tilewright.optimize(network, target="bm1684x")


def test_a_program_runs_as_its_optimized_text(data):
    step = jax.value_and_grad(loss)
    found = optimize(from_jax(step, *data), "vector8x128")
    close(found.callable()(*data), jax.jit(step)(*data))
    params, batch = data
    with pytest.raises(UsageError, match="has shape"):
        found.callable()(params, {**batch, "x": batch["x"][:3]})
    with pytest.raises(UsageError, match="another structure"):
        found.callable()(params)
    with pytest.raises(UnsupportedError, match="JAX function"):
        optimize(load(found.text), "cpu").callable()


@pytest.mark.nightly
@pytest.mark.parametrize("norm", [group_norm, field_norm])
def test_rewritten_gradients_are_proved_equal(norm):
    """By day: gradients of the norm over fields in test_legality_programs.py, of groups in test_gate.py."""
    x = struct(2, 5, 3, 64) if norm is group_norm else struct(8, 9, 32)
    width = struct(x.shape[-1])
    found = optimize(from_jax(gradient(norm), x, width, width), "vector8x128")
    proof = verify(found.original, found.program, eager=False)
    assert found.rewrites
    assert proof.ok
    assert proof.reference == "StableHLO's interpreter"
    assert proof.error_after < 1e-5


def test_narrow_sums_do_not_get_worse():
    x = struct(16, 48, 32, dtype=jnp.bfloat16)

    def sums(x):
        zero = jnp.zeros((), x.dtype)
        return jax.lax.reduce(x.reshape(16, 48, 4, 8), zero, jax.lax.add, (1, 3))

    found = optimize(from_jax(sums, x), "vector8x128")
    proof = verify(found.original, found.program, eager=False)
    assert found.rewrites
    assert proof.ok
    assert proof.error_after <= proof.error_before


def scanned(x, s, b):
    return jax.lax.scan(lambda c, _: (jnp.tanh(field_norm(c, s, b)), c.reshape(16, 9, 4, 8).sum((1, 3))), x, None, 3)


def branching(x, s, b):
    return jax.lax.cond(x[0, 0, 0] > 0, lambda: field_norm(x, s, b), lambda: x * s)


def looping(x, s, b):
    return jax.lax.while_loop(lambda c: jnp.abs(c).sum() < 1e9, lambda c: field_norm(c, s, b) * c * 3, x)


@pytest.mark.parametrize("fn", [scanned, branching, looping])
def test_bodies_of_loops_and_branches_run_rewritten(fn, data):
    """The bodies use values from outside them (scale and bias)."""
    args = (data[1]["x"], data[0]["scale"], data[0]["bias"])
    found = optimize(from_jax(fn, *args), "vector8x128")
    assert found.rewrites
    assert found.moved_after < found.moved_before / 4
    result, expected = found.callable()(*args), jax.jit(fn)(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=3e-4, atol=3e-5), result, expected)
