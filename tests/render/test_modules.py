"""The page's modules do what they say: sort, filter, follow the section, switch colours."""

import json
import re

import pytest

from tilewright.render import Column, table
from tilewright.render.markup import shared_asset

ROWS = [("b", 3_000), ("a10", None), ("a9", 20), ("c", -1), *((f"z{n}", 100 + n) for n in range(9))]

DRIVER = """
const rows = () => [...document.querySelectorAll("tbody tr")].filter((row) => !row.hidden);
const column = (k) => rows().map((row) => row.cells[k].textContent);
const heads = [...document.querySelectorAll("thead button")];
const seen = {};
heads[1].click(); seen.largest = column(0).slice(0, 2); seen.dash = column(0).at(-1);
seen.aria = heads[1].parentNode.ariaSort;
heads[1].click(); seen.smallest = column(0).slice(0, 2); seen.dashAgain = column(0).at(-1);
heads[0].click(); seen.names = column(0).slice(0, 4); seen.cleared = heads[1].parentNode.ariaSort;
const input = document.querySelector("input");
input.value = "Z 3"; input.dispatchEvent(new Event("input")); seen.filtered = column(0);
seen.count = document.querySelector("output").textContent;
const button = document.getElementById("theme");
seen.themes = [1, 2, 3].map(() => { button.click(); return document.documentElement.dataset.theme ?? "auto"; });
seen.current = [...document.querySelectorAll("[aria-current]")].map((link) => link.hash);
document.getElementById("seen").textContent = JSON.stringify(seen);
"""


@pytest.fixture(scope="module")
def seen(document_of, tmp_path_factory):
    """What the driver saw in a page of the real table, the real modules and a navigation."""
    folder = tmp_path_factory.mktemp("modules")
    scripts = "".join(f'<script type="module">{shared_asset(name)}</script>' for name in ("tables.js", "navigation.js"))
    links = (
        '<nav><ol><li><a href="#one">1</a></li><li><a href="#two">2</a></li></ol><button id="theme">Auto</button></nav>'
    )
    html = table([Column("name"), Column("value", "count")], ROWS)
    main = f'<main><section id="one">{html}</section><section id="two"></section></main><pre id="seen"></pre>'
    driver = f'<script type="module">{DRIVER}</script>'
    (folder / "page.html").write_text(f"<!DOCTYPE html><body>{links}{main}{scripts}{driver}</body>")
    found = re.search(r'<pre id="seen">(.+?)</pre>', document_of(folder / "page.html"))
    return json.loads(found[1])


def test_numbers_sort_by_value_and_dashes_last(seen):
    assert seen["largest"] == ["b", "z8"]
    assert seen["smallest"] == ["c", "a9"]
    assert seen["dash"] == seen["dashAgain"] == "a10"


def test_names_sort_with_their_numbers(seen):
    assert seen["names"] == ["a9", "a10", "b", "c"]
    assert (seen["aria"], seen["cleared"]) == ("descending", "none")


def test_every_word_filters(seen):
    assert seen["filtered"] == ["z3"]
    assert seen["count"] == "1 of 13 rows"


def test_the_colour_switch_goes_round_and_the_first_section_is_marked(seen):
    assert seen["themes"] == ["light", "dark", "auto"]
    assert seen["current"] == ["#one"]
