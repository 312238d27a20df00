"""HLO text: hand-made texts of every form, real dumps against XLA's own parser, and mutations of real dumps."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries, within
from tilewright.errors import ParseError, TilewrightError, UsageError
from tilewright.hlo import load, report
from tilewright.hlo.program import Source
from tilewright.hlo.reading import hlo_scan as words
from tilewright.hlo.reading.hlo_reader import read_hlo
from tilewright.hlo.reading.hlo_scan import split_top, unquote
from tilewright.layout import parse

LOOP = """\
// a comment before the module
HloModule loop, is_scheduled=true, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

%cond (p: (s32[], f32[4])) -> pred[] {
  %p = (s32[], /*index=1*/f32[4]{0}) parameter(0)
  %i = s32[] get-tuple-element((s32[], f32[4]{0}) %p), index=0
  %n = s32[] constant(10)
  ROOT %lt = pred[] compare(s32[] %i, s32[] %n), direction=LT
}

body {
  q = (s32[], f32[4]{0}) parameter(0)
  j = s32[] get-tuple-element(q), index=0
  one = s32[] constant(1)
  next = s32[] add(j, one), metadata={op_type="Add" op_name="a \\"quoted\\" name" source_file="old.py" source_line=7}
  x = f32[4]{0} get-tuple-element(q), index=1
  ROOT t = (s32[], f32[4]{0}) tuple(next, x), backend_config={"a":{"b":"}"},"c":[1,2]}
} , execution_thread="main"

ENTRY %main (x.1: f32[4]) -> f32[4] {
  %x.1 = f32[4]{0} parameter(0), sharding={devices=[2,1]<=[2] last_tile_dim_replicate}
  %zero = s32[] constant(0)
  %table = s32[2,2]{1,0} constant({ {1, 2}, /*row*/ {3, 4} })
  %init = (s32[], f32[4]{0}) tuple(%zero, %x.1), frontend_attributes={note="a, b = {c"}
  %loop = (s32[], f32[4]{0}) while(%init), condition=%cond, body=%body
  ROOT %out = f32[4]{0} get-tuple-element(%loop), index=1, control-predecessors={%table}
}
"""


@pytest.fixture(scope="module")
def loop():
    return read_hlo(LOOP)


def test_computations_and_entry(loop):
    assert [(c.name, c.entry) for c in loop.computations] == [("cond", False), ("body", False), ("main", True)]
    assert (loop.name, loop.kind, loop.text) == ("loop", "hlo", LOOP)
    assert loop.attributes["entry_computation_layout"] == "{(f32[4]{0})->f32[4]{0}}"
    assert loop.path("body") == "main > body"


def test_operands_with_and_without_types(loop):
    compare = loop.computations[0].operations[-1]
    assert (compare.operands, compare.operand_shapes, compare.root) == (("i", "n"), ("s32[]", "s32[]"), True)
    tuple_ = loop.computations[1].operations[-1]
    assert tuple_.operands == ("next", "x")
    assert loop.computations[0].operations[0].shape == "(s32[], /*index=1*/f32[4]{0})"


def test_attributes_are_kept_as_text(loop):
    _, body, main = loop.computations
    assert body.operations[-1].attributes["backend_config"] == '{"a":{"b":"}"},"c":[1,2]}'
    assert main.operations[0].attributes["sharding"] == "{devices=[2,1]<=[2] last_tile_dim_replicate}"
    assert main.operations[2].attributes["literal"] == "{ {1, 2}, /*row*/ {3, 4} }"
    assert main.operations[3].attributes["frontend_attributes"] == '{note="a, b = {c"}'
    assert main.operations[4].calls == ("cond", "body")


def test_inline_source_positions(loop):
    add = loop.computations[1].operations[3]
    assert add.source == Source("old.py", 7)
    assert (add.op_name, add.line) == ('a "quoted" name', LOOP[: LOOP.index("next = ")].count("\n") + 1)


TABLES = """\
HloModule m

FileNames
1 "/venv/lib/python3.11/site-packages/flax/linen.py"
2 "/home/me/model.py"

FunctionNames
1 "Dense.__call__"
2 "loss"

FileLocations
1 {file_name_id=2 function_name_id=2 line=12 end_line=12 column=4 end_column=9}
2 {file_name_id=1 function_name_id=1 line=99 end_line=99 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=%d}
2 {file_location_id=2 parent_frame_id=%d}

ENTRY e {
  a = f32[4]{0} parameter(0), metadata={op_name="a" stack_frame_id=2}
  b = f32[4]{0} copy(a), metadata={op_name="b" stack_frame_id=1}
  ROOT c = f32[4]{0} copy(b), metadata={op_name="c" stack_frame_id=7}
}
"""


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 2)], ids=["plain", "one too high"])
def test_stack_frames_lead_to_the_user_not_the_library(first, second):
    a, b, c = read_hlo(TABLES % (first, second)).entry.operations
    assert a.source == Source("/home/me/model.py", 12, 4, "loss")
    assert b.source == a.source
    assert c.source is None


@pytest.mark.parametrize(
    ("library", "frames", "line"),
    [
        ("flax/linen.py", "", "/home/me/model.py:12"),
        ("maxtext/layers/linears.py", "", "{library}:99"),
        ("maxtext/layers/linears.py", "model[.]py", "/home/me/model.py:12"),
        ("flax/linen.py", "flax/", "{library}:99"),
        ("flax/linen.py", "nowhere", "/home/me/model.py:12"),
        ("jax/experimental/pallas/ops/tpu/splash.py", "", "{library}:99"),
    ],
)
def test_a_library_may_be_the_program_and_frames_may_be_chosen(library, frames, line):
    text = (TABLES % (0, 1)).replace("flax/linen.py", library)
    (a, *_) = load(text, frames=frames).entry.operations
    assert str(a.source) == line.format(library=f"/venv/lib/python3.11/site-packages/{library}")


def test_a_pattern_for_frames_that_is_none_is_refused():
    with pytest.raises(UsageError, match="is no pattern"):
        load(TABLES % (0, 1), frames="(")


def test_a_library_is_better_than_nothing():
    (a, *_) = read_hlo((TABLES % (0, 0)).replace("stack_frame_id=1", "op_type=x")).entry.operations
    assert a.source == Source("/venv/lib/python3.11/site-packages/flax/linen.py", 99, 1, "Dense.__call__")


def test_frames_in_a_circle_end():
    circle = (TABLES % (0, 0)).replace("parent_frame_id=0", "parent_frame_id=2", 1)
    assert read_hlo(circle).entry.operations[0].source is not None


@pytest.mark.parametrize(
    ("text", "line", "column", "reason"),
    [
        ("HloModule", 1, 1, "expected 'HloModule NAME'"),
        ("HloModule m\n", 2, 1, "has no computation"),
        ("HloModule m\nENTRY e {\n}", 3, 1, "has no instruction"),
        ("HloModule m\nENTRY e {\n  a = f32[4] parameter(0)\n", 4, 1, "never closed"),
        ("HloModule m\nENTRY e {\n  a = f32[4 parameter(0)\n}", 3, 7, "expected a shape"),
        ("HloModule m\nENTRY e {\n  a = f32[4] parameter 0\n}", 3, 14, "expected an opcode and '('"),
        ("HloModule m\nENTRY e {\n  a = f32[4] parameter(0\n}", 4, 1, "unexpected '}'"),
        ("HloModule m\nENTRY e {\n  a = f32[4] copy(b)\n}", 3, 19, "operand 'b' is not defined"),
        ("HloModule m\nENTRY e {\n  a = f32[] constant(0)\n  a = f32[] constant(0)\n}", 4, 3, "defined twice"),
        ("HloModule m\nENTRY e {\n  a = f32[] constant(0), x\n}", 3, 24, "expected an attribute"),
        ('HloModule m\nENTRY e {\n  a = f32[] constant(0), x="y\n}', 3, 28, "string is never closed"),
        ("HloModule m\nENTRY e {\n  a = f32[] constant(0), calls=%f\n}", 3, 3, "which the module does not have"),
        ("HloModule m\ne {\n ROOT a = f32[] constant(0)\n ROOT b = f32[] constant(0)\n}", 5, 1, "has 2 ROOT"),
        ("HloModule m\ne { a = f32[] constant(0) }\ne { a = f32[] constant(0) }", 3, 1, "defined twice"),
        ("HloModule m\nENTRY e {\n  a = " + "(" * 300 + "\n}", 3, 207, "nested deeper"),
    ],
)
def test_malformed_texts_name_the_place(text, line, column, reason):
    with pytest.raises(ParseError, match=reason.replace("(", r"\(")) as caught:
        read_hlo(text)
    assert (caught.value.line, caught.value.line_column + 1) == (line, column)


def test_split_and_unquote():
    assert split_top('a, {b, c}, "d, e", f[1,2]') == ["a", "{b, c}", '"d, e"', "f[1,2]"]
    assert split_top("") == []
    assert unquote(r'"tab\tquote\" back\\"') == 'tab\tquote" back\\'


def dumps(data_folder: Path) -> list[Path]:
    return sorted([*data_folder.glob("hlo_tpu/*.hlo"), *data_folder.glob("hlo_written/*.hlo")])


def plain(program):
    """What both prints of one module must agree on."""
    return {
        computation.name: {
            op.name: (op.opcode, str(parse(op.shape)), op.operands, op.op_name, op.source, sorted(op.calls), op.root)
            for op in computation.operations
        }
        for computation in program.computations
    }


def named_once(program):
    """XLA renames instructions whose names occur in two computations, which hand-written texts have."""
    names = [op.name for _, op in program.operations()]
    return len(names) == len(set(names))


def kinds(program):
    return sorted((op.opcode, str(parse(op.shape)), len(op.operands)) for _, op in program.operations())


def test_real_dumps_agree_with_xla(data_folder, tmp_path):
    pytest.importorskip("jaxlib._hlo")
    files = dumps(data_folder)
    script = Path(__file__).with_name("xla_reprint.py")
    subprocess.run([sys.executable, str(script), str(tmp_path), *map(str, files)], check=True, timeout=600)
    exact = 0
    for number, file in enumerate(files):
        ours, theirs = load(file), load(tmp_path / f"{number}.hlo")
        if not any(computation.entry for computation in ours.computations):
            continue  # a fragment: XLA rewrites it around an entry of its own choice
        if named_once(ours):
            assert plain(ours) == plain(theirs), file.name
            exact += 1
        assert kinds(ours) == kinds(theirs), file.name
    assert exact >= 10


def test_source_lines_of_a_real_dump(data_folder):
    program = load(data_folder / "hlo_tpu/v5e_transformer2_grad.after.hlo")
    sources = {str(op.source) for _, op in program.operations() if op.source}
    assert {"models/aot3.py:26", "models/aot3.py:31", "models/aot3.py:36"} <= sources
    table = {op.name: op.source for _, op in program.operations()}
    assert table["lt.14"].function == "model"


@pytest.mark.nightly
def test_reading_takes_linear_time(data_folder):
    text = (data_folder / "hlo_tpu/v5e_transformer2_grad.after.hlo").read_text()
    head, body = text.split("\n\n\n", 1)
    seconds = []
    for copies in (1, 4):
        parts = [body.replace("%", f"%c{k}_").replace("ENTRY ", "" if k else "ENTRY ") for k in range(copies)]
        whole = head + "\n\n\n" + "\n".join(parts)
        seconds.append(min(_timed(whole) for _ in range(3)))
    assert seconds[1] < 4 * 2.5 * seconds[0]


def _timed(text: str) -> float:
    start = time.process_time()
    read_hlo(text)
    return time.process_time() - start


def test_one_long_line_is_no_trap():
    deep = "{" * 150 + "}" * 150
    text = f"HloModule m\nENTRY e {{ a = f32[] constant({deep}), b={deep * 300} }}"
    with within(1):
        assert read_hlo(text).entry.operations[0].opcode == "constant"


@pytest.fixture(scope="module")
def seeds(data_folder):
    return [(data_folder / f"hlo_tpu/{name}.after.hlo").read_text() for name in ("v5e_reshape_zoo", "v5e_patent_rb")]


PIECES = st.sampled_from([*"{}()[]<>,=:%\"'\\/* \n\0-1", "f32[", "T(0)", "S(9)", "ROOT ", "->", "metadata={", "\ud7ff"])


@settings(max_examples=tries(40))
@given(st.data())
def test_mutations_end_in_a_program_or_an_error(seeds, data):
    text = data.draw(st.sampled_from([*seeds, LOOP]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        length = data.draw(st.integers(0, 30))
        text = text[:at] + data.draw(PIECES) + text[at + length :]
    try:
        report(read_hlo(text))
    except TilewrightError as error:
        assert str(error)


def test_a_fusions_body_in_the_place_of_a_lost_entry():
    """The last computation is taken for the entry where none is marked; here a fusion calls it."""
    text = (
        "HloModule m\n\nmain {\n  x = f32[8]{0} parameter(0)\n"
        "  ROOT y = f32[8]{0} fusion(x), kind=kLoop, calls=body\n}\n\n"
        "body {\n  p = f32[8]{0} parameter(0)\n  ROOT n = f32[8]{0} negate(p)\n}\n"
    )
    assert report(read_hlo(text)).program == "m"


@settings(max_examples=tries(40))
@given(st.text(max_size=200))
def test_any_text_is_refused_or_read(text):
    try:
        load("HloModule m\n" + text)
    except ParseError as error:
        assert error.column <= len(error.text)


def test_both_ways_through_the_reader_agree(monkeypatch, data_folder):
    """Whole instructions at once, and token by token."""
    texts = [path.read_text() for path in sorted(data_folder.glob("hlo_*/*.hlo"))]
    fast = [read_hlo(text) for text in [LOOP, TABLES % (0, 1), *texts]]
    never = re.compile(r"(?!)")
    for name in ("LINE", "HEAD", "TYPED_OPERANDS"):
        monkeypatch.setattr(words, name, never)
    slow = [read_hlo(text) for text in [LOOP, TABLES % (0, 1), *texts]]
    assert [p.computations for p in fast] == [p.computations for p in slow]
    assert [dict(op.attributes) for p in fast for _, op in p.operations()] == [
        dict(op.attributes) for p in slow for _, op in p.operations()
    ]


def test_quoted_names():
    text = 'HloModule "m x"\n%"f 1" (p: f32[]) -> f32[] {\n  ROOT %p = f32[] parameter(0)\n}\n'
    text += 'ENTRY %"e" {\n  %"a b" = f32[] parameter(0)\n  ROOT c = f32[] call(f32[] %"a b"), to_apply=%"f 1"\n}'
    program = read_hlo(text)
    assert (program.name, [c.name for c in program.computations]) == ("m x", ["f 1", "e"])
    assert (program.entry.operations[1].operands, program.entry.operations[1].calls) == (("a b",), ("f 1",))


def test_a_computation_without_its_module():
    program = load(LOOP[LOOP.index("body {") : LOOP.index("ENTRY")])
    assert (program.kind, program.name, program.entry.name) == ("hlo", "fragment", "body")
    assert program.entry.operations[-1].opcode == "tuple"


def test_instructions_without_their_computation():
    text = (
        "%copy.5 = f32[4,8]{1,0:T(8,128)} copy(f32[4,8]{0,1:T(8,128)} %x), metadata={op_name=\"a\"}\n"
        "ROOT %f = f32[32]{0:T(128)} fusion(f32[4,8]{1,0:T(8,128)} %copy.5, (s32[], f32[2]{0}) %t), calls=%fused\n"
    )  # fmt: skip
    program = load(text)
    assert [(op.name, op.opcode, op.shape) for op in program.entry.operations] == [
        ("x", "parameter", "f32[4,8]{0,1:T(8,128)}"),
        ("t", "parameter", "(s32[], f32[2]{0})"),
        ("copy.5", "copy", "f32[4,8]{1,0:T(8,128)}"),
        ("f", "fusion", "f32[32]{0:T(128)}"),
    ]
    assert program.entry.operations[-1].calls == ()
    assert report(program).rows
    with pytest.raises(ParseError, match="operand 'y' has neither definition nor type"):
        load("%copy.5 = f32[4,8]{1,0} copy(%y)\n")


def test_layouts_that_hold_a_shape():
    program = read_hlo(
        "HloModule m\nENTRY e {\n a = f32[2]{0:P(u8[4]{0})} parameter(0)\n ROOT b = f32[2]{0} copy(a)\n}"
    )
    assert program.entry.operations[0].shape == "f32[2]{0:P(u8[4]{0})}"


def test_two_modules_in_one_text():
    with pytest.raises(ParseError, match="line 5, column 1: a second module begins here"):
        read_hlo("HloModule a\nENTRY e {\n ROOT p = f32[] parameter(0)\n}\nHloModule b\n")


RARE = """\
/* a description */
HloModule rare:, num_partitions=2, origin_recovery_table={
  {"constant"} : {"constant__ovp0"},
  "
    HloModule inner
    ENTRY %e { ROOT %p = s32[] parameter(0) }
  "
}

ENTRY /* the entry */ c1 {
  /* not an instruction:
     ROOT no = f32[1]{0} constant({1})
  */
  a = /*why*/ f32[1]{0} /*not*/ constant({12345 /*bar*/}) , metadata={source_line=5, source_file="a.py", op_type="::c"}
  b = f32[]{} constant(-nan(0x7f)), origin={({"v1"}, {"v2"})} // the rest of the line
  c = f32[1,2,3]{0,2,1} custom-call(a), custom_call_target="f\\"r", literal=s32[2]{0} {1, 2}, backend_config={k: "v"}
  d = f32[1]{0} custom-call(a), custom_call_target="x", literal=( s32[4]{0} {4, 128}, pred[1]{0} {1} )
  e = f32[1]{0} custom-call(a), custom_call_target="x", literal=f32[] 0.1, schedule=SCHEDULE_LATEST
  f = f32[1]{0} call(a), to_apply=c2, frontend_attributes={composite.a={n = 1 : i32, t = dense<1> : tensor<i8>}}
  g = f32[1]{0} domain(a), domain={kind="sharding", entry={maximal device=0}, exit={maximal device=1}}
  h = ((f32[1]{0}), f32[1]{0}, s32[]) custom-call-start(a), async_execution_thread="p", custom_call_target="foo"
  i = f32[1]{0} custom-call-done(((f32[1]{0}), f32[1]{0}, s32[]) h)
  ROOT j = (f32[1]{0}, f32[], (), /*index=3*/f32[1]{0}) tuple(a, b, u, /*index=3*/i), sharding={{manual}, {replicated}}
}, execution_thread="main"
c2 { ROOT p = f32[1]{0} parameter(0) }
"""


def test_rare_forms():
    text = RARE.replace("  g =", "  u = () tuple()\n  g =")
    program = read_hlo(text)
    entry = {op.name: op for op in program.entry.operations}
    assert (program.name, list(entry)) == ("rare", list("abcdefughij"))
    assert (entry["a"].attributes["literal"], str(entry["a"].source)) == ("{12345 /*bar*/}", "a.py:5")
    assert (entry["b"].shape, entry["b"].attributes["literal"]) == ("f32[]{}", "-nan(0x7f)")
    assert [entry[name].attributes["literal"] for name in "cde"] == [
        "s32[2]{0} {1, 2}", "( s32[4]{0} {4, 128}, pred[1]{0} {1} )", "f32[] 0.1",
    ]  # fmt: skip
    assert (entry["c"].attributes["backend_config"], entry["e"].attributes["schedule"]) == (
        '{k: "v"}', "SCHEDULE_LATEST",
    )  # fmt: skip
    assert (entry["f"].calls, entry["j"].operands) == (("c2",), ("a", "b", "u", "i"))
    assert entry["j"].shape == "(f32[1]{0}, f32[], (), /*index=3*/f32[1]{0})"
    assert entry["i"].line == text[: text.index("  i = ")].count("\n") + 1
