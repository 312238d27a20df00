"""The page: what it holds, that it fetches nothing, and what a browser makes of it."""

import json
import re
from html.parser import HTMLParser

import pytest

from tilewright.errors import UsageError
from tilewright.render import Bar, Card, Column, Page, badge, bar_chart, cards, table
from tilewright.render.page import code_block

EVIL = "</script><script>document.title='evil'</script><img src=http://example.org/x>"


def make_page() -> Page:
    page = Page(f"title {EVIL}", "a subtitle", facts=[("target", EVIL)])
    page.section("summary", "Summary", cards([Card("AUC", "0.7", EVIL, "good")]), EVIL)
    rows = [(f"op{n} {EVIL}", n * 1000, None if n == 3 else n / 7, badge("moves", "warn")) for n in range(20)]
    columns = [Column("operation", "code", EVIL), Column("moved", "bytes"), Column("ratio", "ratio"), Column("verdict")]
    page.section("movement", "Movement", table(columns, rows, caption="what moves"))
    page.section("charts", "Charts & more", bar_chart([Bar(EVIL, (1.0, 2.0))], title=EVIL), code_block(EVIL))
    page.data("report", {"name": EVIL})
    return page


class Reader(HTMLParser):
    """The elements of a page, its ids, and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self._script = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._script = tag == "script"
        if self._script:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._script = self._script and tag != "script"

    def handle_data(self, data):
        if self._script:
            self.scripts[-1] += data


def test_sections_and_navigation():
    reader = Reader(make_page().html())
    sections = [a["id"] for tag, a in reader.elements if tag == "section"]
    assert sections == ["summary", "movement", "charts"]
    links = [a["href"] for tag, a in reader.elements if tag == "a" and a["href"] != "#top"]
    assert links == [f"#{name}" for name in sections]
    identifiers = [a["id"] for _, a in reader.elements if "id" in a]
    assert len(identifiers) == len(set(identifiers))


def test_nothing_is_fetched():
    text = make_page().html()
    reader = Reader(text)
    assert not [a for _, a in reader.elements if {"src", "srcset", "data", "poster"} & a.keys()]
    assert all(a["href"].startswith("#") for _, a in reader.elements if "href" in a)
    assert not {"link", "iframe", "img", "object", "base"} & {tag for tag, _ in reader.elements}
    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert not [s for s in styles if "url(" in s or "@import" in s]
    assert not re.search(r"\bimport\b|fetch\(|XMLHttpRequest", "".join(reader.scripts[1:]))


def test_data_is_only_data():
    reader = Reader(make_page().html())
    kinds = [a["type"] for tag, a in reader.elements if tag == "script"]
    assert kinds == ["application/json", "module", "module", "module"]
    assert json.loads(reader.scripts[0]) == {"name": EVIL}


def test_same_content_same_bytes():
    assert make_page().html() == make_page().html()


def test_names_are_claimed_once():
    page = make_page()
    with pytest.raises(ValueError, match="already"):
        page.section("summary", "again")
    with pytest.raises(ValueError, match="not a section's name"):
        page.section("Not Good", "x")


def test_write_is_whole_or_not_at_all(tmp_path):
    make_page().write(tmp_path / "report.html")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(UsageError, match="cannot write it"):
        make_page().write(tmp_path / "missing" / "report.html")


def test_a_long_table_says_what_it_leaves_out():
    html = table([Column("n", "count")], [(n,) for n in range(25)], limit=20)
    assert html.count("<tr>") == 21
    assert "5 more rows" in html


@pytest.fixture(scope="module")
def browsed(document_of, tmp_path_factory) -> str:
    """The page's document as Chromium has it after the modules ran."""
    folder = tmp_path_factory.mktemp("page")
    make_page().write(folder / "page.html")
    return document_of(folder / "page.html")


def test_the_modules_run_under_the_policy(browsed):
    reader = Reader(browsed)
    inputs = [a for tag, a in reader.elements if tag == "input"]
    assert [a["placeholder"] for a in inputs] == ["Filter rows"]
    assert "20 rows" in browsed
    assert [a["href"] for tag, a in reader.elements if "aria-current" in a] == ["#summary"]


def test_a_browser_finds_no_foreign_element(browsed):
    reader = Reader(browsed)
    assert not {"img", "link"} & {tag for tag, _ in reader.elements}
    assert sum(tag == "script" for tag, _ in reader.elements) == 4
    assert "<title>title &lt;/script&gt;" in browsed
