"""tilewright.optimize under every transformation of JAX and their compositions, against the original on values."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, PartitionSpec

import tilewright
from tests.hlo.norms import field_norm
from tests.hlo.stablehlo_values import big_reshapes

optimize = functools.partial(tilewright.optimize, target="vector8x128")
KEY = jax.random.key(7)
PLAIN = np.random.default_rng(7).normal(size=(16, 9, 32)).astype(np.float32)  # functions of it are numpy's
X, SCALE, BIAS = jnp.asarray(PLAIN), jnp.asarray(np.full(32, 1.5, np.float32)), jnp.asarray(np.ones(32, np.float32))
ARGS = (X, SCALE, BIAS)


def cubed(x, scale, bias):
    return (field_norm(x, scale, bias) ** 3).mean()


def sums(x):
    return x.reshape(16, 9, 4, 8).sum((1, 3))


@pytest.fixture(scope="module")
def fast():
    return optimize(cubed)


@pytest.fixture(scope="module")
def fast_sums():
    return optimize(sums)


def slope(x):
    """The gradient of the sum of the squares of the sums, by numpy."""
    return np.broadcast_to(2 * sums(x)[:, None, :, None], (16, 9, 4, 8)).reshape(x.shape)


def close(found, expected, rtol=2e-4, atol=2e-5):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol, atol)


def compiled(fn, *args):
    """The results of a function under jit, and how many large reshapes its program has."""
    lowered = jax.jit(fn).lower(*args)
    return lowered.compile()(*args), big_reshapes(lowered.as_text(), X.size)


def test_forward_mode_goes_through_a_rewritten_program(fast):
    def push(f):
        return lambda *args: jax.jvp(f, args, args)

    (expected, many), (found, none) = compiled(push(cubed), *ARGS), compiled(push(fast), *ARGS)
    close(push(fast)(*ARGS), expected)
    close(found, expected)
    assert none == 0 < many


def test_backward_mode_goes_through_a_rewritten_program(fast):
    """Nothing in the step keeps the large reshape, forward or backward."""
    step = functools.partial(jax.value_and_grad, argnums=(0, 1, 2))
    (expected, many), (found, none) = compiled(step(cubed), *ARGS), compiled(step(fast), *ARGS)
    close(step(fast)(*ARGS), expected)
    close(found, expected)
    assert none == 0 < many


@pytest.mark.nightly
@pytest.mark.parametrize("outer", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("inner", [jax.jacfwd, jax.jacrev])
def test_second_derivatives(fast, outer, inner):
    """By day: a gradient of a gradient in test_optimize_function.py."""

    def second(f):
        return outer(inner(lambda scale: f(X, scale, BIAS)))

    close(second(fast)(SCALE), jax.jit(second(cubed))(SCALE))


def test_linearised_batched_and_transposed(fast):
    """Batched and transposed: also a tangent shared by the batch, which gets the sum of its cotangents."""
    twice = [np.stack([each, 2 * each]) for each in map(np.asarray, ARGS)]
    none = np.zeros(32, np.float32)

    def each_way(f, *args):
        value, push = jax.linearize(f, *args)
        of_x = jax.vmap(lambda x: push(x, none, none))
        of_scale = jax.vmap(lambda x, s: push(x, s, none), in_axes=(0, None))
        pulled = jax.linear_transpose(of_x, twice[0])(np.arange(2, dtype=np.float32))
        shared = jax.linear_transpose(lambda s: of_scale(0 * twice[0], s), SCALE)(np.arange(2, dtype=np.float32))
        return value, push(*args), jax.vmap(push)(*twice), pulled, shared

    close(each_way(fast, *ARGS), jax.jit(functools.partial(each_way, cubed))(*ARGS))


@pytest.fixture(scope="module")
def stepped():
    """Three steps of a loop over a norm, as a function of the norm."""

    def run(norm):
        return lambda x: jax.lax.scan(lambda c, _: (jnp.tanh(norm(c, SCALE, BIAS)), None), x, None, 3)[0].sum()

    return run(optimize(field_norm)), run(field_norm)


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(jax.grad, marks=pytest.mark.nightly),
        lambda f: lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, x + 1])),
        pytest.param(lambda f: lambda x: jax.jvp(f, (x,), (x,)), marks=pytest.mark.nightly),
        pytest.param(lambda f: lambda x: jax.jacfwd(lambda a: f(a * x))(2.0), marks=pytest.mark.nightly),
    ],
)
def test_inside_scan(stepped, wrap):
    """By day: a batch of gradients; forward mode through a program that is no loop, above."""
    close(wrap(stepped[0])(X), jax.jit(wrap(stepped[1]))(X))


@pytest.mark.parametrize(
    "policy", [None, pytest.param(jax.checkpoint_policies.everything_saveable, marks=pytest.mark.nightly)]
)
def test_under_checkpoint(fast, policy):
    """By day: the policy that JAX has by itself."""

    def step(f):
        return jax.grad(lambda x: jax.checkpoint(f, policy=policy)(x, SCALE, BIAS))

    close(step(fast)(X), jax.jit(step(cubed))(X))


def test_results_and_arguments_without_derivatives():
    def counted(x, rows):
        return sums(x)[rows], jnp.argmax(x), rows

    fast, rows = optimize(counted), np.array([0, 2], np.int32)
    expected = np.zeros_like(PLAIN)
    expected[rows] = 1
    close(jax.grad(lambda x: fast(x, rows)[0].sum())(X), expected)
    zeros = np.zeros(rows.shape, jax.dtypes.float0)
    out, tangents = jax.jvp(fast, (X, rows), (X, zeros))
    close(tangents[0], sums(PLAIN)[rows])  # the sums are linear: the tangent of X at X
    assert tangents[1].dtype == tangents[2].dtype == jax.dtypes.float0
    assert out[1] == np.argmax(PLAIN)
    assert fast.fallback(X, rows) == ""


def test_has_aux_ignores_what_has_no_cotangent():
    def with_aux(f):
        return jax.value_and_grad(lambda x: ((f(x, SCALE, BIAS) ** 3).sum(), f(x, SCALE, BIAS)), has_aux=True)

    close(with_aux(optimize(field_norm))(X), jax.jit(with_aux(field_norm))(X), atol=1e-4)


def test_a_gradient_rule_of_the_users_is_kept_and_forward_mode_refused_as_by_jax():
    @jax.custom_vjp
    def odd(x):
        return jnp.sin(x)

    odd.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (7 * g * jnp.cos(x),))

    def fn(x):
        return (field_norm(odd(x), SCALE, BIAS) ** 3).sum()

    fast = optimize(fn)
    close(jax.grad(fast)(X), jax.jit(jax.grad(fn))(X), atol=1e-3)
    assert fast.fallback(X) == ""
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(fast, (X,), (X,))


def test_collectives_stay_in_their_caller(fast_sums):
    def total(x):
        return jax.lax.psum(sums(x), "rows")

    both = np.stack([PLAIN, PLAIN * 2])
    fast = optimize(total)
    close(jax.vmap(fast, axis_name="rows")(both), np.stack([3 * sums(PLAIN)] * 2))
    close(jax.vmap(fast_sums, axis_name="rows")(both), np.stack([sums(PLAIN), 2 * sums(PLAIN)]))


@pytest.mark.parametrize("check", [True, False])
def test_inside_shard_map(check):
    """Types that tell over which axes a value varies (check_vma) keep a program with constants from being exported."""
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Auto,))
    fast, seen = optimize(lambda x: sums(x) / 2.5), []

    def local(x):
        seen.append(fast.fallback(x))
        return fast(x)

    spec = PartitionSpec("rows")
    close(jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check)(X), sums(PLAIN) / 2.5)
    assert ("check_vma=False" in seen[0]) if check else seen == [""]
    fast_sums = optimize(sums)
    mapped = jax.shard_map(fast_sums, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check)
    close(jax.grad(lambda x: (mapped(x) ** 2).sum())(X), slope(PLAIN))


def test_arguments_sharded_by_type_fall_back():
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Explicit,))
    x = jax.device_put(X, jax.NamedSharding(mesh, PartitionSpec("rows")))
    fast = optimize(sums)
    close(fast(x), sums(PLAIN))
    assert fast.fallback(x).startswith("its arguments are sharded over an explicit mesh")


def test_exported_for_one_platform_and_several(fast_sums):
    for platforms, left in (("cpu",), 0), (("cpu", "tpu"), 1):
        exported = export.export(jax.jit(fast_sums), platforms=platforms)(X)
        close(exported.call(X), sums(PLAIN))
        assert big_reshapes(exported.mlir_module(), X.size) == left


def test_symbolic_dims_fall_back(fast_sums):
    shape = jax.ShapeDtypeStruct(export.symbolic_shape("n, 9, 32"), jnp.float32)
    fast = optimize(lambda x: x.reshape(-1, 9, 4, 8).sum((1, 3)))
    exported = export.export(jax.jit(fast))(shape)
    close(exported.call(X), sums(PLAIN))
    assert fast.fallback(shape) == "its arguments have symbolic dims"
    assert fast.fallback(X) == ""


def test_one_inside_another(fast_sums):
    inner = optimize(field_norm)
    outer = optimize(lambda x: (fast_sums(inner(x, SCALE, BIAS)) ** 2).sum())
    expected = lambda x: (sums(field_norm(x, SCALE, BIAS)) ** 2).sum()  # noqa: E731
    value, gradient = jax.jit(jax.value_and_grad(expected))(X)
    close(outer(X), value)
    close(jax.grad(outer)(X), gradient, atol=1e-4)


def test_without_jit(fast_sums):
    def step(f):
        return jax.grad(lambda x: (f(x) ** 2).sum())(X)

    with jax.disable_jit():
        close(fast_sums(X), sums(PLAIN))
        close(step(fast_sums), slope(PLAIN))
    close(fast_sums(X), sums(PLAIN))


def test_what_jax_caches_is_not_touched():
    jitted = jax.jit(field_norm)
    before = jitted.lower(*ARGS).as_text()
    expected = jitted(*ARGS)
    fast = optimize(jitted)
    close(fast(*ARGS), expected)
    close(jax.jit(jax.grad(lambda x: fast(x, SCALE, BIAS).sum()))(X), np.zeros_like(PLAIN), atol=1e-4)
    assert fast.fallback(*ARGS) == ""
    assert jitted.lower(*ARGS).as_text() == jax.jit(field_norm).lower(*ARGS).as_text() == before
    assert (jitted(*ARGS) == expected).all()


SHARDED = """
import jax, jax.numpy as jnp, numpy as np, tilewright
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2,), ("rows",), axis_types=(AxisType.Auto,))
sums = lambda x: x.reshape(-1, 9, 4, 8).sum((1, 3))
fast = tilewright.optimize(sums, target="vector8x128")
x = jnp.asarray(np.arange(16 * 9 * 32, dtype=np.float32).reshape(16, 9, 32))
halves = jax.device_put(x, NamedSharding(mesh, P("rows")))
found = fast(halves)
assert found.sharding.spec == P("rows"), found.sharding
plain = np.asarray(x)
expected = sums(plain)
np.testing.assert_allclose(found, expected, rtol=1e-5)
grad = jax.jit(jax.grad(lambda x: (fast(x) ** 2).sum()))(halves)
slope = np.broadcast_to(2 * expected[:, None, :, None], (16, 9, 4, 8)).reshape(x.shape)
np.testing.assert_allclose(grad, slope, rtol=1e-5)
inside = jax.shard_map(fast, mesh=mesh, in_specs=P("rows"), out_specs=P("rows"), check_vma=False)(x)
np.testing.assert_allclose(inside, expected, rtol=1e-5)
constrained = lambda x: sums(jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("rows"))))
fast_constrained = tilewright.optimize(constrained, target="vector8x128")
np.testing.assert_allclose(fast_constrained(x), expected, rtol=1e-5)  # an array of one device
np.testing.assert_allclose(jax.vmap(fast_constrained)(plain[None]), expected[None], rtol=1e-5)
with jax.set_mesh(mesh):
    assert fast.fallback(x) == ""
print(repr(fast.fallback(halves)))
"""


@pytest.mark.nightly
def test_arrays_cut_over_two_devices():
    """By day: shard_map and arguments sharded by type, on one device, above."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", SHARDED], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "''\n"), done.stderr[-2000:]
