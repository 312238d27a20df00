"""Nothing enters markup unescaped."""

import json
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.render import Html
from tilewright.render.markup import element, escape, join, json_for_script


@given(st.text())
def test_any_text_survives_as_text(text):
    root = ElementTree.fromstring(element("p", text, title=text))
    assert len(root) == 0
    kept = "".join(c if c in "\t\n" or c >= " " else "\ufffd" for c in text)
    kept = "".join("\ufffd" if "\ud800" <= c <= "\udfff" or c in "\ufffe\uffff" else c for c in kept)
    if "\r" not in text:
        assert (root.text or "") == kept


def test_markup_is_kept_and_text_is_not():
    assert element("p", Html("<b>x</b>"), "<b>") == "<p><b>x</b>&lt;b&gt;</p>"
    assert escape(Html("<b>")) == "<b>"
    assert isinstance(Html("<b>") + "<i>", Html)
    assert Html("<b>") + "<i>" == "<b>&lt;i&gt;"
    assert join(["<", Html("<br/>")], " & ") == "&lt; &amp; <br/>"


def test_attributes():
    assert (
        element("input", type="search", disabled=True, hidden=False, value=None) == '<input type="search" disabled=""/>'
    )
    with pytest.raises(ValueError, match="attribute"):
        element("p", **{"on click": "x"})


@given(
    st.recursive(
        st.text() | st.integers() | st.booleans(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_cannot_leave_its_script(value):
    markup = f'<script type="application/json">{json_for_script(value)}</script>'
    seen = []

    class Reader(HTMLParser):
        def handle_data(self, data):
            seen.append(data)

        def handle_starttag(self, tag, attributes):
            assert tag == "script"

    Reader().feed(markup)
    assert json.loads("".join(seen)) == value
