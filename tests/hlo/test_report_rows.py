"""One row for every operation that moves: parts of arrays, custom calls, fusions, cores, spaces; and its speed."""

import time

import pytest

from tests.conftest import by_night, within
from tilewright.hlo import load, report

HEAD = "HloModule m\nENTRY e {\n  x = f32[64,300]{1,0:T(8,128)} parameter(0)\n  i = s32[]{:T(128)} parameter(1)\n"
X = 64 * 384 * 4


def rows(*lines, head=HEAD):
    return report(load(head + "\n".join(f"  {line}" for line in lines) + "\n}")).rows


# the operation -> (read, written, how the reason begins), counted by hand from the padded boxes
PARTS = {
    "r = f32[8,300]{1,0:T(8,128)} dynamic-slice(x, i, i), dynamic_slice_sizes={8,300}": (
        *(8 * 384 * 4, 8 * 384 * 4),
        "takes a box of [8,300] out of [64,300]",
    ),
    "r = f32[3,10]{1,0:T(4,128)} slice(x), slice={[0:3], [0:10]}": (
        *(8 * 128 * 4, 4 * 128 * 4),  # the box lies in tiles of 8 rows, the result in tiles of 4
        "takes [0:3], [0:10]",
    ),
    "r = f32[64,300]{1,0:T(8,128)} reverse(x), dimensions={1}": (X, X, "reverses dims 1"),
    "r = f32[64,400]{1,0:T(8,128)} pad(x, i), padding=0_0x50_50": (X, 64 * 512 * 4, "pads by 0_0x50_50"),
    "r = bf16[64,300]{0,1:T(8,128)(2,1)} convert(x)": (X, 304 * 128 * 2, "the order of the elements changes"),
    "r = s32[64,300]{1,0:T(8,128)} bitcast-convert(x)": (0, 0, "a bitcast"),
    "r = s32[64,300]{0,1:T(8,128)} bitcast-convert(x)": (X, 304 * 128 * 4, "the order of the elements changes"),
    'r = f32[64,300]{1,0:T(8,128)S(5)} custom-call(x), custom_call_target="MoveToHost"': (
        *(X, X),
        "MoveToHost: moves from S(0) to S(5)",
    ),
    'r = f32[64,300]{1,0:T(8,128)} custom-call(x), custom_call_target="ConcatBitcast"': (0, 0, "ConcatBitcast"),
    'r = f32[64,300]{0,1:T(8,128)} custom-call(x), custom_call_target="mine"': (
        *(0, 0),
        "the custom call mine lays an operand out anew",
    ),
    "r = ((f32[64,300]{1,0:T(8,128)}), f32[8,300]{1,0:T(8,128)S(1)}, s32[]) slice-start(x), slice={[0:8], [0:300]}": (
        *(8 * 384 * 4, 8 * 384 * 4),
        "takes [0:8], [0:300]",
    ),
}


@pytest.mark.parametrize("line", PARTS)
def test_parts_of_arrays(line):
    read, written, words = PARTS[line]
    (row,) = rows(f"ROOT {line}")
    assert (row.bytes_read, row.bytes_written, row.moved_bytes) == (read, written, read + written)
    assert row.reason.startswith(words)


def test_updates_gathers_and_scatters():
    """An update writes its box in place; gather and scatter touch the elements they take, without padding."""
    update, gather, scatter = rows(
        "u = f32[8,300]{1,0:T(8,128)} parameter(2)",
        "s = s32[16,1]{1,0:T(8,128)} parameter(3)",
        "v = f32[16,300]{1,0:T(8,128)} parameter(4)",
        "a = f32[64,300]{1,0:T(8,128)} dynamic-update-slice(x, u, i, i)",
        "g = f32[16,300]{1,0:T(8,128)} gather(a, s), offset_dims={1}, slice_sizes={1,300}",
        "ROOT t = f32[64,300]{1,0:T(8,128)} scatter(a, s, v), to_apply=f",
        head="HloModule m\nf {\n p = f32[] parameter(0)\n q = f32[] parameter(1)\n ROOT r = f32[] add(p, q)\n}\n"
        + HEAD[12:],
    )
    box, indices = 8 * 384 * 4, 16 * 128 * 4
    assert (update.bytes_read, update.bytes_written) == (box, box)
    assert update.reason == "writes [8,300] into [64,300] in place"
    assert (gather.bytes_read, gather.bytes_written) == (16 * 300 * 4 + indices, 16 * 384 * 4)
    assert gather.reason == "gathers slices of [1,300] out of [64,300]"
    assert (scatter.bytes_read, scatter.bytes_written) == (16 * 384 * 4 + indices, 16 * 300 * 4)
    assert (update.padded_bytes, scatter.padded_bytes) == (X, X)


def test_a_square_that_is_turned_is_a_relayout():
    """Shape and layout of both sides agree, and yet every element off the diagonal moves."""
    head = "HloModule m\nENTRY e {\n  s = f32[128,128]{1,0:T(8,128)} parameter(0)\n"
    (row,) = rows("ROOT t = f32[128,128]{1,0:T(8,128)} transpose(s), dimensions={1,0}", head=head)
    assert (row.category, row.moved_bytes) == ("relayout", 2 * 65536)
    (row,) = rows("ROOT t = f32[128,128]{1,0:T(8,128)} copy(s)", head=head)
    assert (row.category, row.reason) == ("duplicate", "duplicates the buffer as it is")


def fused(body, call):
    head = "HloModule m\nf {\n  q = f32[64,300]{1,0:T(8,128)} parameter(0)\n  k = s32[]{:T(128)} parameter(1)\n"
    head += f"{body}\n}}\n"
    return [
        row
        for row in rows(f"ROOT {call} fusion(x, i), kind=kLoop, calls=f", head=head + HEAD[12:])
        if not row.in_fusion
    ]


def test_a_fusion_that_takes_a_slice_reads_the_slice():
    (row,) = fused(
        "  ROOT s = f32[8,300]{1,0:T(8,128)} dynamic-slice(q, k, k), dynamic_slice_sizes={8,300}",
        "r = f32[8,300]{1,0:T(8,128)}",
    )
    assert (row.bytes_read, row.bytes_written) == (8 * 384 * 4 + 512, 8 * 384 * 4)
    assert row.reason == "a fusion that only moves: dynamic-slice"


def test_a_fusion_that_updates_writes_the_update():
    (row,) = fused(
        "  s = f32[8,300]{1,0:T(8,128)} slice(q), slice={[8:16], [0:300]}\n"
        "  ROOT u = f32[64,300]{1,0:T(8,128)} dynamic-update-slice(q, s, k, k)",
        "r = f32[64,300]{1,0:T(8,128)}",
    )
    assert (row.bytes_read, row.bytes_written) == (8 * 384 * 4 + 512, 8 * 384 * 4)


def test_a_fusion_that_computes_in_another_order():
    (row,) = fused("  ROOT n = f32[64,300]{0,1:T(8,128)} negate(q)", "r = f32[64,300]{0,1:T(8,128)}")
    assert (row.moved_bytes, row.hidden_bytes, row.bitcast) == (0, X + 304 * 128 * 4, False)
    assert row.reason.startswith(
        "computes and lays out anew on the way, no bytes of its own: the order of the elements"
    )
    assert fused("  ROOT n = f32[64,300]{1,0:T(8,128)} negate(q)", "r = f32[64,300]{1,0:T(8,128)}") == []


OFFLOADED = [
    ('frontend_attributes={_xla_compute_type="sparseoffload"}', "sparsecore"),
    ('frontend_attributes={_xla_compute_type="sparse"}', "sparsecore"),
    ('frontend_attributes={_xla_compute_type="host"}', "host"),
    ('frontend_attributes={_xla_compute_type="dense"}', ""),
    ('backend_config={"sparse_core_config":{"offload":"OFFLOAD_COLLECTIVE"}}', "sparsecore"),
    ('metadata={op_name="sparsecore"}', ""),
]


@pytest.mark.parametrize(("attribute", "core"), OFFLOADED)
def test_offload_marks(attribute, core):
    (row,) = rows(f"ROOT r = f32[64,300]{{0,1:T(8,128)}} copy(x), {attribute}")
    assert row.core == core


def test_what_an_offloaded_call_does_is_marked_too():
    text = """HloModule m
sc {
  p = f32[64,300]{1,0:T(8,128)} parameter(0)
  ROOT c = f32[64,300]{0,1:T(8,128)} copy(p)
}, execution_thread="sparsecore"
ENTRY e {
  x = f32[64,300]{1,0:T(8,128)} parameter(0)
  s = ((f32[64,300]{1,0:T(8,128)}), f32[64,300]{0,1:T(8,128)}, s32[]) async-start(x), calls=sc,
    async_execution_thread="sparsecore"
  ROOT d = f32[64,300]{0,1:T(8,128)} async-done(s)
}"""
    (row,) = report(load(text)).rows
    assert (row.core, row.path) == ("sparsecore", "e > sc")


def test_stablehlo_says_where_it_runs():
    text = """func.func @main(%x: tensor<64x300xf32>) -> tensor<300x64xf32> {
  %0 = stablehlo.transpose %x, dims = [1, 0] MARK : (tensor<64x300xf32>) -> tensor<300x64xf32>
  return %0 : tensor<300x64xf32>
}
""".replace("MARK", '{mhlo.frontend_attributes = {_xla_compute_type = "sparseoffload"}}')
    (row,) = report(load(text), "vector8x128").rows
    assert row.core == "sparsecore"


def test_registers_of_the_patents_platform():
    """[8,32,32,256] -> [8,32,32,32,8] on (8,128) registers: 2048 full ones become 32768 with 8 lanes of 128 in use."""
    text = """func.func @main(%x: tensor<8x32x32x256xf32>) -> tensor<8x32x32x32x8xf32> {
  %0 = stablehlo.reshape %x : (tensor<8x32x32x256xf32>) -> tensor<8x32x32x32x8xf32>
  return %0 : tensor<8x32x32x32x8xf32>
}
"""
    program = load(text)
    found = report(program, "vector8x128")
    assert [(row.registers_before, row.registers_after) for row in found.rows] == [(2048, 32768)]
    assert found.registers == (2048, 32768)
    assert report(program, "cpu").rows[0].registers_after is None


def chain(count):
    """A program of ``count`` operations: copies, arithmetic and reshapes, each with a line of its own."""
    lines = ["HloModule m", "ENTRY e {", "  v0 = f32[64,300]{1,0:T(8,128)} parameter(0)"]
    shapes = ["f32[64,300]{0,1:T(8,128)} copy", "f32[64,300]{0,1:T(8,128)} negate", "f32[64,300]{1,0:T(8,128)} copy"]
    for i in range(1, count):
        where = f'metadata={{op_name="jit(f)/op{i}" source_file="m.py" source_line={i}}}'
        lines.append(f"  v{i} = {shapes[(i - 1) % 3]}(v{i - 1}), {where}")
    return "\n".join([*lines, "}"])


def seconds(text):
    program = load(text)
    start = time.process_time()
    assert report(program).rows
    return time.process_time() - start


@pytest.mark.nightly
def test_ten_thousand_operations_and_linear_growth():
    """Each size takes the best of two: 10,000 operations within a second, and within eight times what 2,500 take."""
    times = {count: min(seconds(chain(count)) for _ in range(2)) for count in (2500, 10_000)}
    assert times[10_000] < 1
    assert times[10_000] < 8 * times[2500] + 0.03


def test_a_long_chain_of_calls_is_linear_and_its_path_short():
    parts = ["HloModule m", "f0 {\n p = f32[4,2]{1,0} parameter(0)\n ROOT c = f32[4,2]{0,1} copy(p)\n}"]
    parts += [
        f"f{n} {{\n p = f32[4,2] parameter(0)\n ROOT a = f32[4,2]{{0,1}} call(p), to_apply=f{n - 1}\n}}"
        for n in range(1, 3000)
    ]
    parts.append("ENTRY e {\n p = f32[4,2] parameter(0)\n ROOT a = f32[4,2]{0,1} call(p), to_apply=f2999\n}")
    with within(2):
        (row,) = report(load("\n".join(parts))).rows
    assert row.path.startswith("e > f2999 > f2998")
    assert row.path.endswith("... > f6 > f5 > f4 > f3 > f2 > f1 > f0")


def test_a_fusion_with_thousands_of_results_is_linear():
    shape, count = "f32[8,128]{1,0}", 3000 if by_night() else 500
    taken = "\n".join(f"  p{n} = {shape} parameter({n})" for n in range(count))
    negated = "\n".join(f"  n{n} = {shape} negate(p{n})" for n in range(count))
    got = "\n".join(f"  g{n} = {shape} get-tuple-element(f), index={n}" for n in range(count))
    results = f"({', '.join([shape] * count)})"

    def tuple_of(letter):
        return f"  ROOT t = {results} tuple({', '.join(f'{letter}{n}' for n in range(count))})"

    text = f"HloModule m\nfused {{\n{taken}\n{negated}\n{tuple_of('n')}\n}}\nENTRY e {{\n{taken}\n"
    text += f"  f = {results} fusion({', '.join(f'p{n}' for n in range(count))}), kind=kLoop, calls=fused\n{got}\n"
    program = load(f"{text}{tuple_of('g')}\n}}")
    with within(3):
        found = report(program, "tpu-v5e")
    assert found.peak.padded_bytes == 2 * count * 4096


def test_a_dump_of_before_optimisation_says_so():
    body = "ENTRY e {\n  p = f32[4,2]{1,0} parameter(0)\n  ROOT c = f32[2,4]{1,0} reshape(p)\n}\n"
    early = report(load("HloModule m\n" + body))
    assert early.unoptimized
    assert "fusion and layout assignment have not run" in early.notes[0]
    assert "after_optimizations" in early.notes[0]
    assert early.to_json()["unoptimized"] is True
    assert "before optimisation" in early.to_html()
    for late in ("HloModule m, is_scheduled=true\n" + body, "HloModule m\n" + body.replace("{1,0}", "{1,0:T(8,128)}")):
        assert not report(load(late)).unoptimized
