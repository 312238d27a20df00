"""The table of many rows: what is sent, what stands there without scripts, and that numbers read as elsewhere."""

import json
import random
import re
from dataclasses import dataclass

import pytest

from tilewright.render import Field, Html, Page, explorer
from tilewright.render.formats import format_value
from tilewright.render.markup import Scripted, shared_asset


@dataclass(frozen=True)
class Item:
    name: str
    size: int | None
    kind: str = "plain"


ITEMS = [Item("a10", 5, "x"), Item("a9", None, "y"), Item("</script>", 4096, "x"), Item("a9", 70_000, "x")]
FIELDS = [
    Field("name", "code", of=lambda item: item.name),
    Field("size", "bytes", "in memory", lambda item: item.size, total=True),
    Field("kind", "text", of=lambda item: item.kind, below=True, facet=True),
    Field("hidden one", "text", of=lambda item: f"{item.kind} of {item.name}", shown=False),
]


def made(items=ITEMS, fields=FIELDS) -> Html:
    return explorer(fields, items, key=lambda item: item.name, sort="size")


def sent(html: str) -> dict:
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)[1])


def test_columns_are_sent_once_and_keys_tell_doubles_apart():
    data = sent(made())
    assert data["columns"][1] == [5, None, 4096, 70_000]
    assert data["columns"][2] == {"values": ["x", "y"], "codes": [0, 1, 0, 0]}
    assert data["keys"] == ["a10", "a9", "</script>", "a9~2"]
    assert [field["name"] for field in data["fields"]] == ["name", "size", "kind", "hidden-one"]


def test_a_column_of_one_value_is_that_value_and_keys_may_be_a_column():
    data = sent(made([Item(f"n{k}", 1) for k in range(9)]))
    assert data["columns"][1:3] == [{"values": [1]}, {"values": ["plain"]}]
    assert (data["keys"], data["count"]) == ("name", 9)


def test_without_scripts_there_is_a_table_of_the_largest():
    html = made([Item(f"n{k}", k) for k in range(150)])
    cells = re.findall(r"<code>(n\d+)</code>", html)
    assert cells == [f"n{k}" for k in range(149, 49, -1)]
    assert "50 more rows" in html
    assert "hidden one" not in html.split("</script>")[1]


def test_names_of_fields_are_single_and_nothing_is_said():
    with pytest.raises(ValueError, match="two fields"):
        made(fields=[*FIELDS, FIELDS[0]])
    assert "nothing to show" in made([])


def test_a_block_brings_its_module_once():
    page = Page("title")
    block = Scripted(Html("<p>drawn</p>"), "document.title = 'alive'")
    page.section("one", "One", block)
    page.section("two", "Two", block)
    assert page.html().count("document.title = 'alive'") == 1


def test_its_module_runs_under_the_policy(document_of, tmp_path):
    page = Page("title")
    page.section("one", "One", Scripted(Html('<p id="seen">dead</p>'), "seen.textContent = 'alive'"), made())
    page.write(tmp_path / "page.html")
    document = document_of(tmp_path / "page.html")
    assert '<p id="seen">alive</p>' in document
    assert "4 rows" in document
    assert document.count("<tr data-row") + len(re.findall(r"<tr id=", document)) == 4


KINDS = ("bytes", "count", "seconds", "ratio", "percent", "number")


def _values():
    draw = random.Random(3)
    whole = [0, 1, 999, 1023, 1024, 1152, 1536, 10_240, 1_047_552, 1_048_064, 2**40, 3 * 2**50 + 17, 123_456_789]
    return whole + [draw.randrange(10 ** draw.randrange(1, 15)) for _ in range(150)] + [-5, -4096]


def _fractions():
    draw = random.Random(4)
    exact = [0.125, 0.375, 1.125, 9.995, 99.95, 59.95, 12.5, 1e-9, 4.2e-6, 0.0625, 61.5, 3599.7, 7322.0, 0.9995, 33.25]
    return exact + [draw.random() * 10 ** draw.randrange(-6, 5) for _ in range(150)]


@pytest.fixture(scope="module")
def written(document_of, tmp_path_factory):
    """Every value as the page's module writes it."""
    folder = tmp_path_factory.mktemp("written")
    ours = "const said = Object.fromEntries(%s.map((kind) => [kind, asked.map((value) => written(value, kind))]));"
    tell = "document.body.textContent = JSON.stringify(said);"
    asked = f"const asked = {json.dumps(_values() + _fractions())};"
    script = f'<script type="module">{shared_asset("explorer.js")}\n{asked}{ours % json.dumps(KINDS)}{tell}</script>'
    (folder / "page.html").write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{script}</body>", encoding="utf-8")
    return json.loads(re.search(r"<body>(\{.*\})</body>", document_of(folder / "page.html"), re.DOTALL)[1])


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_writes_numbers_as_python_does(written, kind):
    values = _values() + (_fractions() if kind not in ("bytes", "number") else [])
    expected = [format_value(value, kind) for value in values]
    assert written[kind][: len(expected)] == expected
