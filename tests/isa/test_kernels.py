"""contract and conv2d: einsum and jax.lax say what is right; the folding, the program, bad input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.errors import UnsupportedError, UsageError
from tilewright.isa import MatrixUnit, MatrixUnitConfig, Memory, contract, conv2d, expected_conv2d_counts

pads = st.tuples(st.integers(0, 2), st.integers(0, 2))
quick = settings(max_examples=tries(10))
SMALL = MatrixUnitConfig(threads=32)


def integers(rng, shape, dtype="int8"):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape, dtype=np.int64).astype(dtype)


def modulo(value):
    return value.astype(np.uint64).astype(np.uint32).view(np.int32)


@pytest.mark.parametrize("slice_order", ["y-major", "z-major"])
@pytest.mark.parametrize(
    ("subscripts", "a", "b"),
    [
        ("mxk,knyz->mxnyz", (3, 4, 9), (9, 5, 2, 3)),  # the source's own: 3 dims by 4
        ("k,kn->n", (9,), (9, 5)),
        ("k,k->", (9,), (9,)),
        ("mk,k", (4, 9), (9,)),
        ("mk,nk->nm", (4, 9), (5, 9)),
        ("bmk,bkn->bmn", (2, 4, 9), (2, 9, 5)),
        ("abij,ajbk->kbia", (2, 3, 4, 5), (2, 5, 3, 6)),
        ("mkl,lnk", (4, 3, 5), (5, 6, 3)),
        ("m,n->mn", (4,), (5,)),
    ],
)
def test_contract_is_einsum(subscripts, a, b, slice_order):
    rng = np.random.default_rng(len(subscripts))
    x, y = integers(rng, a), integers(rng, b)
    config = MatrixUnitConfig(threads=32, slice_order=slice_order)
    result = contract(subscripts, x, y, config=config)
    expected = np.einsum(subscripts, x.astype(np.int64), y.astype(np.int64))
    assert result.value.shape == expected.shape
    assert (result.value == expected).all()
    assert result.counts.macs == sum(run.counts.macs for run in result.runs)
    assert result.errors == ()


def test_slices_are_stacked_as_the_source_says():
    """Row of A' = xi * m + mi; column of B' = (yi * z + zi) * n + ni, or (zi * y + yi) * n + ni: the loads tell."""
    m, x, k, n, y, z = 2, 3, 8, 2, 2, 3
    rng = np.random.default_rng(0)
    a, b = integers(rng, (m, x, k)), integers(rng, (k, n, y, z))
    for order in ("y-major", "z-major"):
        (run,) = contract("mxk,knyz->mxnyz", a, b, config=MatrixUnitConfig(threads=32, slice_order=order)).runs
        folded = np.zeros((m * x, n * y * z), np.int64)
        for mi, xi, ni, yi, zi in np.ndindex(m, x, n, y, z):
            column = (yi * z + zi) * n + ni if order == "y-major" else (zi * y + yi) * n + ni
            folded[xi * m + mi, column] = a[mi, xi].astype(int) @ b[:, ni, yi, zi].astype(int)
        assert (run.value == folded).all()


def test_batches_without_members_are_empty():
    assert contract("bk,bk->b", np.ones((0, 3), np.int8), np.ones((0, 3), np.int8)).value.shape == (0,)


@pytest.mark.parametrize(
    ("subscripts", "error", "reason"),
    [
        ("mk", UsageError, "two tensors"),
        ("mk,kn,no", UsageError, "two tensors"),
        ("m...,kn", UsageError, "two tensors"),
        ("mk,kn->mq", UsageError, "from nowhere"),
        ("mm,mn", UnsupportedError, "a label twice"),
        ("mk,kn->n", UnsupportedError, "summed in one tensor"),
        ("mkq,kn", UsageError, "3 dims"),
        ("mk,nk", UsageError, "'k' is 3 in A and 2 in B"),
    ],
)
def test_contract_refuses(subscripts, error, reason):
    with pytest.raises(error, match=reason):
        contract(subscripts, np.ones((2, 3), np.int8), np.ones((3, 2), np.int8))


def reference(x, w, stride, padding, dilation, groups, layout):
    jax = pytest.importorskip("jax")
    numbers = ("NHWC", "HWIO", "NHWC") if layout == "NHWC" else ("NCHW", "OIHW", "NCHW")
    kind = np.int32 if x.dtype.kind in "iu" else np.float32
    value = jax.lax.conv_general_dilated(
        x.astype(kind),
        w.astype(kind),
        window_strides=stride,
        padding=padding,
        rhs_dilation=dilation,
        feature_group_count=groups,
        dimension_numbers=numbers,
    )
    return np.asarray(value)


@quick
@given(
    st.integers(0, 2**32),
    st.tuples(st.integers(1, 2), st.integers(1, 9), st.integers(1, 9), st.integers(1, 10), st.integers(1, 6)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 2)),
    st.one_of(st.sampled_from(["SAME", "VALID"]), st.tuples(pads, pads).map(list)),
    st.tuples(st.integers(1, 2), st.integers(1, 3)),
    st.integers(1, 3),
    st.sampled_from(["NHWC", "NCHW"]),
    st.sampled_from(["int8", "uint8", "int16"]),
    st.fixed_dictionaries({"ka": st.integers(1, 2), "kb": st.integers(1, 2)}),
)
def test_conv2d_is_jaxs(seed, sizes, kernel, stride, padding, dilation, groups, layout, dtype, how):
    n, h, w, c, out = sizes
    rng = np.random.default_rng(seed)
    x, weights = integers(rng, (n, h, w, c * groups), dtype), integers(rng, (*kernel, c, out * groups), dtype)
    if layout == "NCHW":
        x, weights = x.transpose(0, 3, 1, 2), weights.transpose(3, 2, 0, 1)
    expected = reference(x, weights, stride, padding, dilation, groups, layout)
    args = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": layout, **how}
    result = conv2d(x, weights, config=SMALL, **args)
    assert result.errors == ()
    assert result.value.shape == expected.shape
    assert (result.value == expected).all()
    forms = expected_conv2d_counts(x.shape, weights.shape, config=SMALL, element_bytes=x.itemsize, **args)
    assert result.counts == forms


def test_conv2d_of_floats():
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(2, 7, 6, 5)).astype(np.float32), rng.normal(size=(3, 3, 5, 4)).astype(np.float32)
    value = conv2d(x, w, padding="same", config=SMALL).value
    expected = reference(x, w, (1, 1), "SAME", (1, 1), 1, "NHWC")
    assert np.allclose(value, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.nightly
def test_a_layer_of_a_real_network():
    """ResNet-50, conv2_x, 3 x 3: 56 x 56 pixels, 64 channels in and out, int8. By day: the smaller ones above."""
    rng = np.random.default_rng(5)
    x, w = integers(rng, (1, 56, 56, 64)), integers(rng, (3, 3, 64, 64))
    result = conv2d(x, w, padding=1)
    assert (result.value == reference(x, w, (1, 1), [(1, 1), (1, 1)], (1, 1), 1, "NHWC")).all()
    inside = sum(((56 - abs(i)) * (56 - abs(j))) for i in (-1, 0, 1) for j in (-1, 0, 1))
    assert result.traffic.load_bytes == inside * 64  # what lies outside the image is not loaded


def test_the_program_of_a_convolution_runs_again():
    rng = np.random.default_rng(6)
    x, w = integers(rng, (1, 5, 5, 3)), integers(rng, (2, 2, 3, 4))
    result = conv2d(x, w, stride=2, config=SMALL)
    memory = Memory({"A": x, "B": np.ascontiguousarray(w.transpose(3, 0, 1, 2)), "C": np.zeros((4, 4), np.int32)})
    again = MatrixUnit(SMALL).run(str(result.program), memory)
    assert (again.tensor("C").reshape(1, 2, 2, 4) == result.value).all()
    assert "down:" in result.program.listing()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"groups": 2}, "3 channels in 2 groups"),
        ({"layout": "HWC"}, "NHWC or NCHW"),
        ({"stride": 0}, "stride"),
        ({"stride": (1, 1, 1)}, "one number, or two"),
        ({"padding": "full"}, "valid, same"),
        ({"padding": -1}, "padding"),
        ({"dilation": 0}, "dilation"),
    ],
)
def test_conv2d_refuses(more, reason):
    with pytest.raises(UsageError, match=reason):
        conv2d(np.ones((1, 5, 5, 3), np.int8), np.ones((2, 2, 3, 4), np.int8), **more)
