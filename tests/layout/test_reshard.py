"""From one sharding to another: right on numpy, near the least that any method needs, fewer bytes than a gather."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.conftest import tries
from tilewright.errors import TilewrightError
from tilewright.layout import Mesh, reshard, shard

MESH = Mesh({"a": 2, "b": 2, "c": 4})


def ways(before, after, shape="bf16[64,512,1024]", mesh=MESH):
    return reshard(shard(shape, mesh, before), shard(shape, mesh, after))


@pytest.mark.parametrize(
    ("before", "after", "ops", "bytes_"),
    [
        ("-,-", "a,-", ["slice"], 0),
        ("a,-", "-,-", ["all-gather"], 1 << 10),
        ("a,-", "-,a", ["all-to-all"], 1 << 9),
        ("a,-", "b,-", ["collective-permute"], 1 << 10),
        ("a,b", "b,a", ["collective-permute"], 1 << 9),
        ("a+b,-", "-,-", ["all-gather"], 3 << 9),
        ("a,-", "a,-", [], 0),
        ("a,-", "-,b", ["slice", "all-gather"], 1 << 9),
    ],
)
def test_by_hand(before, after, ops, bytes_):
    """Of 32 x 32 bytes, over a=2, b=2, c=4."""
    found = ways(before, after, "s8[32,64]{1,0}")
    assert ([step.op for step in found.steps], found.bytes_per_device) == (ops, bytes_)


def test_where_a_compiler_gathers_the_whole_array():
    """One of the given pairs: XLA gathers 64 MiB and slices; a permute and a gather of a part do."""
    found = ways("-,b+c,-", "b,a,-")
    assert found.bytes_per_device <= 16 << 20
    assert found.bytes_per_device <= 2 * found.least_bytes


def test_groups_and_pairs_of_steps():
    assert ways("a,-", "-,-", "s8[4,4]", {"d": 2, "a": 2}).steps[0].groups == ((0, 1), (2, 3))
    assert ways("d", "a", "s8[4]", {"d": 2, "a": 2}).steps[0].groups == ((1, 2), (2, 1))


def random_pair(rng: random.Random):
    mesh = Mesh({"a": rng.choice([2, 4]), "b": rng.choice([2, 3]), "c": rng.choice([2, 4])})
    rank = rng.randint(1, 4)
    shape = [rng.choice([8, 16, 24, 48]) if rng.random() < 0.8 else rng.randint(1, 20) for _ in range(rank)]

    def entries():
        dims = [[] for _ in range(rank)]
        for axis in rng.sample("abc", rng.randint(0, 3)):
            rng.choice(dims).append(axis)
        return [tuple(dim) for dim in dims]

    text = f"s32[{','.join(map(str, shape))}]"
    return shard(text, mesh, entries()), shard(text, mesh, entries())


def test_random_pairs():
    """By day some dozens, at night 1,000 and more: the values, the least, and how far from it."""
    rng, far, count = random.Random(7), 0, tries(60)
    for _ in range(count):
        a, b = random_pair(rng)
        found = reshard(a, b)
        values = np.arange(a.num_elements, dtype=np.int32).reshape(a.shape)
        moved, wanted = found.run(a.pack(values)), b.pack(values)
        assert moved.keys() == wanted.keys()
        assert all((moved[device] == wanted[device]).all() for device in wanted), (a, b)
        assert found.bytes_per_device >= found.least_bytes
        far += found.bytes_per_device > 2 * found.least_bytes
    assert far <= count // 20


def test_lists_of_devices_and_a_single_device():
    values = np.arange(16, dtype=np.int32).reshape(4, 4)
    texts = ("{devices=[2,2]3,0,1,2}", "{devices=[2,2]<=[4]}", "{devices=[4,1]0,3,2,1}")
    layouts = [shard("s32[4,4]", text) for text in texts]
    layouts.append(shard("s32[4,4]", layouts[1].mesh, "{maximal device=2}"))
    for a in layouts:
        for b in layouts:
            if a.mesh.ids == b.mesh.ids:
                moved = reshard(a, b).run(a.pack(values))
                assert all((moved[device] == part).all() for device, part in b.pack(values).items())


def test_what_cannot_be_moved():
    a = shard("s32[4,4]", {"d": 2}, "d,-")
    for b in (shard("s32[4]", {"d": 2}, "d"), shard("s32[4,4]", {"d": 4}, "d,-"), "d,-"):
        with pytest.raises(TilewrightError):
            reshard(a, b)
    with pytest.raises(TilewrightError, match="other values on every device"):
        reshard(a, shard("s32[4,4]", "{devices=[1,1,2]<=[2] last_tile_dims={manual}}"))
    with pytest.raises(TilewrightError, match="no shard of device 1"):
        reshard(a, a).run({0: np.zeros((2, 4), np.int32)})
