"""Chips as data."""

from __future__ import annotations

import dataclasses

import pytest

from tilewright.errors import UsageError
from tilewright.targets import Target, target, target_names
from tilewright.targets.chips import load_target, parse_target

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


OF_JAX = {
    "tpu-v4": ("v4", 2), "tpu-v5e": ("v5e", 1), "tpu-v5p": ("v5p", 2), "tpu-v6e": ("v6e", 1), "tpu-7x": ("7x", 1),
    "tpu-8t": ("8t", 1), "tpu-8i": ("8i", 1),
}  # fmt: skip
"""Target -> jax's name of the chip, and TensorCores that run one program together."""
OTHER_SOURCES = {("tpu-v5p", "hbm a second"): 2.765 / 2.46}
"""Where the documentation of Cloud TPU says something else, which is what we state: ours over jax's."""


def test_every_tpu_is_in_jaxs_table():
    assert {name for name in target_names() if name.startswith("tpu-")} == set(OF_JAX)


@pytest.mark.parametrize("name", OF_JAX)
def test_a_device_of_a_tpu_is_what_jax_says(name):
    from jax.experimental.pallas import tpu

    version, cores = OF_JAX[name]
    if version not in {known.value for known in tpu.ChipVersion}:
        pytest.skip(f"this jax does not know {version}")
    kind = tpu.ChipVersion(version)
    said, chip = tpu.get_tpu_info_for_chip(kind, cores), target(name)
    devices = kind.num_physical_tensor_cores_per_chip // cores
    vmem, smem, hbm, units = chip.memory("vmem"), chip.memory("smem"), chip.memory("hbm"), chip.matrix
    assert chip.devices_per_chip == devices == (2 if name in ("tpu-7x", "tpu-8i") else 1)
    assert (chip.vector.sublanes, chip.vector.lanes) == (said.num_sublanes, said.num_lanes)
    assert (units.units, units.columns) == (cores * said.num_mxus, said.mxu_column_size)
    assert (vmem.bytes, smem.bytes) == (said.vmem_capacity_bytes, said.smem_capacity_bytes)
    pairs = {
        "hbm": (hbm.bytes, said.hbm_capacity_bytes),
        "hbm a second": (hbm.bytes_per_second, said.mem_bw_bytes_per_second),
        **{
            name: (getattr(units, name), getattr(said, name))
            for name in ("bf16_ops_per_second", "int8_ops_per_second", "fp8_ops_per_second", "int4_ops_per_second")
        },
    }
    if said.cmem_capacity_bytes:
        pairs["cmem"] = (chip.memory("cmem").bytes, said.cmem_capacity_bytes)
    for what, (ours, theirs) in pairs.items():
        assert ours == pytest.approx(cores * theirs * OTHER_SOURCES.get((name, what), 1.0), rel=0.005), what
    if said.sparse_core is not None:
        sparse = chip.sparse
        assert sparse.devices_per_chip == devices
        cores_and_tiles = sparse.per_chip // devices, sparse.tiles, sparse.simd_f32
        theirs = said.sparse_core
        assert cores_and_tiles == (theirs.num_cores, theirs.num_subcores, theirs.num_lanes)


def test_a_whole_chip_has_what_its_devices_have():
    chip, whole = target("tpu-7x"), target("tpu-7x").whole
    assert (chip.memory("hbm").bytes, whole.memory("hbm").bytes) == (96 << 30, 192 << 30)
    assert whole.links.bytes_per_second == 2 * chip.links.bytes_per_second
    assert whole.links.network_bytes_per_second == 100e9 / 8  # 100 Gbps
    assert whole.memory("vmem") == chip.memory("vmem")
    assert (chip.memory("vmem").scope, chip.memory("hbm").scope) == ("TensorCore", "device")
    assert target("tpu-v5p").whole is target("tpu-v5p")


@pytest.mark.parametrize("name", ["tpu-8t", "tpu-8i"])
def test_a_chip_nobody_has_measured_says_so(name):
    assert "nobody has measured" in target(name).caveat
    assert "no public compiler" in target(name).caveat


def test_devices_divide_the_sparse_cores():
    text = MINIMAL + '\n[sparse]\nper_chip = 3\ntiles = 4\nsimd_f32 = 8\nsimd_bf16 = 8\nsource = "the data sheet"\n'
    assert parse_target(text).devices_per_chip == 1
    with pytest.raises(UsageError, match="does not divide"):
        parse_target(text.replace("per_chip = 3", "per_chip = 3\ndevices_per_chip = 2"))


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
        ('name = "mine"', "", "name missing"),
        ("npu_num = 8", "", "npu_num missing"),
        ("npu_num = 8", "npu_num = -8", "expected a whole number of at least 0"),
        ("npu_num = 8", "npu_num = true", "expected a whole number, got true or false"),
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
