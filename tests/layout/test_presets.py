"""Layouts by name against the formulas that define them, and the TPU compiler's choice against its programs."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layout.oracle import all_indices
from tilewright.errors import UnsupportedError, UsageError
from tilewright.layout import parse, predict, preset

BYTES = {"s8": 1, "f16": 2, "f32": 4}
small = st.integers(1, 40)


def agrees(layout, formula, slots=None):
    """Every element's offset is what the formula says."""
    grid = np.indices(layout.shape)
    assert np.array_equal(layout.offsets(np.stack(grid, -1)), formula(*grid))
    assert slots is None or layout.num_slots == slots


@given(small, small, st.sampled_from(sorted(BYTES)))
def test_ascend_nz(m, n, dtype):
    c0, m1 = 32 // BYTES[dtype], -(-m // 16)
    layout = preset("ascend_nz", (m, n), dtype)
    agrees(layout, lambda i, j: (j // c0 * m1 + i // 16) * 16 * c0 + i % 16 * c0 + j % c0, m1 * 16 * -(-n // c0) * c0)
    batched = preset("ascend_nz", (2, m, n), dtype)
    assert batched.offset(1, m - 1, n - 1) == layout.num_slots + layout.offset(m - 1, n - 1)


@given(small, small, st.sampled_from(sorted(BYTES)))
def test_ascend_zz(m, n, dtype):
    c0 = 32 // BYTES[dtype]
    n1 = -(-n // c0)
    layout = preset("ascend_zz", (m, n), dtype)
    agrees(layout, lambda i, j: (i // 16 * n1 + j // c0) * 16 * c0 + i % 16 * c0 + j % c0)


@given(st.integers(1, 3), small, st.integers(1, 5), st.integers(1, 5), st.sampled_from(sorted(BYTES)), st.booleans())
def test_blocked_channels(n, c, h, w, dtype, sixteen):
    c0 = 16 if sixteen else 32 // BYTES[dtype]
    c1 = -(-c // c0)
    layout = preset("nchw16c" if sixteen else "nc1hwc0", (n, c, h, w), dtype)
    agrees(layout, lambda b, k, y, x: (((b * c1 + k // c0) * h + y) * w + x) * c0 + k % c0, n * c1 * h * w * c0)


@given(st.integers(1, 80), st.integers(1, 80), st.booleans(), st.booleans())
def test_tenstorrent(m, n, within, faces):
    columns = -(-n // 32)
    layout = preset("tenstorrent", (m, n), "bf16", transpose_within_face=within, transpose_of_faces=faces)

    def formula(i, j):
        fi, fj, y, x = i % 32 // 16, j % 32 // 16, i % 16, j % 16
        face = fj * 2 + fi if faces else fi * 2 + fj
        return (i // 32 * columns + j // 32) * 1024 + face * 256 + (x * 16 + y if within else y * 16 + x)

    agrees(layout, formula, -(-m // 32) * columns * 1024)


@given(st.integers(1, 2), st.integers(1, 17), st.integers(1, 17), st.integers(1, 40), st.booleans())
def test_hexagon_croutons(n, h, w, c, half):
    width = 4 if half else 8
    h8, ww, c32 = -(-h // 8), -(-w // width), -(-c // 32)
    layout = preset("hexagon_crouton", (n, h, w, c), "f16" if half else "u8")

    def formula(b, y, x, k):
        block = ((b * h8 + y // 8) * ww + x // width) * c32 + k // 32
        if half:
            return (((block * 8 + y % 8) * 2 + x % 4 // 2) * 32 + k % 32) * 2 + x % 2
        return ((block * 8 + y % 8) * 8 + x % 8) * 32 + k % 32

    agrees(layout, formula)
    assert layout.size_bytes == n * h8 * ww * c32 * 2048


def test_tpu_vector_memory():
    texts = {d: str(preset("tpu_vmem", (100, 200), d)) for d in ("f32", "bf16", "s8", "s4")}
    assert texts == {
        "f32": "f32[100,200]{1,0:T(8,128)S(1)}",
        "bf16": "bf16[100,200]{1,0:T(16,128)(2,1)S(1)}",
        "s8": "s8[100,200]{1,0:T(32,128)(4,1)S(1)}",
        "s4": "s4[100,200]{1,0:T(64,128)(8,1)E(4)S(1)}",
    }
    assert str(preset("tpu_vmem", (300,), "f32")) == "f32[300]{0:T(512)S(1)}"
    words = preset("tpu_vmem", (16, 128), "bf16")
    assert [words.offset(i, 5) for i in (0, 1, 2, 15)] == [10, 11, 266, 7 * 256 + 11]


EVERY = ["ascend_nz", "ascend_zz", "hexagon_crouton", "nc1hwc0", "nchw16c", "tenstorrent", "tpu", "tpu_vmem"]


@pytest.mark.parametrize("name", EVERY)
def test_every_preset_reads_back_packs_and_inverts(name):
    layout = preset(name, (2, 3, 5, 7), "bf16")
    assert parse(str(layout)) == layout
    assert layout.digits is not None
    values = np.arange(210).reshape(2, 3, 5, 7).astype(layout.numpy_dtype)
    assert np.array_equal(layout.unpack(layout.pack(values)), values)
    assert all(layout.index(layout.offset(*index)) == index for index in all_indices(layout.shape))
    assert preset(name, (2, 0, 5, 7), "bf16").size_bytes == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: preset("tpu_v9", (3,), "f32"), "no preset"),
        (lambda: preset("ascend_nz", (3,), "f16"), "2 dims or more"),
        (lambda: preset("nc1hwc0", (3, 4), "f16"), "four dims"),
        (lambda: preset("ascend_zz", (3, 4), "f64"), "C0 is not defined"),
        (lambda: preset("hexagon_crouton", (1, 2, 3, 4), "f32"), "no crouton"),
        (lambda: preset("tpu", (3, 4), "f32", transpose_of_faces=True), "no option"),
    ],
)
def test_wrong_presets(call, message):
    with pytest.raises(UsageError, match=message):
        call()
    with pytest.raises(UnsupportedError):
        predict("ascend_nz", (3, 4), "f16")


def compiled_layouts(data_folder):
    """The tiled layouts in programs that a TPU's compiler has laid out."""
    found = set()
    for path in data_folder.glob("hlo_tpu/*.after.hlo"):
        found |= set(re.findall(r"\b[a-z]+[0-9a-z]*\[[0-9,]*\]\{[0-9,]*:T[^}]*\}", path.read_text()))
    return [parse(text) for text in sorted(found)]


def test_compiled_programs_have_the_predicted_tiles(data_folder):
    layouts = compiled_layouts(data_folder)
    same_order = 0
    for layout in layouts:
        turned = [layout.shape[d] for d in reversed(layout.minor_to_major)]
        assert preset("tpu", turned, layout.dtype).tiles == layout.tiles, layout
        guess = predict("tpu", layout.shape, layout.dtype)
        assert guess.size_bytes <= layout.size_bytes
        same_order += guess.minor_to_major == layout.minor_to_major
    # Dims are out of the predicted order where a neighbour's order won: within a program, never to save bytes.
    assert len(layouts) > 80
    assert same_order > 0.75 * len(layouts)


def test_arguments_and_results_are_laid_out_exactly_as_predicted(data_folder):
    seen = 0
    for path in data_folder.glob("hlo_tpu/*.after.hlo"):
        header = path.read_text().split("entry_computation_layout={", 1)[1].split("\n", 1)[0]
        for text in re.findall(r"\b[a-z]+[0-9a-z]*\[[0-9,]*\]\{[0-9,]*:T[^}]*\}", header):
            layout = parse(text)
            assert str(predict("tpu", layout.shape, layout.dtype)) == text
            seen += 1
    assert seen > 40


def test_a_chip_of_sixteen_sublanes_has_tiles_of_sixteen_rows():
    assert str(predict("tpu-8t", (256, 512), "f32")) == "f32[256,512]{1,0:T(16,128)}"
    assert str(predict("tpu-8t", (256, 512), "bf16")) == "bf16[256,512]{1,0:T(16,128)(2,1)}"
    assert str(predict("tpu-8t", (3, 512), "f32")) == "f32[3,512]{1,0:T(4,128)}"
    assert str(predict("tpu-8t", (4096,), "f32")) == "f32[4096]{0:T(2048)}"
    assert predict("tpu-8i", (256, 512), "f32") == predict("tpu", (256, 512), "f32")
    assert predict("tpu", (256, 512), "f32", sublanes=16) == predict("tpu-8t", (256, 512), "f32")


def test_boundaries_that_a_compiler_laid_out(vectors):
    """Three hundred random shapes, compiled ahead of time; dim order and tiles are foreseen for every one."""
    texts = vectors("tpu_boundary_layouts")["texts"]
    assert len(texts) == 300
    larger = 0
    for text in texts:
        layout = parse(text)
        assert str(predict("tpu", layout.shape, layout.dtype, boundary=True)) == text
        inside = predict("tpu", layout.shape, layout.dtype)
        assert (inside.minor_to_major, inside.size_bytes) == (layout.minor_to_major, layout.size_bytes)
        larger += inside != layout
    assert larger == 60


@given(st.lists(st.integers(1, 300), min_size=2, max_size=4), st.sampled_from(["f32", "bf16", "s8", "s4"]))
def test_no_order_of_the_dims_pads_less_than_the_predicted_one(shape, dtype):
    guess = predict("tpu", shape, dtype)
    for order in itertools.permutations(range(len(shape))):
        turned = preset("tpu", [shape[d] for d in order], dtype)
        assert guess.size_bytes <= turned.size_bytes
    again = preset("tpu", [shape[d] for d in reversed(guess.minor_to_major)], dtype)
    assert (again.size_bytes, again.tiles) == (guess.size_bytes, guess.tiles)
