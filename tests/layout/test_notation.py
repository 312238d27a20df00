"""The text: what is read, what is refused and where."""

from __future__ import annotations

import string
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layout.strategies import tiled_layouts
from tilewright.errors import ParseError
from tilewright.layout import parse
from tilewright.layout.kinds.tiled import parse_prefix


@pytest.mark.parametrize(
    "text",
    [
        "bf16[4,8]{1,0:T(2,4)(2,1)}",
        "f32[1,2,3]{0,1,2:T(2,*,128)L(8)E(64)S(5)SC(0:1)M(16)}",
        "f32[]{:T(128)}",
        "token[]",
        "opaque[]",
        "()",
        "(f32[2]{0}, (s32[], pred[3]{0}))",
        "(s32[], s32[], s32[], s32[], s32[], /*index=5*/s32[])",
        "b(s32[3,4]{1,0})",
        "f8e4m3b11fnuz[3]{0}",
        "f32[<=8,4]{1,0}",
        "f32[4]{0:#(u32)*(s8)S(1)}",
    ],
)
def test_canonical_texts_print_back(text):
    assert str(parse(text)) == text
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("F32[3,5]", "f32[3,5]{1,0}"),
        ("f32[ 3 , 5 ] {1, 0 : T( 2 , * ,4 ) }", "f32[3,5]{1,0:T(2,*,4)}"),
        ("f32[3]{0:M(0)}", "f32[3]{0}"),
        ("f32[3]{0:L(1)E(0)S(0)}", "f32[3]{0}"),
        ("f32[3] {0}", "f32[3]{0}"),
        ("f32[3] // three\n{0 : T (8) (2) }", "f32[3]{0:T(8)(2)}"),
        ("b (f32[3])", "b(f32[3]{0})"),
        ("f32[007]", "f32[7]{0}"),
        ("f6e2m3fn[3]", "f6e2m3fn[3]{0}"),
        ("f32[3,4]{1,0:D(D,C+)S(2)}", "f32[3,4]{1,0:S(2)}"),
        ("(s32[],s32[],s32[],s32[],s32[],s32[])", "(s32[], s32[], s32[], s32[], s32[], /*index=5*/s32[])"),
    ],
)
def test_other_texts_become_canonical(text, canonical):
    assert str(parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("f32[3,5", 7, "expected '\\]' or ','"),
        ("f33[3]", 0, "no element type"),
        ("f32[3,5]{1,0:T(2,0)}", 17, "invalid tiles"),
        ("f32[3,5]{1,0:T(2,-2)}", 17, "invalid tiles"),
        ("f32[3,5]{1,0:T()}", 15, "invalid tiles"),
        ("f32[3,5]{1,0:T(2,*)}", 17, "invalid tiles"),
        ("f32[3,5]{1,1}", 11, "twice"),
        ("f32[3,5]{1,2}", 11, "names dim 2"),
        ("f32[3,5]{0}", 9, "minor_to_major field contains 1 elements, but shape has 2 dimensions"),
        ("f32[3,5]{1,0:S(-1)}", 15, "whole number"),
        ("f32[3,5]{1,0:L(0)}", 15, "at least 1"),
        ("f32[3,5]{1,0:S(1)T(2,2)}", 17, "expected '}'"),
        ("f32[3,5]{1,0:P(f32[3])}", 13, "sparse"),
        ("f32[3,5]{1,0:E(16)}", 13, "narrower"),
        ("f32[3]{0} x", 10, "left over"),
        ("token[3]", 6, "no dims"),
        ("f32[3]{0:SC(1:2)}", 12, "physical dim 1"),
        ("", 0, "element type"),
        ("(f32[2], ", 9, "element type"),
        ("f32[99999999999999999999]", 4, "at most 9223372036854775807"),
        ("f64[9223372036854775807]", 4, "more than 2"),
        ("f32[]{}", 5, "left over"),
        ("f32[3,]", 6, "whole number"),
        ("token[]{:T(8)}", 7, "no layout"),
        ("b(token[])", 2, "one array"),
        ("f32[3]{0:S(128)}", 11, "at most 127"),
        ("f32[3]{0:T(8,128S(1)}", 16, "expected '\\)'"),
        ("f32[3]{0:T}", 10, "expected '\\(' after T"),
        ("f32[3]{0:#(f32)}", 11, "integer type"),
        ("f32[3]{0:D(X)}", 11, "D, C, S or H"),
        ("f32[9]{0:SC(0:4)(0:5)}", 17, "twice"),
        ("f32[9]{0:SC(0:9)}", 14, "outside the dim"),
        ("f32[?]{0:SC(0:1)}", 14, "no bound"),
        ("f32[\u0663]", 4, "whole number"),
    ],
)
def test_refused_with_the_column(text, column, reason):
    with pytest.raises(ParseError, match=reason) as caught:
        parse(text)
    assert (caught.value.text, caught.value.column) == (text, column)


def test_order_of_the_tail_is_said():
    with pytest.raises(ParseError, match="D T L"):
        parse("f32[3,5]{1,0:S(1)T(2,2)}")


def test_prefix_stops_before_a_computation_body():
    text = "(f32[2]{0}) -> f32[3,5] {\n  ROOT x"
    value, end = parse_prefix(text)
    assert (str(value), text[end:]) == ("(f32[2]{0})", "-> f32[3,5] {\n  ROOT x")
    value, end = parse_prefix("f32[3,5] {\n x")
    assert str(value) == "f32[3,5]{1,0}"


@given(tiled_layouts())
def test_text_and_value_are_one(layout):
    assert parse(str(layout)) == layout
    assert hash(parse(str(layout))) == hash(layout)


BASE = "(f32[3,5]{1,0:T(2,2)(2,1)L(8)E(64)S(5)SC(0:1)M(16)}, bf16[<=8]{0:T(8,128)(2,1)S(1)}, b(s4[2,0]{0,1:E(4)}))"


@given(st.lists(st.tuples(st.integers(0, len(BASE)), st.sampled_from(string.printable[:95])), min_size=1, max_size=3))
def test_mutated_text_is_a_value_or_a_parse_error(edits):
    text = BASE
    for at, character in edits:
        text = text[:at] + character + text[at + 1 :]
    try:
        assert parse(str(parse(text))) == parse(text)
    except ParseError as error:
        assert 0 <= error.column <= len(text)


def test_import_is_light():
    code = "import sys, tilewright.layout; print([m for m in ('jax', 'numba', 'rich', 'typer') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
