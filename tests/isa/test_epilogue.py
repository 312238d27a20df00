"""Bias, activation, requantisation and residuals at the end of products and convolutions: values, traffic, refusals."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.errors import UnsupportedError, UsageError
from tilewright.isa import Input, MatrixUnitConfig, Op, Output, VectorSpec, conv2d, matmul

F32_ZERO = ("const", 0.0, "f32")


def layer(m, n):
    """An int8 layer: bias, a scale of each channel, a residual with its scale, relu, to int8."""
    tensors = (("acc", "s32", "full"), ("bias", "s32", "col"), ("scale", "f32", "col"))
    tensors = (*tensors, ("residual", "s8", "full"), ("step", "f32", "one"))
    body = (
        Op("add", (0, 1), "s32"),
        Op("convert", (5,), "f32"),
        Op("multiply", (6, 2), "f32"),
        Op("convert", (3,), "f32"),
        Op("multiply", (8, 4), "f32"),
        Op("add", (7, 9), "f32"),
        Op("maximum", (10, F32_ZERO), "f32"),
        Op("round_nearest_even", (11,), "f32"),
        Op("clamp", (("const", -128.0, "f32"), 12, ("const", 127.0, "f32")), "f32"),
        Op("convert", (13,), "s8"),
    )
    return VectorSpec(m, n, tuple(Input(*each) for each in tensors), body, (Output("y", 14, "s8"),))


def operands_of(rng, m, n):
    return {
        "bias": rng.integers(-1000, 1000, n).astype(np.int32),
        "scale": (rng.random(n) / 100).astype(np.float32),
        "residual": rng.integers(-128, 128, (m, n)).astype(np.int8),
        "step": np.array([[0.3]], np.float32),
    }


def expected(products, given):
    scaled = (products + given["bias"]).astype(np.float32) * given["scale"]
    total = scaled + given["residual"].astype(np.float32) * given["step"]
    return np.clip(np.rint(np.maximum(total, 0)), -128, 127).astype(np.int8)


@pytest.mark.parametrize(
    ("mkn", "how", "machine"),
    [
        ((5, 16, 3), {}, {}),
        ((150, 24, 130), {}, {"threads": 128}),
        ((20, 24, 300), {}, {}),
        ((33, 64, 50), {"ka": 3}, {}),
        ((33, 64, 51), {"ka": 2, "kb": 2}, {"ka_split": "interleaved"}),
        ((33, 64, 51), {"ka": 4}, {"group_order": "strided"}),
        ((40, 64, 70), {"kb": 2}, {"kb_acc": "last"}),
        ((40, 64, 70), {"segments": 3}, {}),
        ((40, 32, 70), {"split": "rows", "block_a": 2}, {"pes": 3, "threads": 16}),
        ((30, 32, 90), {"split": "columns"}, {"pes": 2}),
        ((20, 32, 20), {}, {"disjoint_sets": True}),
    ],
)
def test_an_int8_layer_is_numpys(mkn, how, machine):
    (m, k, n), rng = mkn, np.random.default_rng(sum(mkn))
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (k, n)))
    config, given = MatrixUnitConfig(**machine), operands_of(rng, m, n)
    result = matmul(a, b, config, epilogue=layer(m, n), operands=given, **how)
    assert result.errors == ()
    assert result.value.dtype == np.int8
    assert (result.value == expected(a.astype(np.int32) @ b.astype(np.int32), given)).all()
    plain = matmul(a, b, config, **how)
    assert result.counts.macs == plain.counts.macs == m * n * k
    assert result.counts.steps == plain.counts.steps


@pytest.mark.parametrize(("groups", "pes", "split"), [(1, 1, None), (2, 1, None), (2, 3, "rows"), (2, 3, "channels")])
def test_a_convolution_with_its_epilogue(groups, pes, split):
    rng, config = np.random.default_rng(groups + pes), MatrixUnitConfig(pes=pes, threads=32)
    x, w = rng.integers(-128, 128, (2, 5, 5, 8)), rng.integers(-128, 128, (3, 3, 8 // groups, 12))
    x, w, given = x.astype(np.int8), w.astype(np.int8), operands_of(rng, 50, 12)
    plain = conv2d(x, w, padding=1, groups=groups, config=config, split=split)
    result = conv2d(x, w, padding=1, groups=groups, config=config, split=split, epilogue=layer(50, 12), operands=given)
    assert result.errors == ()
    assert (result.value == expected(plain.value.reshape(50, 12), given).reshape(2, 5, 5, 12)).all()


def test_a_bias_and_an_activation_of_floats():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(40, 20)).astype(ml_dtypes.bfloat16), rng.normal(size=(20, 30)).astype(ml_dtypes.bfloat16)
    bias = rng.normal(size=(1, 30)).astype(ml_dtypes.bfloat16)
    inputs = (Input("acc", "f32"), Input("bias", "bf16", "col"))
    body = (Op("convert", (0,), "bf16"), Op("add", (2, 1), "bf16"), Op("maximum", (3, ("const", 0, "bf16")), "bf16"))
    spec = VectorSpec(40, 30, inputs, body, (Output("y", 4, "bf16"),))
    plain = matmul(a, b).value.astype(ml_dtypes.bfloat16)
    made = matmul(a, b, epilogue=spec, operands={"bias": bias})
    wanted = np.maximum((plain.astype(np.float32) + bias.astype(np.float32)).astype(ml_dtypes.bfloat16), 0)
    assert (made.value == wanted).all()
    assert made.traffic.store_bytes == 2 * 40 * 30


def test_what_an_epilogue_cannot_be():
    a = np.ones((4, 8), np.int8)
    acc, out = Input("acc", "s32"), (Output("y", 1, "s32"),)
    good = VectorSpec(4, 4, (acc,), (Op("abs", (0,), "s32"),), out)
    assert (matmul(a, -a.T, epilogue=good).value == 8).all()
    for spec, match in [
        (VectorSpec(4, 4, (Input("x", "s32"),), good.body, out), "first input is the products"),
        (VectorSpec(4, 5, (acc,), good.body, out), "5 columns"),
        (VectorSpec(4, 4, (acc,), good.body, (*out, Output("z", 1, "s32"))), "2 outputs"),
    ]:
        with pytest.raises(UsageError, match=match):
            matmul(a, a.T, epilogue=spec)
    with pytest.raises(UnsupportedError, match="reductions"):
        matmul(a, a.T, epilogue=VectorSpec(4, 4, (acc,), (Op("reduce_add", (0,), "s32"),), out))
    with pytest.raises(UsageError, match="without an epilogue"):
        matmul(a, a.T, operands={"bias": a})
    with pytest.raises(UsageError, match="no tensor 'bias'"):
        matmul(
            a,
            a.T,
            epilogue=VectorSpec(
                4, 4, (acc, Input("bias", "s32", "col")), (Op("add", (0, 1), "s32"),), (Output("y", 2, "s32"),)
            ),
        )
