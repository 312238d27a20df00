"""The count of flops, held to XLA's cost analysis and to closed forms of whole steps."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tilewright.hlo import estimate, load

LAYERS, WIDTH, HEADS, KEPT, INNER, VOCABULARY = 3, 256, 4, 64, 1024, 2048
BATCH, LENGTH = 2, 128


def arrays(*shapes):
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


def step_of(function, *given):
    text = jax.jit(function).trace(*given).lower(lowering_platforms=("tpu",)).as_text()
    return estimate(load(text), "tpu-v6e")


IMAGES = ("NHWC", "HWIO", "NHWC")
convolution = partial(partial, lax.conv_general_dilated)
same = convolution(window_strides=(1, 1), padding="SAME", dimension_numbers=IMAGES)
strided = convolution(window_strides=(2, 2), padding="SAME", dimension_numbers=IMAGES)
depthwise = convolution(window_strides=(1, 1), padding="SAME", feature_group_count=32, dimension_numbers=IMAGES)
IMAGE, KERNEL = (4, 28, 28, 32), (3, 3, 32, 64)
PRODUCTS = {
    "product": (jnp.matmul, (128, 256), (256, 512)),
    "of a vector": (jnp.matmul, (128, 256), (256,)),
    "of one query": (partial(jnp.einsum, "bqhd,bkhd->bhqk"), (16, 1, 12, 64), (16, 1024, 12, 64)),
    "of heads": (partial(jnp.einsum, "bhqd,bhkd->bhqk"), (2, 8, 128, 64), (2, 8, 256, 64)),
    "padded": (same, IMAGE, KERNEL),
    "strided": (convolution(window_strides=(2, 2), padding=[(3, 3), (2, 3)], dimension_numbers=IMAGES), IMAGE, KERNEL),
    "dilated": (
        convolution(window_strides=(1, 1), padding="SAME", rhs_dilation=(2, 3), dimension_numbers=IMAGES),
        *(IMAGE, KERNEL),
    ),
    "with holes": (
        convolution(window_strides=(1, 2), padding=[(2, 2), (1, 3)], lhs_dilation=(3, 2), dimension_numbers=IMAGES),
        *(IMAGE, KERNEL),
    ),
    "one feature each": (depthwise, IMAGE, (3, 3, 1, 32)),
    "groups": (
        convolution(window_strides=(2, 1), padding="VALID", feature_group_count=4, dimension_numbers=IMAGES),
        *(IMAGE, (3, 3, 8, 64)),
    ),
    "features first": (
        convolution(window_strides=(1, 1), padding="SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")),
        *((4, 32, 28, 28), (64, 32, 3, 3)),
    ),
    "gradient of a kernel": (jax.grad(lambda x, w: strided(x, w).sum(), 1), IMAGE, KERNEL),
    "gradient of images": (jax.grad(lambda x, w: strided(x, w).sum(), 0), IMAGE, KERNEL),
    "gradient of one feature each": (jax.grad(lambda x, w: depthwise(x, w).sum(), 1), IMAGE, (3, 3, 1, 32)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_have_the_flops_of_xlas_cost_analysis(name):
    function, *shapes = PRODUCTS[name]
    given = arrays(*shapes)
    counted = jax.jit(function).lower(*given).cost_analysis()["flops"]
    step = step_of(function, *given)
    assert step.flops == counted
    assert step.priced == 1


def test_ragged_products_have_the_flops_of_their_rows():
    given = [*arrays((64, 128), (4, 128, 256)), jax.ShapeDtypeStruct((4,), jnp.int32)]
    step = step_of(lax.ragged_dot, *given)
    assert (step.flops, step.priced) == (2 * 64 * 128 * 256, 1)


def test_complex_products_have_the_flops_of_three_products_of_reals():
    given = [jax.ShapeDtypeStruct(shape, jnp.complex64) for shape in ((31, 64), (64, 48))]
    assert step_of(jnp.matmul, *given).flops == 3 * 2 * 31 * 64 * 48  # as in the module that v6e's compiler made


def layer(x, weights):
    q, k, v = ((x @ weights[name]).reshape(BATCH, LENGTH, HEADS, KEPT) for name in "qkv")
    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    x += jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(BATCH, LENGTH, HEADS * KEPT) @ weights["o"]
    return x + jax.nn.relu(x @ weights["up"]) @ weights["down"], None


def loss(parameters, tokens, recomputed):
    x = parameters["table"][tokens]
    x, _ = lax.scan(jax.checkpoint(layer) if recomputed else layer, x, parameters["layers"])
    logits = x @ parameters["head"]
    chosen = jnp.take_along_axis(logits, tokens[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)


def trained(parameters, tokens, recomputed):
    gradients = jax.grad(loss)(parameters, tokens, recomputed)
    return jax.tree.map(lambda value, gradient: value - 0.1 * gradient, parameters, gradients)


@pytest.mark.parametrize("recomputed", [False, True])
def test_a_training_step_has_the_flops_of_its_closed_form(recomputed):
    sizes = {"q": (WIDTH, HEADS * KEPT), "k": (WIDTH, HEADS * KEPT), "v": (WIDTH, HEADS * KEPT)}
    sizes |= {"o": (HEADS * KEPT, WIDTH), "up": (WIDTH, INNER), "down": (INNER, WIDTH)}
    layers = dict(zip(sizes, arrays(*((LAYERS, *size) for size in sizes.values()))))
    table, head = arrays((VOCABULARY, WIDTH), (WIDTH, VOCABULARY))
    parameters = {"layers": layers, "table": table, "head": head}
    step = step_of(
        partial(trained, recomputed=recomputed), parameters, jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    )
    in_layers = LAYERS * sum(rows * columns for rows, columns in sizes.values())
    forward = 2 * in_layers * BATCH * LENGTH + 4 * LAYERS * BATCH * LENGTH**2 * HEADS * KEPT
    whole = 3 * forward + 6 * WIDTH * VOCABULARY * BATCH * LENGTH
    # of the forward pass that is repeated, nobody wants the last product
    repeated = forward - 2 * LAYERS * INNER * WIDTH * BATCH * LENGTH if recomputed else 0
    assert step.flops == pytest.approx(whole + repeated, rel=0.01)
    assert step.priced > 0.995
