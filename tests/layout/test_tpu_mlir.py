"""What Sophgo's compiler placed, read from its final.mlir: sizes against its figures, damaged texts."""

from __future__ import annotations

import random

import pytest

from tests.conftest import ROOT
from tilewright.errors import TilewrightError
from tilewright.layout import LocalMemoryError, read_tpu_mlir

SAMPLE = (ROOT / "tests" / "data" / "tpu_mlir" / "two_groups_final.mlir").read_text()
#: Figures that tpu-mlir's manual of its debugger prints (appendix "TDB"): address, bytes, buffer, slices.
MANUAL = """%2 = "tpu.Active"(%1) {ginfo = #tpu.lg<out_addr = 212992, out_size = 35456, buffer_addr = 0, \
buffer_size = 71040, eu_align = true, n_slice = [1], c_slice = [32], d_slice = [1], \
h_slice = [54, 55, 55, 55, 53, 53], w_slice = [160, 161], id = 6, stage = 1, group_type = 0>} : \
(tensor<1x32x320x320xf32>) -> tensor<1x32x320x320xf32> loc(#loc19)"""
#: The same tensor as a file of 2022 has it: a dictionary, slices of N and H only, a quantised type.
OLDER = """%7 = "tpu.Load"(%1) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, eu_align = true, \
h_idx = [0, 14], h_slice = [14 : i64, 15 : i64], id = 0 : i64, n_idx = [0], n_slice = [2], \
out_addr = 64 : i64, out_size = SIZE : i64, \
stage = 0 : i64}} : (tensor<2x65x28x7x!quant.uniform<i8:f32, 0.01:-3>, 4294967296 : i64>) -> \
tensor<2x65x28x7x!quant.uniform<i8:f32, 0.01:-3>> loc(#loc1)"""


def test_a_file_of_two_groups():
    first, second = read_tpu_mlir(SAMPLE)
    assert [(group.name, group.line, group.open, group.shared) for group in (first, second)] == [
        ("%4", 15, (), ()),
        ("%5", 23, (), ()),
    ]
    tensors = [(tensor.name, str(tensor.layout).partition(" ")[0], tensor.base) for tensor in first.plan.tensors]
    assert tensors == [
        ("%6", "f16[1,64,29,56]", 0),
        ("%7", "f16[1,64,1,576]", 16384),
        ("%8", "f32[1,64,1,1]", 17536),
        ("%9", "f16[1,64,28,56]", 32768),
        ("%9 buffer", "u8[1,64,1,2048]", 49152),
    ]
    assert first.plan["%6"].layout.mode == "aligned"
    assert first.plan["%7"].layout.mode == "compact"
    (conflict,) = first.plan.conflicts
    assert (first.steps[conflict.instruction], conflict.first, conflict.banks) == ("tpu.Conv2D %9", "%7", (1,))
    assert [tensor.layout.bytes_per_npu for tensor in second.plan.tensors] == [6272, 6272, 12544]


def test_a_line_of_the_manual():
    (group,) = read_tpu_mlir(MANUAL, "bm1684x")
    tensor = group.plan["%2"]
    assert (group.open, tensor.base, tensor.end - tensor.base) == ((), 212992, 35456)
    assert tensor.layout.shape == (1, 32, 55, 161)
    assert group.plan["%2 buffer"].end == 71040


def test_an_older_file():
    (group,) = read_tpu_mlir(OLDER.replace("SIZE", "512"), "bm1684x")
    assert (group.open, str(group.plan["%7"].layout)) == ((), "s8[2,65,15,7] over 64 NPUs (aligned, start 0)")
    (group,) = read_tpu_mlir(OLDER.replace("SIZE", "700"), "bm1684x")  # what its slices do not explain is kept as bytes
    assert (group.open, group.plan["%7"].end) == (("%7",), 764)


def test_tensors_that_meet():
    (first, _) = read_tpu_mlir(SAMPLE.replace("out_addr = 17536", "out_addr = 3000"))
    assert first.shared == (("%6", "%8"),)
    (_, second) = read_tpu_mlir(SAMPLE.replace("out_addr = 8192", "out_addr = 0"))  # in place: nobody reads it again
    assert (second.shared, second.plan.conflicts) == ((), ())


@pytest.mark.parametrize(
    ("text", "chip", "words"),
    [
        ('"tpu.Group"()', None, "no chip is named"),
        ('"tpu.Group"()', "bm1684x", "no layer group"),
        (MANUAL, "tpu-v5e", "has no lane memories"),
        (MANUAL, "bm9", "bm9"),
        (MANUAL.replace("-> tensor", "-> none"), "bm1684x", "no tensor type"),
        (MANUAL.replace("xf32> loc", "xcomplex> loc"), "bm1684x", "line 1"),
        (MANUAL.replace("212992", "-1"), "bm1684x", "no size or address"),
        (MANUAL.replace("212992", "9" * 4999), "bm1684x", "no size or address"),
        (f"{MANUAL}\n{MANUAL}", "bm1684x", "two tensors are called '%2'"),
    ],
)
def test_what_is_wrong_is_said(text, chip, words):
    with pytest.raises(TilewrightError) as error:
        read_tpu_mlir(text, chip, "x.mlir")
    assert words in str(error.value)


def test_what_lies_beyond_the_memory():
    with pytest.raises(LocalMemoryError, match="overflow the local memory of 262144 bytes by 64 bytes") as error:
        read_tpu_mlir(MANUAL.replace("212992", str(262144 - 35456 + 64)), "bm1684x")
    assert (error.value.tensor, error.value.bytes_short) == ("%2", 64)


def test_damaged_texts_are_one_clear_error():
    luck = random.Random(20)
    pieces = [
        "-1",
        "9" * 18,
        "<",
        ">",
        "[",
        "]",
        "{",
        "}",
        "x",
        "\n",
        ",",
        "0",
        "1048576",
        "%6",
        "tensor<",
        "\x00",
        "é",
    ]
    for _ in range(400):
        text = luck.choice((SAMPLE, MANUAL, OLDER))
        for _ in range(luck.randint(1, 4)):
            at = luck.randrange(len(text))
            text = text[:at] + luck.choice((*pieces, "")) + text[at + luck.randint(0, 9) :]
        try:
            read_tpu_mlir(text, luck.choice((None, "bm1684x", "cv180x")), "x")
        except TilewrightError as error:
            assert str(error)


def test_long_lines_take_no_longer_than_they_are():
    for text in ("a" * 300_000, '%1 = "tpu.A"(' + "%1, " * 100_000, "ginfo = #tpu.lg<" + "n = [" * 60_000):
        with pytest.raises(TilewrightError):
            read_tpu_mlir(f'{text}\n"tpu.Load"(', "bm1684x")
