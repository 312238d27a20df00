"""The reader of shape texts beside XLA's own, which runs in a process of its own and may take it down."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from tests.conftest import tries
from tests.layout.xla_text import DIED, FATAL, LENIENT, NONSENSE, Texts, ask_xla, reachable, reasons
from tilewright.errors import ParseError
from tilewright.layout import parse

COUNT = tries(3_400)
KNOWN = version("jaxlib").startswith("0.10.")  # the parser whose differences are documented

EXAMPLES = {
    "minor_to_major is no order of the dims": "f32[3,5]{1,1}",
    "a field's parentheses hold something else, are not closed or are missing": "f32[3,5]{1,0:T(8,128S(1)}",
    "a tile dim of 0": "f32[3,5]{1,0:T(2,0)}",
    "a tile without dims": "f32[3,5]{1,0:T()}",
    "a `*` in the most minor place of a tile": "f32[3,5]{1,0:T(2,*)}",
    "`#(..)` or `*(..)` with a type that is no integer": "f32[3]{0:#(f32)}",
    "E(n) narrower than the type": "f32[3]{0:E(16)}",
    "S(n) outside 0..127 (XLA wraps it around)": "f32[3]{0:S(-1)}",
    "M(n) below 0": "f32[3]{0:M(-1)}",
    "SC(..) with a dim or a cut point that is not there, twice or out of order": "f32[3,5]{1,0:SC(5:1)}",
    "a minus sign, as in -0": "f32[-0]",
    "an array of more than 2**63 - 1 bytes": "f64[9223372036854775807]",
    "a number above 2**63 - 1 (XLA wraps it around)": "f32[3,5]{1,0:T(9223372036854775808,2)}",
    "shapes nested more than 64 deep": "(" * 66 + ")" * 66,
    "a tile dim below 0 (here -1 is a `*`)": "f32[3,5]{1,0:T(2,-2)}",
    "L(n) below 1": "f32[3]{0:L(0)}",
    "token or opaque with dims or a layout": "token[3]",
    "upper-case letters in an element type": "F32[3]",
    "`#(..)` or `*(..)` inside a tuple or a buffer (alone XLA accepts it)": "(f32[3]{0:#(u32)})",
}


@pytest.fixture(scope="module", autouse=True)
def xla():
    if not reachable():
        pytest.skip("jaxlib's parser of HLO text cannot be called here")


def ours(text):
    try:
        return str(parse(text))
    except ParseError:
        return False


def test_texts_are_read_alike():
    texts = Texts(seed=20260801)
    asked = [texts.text() for _ in range(COUNT)]
    answers = ask_xla(asked)
    agreed = 0
    for text, theirs in zip(asked, answers, strict=True):
        mine = ours(text)
        if mine == theirs:
            agreed += 1
        elif not KNOWN:
            assert not (mine and theirs), (text, mine, theirs)
        elif mine is False:
            assert reasons(FATAL if theirs is DIED else NONSENSE, text), (text, theirs)
        elif theirs is DIED:
            assert "*" in mine and "-1" in text, (text, mine)  # noqa: PT018
        else:
            assert theirs is False, (text, mine, theirs)
            assert reasons(LENIENT, text), (text, mine)
    assert agreed > 0.93 * COUNT
    assert sum(isinstance(theirs, str) for theirs in answers) > 0.4 * COUNT


@pytest.mark.skipif(not KNOWN, reason="the differences are documented for the parser of jaxlib 0.10")
def test_the_differences_are_as_documented(root):
    assert set(EXAMPLES) == {*NONSENSE, *FATAL, *LENIENT}
    grammar = (root / "docs" / "layout_grammar.md").read_text()
    answers = dict(zip(EXAMPLES, ask_xla(list(EXAMPLES.values())), strict=True))
    for name, text in EXAMPLES.items():
        assert name in reasons({**NONSENSE, **FATAL, **LENIENT}, text)
        if name in LENIENT:
            assert answers[name] is False
            assert ours(text)
        else:
            assert ours(text) is False
            assert (answers[name] is DIED) == (name in FATAL)
            assert answers[name] is not False
        assert f"{name} | `{text if len(text) < 80 else '((..))'}` |" in grammar
