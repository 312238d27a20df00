"""The browser of the tests: what its check lets pass and what it finds, and that it stays out of the others' way."""

import asyncio

import pytest

from tests.browser import in_browser
from tests.render.test_page import make_page


@in_browser
def test_a_quiet_page_passes(visit, tmp_path):
    make_page().write(tmp_path / "page.html")
    visit(tmp_path / "page.html", scheme="dark").check()


@in_browser
def test_what_a_check_finds(visit, tmp_path):
    wide_and_pale = '<p style="width:3000px;color:#ddd">pale</p><img alt="" src=http://example.org/x>'
    path = tmp_path / "page.html"
    path.write_text(f"<html lang=en><title>t</title>{wide_and_pale}<script>console.error('wrong')</script>")
    seen = visit(path)
    assert "wrong" in seen.errors
    assert seen.elsewhere == ["http://example.org/x"]
    assert [hit.partition(":")[0] for hit in seen.serious()] == ["color-contrast"]
    with pytest.raises(AssertionError):
        seen.check()


def test_other_tests_keep_their_event_loops(visit):
    assert asyncio.run(asyncio.sleep(0, "run")) == "run"
