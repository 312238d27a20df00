"""Where JAX puts a mesh on a torus: held to ``mesh_utils.create_device_mesh`` with devices that nobody has."""

from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import UsageError
from tilewright.hlo import load
from tilewright.hlo.program import Operation
from tilewright.hlo.semantics.collectives import slice_of
from tilewright.hlo.semantics.tiles import Tiles
from tilewright.hlo.timing.chip import chip_of
from tilewright.hlo.timing.links import Torus
from tilewright.layout import parse
from tilewright.layout.meshes.torus import Extent, device_places, fullest, squarest
from tilewright.targets import target


@dataclass(frozen=True)
class Device:
    id: int
    coords: tuple[int, ...]
    core_on_chip: int
    device_kind: str
    platform: str = "tpu"


def devices(kind: str, torus: tuple[int, ...], cores: int) -> list[Device]:
    """In the order of ``jax.devices()`` of small slices: z, y, x, core."""
    whole = (*torus, 1)[:3]
    places = [place[::-1] for place in product(*map(range, whole[::-1]))]
    return [Device(k, place, core, kind) for k, (place, core) in enumerate(product(places, range(cores)))]


def meshes(size: int) -> list[tuple[int, ...]]:
    twos = [n for n in range(1, size + 1) if size % n == 0]
    return [(a, b, size // a // b) for a in twos for b in twos if size % (a * b) == 0] + [(a, size // a) for a in twos]


SLICES: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "tpu-v5e": ("TPU v5 lite", [(2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)]),
    "tpu-v6e": ("TPU v6 lite", [(2, 4), (4, 4), (16, 16)]),
    "tpu-v5p": ("TPU v5", [(2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (8, 8, 8), (4, 4, 12)]),
    "tpu-7x": ("TPU7x", [(2, 2, 1), (2, 2, 2), (2, 2, 4), (4, 4, 4), (4, 4, 8)]),
}


@pytest.mark.parametrize(("name", "torus"), [(name, t) for name, (_, several) in SLICES.items() for t in several])
def test_devices_stand_where_jax_puts_them(name, torus):
    utils = pytest.importorskip("jax.experimental.mesh_utils")
    cores = target(name).devices_per_chip
    orders: Any = target(name).links.small_orders
    have = devices(SLICES[name][0], torus, cores)
    for mesh in meshes(prod(torus) * cores):
        theirs = utils.create_device_mesh(mesh, have, allow_split_physical_axes=True)
        ours = device_places(mesh, torus, cores, orders)
        assert ours.tolist() == [list(d.coords[: len(torus)]) for d in theirs.reshape(-1)], mesh


def test_squarest_slices_and_meshes_that_do_not_fit():
    assert [squarest(n, 3) for n in (4, 8, 16, 64, 512)] == [(1, 2, 2), (2, 2, 2), (2, 2, 4), (4, 4, 4), (8, 8, 8)]
    with pytest.raises(UsageError, match="are no mesh"):
        device_places((4, 4), (2, 4))


def slice_for(name: str, count: int, mesh: str, topology: str = ""):
    program = load("HloModule m\nENTRY e { ROOT p = f32[4] parameter(0) }")
    said = {"num_partitions": str(count), "mesh": mesh, "topology": topology}
    object.__setattr__(program, "attributes", said)
    return slice_of(program, target(name))


def along(mesh: tuple[int, ...], axis: int) -> tuple[tuple[int, ...], ...]:
    numbers = np.moveaxis(np.arange(prod(mesh)).reshape(mesh), axis, -1).reshape(-1, mesh[axis])
    return tuple(map(tuple, numbers.tolist()))


LYING = [
    ("tpu-v5e", (16, 16), 0, (Extent(16, True),)),  # a ring: a dim of 16
    ("tpu-v5e", (8, 8), 1, (Extent(8),)),  # a line
    ("tpu-v5e", (256,), 0, (Extent(16, True), Extent(16, True))),
    ("tpu-v5p", (64, 8), 0, (Extent(8, True), Extent(8, True))),
    ("tpu-v5p", (4, 4), 0, (Extent(4),)),  # no ring: 2 x 2 x 4 is no whole cube
    ("tpu-v5p", (4, 4), 1, (Extent(2), Extent(2))),
    ("tpu-v5e", (4, 8, 8), 1, (Extent(2, True, 8, 8), Extent(4))),  # both ways round
]


@pytest.mark.parametrize(("name", "mesh", "axis", "extents"), LYING)
def test_groups_along_an_axis_lie_along_dims_of_the_torus(name, mesh, axis, extents):
    on = slice_for(name, prod(mesh), ",".join(map(str, mesh)))
    assert on.extents(along(mesh, axis)) == extents


def test_links_between_chips_the_short_way_round():
    on = slice_for("tpu-v5e", 128, "8,16")
    assert (on.torus, on.rings) == ((8, 16), (False, True))
    assert len(on.way((0, 0, 1), (0, 7, 15))) == 7 + 2
    assert on.way((0, 0, 15), (0, 0, 0)) == [((0, 0, 15), 2, 1)]
    assert on.routed([((0, 0, 0), (0, 3, 0)), ((0, 1, 0), (0, 2, 0))]) == (3, 2)


def test_more_chips_than_a_slice_has_are_several():
    assert {chip[0] for chip in slice_for("tpu-v5e", 512, "2,16,16").chips} == {0, 1}
    assert {chip[0] for chip in slice_for("tpu-v5e", 32, "4,8", "2*4x4").chips} == {0, 1}
    assert {chip[0] for chip in slice_for("tpu-v5p", 512, "2,16,16").chips} == {0}


@pytest.mark.parametrize(
    ("name", "mesh", "axis", "extents"),
    [pytest.param(*case, marks=pytest.mark.nightly) if prod(case[1]) > 256 else case for case in LYING],
)
def test_links_carry_what_the_time_is_of(name, mesh, axis, extents):
    """The fullest link's bytes over a link's rate are the time of the exchange but for latency, whatever the dims.

    By day on at most 256 chips.
    """
    on, groups = slice_for(name, prod(mesh), ",".join(map(str, mesh))), along(mesh, axis)
    links = chip_of(target(name)).torus
    one, n = Tiles.of(parse("f32[1024,1024]{1,0:T(8,128)}")), mesh[axis]
    for kind in ("all-gather", "reduce-scatter", "all-reduce", "all-to-all"):
        loads = on.loads(kind, groups, one.megabytes)
        op = Operation("e", kind, "", attributes={"replica_groups": "{" + ",".join(map(braces, groups)) + "}"})
        bare = Torus(replace(links.links, hop_ns=0, start_ns=0, gather_percent=100, reduce_percent=100), links.devices)
        us, _ = bare.exchange_us(op, [one], [one], on=on)
        assert max(loads.values()) / links.link == pytest.approx(us), kind
    gathered = on.loads("all-gather", groups, 1.0)
    if max(each.hops for each in extents) == 1:  # every device gets what it lacks, over as many links
        assert sum(gathered.values()) == pytest.approx(prod(mesh) * (n - 1) / n)
    assert str(on.to_svg(gathered)).startswith("<svg")
    permute = tuple((group[0], group[1]) for group in groups)
    assert set(on.loads("collective-permute", permute, 5.0).values()) == {5.0}


def braces(group: tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, group)) + "}"


@given(st.integers(2, 40), st.integers(2, 40), st.booleans(), st.booleans())
def test_of_two_dims_no_order_of_the_parts_is_faster(a, b, ring_a, ring_b):
    """Parts of a gather that go along one dim first, the others along the other: the best share of each by trial."""
    both = fullest("all-gather", [Extent(a, ring_a), Extent(b, ring_b)])

    def worst(first):  # dims carry what they pass on: whole rows where they come second
        along_a, along_b = (a - 1) * (first + (1 - first) * b), (b - 1) * (first * a + 1 - first)
        return max(along_a / (1 + ring_a), along_b / (1 + ring_b)) / (a * b)

    assert min(worst(k / 1000) for k in range(1001)) == pytest.approx(max(both), rel=2e-2)
    assert min(worst(k / 1000) for k in range(1001)) >= max(both) * (1 - 1e-9)
    assert sum(one * (1 + ring) for one, ring in zip(both, (ring_a, ring_b))) == pytest.approx(1 - 1 / (a * b))
