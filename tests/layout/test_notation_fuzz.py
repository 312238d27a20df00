"""Thousands of damaged texts: each is a value or a ParseError, nothing else."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.conftest import tries
from tests.layout.xla_text import TYPES, Texts
from tilewright.errors import ParseError
from tilewright.layout import TensorLayout, TupleLayout, parse
from tilewright.layout.kinds.tiled import parse_prefix

COUNT = tries(5_000)
_ARRAY = re.compile(rf"\b(?:{'|'.join(TYPES)}|token|opaque)\[")
_BARE_ARRAY = re.compile(r"([a-z0-9]+\[)([0-9,<=?]*)\](?!\{[0-9:])")


def value_or_parse_error(text):
    try:
        value = parse(text)
    except ParseError as error:
        assert 0 <= error.column <= len(text)
    else:
        assert isinstance(value, TensorLayout | TupleLayout)
        return value
    return None


def real_shapes(paths):
    """The texts of all shapes in the programs, each found where an element type or a tuple of them begins."""
    found = set()
    for path in paths:
        program = path.read_text()
        for start in _ARRAY.finditer(program):
            at = start.start()
            while program[at - 1] == "(" and program[at - 2] in " (=":  # the tuples around it
                at -= 1
            found |= set(_at(program, start.start())) | set(_at(program, at))
        found |= {t for at in re.finditer(r" = (?=\()", program) for t in _at(program, at.end())}
    return sorted(found)


def _at(program, at):
    """The shape's text there; a parenthesis may also open a list of parameters or operands, which is no shape."""
    try:
        _, end = parse_prefix(program, at)
    except ParseError:
        if program[at] != "(":
            raise
    else:
        yield program[at:end].rstrip()


def with_default_layouts(text):
    """The text with a descending minor_to_major on every array that has dims and no layout."""

    def add(found):
        rank = len(found[2].split(",")) if found[2] else 0
        return found[0] + ("{" + ",".join(map(str, reversed(range(rank)))) + "}" if rank else "")

    return _BARE_ARRAY.sub(add, text)


@pytest.fixture(scope="module")
def texts(data_folder):
    return real_shapes(sorted(data_folder.glob("hlo_*/*.hlo")))


def test_every_shape_of_the_programs_prints_back(texts):
    kept = sum(str(parse(text)) == text for text in texts)
    for text in texts:
        plain = re.sub(r"/\*index=\d+\*/", "", text)
        assert re.sub(r"/\*index=\d+\*/", "", str(parse(text))) == with_default_layouts(plain), text
        if "{" in text and text == with_default_layouts(text):
            assert str(parse(text)) == text or "/*" not in text, text
    assert kept > 350
    assert sum(text.startswith("(") for text in texts) > 40
    assert sum("/*index=5*/" in text and str(parse(text)) == text for text in texts) > 8


def test_damaged_texts(texts):
    texts = [text for text in texts if len(text) < 200]
    source = Texts(seed=7)
    choose = random.Random(7)
    read = 0
    for _ in range(COUNT):
        text = source.edited(choose.choice(texts))
        read += value_or_parse_error(text) is not None
    assert 0.1 * COUNT < read < 0.9 * COUNT


@given(st.text(alphabet="f32sbu[]{}(),:*?<=TLESCMDP 0123456789/#x", max_size=40) | st.text(max_size=20))
@example("f32[2]{0:" + "T(2)" * 3 + "}")
@example("(" * 200)
@example("f32[²]")
@example("f32[٣]")
@example("f32[" + "9" * 5000 + "]")
@example("f32[3]{0:S(" + "9" * 5000 + ")}")
def test_any_text(text):
    value = value_or_parse_error(text)
    if value is not None:
        assert parse(str(value)) == value
