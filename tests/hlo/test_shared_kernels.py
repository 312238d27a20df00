"""Which operations share a kernel: rules whose expectations were read off modules of the TPU's compiler, and totals."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tilewright.hlo import estimate, from_jax, load

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import shared_kernels  # noqa: E402

F32, BF16 = jnp.float32, jnp.bfloat16
S = jax.ShapeDtypeStruct
CHIPS = ("v5e", "v6e", "7x")


def kernels(function, *given, chip="v6e"):
    return shared_kernels.predicted(from_jax(function, *given), chip)


def products(kernel):
    return sum(kind == "product" for kind, _, _ in kernel.operations)


def written(kernel):
    return [array.of for array in kernel.writes]


def two_layers(rows, width, inner, out, dtype=BF16):
    """A product, gelu and a product."""
    return (
        lambda x, w, v: jax.nn.gelu(x @ w) @ v,
        S((rows, width), dtype),
        S((width, inner), dtype),
        S((inner, out), dtype),
    )


@pytest.mark.parametrize(
    ("sizes", "nested"),
    [
        # read off the modules that the compiler (libtpu 0.0.42.1) made of these for v5e, v6e and 7x
        ((32, 4096, 16384, 4096), CHIPS),
        ((512, 1024, 4096, 1024), CHIPS),
        ((2048, 64, 4096, 64), CHIPS),
        ((2048, 512, 2048, 512), ("v6e", "7x")),
        ((8192, 512, 2048, 512), ("v6e", "7x")),
        ((2048, 1024, 4096, 1024), ()),
        ((512, 4096, 16384, 4096), ()),
        ((8192, 1024, 4096, 1024), ()),
    ],
)
@pytest.mark.parametrize("chip", CHIPS)
def test_a_product_behind_a_product_is_made_in_its_kernel_where_its_blocks_fit(chip, sizes, nested):
    found = [products(kernel) for kernel in kernels(*two_layers(*sizes), chip=chip)]
    assert found == ([2] if chip in nested else [1, 1])


def test_one_kernel_nests_one_product():
    """Read off modules of v5e, v6e and 7x: of three products in a row the last two are one kernel."""
    w = S((512, 512), BF16)
    found = kernels(lambda x, a, b, c: jax.nn.relu(jax.nn.relu(x @ a) @ b) @ c, w, w, w, w)
    assert [products(kernel) for kernel in found] == [1, 2]


def test_a_gated_layer_nests_one_of_its_two_products():
    """Read off modules of v5e, v6e and 7x: the other is written."""
    x, w, v = S((512, 1024), BF16), S((1024, 2816), BF16), S((2816, 1024), BF16)
    found = kernels(lambda x, u, w, v: (jax.nn.silu(x @ u) * (x @ w)) @ v, x, w, w, v)
    assert [products(kernel) for kernel in found] == [1, 2]
    assert written(found[0]) == [("bf16", (512, 2816))]


def test_what_is_nested_takes_no_more_time_than_two_kernels():
    thin, wide = (estimate(from_jax(*two_layers(rows, 512, 2048, 512)), "tpu-v6e") for rows in (32, 8192))
    assert thin.flops == 2 * 32 * 2 * 512 * 2048
    assert wide.flops == 256 * thin.flops
    assert sum(row.op == "dot_general" for row in thin.rows) == 1


@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_the_root_of_a_rows_square_is_computed_once_for_each_row(chip):
    """Read off modules of v5e and v6e: sums of squares, their roots, and only then the rows; of a norm by mean and
    variance the mean as well.
    """
    x, g = S((4096, 2048), BF16), S((2048,), BF16)

    def root(x, g):
        wide = x.astype(F32)
        return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(BF16) * g

    found = kernels(root, x, g, chip=chip)
    assert [written(kernel) for kernel in found] == [[("f32", (4096,))], [("f32", (4096,))], [("bf16", (4096, 2048))]]
    chains = [{kind for kind, _, _ in kernel.operations} & {"root"} for kernel in found]
    assert chains == [set(), {"root"}, set()]


def test_an_angle_is_taken_once_for_all_heads():
    """Read off modules of v5e and v6e: the cosines are written, then every head is turned by them."""

    def turned(x):
        return x * jnp.cos(jnp.arange(1024.0)[:, None] * jnp.arange(128.0))[:, None]

    found = kernels(turned, S((1024, 16, 128), F32))
    assert [written(kernel) for kernel in found] == [[("f32", (1024, 128))], [("f32", (1024, 16, 128))]]


def test_a_scale_of_each_column_is_computed_once():
    """Read off modules of v5e and v6e: the exponentials of 2,048 scales are a kernel of their own."""
    found = kernels(lambda x, s: x * jnp.exp(s), S((4096, 2048), F32), S((2048,), F32))
    assert [written(kernel) for kernel in found] == [[("f32", (2048,))], [("f32", (4096, 2048))]]


def test_what_only_products_want_is_written_in_their_type():
    """Read off a module of v5e: bf16[4096,1024]; where all of the product is asked for, all of the operand is."""
    x, w = S((4096, 1024), F32), S((1024, 1024), F32)
    narrow, _ = kernels(lambda x, a, b: jnp.tanh(x @ a) @ b, x, w, w, chip="v5e")
    assert written(narrow) == [("bf16", (4096, 1024))]
    exact, _ = kernels(lambda x, a, b: jnp.matmul(jnp.tanh(x @ a), b, precision="highest"), x, w, w, chip="v5e")
    assert written(exact) == [("f32", (4096, 1024))]


def test_loops_whose_results_nobody_reads_are_not_run():
    """The keys that a dropout which is off would have taken; the module of such a function has no loop at all."""

    def step(x, w, key):
        jax.random.split(jax.random.key(key))
        jax.lax.fori_loop(0, 8, lambda _, y: jnp.sin(y), x)
        return x @ w

    found = estimate(from_jax(step, S((512, 512), BF16), S((512, 512), BF16), S((), jnp.uint32)), "tpu-v6e")
    assert [row.op for row in found.rows if row.op != "stream"] == ["dot_general"]


@pytest.mark.parametrize("name", ["here.deep_network", "here.decoder", "here.group_norm"])
def test_the_figures_of_programs_that_stand_here_are_those_of_the_table(name):
    program = load(shared_kernels.in_repository()[name])
    rows = [row for row in shared_kernels.stored() if row.function == name]
    assert {row.chip for row in rows} == set(shared_kernels.CHIPS)
    for row in rows:
        step = estimate(program, f"tpu-{row.chip}")
        assert row.kernels == len(shared_kernels.predicted(program, row.chip))
        assert row.bytes == step.bytes
        assert row.us == pytest.approx(1e6 * step.device_seconds, rel=1e-3)


def test_most_heavy_operations_have_the_partners_that_the_compiler_gives_them():
    rows = [row for row in shared_kernels.stored() if row.chip == "v6e"]
    assert len({row.function for row in rows}) >= 100
    heavy = sum(row.heavy for row in rows)
    assert sum(row.partners * row.heavy for row in rows) / heavy > 0.7
    assert sum(row.chain * row.heavy for row in rows) / heavy > 0.7


def test_modules_are_read_as_what_is_predicted():
    """A module that holds what was predicted agrees with it in all."""
    given = "bf16[512,512]{1,0:T(8,128)(2,1)}"
    product = f"{given} convolution(p, q), dim_labels=bf_io->bf"
    module = load(
        f"HloModule m, is_scheduled=true\nf {{\n  p = {given} parameter(0)\n  q = {given} parameter(1)\n"
        f'  ROOT d = {product}, metadata={{op_name="dot_general"}}\n}}\n'
        f"ENTRY main {{\n  a = {given} parameter(0)\n  b = {given} parameter(1)\n"
        f"  ROOT r = {given} fusion(a, b), kind=kOutput, calls=f\n}}\n"
    )
    w = S((512, 512), BF16)
    row = shared_kernels.compared("one", "v6e", from_jax(jnp.matmul, w, w), module)
    assert (row.kernels, row.compiled, row.heavy) == (1, 1, 1)
    assert (row.partners, row.chain, row.written, row.ordered) == (1, 1, 1, 1)
