"""Whatever holds a layout is read by the explorer: what `layout.parse` reads, CuTe's notation, an NPU's lanes."""

import json

import pytest

from tilewright.explore.worker import answer
from tilewright.layout import reshard, shard

DUMPED = '  %copy.5 = f32[2,9,200]{2,1,0:T(8,128)} copy(f32[2,9,200]{0,1,2} %x), metadata={op_name="jit(f)/x"}'
MESSAGE = """RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.0G of 15.48G hbm.
  1. Size: 4.00G
     Operator: op_name="jit(f)/dot"
     Shape: f32[3276,3276]{1,0:T(8,128)}
  2. Size: 2.00G
     Shape: bf16[3276,3276]{1,0:T(8,128)(2,1)}
"""
SWIZZLED = "Sw<3,4,3> o smem_ptr[16b](unset) o (8,64):(64,1)"
READ = {
    DUMPED: "f32[2,9,200]{2,1,0:T(8,128)}",
    "I0101 12:00:00.0 1 x.cc:12] allocated f32[8,128]{1,0:T(8,128)}": "f32[8,128]{1,0:T(8,128)}",
    "memref<20x300xbf16, #tpu.tiled<(8,128)(2,1),[3,1]>>": "bf16[20,300]{1,0:T(8,128)(2,1)}",
    "float32[8,128]": "f32[8,128]{1,0}",
    "ShapeDtypeStruct(shape=(8, 128), dtype=float32)": "f32[8,128]{1,0}",
    "tensor<8x128xf32>": "f32[8,128]{1,0}",
    "shape = 'f32[8,128]{1,0}'": "f32[8,128]{1,0}",
    MESSAGE: "(f32[3276,3276]{1,0:T(8,128)}, bf16[3276,3276]{1,0:T(8,128)(2,1)})",
    "(4,(2,3)):(2,(1,8))": "f32[4,6] as (4,(2,3)):(2,(1,8))",
    SWIZZLED: f"f16[8,64] as {SWIZZLED}",
    "tilewright layout cute '(4,8):(8,1)' --dtype bf16": "bf16[4,8] as (4,8):(8,1)",
    "lanes f16[2,10,4,5] --chip mars3 --start=2": "f16[2,10,4,5] over 8 NPUs (aligned, start 2)",
    "preset ascend_nz f16[100,64]": "f16[100,64]{1,0:T(112,16)}",
    "onednn nChw16c f32[2,40,3,5]": None,
    "f32[4,8] --mesh d=2,m=2 --shard d,m": 'f32[4,8]{1,0} over #sdy.sharding<mesh<["d"=2, "m"=2]>, [{"d"}, {"m"}]>',
    "tilewright layout explain 'f32[4]' --shard '{devices=[2]<=[2]}'": "f32[4]{0} over {devices=[2]<=[2]}",
    "layout draw f32[4]": "f32[4]{0}",
}
REFUSED = {
    "{1,0:T(8,128)}": "f32[20,300]{1,0:T(8,128)}",
    "(4,8):(8,1": "column 11",
    "lanes f16[2,10,4,5] --chip /etc/passwd": "no target called",
    "lanes f16[2,10,4,5] --start x": "no whole number",
    "lanes f16[2,10,4,5] --chip": "lanes",
    "lanes 'f16[2]": "quotation mark",
    "preset ascend_nz": "takes 2 words",
    "f32[4] --mesh d=3 --shard e": "no axis 'e'",
    "(f32[2], f32[2]) --mesh d=2 --shard d": "takes 1 word",
    "onednn nChw16c (f32[2],f32[3])": "a tuple",
    "HloModule m\nENTRY e { ROOT %p = f32[2]{0} parameter(0) }": "tilewright report",
}


def asked(question, **values):
    return json.loads(answer({"ask": question, "values": values, "path": None}))


@pytest.mark.parametrize("text", READ)
def test_it_is_read_drawn_and_derived(text):
    found = asked("layout", text=text)["value"]
    if READ[text] is not None:
        assert found["layout"] == READ[text]
    assert found["scene"]["panels"]
    assert asked("layout", text=found["again"])["value"]["scene"]["title"] == found["scene"]["title"]
    place = [1] * len(found["axes"])
    assert asked("place", text=text, place=place)["value"]["place"] == place
    index = next(index for index in found["scene"]["panels"][0]["indices"] if min(index) >= 0)
    assert asked("element", text=text, index=index)["value"]["index"] == index
    assert asked("layout", text=text, around=index)["value"]["scene"]["panels"]


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_read_says_why(text):
    said = asked("layout", text=text)["error"]["what"]
    assert REFUSED[text] in said
    assert "fault" not in said


def test_two_notations_are_compared():
    found = asked("compare", a=SWIZZLED, b="f16[8,64]{1,0}")["value"]
    assert found["verdict"].startswith("not a bitcast")
    assert found["moves"]


def test_of_a_mesh_every_device_and_the_shard_of_one():
    """Ten rows over four devices and copies over two: cells say device, offset and index of the whole array."""
    text, mesh = "f32[10,5]{1,0:T(2,2)} --mesh d=4,m=2 --shard d,-", {"d": 4, "m": 2}
    whole = shard("f32[10,5]{1,0:T(2,2)}", mesh, "d,-")
    for device in range(8):
        scene = asked("layout", text=text, device=str(device))["value"]["scene"]
        devices, panel = scene["panels"][:2]
        assert (scene["opened"], devices["labels"]) == (device, [str(k) for k in range(8)])
        assert devices["tips"][6] == "device 6: 9:10,0:5"
        held = {tuple(index) for index, out in zip(panel["indices"], panel["padding"]) if not out}
        rows, columns = whole.box(device)
        assert held == {(i, j) for i in range(rows.start, rows.stop) for j in range(columns.start, columns.stop)}
        for index, place, out in zip(panel["indices"], panel["places"], panel["padding"], strict=True):
            assert out or tuple(place) in whole.where(index)
    assert asked("layout", text=text, around="9,1")["value"]["scene"]["opened"] == 6
    assert "outside the mesh" in asked("layout", text=text, device="8")["error"]["what"]
    assert "nothing travels" in asked("compare", a=text, b=text)["value"]["verdict"]
    assert "one of them is over a mesh" in asked("compare", a=text, b="f32[10,5]")["error"]["what"]


def test_two_shardings_are_compared_and_what_a_device_lacks_is_marked():
    """Rows over ``d`` to columns over ``m``, the columns padded: what is marked is in one box and not in the other."""
    texts = [f"f32[8,5]{{1,0}} --mesh d=4,m=2 --shard {spec}" for spec in ("d,-", "-,m")]
    a, b = (shard("f32[8,5]{1,0}", {"d": 4, "m": 2}, spec) for spec in ("d,-", "-,m"))
    for device in range(8):
        found = asked("compare", a=texts[0], b=texts[1], device=str(device))["value"]
        for side, own, other in zip(found["sides"], (a, b), (b, a), strict=True):
            assert side["scene"]["opened"] == device
            here, there = (
                {(i, j) for i in range(rows.start, rows.stop) for j in range(columns.start, columns.stop)}
                for rows, columns in (own.box(device), other.box(device))
            )
            panel = side["scene"]["panels"][1]
            cells = list(zip(map(tuple, panel["indices"]), panel["moved"], map(tuple, panel["others"]), strict=True))
            assert {index for index, moved, _ in cells if moved} == here - there
            assert {other for _, moved, other in cells if not moved and min(other) >= 0} == here & there
    assert found["steps"] == [str(step) for step in reshard(a, b).steps]
    assert found["verdict"] == f"the slowest device receives {reshard(a, b).bytes_per_device} B"
