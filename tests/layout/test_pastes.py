"""What people paste: each kind that holds a layout is read, the others get one clear error that names where to go."""

from __future__ import annotations

import json
import random
import re

import pytest

from tests.conftest import ROOT, tries
from tilewright.errors import ParseError, TilewrightError
from tilewright.layout import TensorLayout, TupleLayout, find_shapes, parse

PASTES = json.loads((ROOT / "tests" / "data" / "pastes.json").read_text())
READ, REFUSED = PASTES["read"], PASTES["refused"]
MUTATED = tries(1_000)


@pytest.mark.parametrize("paste", READ, ids=lambda paste: paste["kind"])
def test_a_paste_is_read(paste):
    found = find_shapes(paste["text"])
    assert [str(shape.layout) for shape in found] == paste["reads"]
    assert str(parse(paste["text"])) == (paste["reads"][0] if len(found) == 1 else f"({', '.join(paste['reads'])})")


@pytest.mark.parametrize("paste", REFUSED, ids=lambda paste: paste["kind"])
def test_a_paste_is_refused_with_where_to_go(paste):
    with pytest.raises(ParseError) as caught:
        parse(paste["text"])
    assert paste["error"] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert 0 <= caught.value.column <= len(caught.value.text)


def test_there_are_enough_kinds():
    assert len(READ) >= 81
    assert len({paste["kind"] for paste in READ + REFUSED}) == len(READ) + len(REFUSED)


def test_allocator_messages_are_found_allocation_by_allocation(data_folder):
    for path in sorted((data_folder / "allocator_messages").glob("*.txt")):
        text = path.read_text()
        try:
            found = find_shapes(text)
        except ParseError as error:
            assert "explain-error" in str(error), path.name
            continue
        stated = len(re.findall(r"Shape: \(?[a-z0-9]+\[", text))
        assert len(found) == stated or not stated, path.name


def test_names_tell_which_shape_is_which():
    message = next(paste["text"] for paste in READ if paste["kind"] == "message: a whole one")
    assert [shape.name for shape in find_shapes(message)] == ["allocation 1", "allocation 2"]
    assert find_shapes("%a.1 = f32[2]{0} add(%x, %y)")[0].name == "a.1"
    bare = find_shapes("{1,0:T(8,128)}")[0]
    assert bare.bare
    assert bare.layout.shape == (-1, -1)


def mutated(text, choose):
    """The text with a few edits: signs put in, taken out, doubled; pieces of other pastes in between."""
    for _ in range(choose.choice((1, 1, 2, 3, 6))):
        at = choose.randint(0, len(text))
        kind = choose.randint(0, 4)
        to = choose.randint(at, min(len(text), at + 12))
        if kind == 0:
            text = (
                text[:at] + choose.choice("0123456789,:*()[]{}<=?#+-~TLESCMDPb fsu/ \t\n%'\"`|>x&;\\\x1b") + text[at:]
            )
        elif kind == 1:
            text = text[:at] + text[to:]
        elif kind == 2:
            text = text[:to] + text[at:]
        elif kind == 3:
            other = choose.choice(READ)["text"]
            cut = choose.randint(0, len(other))
            text = text[:at] + other[cut : cut + choose.randint(0, 40)] + text[at:]
        else:
            text = (
                text[:at] + choose.choice(("9" * 30, "-1", "T(", "f32[", "tensor<", "{", "\u0663", "...")) + text[to:]
            )
    return text


def check_mutated(count, seed):
    """How many of so many damaged pastes are read; anything but a value or one of our own errors is raised."""
    choose = random.Random(seed)
    texts = [paste["text"] for paste in READ + REFUSED]
    read = 0
    for _ in range(count):
        text = mutated(choose.choice(texts), choose)
        try:
            value = parse(text)
        except TilewrightError as error:
            assert "\n" not in error.what, text
        else:
            assert isinstance(value, TensorLayout | TupleLayout), text
            read += 1
    return read


def test_damaged_pastes():
    assert 0.2 * MUTATED < check_mutated(MUTATED, seed=20) < 0.95 * MUTATED
