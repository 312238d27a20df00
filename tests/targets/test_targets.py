"""Chips as data."""

from __future__ import annotations

import dataclasses

import pytest

from tilewright.errors import UsageError
from tilewright.targets import Target, load_target, parse_target, target, target_names

MINIMAL = """
name = "mine"
title = "My chip"
family = "npu"
layout_rule = "lanes"
source = "the data sheet"

[lanes]
npu_num = 8
eu_bytes = 16
local_bytes = 65536
banks = 16
source = "the data sheet"
"""


def test_the_promised_chips_are_there():
    promised = ["tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-7x", "vector8x128", "cpu", "bm1684x", "simt"]
    assert set(promised) <= set(target_names())


@pytest.mark.parametrize("name", target_names())
def test_every_constant_has_a_source(name):
    chip = target(name)
    assert chip.name == name
    assert chip.sources["target"]
    for memory in chip.memories:
        assert chip.sources[f"memory.{memory.name}"]
    for field in dataclasses.fields(chip):
        if dataclasses.is_dataclass(getattr(chip, field.name)):
            assert chip.sources[field.name]


def test_the_guides_table_of_sparse_cores():
    guide = {"tpu-v4": (4, 16, 8, 8, 32), "tpu-v5p": (4, 16, 8, 8, 96), "tpu-v6e": (2, 16, 8, 16, 32)}
    for name, (cores, tiles, f32, bf16, gib) in guide.items():
        chip = target(name)
        sparse = chip.sparse
        assert (sparse.per_chip, sparse.tiles, sparse.simd_f32, sparse.simd_bf16) == (cores, tiles, f32, bf16)
        assert chip.memory("hbm").bytes == gib * 2**30


def test_lane_chips():
    chip = target("bm1684x").lanes
    assert (chip.npu_num, chip.eu_bytes, chip.local_bytes, chip.banks, chip.bank_bytes) == (64, 64, 262144, 16, 16384)


def test_a_vector_register_of_a_tpu():
    assert target("tpu-v5e").vector.register_bytes == 4096


def test_a_chip_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MINIMAL)
    assert load_target(path) == target(str(path)) == parse_target(MINIMAL)
    assert isinstance(target(str(path)), Target)
    assert target(target("cpu")) is target("cpu")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "mine"', "", "missing name"),
        ("npu_num = 8", "", "missing npu_num"),
        ("npu_num = 8", "npu_num = -8", "not a count"),
        ("npu_num = 8", "npu_num = true", "not a count"),
        ("npu_num = 8", "npus = 8", "unknown key 'npus'"),
        ("[lanes]", "[lines]", "unknown section 'lines'"),
        ('layout_rule = "lanes"', 'layout_rule = "none"', "layout_rule"),
        ('banks = 16\nsource = "the data sheet"', "banks = 16", "without a source"),
        ('"lanes"\nsource = "the data sheet"', '"lanes"', "without a source"),
        ("[lanes]", "[lanes", "not TOML"),
    ],
)
def test_a_wrong_file_is_refused(old, new, message):
    assert old in MINIMAL
    with pytest.raises(UsageError, match=message):
        parse_target(MINIMAL.replace(old, new), "mine.toml")


def test_unknown_names_suggest_near_ones(tmp_path):
    with pytest.raises(UsageError, match="did you mean tpu-v5p") as caught:
        target("tpu-v5q")
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match="known targets"):
        target("zzz")
    with pytest.raises(UsageError, match="cannot read"):
        target(str(tmp_path / "absent.toml"))
