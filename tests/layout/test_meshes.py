"""Arrays over meshes: where every element lies, the texts of shardings and groups, and what JAX says beside us."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import suppress
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import ROOT, by_night, tries
from tests.nightly.texts import shardings
from tilewright.errors import ParseError, TilewrightError, UsageError
from tilewright.layout import Mesh, read_groups, read_sharding, shard, summary
from tilewright.layout.draw.terminal import terminal_drawing
from tilewright.layout.explain import explain_place
from tilewright.layout.meshes.mesh import Part
from tilewright.layout.meshes.text import sharding_of

WEIGHTS = "bf16[8192,2048]{1,0:T(8,128)(2,1)}"
MESH = Mesh({"d": 4, "m": 4})
SDY = 'sdy.mesh @mesh = <["d"=4, "m"=4]>\n'


def test_where_an_element_lies_by_hand():
    """Row 5000 is row 904 of the third of four shards; there tile (113, 0), place (0, 100), two rows to a word."""
    layout = shard(WEIGHTS, MESH, [("d",), ()])
    offset = 113 * 16 * 1024 + 100 * 2
    assert layout.where((5000, 100)) == layout.where(5000, 100) == [(device, offset) for device in (8, 9, 10, 11)]
    assert [layout.index(device, offset) for device in (8, 11, 12)] == [(5000, 100), (5000, 100), (7048, 100)]
    assert (layout.shard_shape, layout.replicas, layout.bytes_per_device) == ((2048, 2048), 4, 2048 * 2048 * 2)
    assert layout.address(5000, 100) == {"device": 8, "offset": offset}


def test_an_uneven_dim_is_padded_to_whole_shards():
    layout = shard("f32[5]", {"d": 4}, ["d"])  # 2 2 1 and none
    assert layout.shard_shape == (2,)
    assert [layout.index(device, place) for device, place in product(range(4), range(2))] == [
        *[(0,), (1,), (2,), (3,)],
        *[(4,), None, None, None],
    ]
    assert layout.pack(np.arange(5, dtype=np.float32))[3].tolist() == [0, 0]
    assert "d0 = 5 would be outside 0..4" in explain_place(layout, 2, 1)


def test_a_tile_pads_every_shard_alone():
    assert shard("f32[16,256]{1,0:T(8,128)}", {"d": 4}, ["d"]).bytes_per_device == 8 * 256 * 4
    facts = summary(shard("f32[16,256]{1,0:T(8,128)}", {"d": 4, "m": 2}, ["d"]))
    assert (facts["size_bytes"], facts["data_bytes"], facts["padding_ratio"]) == (8 * 8192, 8 * 4096, 2.0)


@given(data=st.data())
def test_every_place_goes_back(data):
    """Every element's places give it back, and what is nobody's place is padding."""
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3))
    mesh = Mesh({f"x{k}": size for k, size in enumerate(sizes)})
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    entries = [[] for _ in shape]
    for axis in data.draw(st.permutations(mesh.names)):
        at = data.draw(st.integers(0, len(shape)))
        if at < len(shape):
            entries[at].append(axis)
    tiles = data.draw(st.sampled_from(["", ":T(2,2)", ":T(4,2)(2,1)"]))
    order = ",".join(map(str, reversed(range(len(shape)))))
    layout = shard(f"s32[{','.join(map(str, shape))}]{{{order}{tiles}}}", mesh, [tuple(entry) for entry in entries])
    if data.draw(st.booleans()):  # the same by the list of its devices, in another order
        numbers = data.draw(st.permutations(range(mesh.size)))
        text = f"{{devices=[{mesh.size}{',1' * (len(shape) - 1)}]{','.join(map(str, numbers))}}}"
        layout = shard(layout.whole, text if mesh.size > 1 else layout.sharding)
    places = dict[tuple[int, int], tuple[int, ...]]()
    for index in np.ndindex(*shape):
        homes = layout.where(index)
        assert len(homes) == layout.replicas
        assert homes == sorted(set(homes))
        assert homes[0][1] == layout.address(*index)["offset"]
        places |= dict.fromkeys(homes, index)
    assert len(places) == layout.replicas * layout.num_elements
    every = np.array(list(np.ndindex(layout.mesh.size, layout.shard_layout.num_slots)))
    assert [layout.index(*map(int, at)) for at in every] == [places.get((int(d), int(o))) for d, o in every]
    back = [tuple(row) if row[0] >= 0 else None for row in layout.indices(every).tolist()]
    assert back == [places.get((int(d), int(o))) for d, o in every]
    values = np.arange(layout.num_elements, dtype=np.int32).reshape(shape)
    for form in (False, True):
        assert (layout.unpack(layout.pack(values, in_memory=form)) == values).all()
    memory = layout.pack(values, fill=-1, in_memory=True)
    assert all(memory[device][offset] == values[index] for (device, offset), index in places.items())


TEXTS = {
    '#sdy.sharding<mesh<["d"=4, "m"=4]>, [{"d"}, {"m", ?}, {}], replicated={"x"}>': None,
    '#sdy.sharding<mesh<["d"=4, "x"=4]>, [{"d"}, {?}p1, {}], replicated={"x":(1)2}>': "[4,1,1,4]<=[16]",
    '#sdy.sharding<mesh<["d"=4, "x"=4]>, [{"x":(1)2, "d"}, {}], unreduced={"x":(2)2}>': "[8,1,2]<=[4,2,2]T(1,0,2)",
    "#sdy.sharding<mesh<[], device_ids=[3]>, []>": "{maximal device=3}",
    "{devices=[2,1,4]<=[8] last_tile_dim_replicate}": "[2,1,4]<=[8]",
    "{devices=[2,4]<=[4,2]T(1,0)}": "[2,4]<=[4,2]T(1,0)",
    "{devices=[2,2]3,0,2,1}": "[2,2]3,0,2,1",
    "NamedSharding(mesh=Mesh('a': 2, 'b': 4), spec=P(('b', 'a'), None, UNCONSTRAINED))": "[8,1,1]<=[2,4]T(1,0)",
    "NamedSharding(mesh=Mesh('a': 2, 'b': 4), spec=P('a', unreduced={'b'}))": "{devices=[2,4]<=[8] last_tile_dims",
}


@pytest.mark.parametrize("text", [text for text, gspmd in TEXTS.items() if gspmd])
def test_a_text_is_printed_as_it_was_read(text):
    sharding = read_sharding(text)
    assert str(sharding) == text
    assert TEXTS[text] in sharding.gspmd
    assert read_sharding(sharding.gspmd).gspmd == sharding.gspmd


@pytest.mark.parametrize(
    ("text", "gspmd"),
    [
        (SDY + '#sdy.sharding<@mesh, [{"d"}, {}]>', "{devices=[4,1,4]<=[16] last_tile_dim_replicate}"),
        (SDY + '%0 = sdy.sharding_constraint %x <@mesh, [{}, {"d"}]> : tensor<8x4xf32>', "[1,4,4]<=[16]"),
        ("sharding={devices=[2,2]0,1,2,3 metadata={op_name=\"a}b\"}}", "{devices=[2,2]<=[4]}"),
        ("{devices=[2,2]<=[4] shard_as 3}", "{devices=[2,2]<=[4]}"),
    ],
)  # fmt: skip
def test_what_stands_around_a_sharding(text, gspmd):
    assert gspmd in read_sharding(text).gspmd


def test_several_shardings_in_one_text():
    line = SDY + (
        '%1 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"d"}]>] out_shardings=[<@mesh, [{"m"}]>] '
        'manual_axes={"d"} (%b: tensor<2xf32>) {'
    )
    assert [str(one.dims[0][0]) for one in read_sharding(line)] == ['"d"', '"m"']
    assert read_sharding("{{replicated}, {{manual}}, {}}")[1][0].kind == "manual"
    values = SDY + '#sdy.sharding_per_value<[<@mesh, [{"d"}]>, <@mesh, []>]>'
    assert [one.count(0) for one in read_sharding(values)] == [4, 1]


@pytest.mark.parametrize(
    ("text", "column", "what"),
    [
        ("{devices=[2,2]<=[4] last_tile}", 20, "expected '}'"),
        ("{devices=[2,2]0,1,2,2}", 1, "not the 4 devices"),
        ("{devices=[2,2]<=[9999999]}", 1, "not from 1 to"),
        ("{devices=[2,2]<=[2,2]T(0,0)}", 1, "not an order"),
        ('#sdy.sharding<@mesh, [{"d"}]>', 14, "no mesh @mesh is given"),
        ('#sdy.sharding<mesh<["d"=4]>, [{"d"}, {"d"}]>', 29, "used twice"),
        ('#sdy.sharding<mesh<["d"=4]>, [{"e"}]>', 29, "no axis 'e'"),
        ("P('d', None)", 0, "needs a mesh"),
        ("{maximal device=}", 1, "expected replicated, manual"),
        ("nothing", 0, "no sharding begins here"),
    ],
)
def test_a_wrong_text_is_one_error_with_its_column(text, column, what):
    with pytest.raises(ParseError, match=what) as caught:
        read_sharding(text)
    assert abs(caught.value.column - column) <= 1


def test_lists_of_devices_are_told_in_the_axes_of_a_mesh():
    mesh = Mesh({"d": 2, "m": 8})
    assert sharding_of("{devices=[8,2]<=[2,8]T(1,0)}", mesh).dims == ((Part("m"),), (Part("d"),))
    assert sharding_of("{devices=[4,4]<=[16]}", mesh).dims == ((Part("d"), Part("m", 1, 2)), (Part("m", 2, 4),))
    assert sharding_of("m+d,-", mesh).spec == (("m", "d"), None)
    assert sharding_of([("m", "d"), None], "d=2,m=8") == sharding_of("m+d,-", mesh)


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['axis_0'=2,'axis_1'=2] {}", ((0,), (1,), (2,), (3,))),
        ("mesh['axis_0'=2,'axis_1'=1,'axis_2'=2], device_ids=(0,2,1,3) {'axis_2'}", ((0, 2), (1, 3))),
        ("mesh['a'=2,'b'=4] {'a','b':(1)2}", ((0, 2, 4, 6), (1, 3, 5, 7))),
    ],
)
def test_groups_are_read_and_printed(text, groups):
    read = read_groups(text)
    assert (read.groups, str(read), read_groups(str(read))) == (groups, text, read)


def test_groups_along_a_meshs_axes():
    mesh = Mesh({"d": 2, "m": 4})
    assert read_groups("mesh['a'=2,'b'=4], device_ids=([2,4]T(0,1)) {'a'}").axes(mesh) == (Part("d"),)
    assert read_groups("{{0,1,2,3},{4,5,6,7}}").axes(mesh) == (Part("m"),)
    assert read_groups("{{0,1},{2,3},{4,5},{6,7}}").axes(mesh) == (Part("m", 2, 2),)
    assert read_groups("{{0,3},{1,2},{4,7},{5,6}}").axes(mesh) is None


def test_wrong_arguments_are_told():
    for call in (
        lambda: Mesh({"d": 0}),
        lambda: Mesh({"d": 4}, topology="3x3"),
        lambda: Mesh({"d": 2}, devices=(1, 1)),
        lambda: shard("f32[4]", {"d": 2}, [("d",), ("d",)]),
        lambda: shard("f32[4]", {"d": 2}, [("e",)]),
        lambda: shard("f32[4]", {"d": 2}, [1]),
        lambda: shard("f32[4]", "{replicated}"),
        lambda: shard("(f32[4], f32[4])", {"d": 2}, []),
        lambda: shard("f32[4]", {"d": 2}, ["d"]).starts(2),
        lambda: shard("f32[4]", {"d": 2}, ["d"]).unpack({0: np.zeros(2, np.float32)}),
        lambda: shard("f32[4]", {"d": 2}, ["d"]).pack(np.zeros(5, np.float32)),
    ):
        with pytest.raises(UsageError):
            call()


def test_a_picture_shows_the_devices_and_opens_one():
    drawn = terminal_drawing(shard("f32[4,6]", {"d": 2, "m": 2}, "d,-"), at=(3, 5)).plain
    assert all(words in drawn for words in ("2: 2:4,0:6", "device 2 opened", "[11]"))
    svg = shard("f32[4,6]", {"d": 2, "m": 2}, "m,d").to_svg()
    assert "device 3: 2:4,3:6" in svg


def test_damaged_texts_end_in_our_errors():
    rng, attack = random.Random(5), shardings()
    for _ in range(tries(1_000)):
        read = attack(rng)
        with suppress(TilewrightError):
            read()


def test_jax_on_eight_devices_says_the_same():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    eight = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    program = [sys.executable, "-m", "tests.layout.eight_devices", "2000" if by_night() else "40"]
    done = subprocess.run(program, cwd=ROOT, env=eight, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["canonical_texts", "named_shardings", "resharded"], done.stderr[-3000:]


def test_a_device_that_the_mesh_does_not_have_has_no_coordinates():
    assert MESH.coordinates(7) == {"d": 1, "m": 3}
    assert Mesh({}).coordinates(0) == {}
    for device in (-1, 16):
        with pytest.raises(UsageError, match=f"device {device} is outside the mesh, which has 16"):
            MESH.coordinates(device)
