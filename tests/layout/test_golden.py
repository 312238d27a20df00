"""Published vectors: XLA's own tests and documents, and the NPU's public rules."""

from __future__ import annotations

import numpy as np
import pytest

from tests.layout.oracle import all_indices
from tilewright.errors import ParseError
from tilewright.layout import lane_matrix, lane_matrix2, lane_weights, lanes, parse, predict, preset, tiled
from tilewright.targets import target


@pytest.fixture(scope="module")
def golden(vectors):
    return vectors("tiled_layout")


def test_linear_index(golden):
    for row in golden["linear_index"]:
        layout = parse(row["shape"])
        assert layout.offset(*row["index"]) == row["linear"], row
        if row["invertible_checked"]:
            assert layout.index(row["linear"]) == tuple(row["index"]), row


def test_size_bytes(golden):
    for row in golden["size_bytes"]:
        assert parse(row["shape"]).size_bytes == row["bytes"], row


def test_parse_canonical(golden):
    for row in golden["parse_canonical"]:
        assert str(parse(row["in"])) == row["out"], row
        assert parse(str(parse(row["in"]))) == parse(row["in"])


def test_print_shape(golden):
    for row in golden["print_shape"]:
        if "?" not in row["text"]:  # printed without a layout there; reading gives the default order
            assert str(parse(row["text"])) == row["text"], row


def test_figures(golden):
    for row in golden["full_tables"]:
        layout = parse(row["shape"])
        table = np.array(row["table"])
        assert layout.num_slots == row["physical_elements"]
        assert np.array_equal(layout.offsets(np.stack(np.indices(table.shape), -1)), table)


def test_combined_dims(golden):
    for row in golden["combine"]:
        layout, equivalent = parse(row["shape"]), parse(row["equivalent_shape"])
        assert layout.num_slots == equivalent.num_slots == row["physical_elements"]
        for index, offset in row["samples"]:
            assert layout.offset(*index) == offset
            assert layout.index(offset) == tuple(index)


def test_refused_layouts(golden):
    for row in golden["validate_error"]:
        text = row.get("shape") or f"f32[{','.join(map(str, row['dims']))}]{{{','.join(map(str, row['m2m']))}}}"
        if row["error_contains"] is None:
            parse(text)
            continue
        with pytest.raises(ParseError) as caught:
            parse(text)
        if "dims" not in row:
            assert row["error_contains"] in str(caught.value)


def test_padding_blow_ups(golden):
    for row in golden["padding_expansion_from_issues"]:
        layout = parse(row["shape"])
        assert f"{layout.size_bytes / 2**30:.2f}G" == row["padded"]
        assert layout.padding_ratio == row["expansion"]


def test_split_config(golden):
    for row in golden["split_config"]:
        layout = parse(row["shape"])
        assert list(layout.max_split_sizes) == row["max_split_size"]
        assert np.prod(layout.max_split_sizes) == row["max_elements_per_split"]


def test_untiled(golden):
    for row in golden["is_untiled_layout"]:
        assert tiled(row["dims"], "f32", tiles=row["tiles"]).is_untiled == row["expected"]


MODES = {"alignEU": "aligned", "compact": "compact", "alignLine": "row_aligned"}


def lane_layout(row, memory):
    """The layout of a row of the vectors."""
    start = {"start": row["start_npu"]}
    if row["layout"] == "matrix":
        return lane_matrix(*row["shape"], row["dtype"], **memory, **start, columns_per_npu=row["args"][0])
    if row["layout"] == "matrix2":
        return lane_matrix2(*row["shape"], row["dtype"], **memory, **start)
    if row["layout"] == "alignIC":
        return lane_weights(row["shape"], row["dtype"], **memory)
    return lanes(row["shape"], row["dtype"], **memory, **start, mode=MODES[row["layout"]])


def test_lanes(vectors):
    seen = set()
    for row in vectors("lanes")["vectors"]:
        seen.add(row["layout"])
        memory = {"lanes": row["NPU_NUM"], "eu_bytes": row["EU_BYTES"]}
        if row["chip"] == "BM1684X":
            chip = target("bm1684x").lanes
            assert (chip.npu_num, chip.eu_bytes, chip.local_bytes, chip.banks) == (
                *memory.values(),
                row["LANE_BYTES"],
                row["BANKS"],
            )
            memory = {"chip": "bm1684x"}
        layout = lane_layout(row, memory)
        assert row["strides_elems"] is None or list(layout.strides) == row["strides_elems"]
        assert layout.injective == row["injective"]
        size = layout.element_bits // 8
        for element in row["elements"]:
            place = layout.address(*element["idx"])
            byte = place["offset"] * size
            assert (place["npu"], byte) == (element["npu"], element["byte"]), (row, element)
            assert layout.index(*place.values()) == tuple(element["idx"])
            assert byte // (row["LANE_BYTES"] // row["BANKS"]) == element["bank"]
    assert seen == {*MODES, "matrix", "matrix2", "alignIC"}


CHIPS = {
    "bm1684": (64, 128, 512, 8, 0),
    "bm1684x": (64, 64, 256, 16, 64),
    "bm1688": (32, 16, 128, 16, 32),
    "bm1690": (64, 64, 256, 16, 64),
    "sg2380": (32, 16, 128, 16, 32),
    "mars3": (8, 16, 64, 16, 16),
    "sgtpuv8": (8, 16, 64, 16, 16),
    "cv180x": (2, 16, 32, 8, 0),
}


@pytest.mark.parametrize("name", CHIPS)
def test_chips_with_lanes(name):
    chip = target(name).lanes
    assert (chip.npu_num, chip.eu_bytes, chip.local_bytes // 1024, chip.banks, chip.ic_parallel) == CHIPS[name]
    assert chip.bank_bytes * chip.banks == chip.local_bytes


def test_other_names_of_chips():
    assert target("cv186x").lanes == target("bm1688").lanes
    assert target("sg2260").lanes == target("bm1690").lanes


def test_lane_stride_examples():
    common = {"lanes": 4, "eu_bytes": 64}
    assert lanes((2, 3, 4, 5), "fp16", **common).strides == (32, 32, 5, 1)
    second = lanes((2, 3, 4, 5), "fp16", **common, start=2)
    assert second.strides == (64, 32, 5, 1)
    assert second.address(0, 2, 0, 0) == {"npu": 0, "offset": 32}  # byte 64
    assert lanes((1, 1, 4, 8), "fp16", **common).strides[1] == 32
    assert lanes((1, 1, 3, 11), "fp16", **common).strides[1] == 64


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((3, 5), "f32", "f32[3,5]{1,0:T(4,128)}"),
        ((9, 129), "f32", "f32[9,129]{1,0:T(8,128)}"),
        ((1, 300), "bf16", "bf16[1,300]{1,0:T(2,128)(2,1)}"),
        ((8, 128), "s8", "s8[8,128]{1,0:T(8,128)(4,1)}"),
        ((130,), "f32", "f32[130]{0:T(256)}"),
        ((1000,), "bf16", "bf16[1000]{0:T(1024)(128)(2,1)}"),
        ((), "f32", "f32[]{:T(128)}"),
        ((), "bf16", "bf16[]{:T(256)}"),
        ((0, 5), "f32", "f32[0,5]{1,0}"),
        ((16, 256), "s4", "s4[16,256]{1,0:T(8,128)(8,1)E(4)}"),
    ],
)
def test_tpu_default_tiles(shape, dtype, expected):
    assert str(preset("tpu", shape, dtype)) == expected


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((1048576, 1), "f32", "f32[1048576,1]{0,1:T(1,128)}"),
        ((300, 1), "f32", "f32[300,1]{0,1:T(1,128)}"),
        ((32, 224, 224, 3), "bf16", "bf16[32,224,224,3]{2,1,3,0:T(8,128)(2,1)}"),
        ((8, 512, 16, 64), "f32", "f32[8,512,16,64]{1,3,2,0:T(8,128)}"),
        ((2, 7, 8, 11, 10), "f32", "f32[2,7,8,11,10]{3,2,4,1,0:T(8,128)}"),
    ],
)
def test_predicted_dim_order(shape, dtype, expected):
    assert str(predict("tpu", shape, dtype)) == expected


def test_global_memory_is_row_major(vectors):
    for row in vectors("lanes")["global_strides"]:
        layout = tiled(row["shape"], "f32")
        for index in all_indices(row["shape"]):
            assert layout.offset(*index) == sum(i * s for i, s in zip(index, row["strides"], strict=True))
