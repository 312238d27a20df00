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
X = jax.random.normal(KEY, (16, 9, 32))
SCALE, BIAS = jnp.full(32, 1.5), jnp.ones(32)
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


def close(found, expected, rtol=2e-4, atol=2e-5):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol, atol)


def large_reshapes(fn, *args):
    return big_reshapes(jax.jit(fn).lower(*args).as_text(), X.size)


def test_forward_mode_goes_through_a_rewritten_program(fast):
    def push(f):
        return lambda *args: jax.jvp(f, args, args)

    close(push(fast)(*ARGS), push(cubed)(*ARGS))
    close(jax.jit(push(fast))(*ARGS), push(cubed)(*ARGS))
    assert large_reshapes(push(fast), *ARGS) == 0
    assert large_reshapes(push(cubed), *ARGS) > 0


def test_backward_mode_goes_through_a_rewritten_program(fast):
    """Nothing in the step keeps the large reshape, forward or backward."""
    step = functools.partial(jax.value_and_grad, argnums=(0, 1, 2))
    close(step(fast)(*ARGS), step(cubed)(*ARGS))
    assert large_reshapes(step(fast), *ARGS) == 0
    assert large_reshapes(step(cubed), *ARGS) > 0


@pytest.mark.parametrize("outer", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("inner", [jax.jacfwd, jax.jacrev])
def test_second_derivatives(fast, outer, inner):
    def second(f):
        return outer(inner(lambda scale: f(X, scale, BIAS)))(SCALE)

    close(second(fast), second(cubed))


def test_linearised_batched_and_transposed(fast):
    pairs = [jax.linearize(f, *ARGS) for f in (fast, cubed)]
    close(pairs[0][0], pairs[1][0])
    twice = [jnp.stack([each, 2 * each]) for each in ARGS]

    def transposed(push):
        mapped = jax.vmap(lambda x: push(x, 0 * SCALE, 0 * BIAS))
        return jax.linear_transpose(mapped, twice[0])(jnp.arange(2.0))

    (_, push), (_, expected) = pairs
    close(push(*ARGS), expected(*ARGS))
    close(jax.vmap(push)(*twice), jax.vmap(expected)(*twice))
    close(transposed(push), transposed(expected))


def test_a_tangent_shared_by_the_batch_gets_the_sum_of_its_cotangents(fast):
    pairs = [jax.linearize(f, *ARGS)[1] for f in (fast, cubed)]
    xs = jnp.stack([X, X * 2])

    def transposed(push):
        mapped = jax.vmap(lambda x, s: push(x, s, 0 * BIAS), in_axes=(0, None))
        return jax.linear_transpose(lambda s: mapped(0 * xs, s), SCALE)(jnp.arange(2.0))

    close(transposed(pairs[0]), transposed(pairs[1]))


@pytest.fixture(scope="module")
def stepped():
    """Three steps of a loop over a norm, as a function of the norm."""

    def run(norm):
        return lambda x: jax.lax.scan(lambda c, _: (jnp.tanh(norm(c, SCALE, BIAS)), None), x, None, 3)[0].sum()

    return run(optimize(field_norm)), run(field_norm)


@pytest.mark.parametrize(
    "wrap",
    [
        jax.grad,
        lambda f: lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, x + 1])),
        lambda f: lambda x: jax.jvp(f, (x,), (x,)),
        lambda f: lambda x: jax.jacfwd(lambda a: f(a * x))(2.0),
    ],
)
def test_inside_scan(stepped, wrap):
    close(wrap(stepped[0])(X), wrap(stepped[1])(X))


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.everything_saveable])
def test_under_checkpoint(fast, policy):
    def step(f):
        return jax.grad(lambda x: jax.checkpoint(f, policy=policy)(x, SCALE, BIAS))

    close(step(fast)(X), step(cubed)(X))


def test_results_and_arguments_without_derivatives():
    def counted(x, rows):
        return sums(x)[rows], jnp.argmax(x), rows

    fast, rows = optimize(counted), jnp.array([0, 2])
    close(jax.grad(lambda x: fast(x, rows)[0].sum())(X), jax.grad(lambda x: counted(x, rows)[0].sum())(X))
    zeros = np.zeros(rows.shape, jax.dtypes.float0)
    out, tangents = jax.jvp(fast, (X, rows), (X, zeros))
    close(tangents[0], jax.jvp(lambda x: counted(x, rows)[0], (X,), (X,))[1])
    assert tangents[1].dtype == tangents[2].dtype == jax.dtypes.float0
    assert out[1] == jnp.argmax(X)
    assert fast.fallback(X, rows) == ""


def test_has_aux_ignores_what_has_no_cotangent():
    def with_aux(f):
        return jax.value_and_grad(lambda x: ((f(x, SCALE, BIAS) ** 3).sum(), f(x, SCALE, BIAS)), has_aux=True)

    close(with_aux(optimize(field_norm))(X), with_aux(field_norm)(X), atol=1e-4)


def test_a_gradient_rule_of_the_users_is_kept_and_forward_mode_refused_as_by_jax():
    @jax.custom_vjp
    def odd(x):
        return jnp.sin(x)

    odd.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (7 * g * jnp.cos(x),))

    def fn(x):
        return (field_norm(odd(x), SCALE, BIAS) ** 3).sum()

    fast = optimize(fn)
    close(jax.grad(fast)(X), jax.grad(fn)(X), atol=1e-3)
    assert fast.fallback(X) == ""
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(fast, (X,), (X,))


def test_collectives_stay_in_their_caller(fast_sums):
    def total(x):
        return jax.lax.psum(sums(x), "rows")

    both = jnp.stack([X, X * 2])
    fast = optimize(total)
    close(jax.vmap(fast, axis_name="rows")(both), jax.vmap(total, axis_name="rows")(both))
    close(jax.vmap(fast_sums, axis_name="rows")(both), jax.vmap(sums)(both))


@pytest.mark.parametrize("check", [True, False])
def test_inside_shard_map(check):
    """Types that tell over which axes a value varies (check_vma) keep a program with constants from being exported."""
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Auto,))
    fast, seen = optimize(lambda x: sums(x) / 2.5), []

    def local(x):
        seen.append(fast.fallback(x))
        return fast(x)

    spec = PartitionSpec("rows")
    close(jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check)(X), sums(X) / 2.5)
    assert ("check_vma=False" in seen[0]) if check else seen == [""]
    fast_sums = optimize(sums)
    mapped = [jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check) for f in (fast_sums, sums)]
    gradients = [jax.grad(lambda x, f=f: (f(x) ** 2).sum())(X) for f in mapped]
    close(*gradients)


def test_arguments_sharded_by_type_fall_back():
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Explicit,))
    x = jax.device_put(X, jax.NamedSharding(mesh, PartitionSpec("rows")))
    fast = optimize(sums)
    close(fast(x), sums(X))
    assert fast.fallback(x).startswith("its arguments are sharded over an explicit mesh")


def test_exported_for_one_platform_and_several(fast_sums):
    for platforms, left in (("cpu",), 0), (("cpu", "tpu"), 1):
        exported = export.export(jax.jit(fast_sums), platforms=platforms)(X)
        close(exported.call(X), sums(X))
        assert big_reshapes(exported.mlir_module(), X.size) == left


def test_symbolic_dims_fall_back(fast_sums):
    shape = jax.ShapeDtypeStruct(export.symbolic_shape("n, 9, 32"), jnp.float32)
    fast = optimize(lambda x: x.reshape(-1, 9, 4, 8).sum((1, 3)))
    exported = export.export(jax.jit(fast))(shape)
    close(exported.call(X), sums(X))
    assert fast.fallback(shape) == "its arguments have symbolic dims"
    assert fast.fallback(X) == ""


def test_one_inside_another(fast_sums):
    inner = optimize(field_norm)
    outer = optimize(lambda x: (fast_sums(inner(x, SCALE, BIAS)) ** 2).sum())
    expected = lambda x: (sums(field_norm(x, SCALE, BIAS)) ** 2).sum()  # noqa: E731
    close(outer(X), expected(X))
    close(jax.grad(outer)(X), jax.grad(expected)(X), atol=1e-4)


def test_without_jit(fast_sums):
    def step(f):
        return jax.grad(lambda x: (f(x) ** 2).sum())(X)

    with jax.disable_jit():
        close(fast_sums(X), sums(X))
        close(step(fast_sums), step(sums))
    close(fast_sums(X), sums(X))


def test_what_jax_caches_is_not_touched():
    jitted = jax.jit(field_norm)
    before = jitted.lower(*ARGS).as_text()
    expected = jitted(*ARGS)
    fast = optimize(jitted)
    close(fast(*ARGS), field_norm(*ARGS))
    close(jax.jit(jax.grad(lambda x: fast(x, SCALE, BIAS).sum()))(X), jnp.zeros_like(X), atol=1e-4)
    assert fast.fallback(*ARGS) == ""
    assert jitted.lower(*ARGS).as_text() == jax.jit(field_norm).lower(*ARGS).as_text() == before
    assert (jitted(*ARGS) == expected).all()


SHARDED = """
import jax, jax.numpy as jnp, numpy as np, tilewright
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2,), ("rows",), axis_types=(AxisType.Auto,))
sums = lambda x: x.reshape(-1, 9, 4, 8).sum((1, 3))
fast = tilewright.optimize(sums, target="vector8x128")
x = jnp.arange(16.0 * 9 * 32).reshape(16, 9, 32)
halves = jax.device_put(x, NamedSharding(mesh, P("rows")))
found = fast(halves)
assert found.sharding.spec == P("rows"), found.sharding
np.testing.assert_allclose(found, sums(x), rtol=1e-5)
grad = jax.jit(jax.grad(lambda x: (fast(x) ** 2).sum()))(halves)
np.testing.assert_allclose(grad, jax.grad(lambda x: (sums(x) ** 2).sum())(x), rtol=1e-5)
inside = jax.shard_map(fast, mesh=mesh, in_specs=P("rows"), out_specs=P("rows"), check_vma=False)(x)
np.testing.assert_allclose(inside, sums(x), rtol=1e-5)
constrained = lambda x: sums(jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("rows"))))
fast_constrained = tilewright.optimize(constrained, target="vector8x128")
np.testing.assert_allclose(fast_constrained(x), sums(x), rtol=1e-5)  # an array of one device
np.testing.assert_allclose(jax.vmap(fast_constrained)(x[None]), sums(x)[None], rtol=1e-5)
with jax.set_mesh(mesh):
    assert fast.fallback(x) == ""
print(repr(fast.fallback(halves)))
"""


def test_arrays_cut_over_two_devices():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", SHARDED], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "''\n"), done.stderr[-2000:]
