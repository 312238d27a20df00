"""Which kernels a StableHLO program becomes, rule by rule: what ends each, how often it runs, on which unit."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from tilewright.hlo import estimate, from_jax

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
S = jax.ShapeDtypeStruct
X, NARROW = S((1024, 1024), F32), S((1024, 1024), BF16)
HEADS = S((16, 1024, 128), BF16)
LINES = S((4096, 1024), BF16)
CUBE = S((4, 1024, 2048), F32)


def kernels(function, *given):
    rows = estimate(from_jax(function, *given), "tpu-v6e").rows
    return [row for row in rows if row.op != "stream"]


def looped(body):
    return lambda x, w: jax.lax.fori_loop(0, 8, body, (x, w))


COPY = "copy", 1, "vector"
UPDATED = S((8192, 1024), F32), S((8, 1024), F32), S((), I32), S((), jnp.bool_)


def updated(x, u, i, made):
    return jnp.where(made, jax.lax.dynamic_update_slice(x, u, (i, 0)), x)


def stepped(weights, gradients, first, second):
    """One step of Adam."""
    first, second = 0.9 * first + 0.1 * gradients, 0.99 * second + 0.01 * gradients * gradients
    return weights - 0.01 * first / (jnp.sqrt(second) + 1e-8), first, second


def attended(q, k):
    scores = 0.1 * jnp.einsum("hqd,hkd->hqk", q, k, preferred_element_type=F32)
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores).astype(BF16), k)


def convolved(stride=1, groups=1):
    def function(x, w):
        dims = ("NHWC", "HWIO", "NHWC")
        made = jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", None, None, dims, groups)
        return jax.nn.relu(made)

    return function


def pooled(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def images(*sizes):
    return S(sizes, BF16)


CASES = {
    # what a loop's body computes of what stays as it is, is done once, before it; of its counters each is a kernel
    "invariant": (
        (looped(lambda _, c: (jnp.tanh(c[0] @ c[1].astype(BF16)), c[1])), NARROW, X),
        [COPY, ("convert", 1, "vector"), ("tanh", 8, "matrix"), ("add", 8, "vector"), ("compare", 9, "vector")],
    ),
    # what it changes of arguments is a copy of them, unless they are given away
    "changing": (
        (looped(lambda _, c: (jnp.tanh(c[0] @ c[1].astype(BF16)), 2 * c[1])), NARROW, X),
        [COPY, COPY, ("tanh", 8, "matrix"), ("multiply", 8, "vector"), ("add", 8, "vector"), ("compare", 9, "vector")],
    ),
    "changing what was given away": (
        (jax.jit(looped(lambda _, c: (c[0] @ c[0], 2 * c[1])), donate_argnums=(0, 1)), NARROW, X),
        [("dot_general", 8, "matrix"), ("multiply", 8, "vector"), ("add", 8, "vector"), ("compare", 9, "vector")],
    ),
    # a reduction is the last of its kernel
    "reduction": ((lambda x: jnp.exp(x.sum(1)), X), [("reduce", 1, "vector"), ("exponential", 1, "vector")]),
    # and the end of a product's
    "product and sum": ((lambda x, w: (x @ w).sum(1), X, X), [("reduce", 1, "matrix")]),
    # a product behind a head is a kernel of its own
    "head behind a head": (
        (lambda x, w: (x / x.sum(1, keepdims=True)) @ w, X, X),
        [("reduce", 1, "vector"), ("dot_general", 1, "matrix")],
    ),
    "products": ((lambda x, w: (x @ w) @ w, X, X), [("dot_general", 1, "matrix")] * 2),
    # a batch of products writes the end of what it computes
    "batch": (
        (lambda a, b: jnp.tanh(2 * jnp.einsum("bqd,bkd->bqk", a, b)) + 1, HEADS, HEADS),
        [("add", 1, "matrix")],
    ),
    # without free dims it is a sum of the vector unit, alone in a program as well
    "no free dims": (
        (lambda a, b: jnp.einsum("bd,bd->b", a, b) + 1, LINES, LINES),
        [("reduce", 1, "vector"), ("add", 1, "vector")],
    ),
    "no free dims alone": ((lambda a, b: jnp.einsum("bd,bd->b", a, b), LINES, LINES), [("reduce", 1, "vector")]),
    # what an update that is made or not gives is in place
    "update or not": (
        (jax.jit(updated, donate_argnums=0), *UPDATED),
        [("dynamic_update_slice", 1, "vector")],
    ),
    "update of what is kept": ((updated, *UPDATED), [COPY, ("dynamic_update_slice", 1, "vector")]),
    # layers: the mean is one whoever asks for it, and so is the spread; neither is computed again for each column (v6e)
    "mean and variance": (
        (lambda x: (x - x.mean(1, keepdims=True)) * jax.lax.rsqrt(x.var(1, keepdims=True) + 1e-5), X),
        [(op, 1, "vector") for op in ("reduce", "divide", "reduce", "rsqrt", "multiply")],
    ),
    # the gradient of one number taken from each row is a comparison, wherever it is wanted
    "taken along": (
        (jax.grad(lambda x, i: jnp.take_along_axis(jnp.sin(x), i, 1).sum()), X, S((1024, 1), I32)),
        [("multiply", 1, "vector")],
    ),
    # a softmax is made where its scores are, as long as its rows are not
    "softmax": ((attended, S((16, 1024, 128), BF16), HEADS), [("multiply", 1, "matrix"), ("dot_general", 1, "matrix")]),
    "softmax of long rows": (
        (attended, S((4, 8192, 128), BF16), S((4, 8192, 128), BF16)),
        [("multiply", 1, "matrix"), ("reduce", 1, "vector"), ("dot_general", 1, "matrix")],
    ),
    # a convolution's images have channels in the lanes, and the batch in the sublanes: a result in another order is a
    # copy, an argument is copied where other dims lie in its lanes
    "images": ((convolved(), images(16, 56, 56, 128), images(3, 3, 128, 128)), [("maximum", 1, "matrix"), COPY]),
    "images that lie so": ((convolved(2), images(32, 56, 56, 128), images(3, 3, 128, 256)), [("maximum", 1, "matrix")]),
    "images of few channels": (
        (convolved(2), images(32, 224, 224, 3), images(7, 7, 3, 64)),
        [COPY, ("maximum", 1, "matrix"), COPY],
    ),
    # of fewer than eight the columns are cut
    "few images": (
        (convolved(), images(4, 64, 64, 128), images(3, 3, 128, 128)),
        [COPY, COPY, ("maximum", 1, "matrix"), COPY, COPY],
    ),
    "pooling that turns rows": ((lambda x: pooled(x) / 4, images(32, 56, 56, 256)), [("divide", 1, "vector")]),
    # results of one size that read an array alike are one kernel's, as an optimizer's moments and weights are (v6e)
    "optimizer": (
        (jax.jit(stepped, donate_argnums=(0, 2, 3)), X, X, X, X),
        [("add", 1, "vector")],
    ),
    "pooling": ((pooled, images(32, 112, 112, 64)), [COPY, ("reduce_window", 1, "vector")]),
    # what is joined, padded or reversed lies in memory; what is done with it after that is in the same kernel (v6e)
    "joined": (
        (lambda x, y: 2 * jnp.concatenate([jnp.exp(x), jnp.tanh(y)], 1), CUBE, CUBE),
        [("exponential", 1, "vector"), ("tanh", 1, "vector"), ("multiply", 1, "vector")],
    ),
    "padded": (
        (lambda x: jnp.pad(jnp.tanh(x), ((0, 0), (8, 0), (0, 0))), CUBE),
        [("tanh", 1, "vector"), ("pad", 1, "vector")],
    ),
    "backwards": ((lambda x: 2 * jnp.tanh(x)[::-1], CUBE), [("tanh", 1, "vector"), ("multiply", 1, "vector")]),
    # rows or lanes of tiles are reversed, or left out, by a kernel of its own
    "rows backwards": (
        (lambda x: jnp.tanh(x[:, ::-1]), CUBE),
        [("reverse", 1, "vector"), ("tanh", 1, "vector")],
    ),
    "every other row": (
        (lambda x: x[:, 1::2] * x[:, ::2], CUBE),
        [("slice", 1, "vector"), ("slice", 1, "vector"), ("multiply", 1, "vector")],
    ),
    "heads that share keys": (  # which are written out for them: 1,031 and 653 us in libtpu's module of v6e
        (
            lambda q, k: jnp.einsum("bhd,bkhd->bhk", q, jnp.repeat(k, 8, axis=2)),
            S((8, 64, 64), BF16),
            S((8, 2048, 8, 64), BF16),
        ),
        [("broadcast_in_dim", 1, "vector"), ("dot_general", 1, "matrix")],
    ),
    "every other block": (
        (lambda x: jnp.tanh(x)[1::2] * jnp.tanh(x)[::2], CUBE),
        [("tanh", 1, "vector"), ("multiply", 1, "vector")],
    ),
}


@pytest.mark.parametrize(
    ("given", "megabytes"),
    [
        (CASES["pooling"][0], 289.9),
        (CASES["images of few channels"][0], 275.3),
        (CASES["images"][0], 25.7),
        ((convolved(2, 96), images(32, 112, 112, 96), images(3, 3, 1, 96)), 319.3),
    ],
    ids=["pooling", "few channels", "images", "groups"],
)
def test_images_pass_hbm_as_in_the_compilers_module(given, megabytes):
    """Megabytes of the modules that the compiler made for v6e, padding included."""
    assert sum(row.bytes for row in kernels(*given)) / 1e6 == pytest.approx(megabytes, rel=0.01)


@pytest.mark.parametrize(
    ("batch", "made"),
    [(4, {"slice": 32, "pad": 10, "concatenate": 5}), (16, {"slice": 10, "pad": 10, "concatenate": 5})],
    ids=["rows in the sublanes", "the batch in the sublanes"],
)
def test_a_scan_takes_every_other_row_apart_and_joins_the_halves(batch, made):
    """Kernels of the modules that the compiler made for v6e, but for one level of the scan, which it makes of fewer."""

    def scanned(a, b):
        return jax.lax.associative_scan(lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), (a, b), axis=1)[1]

    found = Counter(row.op for row in kernels(scanned, *[S((batch, 64, 512), F32)] * 2))
    assert {op: found[op] for op in made} == pytest.approx(made, abs=2)


@pytest.mark.parametrize("name", CASES)
def test_a_program_becomes_these_kernels(name):
    asked, wanted = CASES[name]
    assert [(row.op, row.runs, row.lane) for row in kernels(*asked)] == wanted


@pytest.mark.parametrize(("scores", "megabytes"), [(None, 1098.9), (F32, 2172.6)])
def test_scores_are_written_as_narrow_as_they_are_computed(scores, megabytes):
    """Megabytes of the compiler's modules for v6e: a softmax in float32 converts scores of bfloat16 that it reads."""

    def function(q, k):
        made = 0.1 * jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=scores)
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(made.astype(F32)).astype(BF16), k)

    rows = kernels(function, *[S((2, 8, 4096, 64), BF16)] * 2)
    assert sum(row.bytes for row in rows) / 1e6 == pytest.approx(megabytes, rel=0.02)


@pytest.mark.parametrize(("chip", "microseconds"), [("tpu-v6e", 26.3), ("tpu-v5e", 58.7)])
def test_bfloat16_is_computed_in_float32(chip, microseconds):
    """As the compiler's modules for these chips are priced, which convert what they read and what they write."""

    def gated(x, y, w):
        return jnp.concatenate([jax.nn.gelu(x), y], -1) @ w

    made = estimate(from_jax(gated, *[S((4, 1024, 2048), BF16)] * 2, S((4096, 1024), BF16)), chip).rows[0]
    assert (made.op, made.bound) == ("multiply", "vector")
    assert made.seconds * 1e6 == pytest.approx(microseconds, rel=0.03)


def test_a_conditional_takes_its_longest_branch():
    def chosen(p, x, w):
        y = jnp.tanh(x)
        return jax.lax.cond(p, lambda y: y @ w, lambda y: y + 1, y)

    def always(x, w):
        return jnp.tanh(x) @ w

    given = S((4096, 2048), BF16), S((2048, 2048), BF16)
    step, plain = estimate(from_jax(chosen, S((), jnp.bool_), *given), "tpu-v6e"), kernels(always, *given)
    tanh, (product,) = step.rows[0], [row for row in step.rows if row.lane == "matrix"]
    assert (tanh.op, step.priced) == ("tanh", 1)
    assert product.flops == plain[-1].flops
    assert product.seconds == pytest.approx(plain[-1].seconds, rel=0.3)
    assert step.device_seconds == pytest.approx(tanh.seconds + product.seconds, rel=0.3)


def test_a_stable_sort_of_one_array_takes_the_places_along():
    """As the compiler's module of ``jnp.sort`` does, which sorts with an iota."""
    x = S((4096, 512), F32)
    alone, along = (
        kernels(sorting, x)[0] for sorting in (lambda x: jnp.sort(x, 0) + 1, lambda x: jnp.argsort(x, 0) + 1)
    )
    assert alone.seconds == pytest.approx(along.seconds, rel=0.1)


def test_the_gradient_of_an_embedding_goes_to_sparsecores_where_the_compiler_sends_it():
    """274.8 us is what the model takes for the module of 7x, whose scatter is a call on SparseCores."""

    def gradient(table, ids, g):
        return jax.grad(lambda table: jnp.sum((table[ids].astype(BF16) * g).astype(F32)))(table)

    program = from_jax(gradient, S((50257, 768), F32), S((32, 1024), I32), S((32, 1024, 768), BF16))
    assert estimate(program, "tpu-7x").device_seconds == pytest.approx(274.8e-6, rel=0.25)


def test_an_update_in_place_passes_its_own_bytes():
    (row,) = kernels(*CASES["update or not"][0])
    assert row.bytes <= 4 * 8 * 1024 * 4
    copy, _ = kernels(*CASES["update of what is kept"][0])
    assert copy.bytes == 2 * 8192 * 1024 * 4


def test_more_is_alive_at_once_than_stays_near():
    def made(xs, ws):
        products = [x @ w for x, w in zip(xs, ws)]
        largest = sum(product.max() for product in products)
        return sum(product / largest for product in products)

    def passed(count):  # of products of 16 MB each, all alive until the largest numbers of all are known
        wide, narrow = (S((count, *shape), BF16) for shape in ((8192, 128), (128, 1024)))
        rows = kernels(made, wide, narrow)
        return sum(row.bytes for row in rows) - count * 2 * 128 * (8192 + 1024)

    assert passed(4) < 2 * 2 * 8192 * 1024
    assert passed(12) > 2 * 4 * 2 * 8192 * 1024


def test_a_sum_of_the_vector_unit_takes_no_less_than_its_bytes_and_not_ten_times_that():
    (row,) = kernels(*CASES["no free dims alone"][0])
    least = row.bytes / 1638e9
    assert row.bytes + row.resident > 2 * 4096 * 1024 * 2
    assert least < row.seconds < 10 * least


def test_many_rows_of_a_large_table_are_gathered_by_the_sparsecores():
    def seconds(rows):
        (row,) = kernels(lambda table, ids: table[ids], S((100_000, 1024), F32), S((rows,), I32))
        return row.seconds

    bytes_a_row = 2 * 4096
    assert 0.5 * bytes_a_row / 1638e9 < (seconds(32768) - seconds(16384)) / 16384 < 4 * bytes_a_row / 1638e9


@pytest.mark.parametrize(("chip", "depth", "count"), [("tpu-v5p", 64, 2), ("tpu-v5p", 128, 3), ("tpu-v6e", 128, 2)])
def test_a_softmax_is_a_kernel_of_its_own_behind_products_as_deep_as_the_matrix_unit(chip, depth, count):
    heads = S((64, 1024, depth), BF16)
    rows = [row for row in estimate(from_jax(attended, heads, heads), chip).rows if row.op != "stream"]
    assert len(rows) == count
    scores = 64 * 1024 * 1024 * 4
    assert sum(row.bytes for row in rows) == pytest.approx({2: 2, 3: 4}[count] * scores, rel=0.1)


def causal(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) / 8
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[2:], bool)), scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(BF16), v)


@pytest.mark.parametrize(("chip", "us"), [("v6e", 426.5), ("v5e", 860.5), ("v5p", 246.5), ("7x", 205.2)])
def test_a_softmax_takes_each_exponential_once_and_lies_with_the_queries_in_the_lanes(chip, us):
    """As the compiler's modules of four chips do, of which the model takes these times."""
    step = estimate(from_jax(causal, *[S((4, 1024, 16, 64), BF16)] * 3), f"tpu-{chip}")
    assert step.device_seconds * 1e6 == pytest.approx(us, rel=0.03)


@pytest.mark.parametrize(("chip", "megabytes"), [("v6e", 17.2), ("v5e", 17.2), ("v5p", 17.2), ("7x", 84.3)])
@pytest.mark.parametrize("how", ["groups", "repeated"])
def test_weights_with_scales_of_groups_are_made_before_the_product(how, megabytes, chip):
    """Their bfloat16 is a kernel's result, in HBM where it is brought in for no other, as in four chips' modules."""

    def grouped(x, w, s):
        return x @ (w.astype(BF16) * s).reshape(4096, 4096)

    def repeated(x, w, s):
        return x @ (w.astype(BF16) * jnp.repeat(s, 128, axis=0))

    sizes = {"groups": ((32, 128, 4096), (32, 1, 4096)), "repeated": ((4096, 4096), (32, 4096))}[how]
    given = S((16, 4096), BF16), S(sizes[0], jnp.int8), S(sizes[1], BF16)
    step = estimate(from_jax({"groups": grouped, "repeated": repeated}[how], *given), f"tpu-{chip}")
    assert [row.lane for row in step.rows if row.op != "stream"] == ["vector", "matrix"]
    assert step.bytes / 1e6 == pytest.approx(megabytes, rel=0.01)


@pytest.mark.parametrize(("chip", "megabytes"), [("v5p", 304.1), ("v6e", 96.5)])
def test_cores_without_a_common_memory_pass_products_through_hbm(chip, megabytes):
    """As in the compiler's module of v5p; on v6e its bytes are those that the model takes near the core."""

    def gated(x, g, u, d):
        return (jax.nn.silu(x @ g) * (x @ u)) @ d

    given = [S(sizes, BF16) for sizes in ((4096, 2048), (2048, 5632), (2048, 5632), (5632, 2048))]
    assert estimate(from_jax(gated, *given), f"tpu-{chip}").bytes / 1e6 == pytest.approx(megabytes, rel=0.01)


def test_a_quotient_of_a_constant_is_a_product_with_its_inverse():
    """None of 5,747 quotients of floats in modules of four chips is by a constant."""
    wide = S((8192, 1024), BF16)
    by, times, whole = (
        kernels(function, wide)[0].seconds
        for function in (lambda x: jnp.sin(x) / 7, lambda x: jnp.sin(x) * (1 / 7), lambda x: jnp.sin(x) / x[:1])
    )
    assert by == times < whole


def test_a_result_that_is_read_again_stays_near_and_is_copied_out_beside():
    """Arguments and results pass HBM once each, as in the compiler's module for v6e: the model takes 59 us of it."""

    def normalised(x, w, b, r):
        wide = (x + r).astype(F32)
        mean, spread = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
        return ((wide - mean) * jax.lax.rsqrt(spread + 1e-5) * w + b).astype(BF16), x + r

    x, weights = S((16, 512, 1024), BF16), S((1024,), F32)
    step = estimate(from_jax(normalised, x, weights, weights, x), "tpu-v6e")
    assert step.bytes == pytest.approx(4 * 16 * 512 * 1024 * 2, rel=1e-3)
    assert step.device_seconds * 1e6 == pytest.approx(59, rel=0.06)


def test_a_fourier_transform_has_a_time_that_grows_with_it():
    def seconds(*sizes):
        step = estimate(from_jax(jnp.fft.fft2, S(sizes, jnp.complex64)), "tpu-v6e")
        assert step.priced == 1
        return step.device_seconds

    assert 0 < seconds(8, 256, 256) < seconds(16, 256, 256) < seconds(16, 256, 512) < seconds(16, 509, 512)


@pytest.mark.parametrize(("sizes", "microseconds"), [((1024, 512), 140.9), ((1024, 509), 12.6), ((1024, 768), 155.3)])
def test_a_fourier_transform_takes_as_long_as_the_compilers_products(sizes, microseconds):
    """Three products in six passes for each factor, as the modules for v6e are priced; of a prime length one."""
    step = estimate(from_jax(jnp.fft.fft, S(sizes, jnp.complex64)), "tpu-v6e")
    assert step.device_seconds * 1e6 == pytest.approx(microseconds, rel=0.2)


@pytest.mark.parametrize(("chip", "megabytes"), [("tpu-v6e", 67.1), ("tpu-7x", 201.3)])
def test_a_cumulative_sum_keeps_the_sums_of_its_blocks_near_or_passes_them(chip, megabytes):
    """What the modules pass through HBM: near the core are sums and copy on v6e, not on 7x."""
    step = estimate(from_jax(lambda x: jnp.cumsum(x, 1), S((8, 1024, 1024), F32)), chip)
    assert step.bytes / 1e6 == pytest.approx(megabytes, rel=0.01)


def test_a_scatter_of_many_rows_sorts_them_and_fetches_each():
    def added(ids, rows):
        return jnp.zeros((50_000, 256)).at[ids].add(rows)

    few, many = (kernels(added, S((n,), I32), S((n, 256), F32)) for n in (512, 16384))
    assert [row.op for row in few[1:]] == ["scatter"]  # behind its indices
    assert [row.op for row in many[1:]] == ["sort", "scatter"]
    assert many[-1].bytes == few[-1].bytes == 4 * 256 * 50_000  # zeros of its own; rows that are given come beside
    assert many[-1].seconds > few[-1].seconds


def test_types_are_those_of_what_a_kernel_reads():
    def product(kind):
        (row,) = kernels(lambda x, w: jnp.tanh((x @ w).astype(F32)), S((4096, 4096), kind), S((4096, 4096), kind))
        return row.measured_on

    assert product(BF16) == "this chip" != product(jnp.int8)
