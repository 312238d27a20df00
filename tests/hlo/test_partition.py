"""Programs on many devices: groups of every form, what a chip sends, and what one device holds once partitioned."""

import json
from collections import Counter
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import ORIGINALS, by_night
from tilewright.errors import ParseError, UnsupportedError, UsageError
from tilewright.hlo import collectives, estimate, lifetimes, load, partition, report, sharded
from tilewright.hlo.program import Operation
from tilewright.hlo.reading.sharded import places
from tilewright.hlo.semantics.collectives import groups_of, read_groups
from tilewright.layout import Mesh

AXES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(AXES, st.randoms(use_true_random=False))
def test_iota_groups_are_numpys(sizes, random):
    order = random.sample(range(len(sizes)), len(sizes))
    width = random.choice([k for k in range(1, prod(sizes) + 1) if prod(sizes) % k == 0])
    table = np.arange(prod(sizes)).reshape(sizes).transpose(order).reshape(-1, width)
    dims, turn = ",".join(map(str, sizes)), ",".join(map(str, order))
    assert read_groups(f"[{len(table)},{width}]<=[{dims}]T({turn})") == tuple(map(tuple, table.tolist()))


@given(AXES, st.randoms(use_true_random=False))
def test_groups_along_the_axes_of_a_mesh_are_numpys(sizes, random):
    taken = random.sample(range(len(sizes)), random.randint(1, len(sizes)))
    devices = random.sample(range(prod(sizes)), prod(sizes))
    rest = [k for k in range(len(sizes)) if k not in taken]
    width = prod(sizes[k] for k in taken)
    table = np.array(devices).reshape(sizes).transpose(*rest, *taken).reshape(-1, width)
    axes = ",".join(f"'a{k}'={size}" for k, size in enumerate(sizes))
    ids = ",".join(map(str, devices))
    names = ",".join(f"'a{k}'" for k in taken)
    expected = tuple(map(tuple, table.tolist()))
    assert read_groups(f"mesh[{axes}], device_ids=({ids}) {{{names}}}") == expected


GROUPS = {
    "mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}": ((0, 4), (1, 5), (2, 6), (3, 7)),
    "mesh['a'=8,'b'=1] {'a':(2)2}": ((0, 2), (1, 3), (4, 6), (5, 7)),
    "mesh['a'=4,'b'=2] {}": tuple((k,) for k in range(8)),
    "{{0,2},{1,3}}": ((0, 2), (1, 3)),
    "{}": (tuple(range(8)),),
    "": (tuple(range(8)),),
    "dense<[[0, 1, 2], [3, 4, -1]]> : tensor<2x3xi64>": ((0, 1, 2), (3, 4)),
    'dense<"0x00000000000000000300000000000000"> : tensor<1x2xi64>': ((0, 3),),
    "dense<0> : tensor<1x1xi64>": ((0,),),
    "dense<> : tensor<0x0xi64>": (tuple(range(8)),),
    "[4,3]<=[8]": (),
    "[2,4]<=[8]T(1)": (),
    "mesh['a'=4,'b'=2] {'c'}": (),
    "rings of eight": (),
}


@pytest.mark.parametrize("text", GROUPS)
def test_groups_of_every_form(text):
    assert read_groups(text, 8) == GROUPS[text]
    if GROUPS[text]:
        op = Operation("g", "all-gather", "", attributes={"replica_groups": text})
        assert groups_of(op, 8) == GROUPS[text]


EXCHANGES = """\
HloModule m, num_partitions=8, is_scheduled=true

%add (x: bf16[], y: bf16[]) -> bf16[] {
  %x = bf16[] parameter(0)
  %y = bf16[] parameter(1)
  ROOT %s = bf16[] add(%x, %y)
}

%first (p: bf16[64,128]) -> bf16[256,128] {
  %p = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %one = bf16[256,128]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=9, replica_groups=[2,4]<=[8], dimensions={0}
}

%second (q: bf16[64,128]) -> bf16[256,128] {
  %q = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %two = bf16[256,128]{1,0:T(8,128)(2,1)} all-gather(%q), channel_id=9, replica_groups=[2,4]<=[8], dimensions={0}
}

ENTRY %e (a: bf16[64,128], b: bf16[60,100]) -> bf16[256,128] {
  %a = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(0)
  %b = bf16[60,100]{1,0:T(8,128)(2,1)} parameter(1)
  %g = (bf16[64,128]{1,0:T(8,128)(2,1)}, bf16[256,128]{1,0:T(8,128)(2,1)}) all-gather-start(%a), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}
  %gd = bf16[256,128]{1,0:T(8,128)(2,1)} all-gather-done(%g)
  %r = (bf16[60,100]{1,0:T(8,128)(2,1)}, bf16[64,128]{1,0:T(8,128)(2,1)}) all-reduce(%b, %a), channel_id=2, replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add
  %p = (bf16[64,128]{1,0:T(8,128)(2,1)}, bf16[64,128]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%a), channel_id=3, source_target_pairs={{0,1},{1,0}}
  %pd = bf16[64,128]{1,0:T(8,128)(2,1)} collective-permute-done(%p)
  %stays = bf16[64,128]{1,0:T(8,128)(2,1)} collective-permute(%a), channel_id=4, source_target_pairs={{0,0},{1,1}}
  %s = bf16[16,128]{1,0:T(8,128)(2,1)} reduce-scatter(%a), channel_id=5, replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%add
  %f = bf16[256,128]{1,0:T(8,128)(2,1)} fusion(%a), kind=kLoop, calls=%first
  ROOT %h = bf16[256,128]{1,0:T(8,128)(2,1)} fusion(%a), kind=kLoop, calls=%second
}
"""  # noqa: E501


def test_what_a_chip_sends_is_padded_and_counted_once():
    """64 x 128 elements of two bytes are 16,384 bytes, and 60 x 100 take as many."""
    found = {each.name: each for each in collectives(load(EXCHANGES))}
    whole, gather = 64 * 128 * 2, 3 * 64 * 128 * 2
    sent = {"one": gather, "g": gather, "r": 2 * whole, "p": whole, "stays": 0, "s": 3 * whole // 4}
    assert {name: each.bytes for name, each in found.items()} == sent
    assert found["g"].op == "all-gather"
    assert found["p"].groups == ((0, 1), (1, 0))
    assert found["one"].groups == ((0, 1, 2, 3), (4, 5, 6, 7))


SHARDED = """\
#loc1 = loc("model.py":7:3)
#loc2 = loc("jit(f)/dot_general"(#loc1))
module @jit_f attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["d"=4, "m"=2]>
  func.func public @main(%x: tensor<1024x512xf32> {MARK_sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {"m"}]>}, %w: tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"m"}, {}]>}) -> (tensor<1024x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {"m"}]>}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<1024x512xf32>, tensor<512x512xf32>) -> tensor<1024x512xf32> loc(#loc2)
    return %0 : tensor<1024x512xf32>
  }
}
"""  # noqa: E501
GSPMD = """\
module @jit_f attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%x: tensor<64x256xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) -> (tensor<64x256xf32> {mhlo.sharding = "{replicated}"}) {
    return %x : tensor<64x256xf32>
  }
}
"""  # noqa: E501


def test_one_device_of_a_sharded_program():
    pytest.importorskip("jaxlib._hlo")
    part = partition(load(SHARDED.replace("MARK_", "")), "tpu-v5e")
    assert part.devices == 8
    assert [op.shape for op in part.program.entry.operations[:2]] == ["f32[256,256]", "f32[256,512]"]
    assert (part.arguments_bytes, part.outputs_bytes) == ((256 * 256 + 256 * 512) * 4, 256 * 256 * 4)
    assert {each.op for each in part.collectives} <= {"all-reduce", "reduce-scatter", "all-gather"}
    assert part.collectives
    assert all(each.groups == ((0, 1), (2, 3), (4, 5), (6, 7)) for each in part.collectives)
    assert {str(each.source) for each in part.collectives} == {"model.py:7"}
    assert part.step.flops == 2 * 256 * 256 * 512


def test_every_face_takes_one_device_of_a_sharded_program():
    pytest.importorskip("jaxlib._hlo")
    program = load(SHARDED.replace("MARK_", ""))
    part = partition(program, "tpu-v5e")
    assert estimate(program, "tpu-v5e").rows == part.step.rows
    assert lifetimes(program, "tpu-v5e").peak == part.peak_bytes
    found = report(program, "tpu-v5e")
    assert found.peaks[0].padded_bytes == part.peak_bytes
    assert sum("for 8 devices" in note for note in found.notes) == 1


def test_an_argument_that_is_given_away_is_one_after_partitioning_too():
    pytest.importorskip("jaxlib._hlo")
    text = SHARDED.replace("stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]", "stablehlo.negate %x")
    types = ": (tensor<1024x512xf32>, tensor<512x512xf32>) -> tensor<1024x512xf32> loc"
    text = text.replace(types, ": tensor<1024x512xf32> loc")
    kept = partition(load(text.replace("MARK_", "")), "tpu-v5e")
    for mark in ("tf.aliasing_output = 0 : i32, ", "jax.buffer_donor = true, "):
        part = partition(load(text.replace("MARK_", mark)), "tpu-v5e")
        assert part.peak_bytes == kept.peak_bytes - kept.outputs_bytes, mark


def test_gathers_over_all_devices_of_a_large_slice_are_sums():
    """As libtpu 0.0.50 compiles them: v5e 8x8 with 16 MiB and with 32, v5p 4x4x4 with 32, 4x8 with 1."""

    def text(devices, rows):
        groups = f"dense<[[{', '.join(map(str, range(devices)))}]]> : tensor<1x{devices}xi64>"
        return f"""module @m attributes {{mhlo.num_partitions = {devices} : i32, mhlo.num_replicas = 1 : i32}} {{
  func.func public @main(%0: tensor<{rows}x1024xbf16>) -> tensor<{devices * rows}x1024xbf16> {{
    %1 = "stablehlo.all_gather"(%0) {{all_gather_dim = 0 : i64, replica_groups = {groups}}}
      : (tensor<{rows}x1024xbf16>) -> tensor<{devices * rows}x1024xbf16>
    return %1 : tensor<{devices * rows}x1024xbf16>
  }}
}}"""

    def kinds(target, devices, rows):
        return [(each.op, each.bytes) for each in collectives(load(text(devices, rows)), target)]

    mb = 2**20
    assert kinds("tpu-v5e", 64, 128) == [("all-reduce", 2 * 63 * 16 * mb // 64)]
    assert kinds("tpu-v5e", 64, 256) == [("all-gather", 63 * 32 * mb // 64)]
    assert kinds("tpu-v5p", 64, 256) == [("all-reduce", 2 * 63 * 32 * mb // 64)]
    assert kinds("tpu-v5e", 32, 16) == [("all-gather", 31 * mb // 32)]
    took = [estimate(load(text(64, rows)), "tpu-v5e").device_seconds for rows in (128, 129)]
    assert took[0] > 1.5 * took[1]


def test_gspmds_shardings_and_what_had_to_be_replicated():
    pytest.importorskip("jaxlib._hlo")
    part = partition(load(GSPMD), "tpu-v5e")
    assert [(each.op, each.bytes) for each in part.collectives] == [("all-gather", 3 * 16 * 256 * 4)]
    way = "tensor<64x64x64xf32>"
    text = f"""module @jit_f attributes {{mhlo.num_partitions = 16 : i32}} {{
  sdy.mesh @mesh = <["d"=4, "m"=4]>
  func.func public @main(%x: {way} {{sdy.sharding = #sdy.sharding<@mesh, [{{"m"}}, {{}}, {{"d"}}]>}})
      -> ({way} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"d", "m"}}, {{}}]>}}) {{
    %0 = stablehlo.add %x, %x : {way} loc("jit(f)/add"("model.py":3:1))
    return %0 : {way}
  }}
}}
"""
    (lost,) = partition(load(text), "tpu-v5e").replicated
    assert (lost.op, lost.op_name, str(lost.source)) == ("add", "jit(f)/add", "model.py:3")
    assert lost.becomes == "{devices=[1,16,1]<=[16]}"


def test_a_slice_of_256_devices_has_the_threads_it_needs():
    """A virtual device has threads, more of them in newer releases, and the process has bounds."""
    pytest.importorskip("jaxlib._hlo")
    text = GSPMD.replace("[4,1]<=[4]", "[256,1]<=[256]").replace("= 4 : i32", "= 256 : i32").replace("64x", "512x")
    part = partition(load(text), "tpu-v5e")
    assert [(each.op, each.bytes) for each in part.collectives] == [("all-reduce", 2 * 255 * 2 * 256 * 4)]


def test_a_kernel_stands_in_the_program_of_one_device_whole():
    pytest.importorskip("jaxlib._hlo")
    config = r"{\22body\22: \22" + "k" * 3000 + r"\22}"
    text = f"""module @jit_f attributes {{mhlo.num_partitions = 2 : i32}} {{
  sdy.mesh @mesh = <["d"=2]>
  func.func public @main(%x: tensor<16x128xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"d"}}, {{}}]>}})
      -> (tensor<16x128xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"d"}}, {{}}]>}}) {{
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{{"d"}}, {{}}]>] out_shardings=[<@mesh, [{{"d"}}, {{}}]>] manual_axes={{"d"}} (%y: tensor<8x128xf32>) {{
      %1:2 = stablehlo.custom_call @tpu_custom_call(%y) {{backend_config = "{config}", output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [0], operand_index = 0, operand_tuple_indices = []>]}} : (tensor<8x128xf32>) -> (tensor<8x128xf32>, tensor<4xf32>)
      sdy.return %1#0 : tensor<8x128xf32>
    }} : (tensor<16x128xf32>) -> tensor<16x128xf32>
    return %0 : tensor<16x128xf32>
  }}
}}
"""  # noqa: E501
    program = partition(load(text), "tpu-v5e").program
    (call,) = (op for _, op in program.operations() if op.opcode == "custom_call")
    assert call.attributes["custom_call_target"] == '"tpu_custom_call"'
    assert call.attributes["backend_config"] == config.replace(r"\22", '"')  # as of a program for one device
    assert call.attributes["output_to_operand_aliasing"] == "{{0}: (0, {})}"
    assert call.shape == "(f32[8,128], f32[4])"
    assert config in program.text


@pytest.mark.parametrize(
    "text",
    [
        SHARDED.replace("MARK_", "").replace("@mesh, [{", "@other, [{"),
        SHARDED.replace("MARK_", "").replace('{"d"}', '{"q"}'),
        GSPMD.replace("[4,1]<=[4]", "[4,1,7]<=[4]"),
        SHARDED.replace("MARK_", "").replace("= 8 : i32", "= 900000 : i32"),
    ],
)
def test_what_cannot_be_partitioned_is_refused_and_not_taken_for_one_device(text):
    pytest.importorskip("jaxlib._hlo")
    with pytest.raises(UnsupportedError, match="devices") as caught:
        estimate(load(text), "tpu-v5e")
    assert "xla_dump_to" in caught.value.how


CHIPS = {"tpu-v5e-4x4": "tpu-v5e", "tpu-v5e-8x8": "tpu-v5e", "tpu-v6e-2x4": "tpu-v6e", "tpu-v5p-2x2x4": "tpu-v5p"}


@pytest.mark.long
@pytest.mark.originals
def test_slices_hold_and_exchange_what_the_tpus_compiler_says():
    """Bytes of arguments in 90 % and kinds and counts of exchanges in 60 % of the programs; dumps' exchanges in all.

    By day of every fifth program.
    """
    rows = list(map(json.loads, (ORIGINALS / "mesh" / "truth.jsonl").read_text().splitlines()))
    rows = rows if by_night() else rows[::5]
    exact = alike = 0
    for row in rows:
        name = f"{row['program']}.{row['chip']}"
        told = Counter(each["op"] for each in row["collectives"])
        dump = collectives(load(ORIGINALS / "mesh" / "dumps" / f"{name}.after.hlo.gz"))
        assert Counter(each.op for each in dump) == told, name
        assert all(each.groups for each in dump), name
        part = partition(load(ORIGINALS / "mesh" / "dumps" / f"{name}.stablehlo.mlir.gz"), CHIPS[row["chip"]])
        exact += part.arguments_bytes == row["arguments"]
        alike += Counter(each.op for each in part.collectives) == told
    print(f"of {len(rows)}: arguments exact in {exact}, exchanges alike in {alike}")
    assert exact >= 0.9 * len(rows)
    assert alike >= 0.6 * len(rows)


PLAIN = """\
#loc1 = loc("params['w']")
#loc2 = loc("model.py":4:10)
#loc3 = loc("jit(f)/dot_general"(#loc2))
module @jit_f attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<512x512xf32> {tf.aliasing_output = 0 : i32, a.b = "{,}->"} loc(#loc1), %arg1: tensor<1024x512xf32> loc("x"), %arg2: tensor<f32>) -> (tensor<512x512xf32>, tensor<1024x512xf32> {jax.result_info = "result['y']"}) {
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0] : (tensor<1024x512xf32>, tensor<512x512xf32>) -> tensor<1024x512xf32> loc(#loc3)
    return %arg0, %0 : tensor<512x512xf32>, tensor<1024x512xf32>
  }
}
"""  # noqa: E501


def test_arguments_are_known_by_the_names_that_the_function_has():
    found = [(place.name, place.shape) for place in places(load(PLAIN))]
    arguments = [("params['w']", (512, 512)), ("x", (1024, 512)), ("arg2", ())]
    assert found == [*arguments, ("result", (512, 512)), ("result['y']", (1024, 512))]


@pytest.mark.parametrize("names", [{"x": "d,m", "params": "m,-"}, {"1": "d,m", "*['w']": "m"}, {"arg1": [["d"], "m"], "0": "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"}])  # fmt: skip  # noqa: E501
def test_shardings_said_beside_a_program_are_those_of_its_text(names):
    pytest.importorskip("jaxlib._hlo")
    cut = partition(sharded(load(PLAIN), {"d": 4, "m": 2}, names), "tpu-v5e")
    assert cut.devices == 8
    assert [op.shape for op in cut.program.entry.operations[:2]] == ["f32[256,512]", "f32[256,256]"]
    assert {each.op for each in cut.collectives} <= {"all-reduce", "reduce-scatter", "all-gather"}


def test_what_the_text_says_of_a_sharding_stays_or_is_replaced():
    mesh = Mesh({"d": 4, "m": 2}, "v5e:2x4")
    once = sharded(load(SHARDED.replace("MARK_", "")), mesh, {"w": "-,m"})
    assert once.attributes["topology"] == "v5e:2x4"
    assert once.text.count("sdy.mesh") == 1
    assert '%x: tensor<1024x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {"m"}]>}' in once.text
    assert '%w: tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"m"}]>}' in once.text


def test_an_empty_mesh_is_none():
    """JAX declares one in what it lowers without a mesh."""
    text = PLAIN.replace("  func.func", "  sdy.mesh @empty_mesh = <[]>\n  func.func", 1)
    assert 'sdy.mesh @mesh = <["d"=4]>' in sharded(load(text), {"d": 4}, {"x": "d"}).text


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"y": "d"}, "no argument 'y'"),
        ({"arg2": "d"}, "arg2 has 0 dims"),
        ({"x": "d,e"}, "no axis 'e'"),
        ({"x": "d+d"}, "used twice"),
        ({"x": "d,-,m"}, "x has 2 dims"),
    ],
)
def test_what_cannot_be_cut_so_is_one_error(names, words):
    with pytest.raises((ParseError, UsageError), match=words):
        sharded(load(PLAIN), {"d": 4, "m": 2}, names)
    with pytest.raises(UsageError, match="3 devices do not divide"):
        sharded(load(PLAIN), {"d": 3}, {"x": "d"})
    with pytest.raises(UsageError, match="over the mesh"):
        sharded(load(SHARDED.replace("MARK_", "")), {"d": 8}, {})
    with pytest.raises(UsageError, match="older form"):
        sharded(load(GSPMD), {"d": 4}, {})
