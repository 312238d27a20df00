"""Tenstorrent's two chips: sizes that users of its compiler reported, to the byte, and how a layout is chosen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import UsageError
from tilewright.hlo.cost import bitcasts, place
from tilewright.layout import preset
from tilewright.targets import target
from tilewright.targets.chips import parse_target

CHIPS = ("tenstorrent-wormhole", "tenstorrent-blackhole")
BYTES = {"f32": 4, "bf16": 2, "s32": 4, "u8": 1}

#: What the allocator was asked for: tt-xla 5965, 4252 and 6048, tt-mlir 9227, tt-xla 4761.
IN_TILES = [
    ("f32", (2, 4480, 5, 64, 1, 2), 11_744_051_200),
    ("bf16", (1, 512, 8, 3, 60, 2, 106, 2), 12_079_595_520),
    ("bf16", (1, 256, 17, 1, 120, 2, 212, 2), 14_973_665_280),
    ("f32", (6_935_360,), 887_726_080),
    ("f32", (1, 4096, 5, 64, 1, 2), 5_368_709_120),
]


@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize(("dtype", "shape", "reported"), IN_TILES)
def test_tiles_take_the_bytes_that_users_saw(name, dtype, shape, reported):
    assert place(shape, dtype, target(name)).size_bytes == reported
    assert place(shape, dtype, target(name)) == preset("tenstorrent", shape, dtype)


def test_a_flattened_vector_is_padded_thirty_two_times():
    layout = place((6_935_360,), "f32", target("tenstorrent-wormhole"))
    assert (layout.data_bytes, layout.size_bytes) == (27_741_440, 32 * 27_741_440)


def test_rows_take_the_bytes_that_users_saw():
    thin = (1, 128, 17, 1, 240, 2, 424, 2)
    assert place(thin, "bf16", target("tenstorrent-blackhole:row_major")).size_bytes == 28_343_009_280
    assert place(thin, "bf16", target("tenstorrent-wormhole:row_major")).size_bytes == 28_343_009_280 // 2


@given(st.lists(st.integers(1, 70), max_size=4), st.sampled_from(sorted(BYTES)), st.sampled_from(CHIPS), st.booleans())
def test_sizes_by_hand(shape, dtype, name, rows):
    """Both last dims to whole tiles, or every row to whole bursts; a scalar and a vector are one row."""
    *outer, height, width = (1, 1, *shape)
    count = 1
    for size in outer:
        count *= size
    burst = {"tenstorrent-wormhole": 32, "tenstorrent-blackhole": 64}[name]
    layout = place(tuple(shape), dtype, target(f"{name}:{'row_major' if rows else 'tile'}"))
    if rows:
        assert layout.size_bytes == count * height * (-(-width * BYTES[dtype] // burst) * burst)
    else:
        assert layout.size_bytes == count * -(-height // 32) * -(-width // 32) * 1024 * BYTES[dtype]


@pytest.mark.parametrize(
    ("before", "after", "free"),
    [
        ((8, 4, 32, 64), (32, 32, 64), True),
        ((4, 64, 96), (256, 96), True),
        ((4, 40, 96), (160, 96), False),
        ((64, 64), (4096,), False),
        ((64, 64), (1, 64, 64), True),
    ],
)
def test_which_reshapes_are_views(before, after, free):
    chip = target("tenstorrent-wormhole")
    assert bitcasts(place(before, "bf16", chip), place(after, "bf16", chip), None) is free


@pytest.mark.parametrize("name", CHIPS)
def test_types_that_the_chip_has_not(name):
    stored = {"pred": "bf16", "s64": "s32", "u64": "u32", "f64": "f32", "bf16": "bf16"}
    assert {dtype: place((4, 8), dtype, target(name)).dtype for dtype in stored} == stored
    assert place((4, 8), "s64", target("tpu-v5e")).dtype == "s64"


def test_a_layout_is_chosen_behind_the_name(tmp_path):
    rows = target("tenstorrent-wormhole:row_major")
    assert (rows.name, rows.layout_rule) == ("tenstorrent-wormhole:row_major", "row_major")
    assert target("tenstorrent-wormhole:tile") is target("tenstorrent-wormhole")
    for name in ("cpu:row_major", "tpu-v5e:tile"):
        with pytest.raises(UsageError, match="has no tiles"):
            target(name)
    with pytest.raises(UsageError, match="no target called 'tenstorrent-wormhole:rows'"):
        target("tenstorrent-wormhole:rows")
    own = 'name = "mine"\ntitle = "t"\nfamily = "tensix"\nlayout_rule = "{}"\nsource = "s"\n[tiles]\nrows = 16\n'
    own += 'columns = 32\nface_rows = 16\nface_columns = 16\nrow_bytes = 16\nsource = "s"\n'
    (tmp_path / "mine.toml").write_text(own.format("tile"))
    assert str(place((20, 40), "f32", target(f"{tmp_path}/mine.toml"))) == "f32[20,40]{1,0:T(16,32)(16,16)}"
    assert str(place((20, 3), "f32", target(f"{tmp_path}/mine.toml:row_major"))) == "f32[20,3]{1,0:T(4)}"


def test_a_wrong_file_is_refused():
    head = 'name = "mine"\ntitle = "t"\nfamily = "tensix"\nlayout_rule = "tile"\nsource = "s"\n'
    with pytest.raises(UsageError, match=r"needs a section \[tiles\]"):
        parse_target(head)
    with pytest.raises(UsageError, match="pred = 3 is not an element type"):
        parse_target(head.replace('"tile"', '"linear"') + '[types]\npred = 3\nsource = "s"\n')


def test_public_figures():
    wormhole, blackhole = map(target, CHIPS)
    assert (wormhole.memory("dram").bytes, blackhole.memory("dram").bytes) == (12 * 2**30, 32 * 2**30)
    assert (wormhole.grid.cores, wormhole.grid.noc_bytes_per_cycle, blackhole.grid.noc_bytes_per_cycle) == (72, 32, 64)
    for chip in (wormhole, blackhole):
        assert (chip.tiles.bfp8_b_bytes, chip.tiles.bfp4_b_bytes) == (1024 + 64, 512 + 64)
        assert not chip.compiler_normalizes
