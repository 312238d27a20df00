"""conv2d and contract over several processing elements: the same bits, counts that add up, closed forms."""

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.errors import UsageError
from tilewright.isa import (
    Counts,
    Machine,
    MatrixUnitConfig,
    Part,
    contract,
    conv2d,
    expected_conv2d_counts,
    matmul,
)
from tilewright.isa.multiply.conv import conv_parts

pads = st.tuples(st.integers(0, 2), st.integers(0, 2))


def some(rng, shape, dtype):
    dtype = np.dtype(dtype)
    if dtype.kind not in "iu":
        return rng.normal(size=shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape, dtype=np.int64).astype(dtype)


@settings(max_examples=tries(15))
@given(
    st.integers(0, 2**32),
    st.tuples(st.integers(1, 3), st.integers(1, 8), st.integers(1, 8), st.integers(1, 10), st.integers(1, 7)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.fixed_dictionaries(
        {
            "stride": st.tuples(st.integers(1, 3), st.integers(1, 2)),
            "padding": st.one_of(st.sampled_from(["SAME", "VALID"]), st.tuples(pads, pads).map(list)),
            "dilation": st.tuples(st.integers(1, 2), st.integers(1, 2)),
            "groups": st.integers(1, 3),
            "layout": st.sampled_from(["NHWC", "NCHW"]),
            "ka": st.integers(1, 2),
            "kb": st.integers(1, 2),
            "columns": st.sampled_from([None, 3]),
        }
    ),
    st.sampled_from(["int8", "uint8", "int16", "float32", ml_dtypes.bfloat16]),
    st.integers(2, 5),
    st.sampled_from([None, "images", "rows", "channels"]),
)
def test_divided_convolutions(seed, sizes, kernel, how, dtype, pes, split):
    n, h, w, c, out = sizes
    rng, groups = np.random.default_rng(seed), how["groups"]
    x, weights = some(rng, (n, h, w, c * groups), dtype), some(rng, (*kernel, c, out * groups), dtype)
    if how["layout"] == "NCHW":
        x, weights = x.transpose(0, 3, 1, 2), weights.transpose(3, 2, 0, 1)
    config = MatrixUnitConfig(threads=16, pes=pes)
    result = conv2d(x, weights, config=config, split=split, **how)
    assert result.errors == ()
    assert result.value.tobytes() == conv2d(x, weights, config=MatrixUnitConfig(threads=16), **how).value.tobytes()
    forms = expected_conv2d_counts(x.shape, weights.shape, config=config, element_bytes=x.itemsize, split=split, **how)
    assert result.counts == forms
    assert result.counts == Counts.together(run.counts for run in result.pes)
    assert result.traffic.load_bytes == sum(run.traffic.load_bytes for run in result.pes)
    assert result.cycles == max((run.cycles for run in result.pes), default=result.cycles)


@pytest.mark.parametrize("split", [None, "images", "rows", "channels"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_divided_convolutions_are_jaxs(split, layout):
    rng = np.random.default_rng(1)
    x, w = some(rng, (3, 9, 7, 12), "int8"), some(rng, (3, 3, 6, 10), "int8")
    if layout == "NCHW":
        x, w = x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1)
    numbers = ("NHWC", "HWIO", "NHWC") if layout == "NHWC" else ("NCHW", "OIHW", "NCHW")
    wide = jax.lax.conv_general_dilated(
        x.astype(np.int32), w.astype(np.int32), (2, 1), "SAME", dimension_numbers=numbers, feature_group_count=2
    )
    config = MatrixUnitConfig(threads=16, pes=4)
    result = conv2d(x, w, (2, 1), "same", groups=2, layout=layout, config=config, split=split)
    assert (result.value == np.asarray(wide)).all()
    assert len(result.pes) == len(result.programs) == (3 if split == "images" else 4)


def test_parts_of_a_result_cover_it_once():
    for shape in ((1, 1, 1, 1), (3, 5, 4, 7), (2, 1, 9, 3)):
        for split in ("images", "rows", "channels"):
            seen = np.zeros((np.prod(shape[:3]), shape[3]), int)
            for part in conv_parts(shape, split, 4).values():
                seen[part.slices] += 1
            assert (seen == 1).all()


def test_more_elements_are_faster_and_every_one_has_its_share():
    rng = np.random.default_rng(2)
    x, w = some(rng, (1, 16, 16, 16), "int8"), some(rng, (3, 3, 16, 16), "int8")
    cycles, loaded = {}, {}
    for pes in (1, 2, 4):
        for split in ("rows", "channels"):
            result = conv2d(x, w, padding=1, config=MatrixUnitConfig(threads=32, pes=pes), split=split)
            cycles[pes, split], loaded[pes, split] = result.cycles, result.counts.a_bytes_loaded
            assert result.counts.macs == 16**2 * 9 * 16 * 16
            assert len({run.counts.macs for run in result.pes}) <= 1
    assert cycles[4, "rows"] < cycles[2, "rows"] < cycles[1, "rows"]
    assert loaded[4, "rows"] == loaded[1, "rows"]
    assert cycles[2, "channels"] < cycles[1, "channels"]
    assert loaded[4, "channels"] == 4 * loaded[1, "channels"]  # every element needs all pixels for its channels


def test_every_elements_program_can_be_saved_and_run_again():
    rng = np.random.default_rng(3)
    x, w = some(rng, (1, 6, 5, 8), "int8"), some(rng, (3, 3, 8, 9), "int8")
    config = MatrixUnitConfig(threads=8, pes=2)
    result = conv2d(x, w, padding=1, config=config, split="rows")
    machine = Machine(config)
    machine.system |= {"A": x, "B": np.ascontiguousarray(w.transpose(3, 0, 1, 2)), "C": np.zeros((30, 9), np.int32)}
    for name in "ABC":
        machine.page_table(name, mapped=True)
    for pe, program in enumerate(result.programs):
        machine.start(str(program), pe, segments={"C": Part((15 * pe, 0), (15, 9))})
    runs = machine.run()
    assert (machine.tensor("C").reshape(result.value.shape) == result.value).all()
    assert [run.counts for run in runs] == [run.counts for run in result.pes]


def test_what_does_not_fit():
    x, w = np.ones((1, 5, 5, 3), np.int8), np.ones((2, 2, 3, 4), np.int8)
    config = MatrixUnitConfig(threads=16, pes=2)
    for how, error, reason in (
        ({"split": "pixels"}, UsageError, "images, rows or channels"),
        ({"ka": 5, "kb": 4}, UsageError, "20"),
        ({"columns": 17}, UsageError, "not within"),
        ({"groups": 2}, UsageError, "3 channels in 2 groups"),
    ):
        with pytest.raises(error, match=reason):
            conv2d(x, w, **{"config": config, **how})
        with pytest.raises(error, match=reason):
            expected_conv2d_counts(x.shape, w.shape, **{"config": config, **how})
    empty = conv2d(x, np.ones((7, 7, 3, 4), np.int8), config=config)
    assert (empty.value.shape, empty.counts, empty.pes) == ((1, 0, 0, 4), Counts(), ())
    assert expected_conv2d_counts(x.shape, (7, 7, 3, 4), config=config) == Counts()
    with pytest.raises(UsageError, match="20"):
        conv2d(x, np.ones((7, 7, 3, 4), np.int8), config=config, ka=5, kb=4)


@pytest.mark.parametrize("how", [{}, {"split": "columns"}, {"segments": 2}, {"transpose_b": True, "split": "rows"}])
def test_contract_divides_every_product_it_makes(how):
    rng = np.random.default_rng(4)
    a, b = some(rng, (2, 3, 5, 9), "int8"), some(rng, (2, 9, 4, 6), "int8")
    config = MatrixUnitConfig(threads=16, pes=3)
    result = contract("bmxk,bkny->bmxny", a, b, config=config, **how)
    assert (result.value == np.einsum("bmxk,bkny->bmxny", a.astype(int), b.astype(int))).all()
    assert [len(run.pes) for run in result.runs] == [3, 3]
    assert result.counts == Counts.together(one.counts for run in result.runs for one in run.pes)
    plain = contract("bmxk,bkny->bmxny", a, b, config=MatrixUnitConfig(threads=16))
    assert plain.counts.macs == result.counts.macs
    assert matmul(a[0, 0], b[0, :, 0], config, **how).value.tolist() == result.value[0, 0, :, 0].tolist()
