"""The movement report: a real TPU dump by hand, totals against a slow count, fusions, sources, pages."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.conftest import within
from tilewright.errors import ParseError, UnsupportedError, UsageError
from tilewright.hlo import Program, load, report
from tilewright.layout import TensorLayout, parse

# The dump read by hand, operation by operation. Physical dims stand from major to minor; bytes are those dims rounded
# up to the tile, times 4. What is not listed (parameter, constant, copy-done, reduce, tuple) moves nothing.
#   x.1         (50,336)   ->  56*384  =  86016   the argument, dims turned: dim 0 is the fast one
#   reshape.12  (50,7,48)  -> 50*8*128 = 204800   NOT FREE: 336 = 7*48 was cut by lanes of 128, 48 now starts lanes anew
#   bitcast.5   (50,7,48)                         free: the same physical dims under other names (0 and 1 change places)
#   copy.5      (48,7,50)  -> 48*8*128 = 196608   NOT FREE: from (50,7,48), a real transpose
#   copy-start  (50,336)   ->  56*384  =  86016   NOT FREE: x.1 as it is, prefetched into S(1); copy-done is its end
#   reshape.13  (48,350)   ->  48*384  =  73728   NOT FREE: merges 7*50, and each 50 lay in lanes of its own
#   copy.6      (336,50)   -> 336*128  = 172032   NOT FREE: from (50,336), a real transpose
#   reshape.14  (16800)    -> 17*1024  =  69632   NOT FREE: rows of 50 in lanes of 128 become one dense vector
#   bitcast.4   (50,336)                          free: dims 0 and 1 change names only
#   reshape.15  (50,2,168) -> 50*2*256 = 102400   NOT FREE: 336 in lanes splits at 168, which is no multiple of 128
#   slice.2     (50,2,84)  -> 50*2*128 =  51200   NOT FREE: takes every second lane
#   reduce_sum.7 (50)      ->  128     =    512
#   broadcast   (15,50)    ->  16*128  =   8192   NOT FREE: repeats its operand along dim 0
# op, bytes moved, source line, memory spaces, how its reason begins
ZOO = {
    "reshape.12": (
        "reshape",
        86016 + 204800,
        "models/aot3.py:47",
        0,
        1,
        "dim 0 (336) splits into dims 0 (7) and 1 (48)",
    ),
    "copy.5": ("copy", 204800 + 196608, "models/aot3.py:47", 1, 1, "the order of the elements changes"),
    "copy-start": ("copy-start", 86016 + 86016, "models/aot3.py:47", 0, 1, "moves from S(0) to S(1)"),
    "reshape.13": (
        "reshape",
        196608 + 73728,
        "models/aot3.py:47",
        1,
        0,
        "dims 1 (7) and 2 (50) merge into dim 1 (350)",
    ),
    "copy.6": ("copy", 86016 + 172032, "models/aot3.py:47", 1, 1, "the order of the elements changes"),
    "reshape.14": ("reshape", 172032 + 69632, "models/aot3.py:47", 1, 0, "dims 0 (336) and 1 (50) merge into dim 0"),
    "reshape.15": (
        "reshape",
        86016 + 102400,
        "models/aot3.py:47",
        1,
        1,
        "dim 1 (336) splits into dims 1 (2) and 2 (168)",
    ),
    "slice.2": ("slice", 102400 + 51200, "models/aot3.py:47", 1, 0, "takes [0:50:1], [0:2:1], [0:168:2]"),
    "broadcast": ("broadcast", 512 + 8192, "models/aot3.py:47", 1, 0, "repeats the operand along dim 0 (15)"),
}


@pytest.fixture(scope="module")
def zoo(data_folder):
    return report(load(data_folder / "hlo_tpu/v5e_reshape_zoo.after.hlo"))


def test_a_real_dump_by_hand(zoo):
    moving = [row for row in zoo.rows if not row.bitcast]
    assert [row.name for row in moving] == list(ZOO)
    facts = [(r.op, r.moved_bytes, r.source, r.from_space, r.to_space) for r in moving]
    assert facts == [expected[:5] for expected in ZOO.values()]
    words = [expected[5] for expected in ZOO.values()]
    assert [row.reason[: len(text)] for row, text in zip(moving, words)] == words
    assert {row.name for row in zoo.rows if row.bitcast} == {"bitcast.4", "bitcast.5"}
    assert zoo.moved_bytes == sum(expected[1] for expected in ZOO.values())
    assert [row.moved_bytes for row in zoo.ranked()] == sorted((e[1] for e in ZOO.values()), reverse=True)
    assert not zoo.predicted


def test_categories(zoo):
    kinds = {
        "copy": "relayout",
        "reshape": "relayout",
        "copy-start": "transfer",
        "slice": "part",
        "broadcast": "repeat",
    }
    assert all(row.category == kinds.get(row.op, "bitcast") for row in zoo.rows)
    assert sum(zoo.moved_by_category.values()) == zoo.moved_bytes
    assert zoo.moved_by_category["transfer"] == 86016 * 2


def test_categories_of_a_large_dump(data_folder):
    """The compiler's prefetches into vector memory are told from its few relayouts."""
    found = report(load(data_folder / "hlo_tpu/v5e_transformer2_grad.after.hlo"))
    assert list(found.moved_by_category) == ["transfer", "relayout"]
    relaid = {row.name for row in found.ranked() if row.category == "relayout"}
    assert relaid == {"copy.106", "copy.107", "reshape.23"}
    assert {row.category for row in found.rows if row.in_fusion} == {"fused", "bitcast"}


def test_memory_spaces_are_shown(zoo):
    row = next(row for row in zoo.rows if row.op == "copy-start")
    assert (row.from_layout, row.to_layout) == ("f32[336,50]{0,1:T(8,128)}", "f32[336,50]{0,1:T(8,128)S(1)}")
    assert row.reason == "moves from S(0) to S(1)"


def test_tensors_by_wasted_bytes(zoo):
    worst = zoo.wasteful()[0]
    assert (worst.name, worst.wasted_bytes, worst.padded_bytes) == ("reshape.12", 204800 - 67200, 204800)
    assert "copy-start" not in {tensor.name for tensor in zoo.tensors}
    assert zoo.wasted_bytes == sum(t.padded_bytes - t.logical_bytes for t in zoo.wasteful())


def slow_bytes(layout: TensorLayout) -> int:
    """Padded bytes by listing every element's slot: the extent of the tiles that hold any, tile by tile."""
    physical = [layout.shape[d] for d in reversed(layout.minor_to_major)]
    tile = layout.tiles[0] if layout.tiles else ()
    whole = 1
    for place, size in enumerate(physical):
        t = tile[place - len(physical)] if len(physical) - place <= len(tile) else 1
        whole *= len({index // t for index in range(size)}) * t
    if len(tile) > len(physical):
        whole *= tile[0]
    return whole * layout.element_bits // 8


FILES = ["v5e_reshape_zoo.after.hlo", "v5e_patent_rb.after.hlo", "v5e_transformer2_grad.before.hlo"]


@pytest.mark.parametrize("name", [*FILES, "v5e_transformer2_grad.after.hlo"])
def test_figures_against_a_slow_count(data_folder, name):
    found = report(load(data_folder / "hlo_tpu" / name))
    assert found.rows
    for row in found.rows:
        before = parse(row.from_layout)
        operands = before.elements if row.from_layout.startswith("(") else [before]
        assert row.padded_bytes == slow_bytes(parse(row.to_layout))
        assert row.moved_bytes == row.bytes_read + row.bytes_written
        if row.moved_bytes and row.op not in ("slice", "slice-start", "gather", "scatter", "fusion"):
            assert row.moved_bytes == sum(map(slow_bytes, operands)) + row.padded_bytes
    for tensor in found.tensors:
        assert tensor.padded_bytes == slow_bytes(parse(tensor.layout))


def test_every_file_of_the_data(data_folder):
    files = [*data_folder.glob("hlo_tpu/v5e*"), *data_folder.glob("hlo_written/*.hlo")]
    assert len(files) == 17
    for file in files:
        program = load(file)
        found = report(program, "tpu-v5e")
        assert found.predicted == (program.kind == "stablehlo")
        assert json.loads(json.dumps(found.to_json(), allow_nan=False))["totals"]["rows"] == len(found.rows)


def test_the_largest_program_takes_less_than_a_second(data_folder):
    with within(1):
        found = report(load(data_folder / "hlo_written/train_step.hlo"))
    one_hot = next(row for row in found.rows if row.to_layout.startswith("s32[16,1024,32000]"))
    assert (one_hot.source, one_hot.moved_bytes) == ("tests/data/make_train_step.py:69", 16 * 1024 * 4 * (1 + 32000))


def test_stablehlo_is_predicted_for_a_target(data_folder):
    program = load(data_folder / "hlo_tpu/v5e_reshape_zoo.stablehlo.mlir")
    tpu, cpu = report(program, "tpu-v5e"), report(program, "cpu")
    assert all(row.predicted for row in tpu.rows)
    assert tpu.rows[0].from_layout == "f32[336,50]{0,1:T(8,128)}"
    assert "predicted by the rule of tpu-v5e" in " ".join(tpu.notes)
    transposes = [row.moved_bytes for row in cpu.rows if row.op == "transpose"]
    assert transposes == [2 * 336 * 50 * 4] * 2
    assert sum(row.moved_bytes for row in cpu.rows if row.op == "reshape") == 0
    with pytest.raises(UsageError, match="name one"):
        report(program)
    with pytest.raises(UnsupportedError, match="no whole programs"):
        report(program, "bm1684x")


def test_a_dump_keeps_its_layouts_whatever_the_target(zoo, data_folder):
    again = report(load(data_folder / "hlo_tpu/v5e_reshape_zoo.after.hlo"), "cpu")
    assert again.rows == zoo.rows
    assert again.target == "cpu"


def test_what_xla_compiles_here_can_be_read():
    """A dump of the CPU compiler of this very version: fusions, calls, copies, source lines."""
    import jax
    import jax.numpy as jnp

    def f(x):
        turned = jnp.transpose(x.reshape(16, 8, 32), (2, 0, 1))
        return jnp.concatenate([turned @ jnp.ones((8, 4)), turned[:, :, :4]], 1)

    found = report(load(jax.jit(f).lower(jnp.zeros((128, 32))).compile().as_text()))
    moves = [row for row in found.ranked() if Path(__file__).name in row.source]
    assert any("transpose" in row.reason or row.op in ("copy", "transpose") for row in moves)
    assert "no shape of this dump carries tiles" in " ".join(found.notes)


FUSIONS = """\
HloModule m

moves {
  a = f32[8,128]{1,0:T(8,128)} parameter(0)
  t = f32[128,8]{0,1:T(8,128)} bitcast(a)
  ROOT c = f32[128,8]{1,0:T(8,128)} copy(t)
}

works {
  b = f32[8,128]{1,0:T(8,128)} parameter(0)
  t2 = f32[8,128]{0,1:T(8,128)} copy(b)
  ROOT s = f32[8,128]{0,1:T(8,128)} add(t2, t2)
}

ENTRY e {
  x = f32[8,128]{1,0:T(8,128)} parameter(0)
  one = f32[128,8]{1,0:T(8,128)} fusion(x), kind=kLoop, calls=moves
  two = f32[8,128]{0,1:T(8,128)} fusion(x), kind=kLoop, calls=works, metadata={source_file="u.py" source_line=3}
  half = bf16[8,128]{0,1:T(8,128)(2,1)} convert(x)
  same = bf16[8,128]{1,0:T(8,128)(2,1)} convert(x)
  ROOT r = (f32[128,8]{1,0:T(8,128)}, f32[8,128]{0,1:T(8,128)}) tuple(one, two)
}
"""


def test_fusions_write_once():
    rows = {row.name: row for row in report(load(FUSIONS)).rows}
    assert set(rows) == {"t", "c", "t2", "one", "two", "half", "same"}
    assert [rows[name].moved_bytes for name in ("t", "c", "t2")] == [0, 0, 0]
    assert all(rows[name].in_fusion for name in ("t", "c", "t2"))
    assert (rows["c"].hidden_bytes, rows["t2"].hidden_bytes) == (4096 + 128 * 128 * 4, 4096 + 128 * 128 * 4)
    assert (rows["two"].moved_bytes, rows["two"].hidden_bytes) == (0, 0)
    assert rows["two"].reason.startswith("computes; inside it copy t2: the order of the elements changes")
    assert (rows["same"].moved_bytes, rows["same"].hidden_bytes) == (0, 4096 + 2048)
    assert rows["one"].moved_bytes == 4096 + 128 * 128 * 4
    assert rows["one"].reason == "a fusion that only moves: copy"
    assert rows["half"].moved_bytes == 4096 + 128 * 128 * 2


def test_an_operation_without_a_line_has_its_callers():
    rows = {row.name: row for row in report(load(FUSIONS)).rows}
    assert (rows["t2"].source, rows["t2"].path) == ("u.py:3", "e > works")
    assert rows["t"].source == ""


def test_computations_count_as_often_as_they_are_called():
    text = """HloModule m
double {
  p = f32[4,2]{1,0} parameter(0)
  ROOT c = f32[4,2]{0,1} copy(p)
}
ENTRY e {
  x = f32[4,2]{1,0} parameter(0)
  a = f32[4,2]{0,1} call(x), to_apply=double
  ROOT b = f32[4,2]{0,1} call(x), to_apply=double
}"""
    found = report(load(text))
    assert (found.moved_bytes, found.rows[0].path) == (128, "e > double")
    assert (found.rows[0].runs, found.rows[0].moved_bytes) == (2, 64)


def test_dynamic_shapes_are_left_out_and_said_so():
    text = "func.func @main(%x: tensor<?x4xf32>) -> tensor<4x?xf32> {\n"
    text += "  %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<?x4xf32>) -> tensor<4x?xf32>\n"
    found = report(load(text + "  return %0 : tensor<4x?xf32>\n}"), "cpu")
    assert found.rows == ()
    assert "shapes without a size are left out: f32[4,?], f32[?,4]" in found.notes


@pytest.mark.parametrize(
    ("instruction", "line", "reason"),
    [
        ("f32[5,5] reshape(p)", 4, "24 elements"),
        ("f32[6,4] transpose(p), dimensions={1,1}", 4, "not an order"),
        ("f32[4,6]{0:T(8)} copy(p)", 4, "minor_to_major"),
        ("zz[4,6] copy(p)", 4, "no element type"),
    ],
)
def test_contradictions_are_errors_at_their_line(instruction, line, reason):
    text = f"HloModule m\nENTRY e {{\n p = f32[4,6] parameter(0)\n ROOT c = {instruction}\n}}"
    with pytest.raises(ParseError, match=reason) as caught:
        report(load(text))
    assert caught.value.line == line


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.sections, self.scripts, self.external = [], {}, []
        self._inside = None

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "section":
            self.sections.append(given["id"])
        if tag == "script":
            self._inside = given.get("id", "module")
        self.external += [value for key, value in attrs if key == "src"]

    def handle_data(self, data):
        if self._inside:
            self.scripts[self._inside] = data
            self._inside = None


def test_the_page(zoo):
    page = _Page()
    html = zoo.to_html()
    page.feed(html)
    assert page.sections == ["changes", "summary", "movement", "padding", "peak"]
    assert page.external == []
    totals = {key: value for key, value in zoo.to_json().items() if key not in ("rows", "tensors", "peaks")}
    assert json.loads(page.scripts["report"]) == json.loads(json.dumps(totals))
    layouts = json.loads(page.scripts["layouts"])
    assert {row.to_layout for row in zoo.rows} <= set(layouts)
    assert all(re.search(rf"<code>{re.escape(name)}</code>", html) for name in ZOO)


def test_names_cannot_break_out_of_the_page():
    text = "HloModule m\nENTRY e {\n p = f32[4,6] parameter(0)\n"
    text += ' ROOT c = f32[4,6] copy(p), metadata={op_name="</script>"}\n}'
    html = report(load(text)).to_html()
    assert html.count("</script>") == html.count("<script")


def test_json_has_a_schema(zoo):
    plain = zoo.to_json()
    assert (plain["schema_version"], plain["kind"], plain["predicted"]) == (2, "movement_report", False)
    assert list(plain["totals"]["moved_by_op"]) == ["reshape", "copy", "copy-start", "slice", "broadcast", "bitcast"]
    assert set(plain["rows"][0]) >= {"op", "name", "source", "from_layout", "to_layout", "moved_bytes", "reason"}


def test_an_empty_report_is_fine():
    found = report(load("HloModule m\nENTRY e {\n ROOT p = f32[] parameter(0)\n}"))
    assert (found.rows, found.tensors, found.moved_bytes) == ((), (), 0)
    assert "nothing moves" in found.to_html()
    assert isinstance(load("HloModule m\nENTRY e {\n ROOT p = f32[] parameter(0)\n}"), Program)
