"""The report's page in a browser: sorted, filtered, searched, opened there; its drawings against the core's offsets."""

import base64
import hashlib
import json
import math
import random
import re

import numpy as np
import pytest

from tilewright.hlo import load, report
from tilewright.hlo.program import title
from tilewright.hlo.reporting.page import digit_forms, drawing_module, first_layout, matching
from tilewright.layout import compare, parse
from tilewright.render import bytes_text, count_text

HELPERS = """
const all = (path, inside = document) => [...inside.querySelectorAll(path)];
const figure = document.querySelector("figure.explorer");
const rows = () => all("tbody tr[data-row]", figure);
const names = () => rows().slice(0, 5).map((row) => row.querySelectorAll("td code")[0].textContent);
const sums = () => figure.querySelector("output.sums").textContent;
const type = (input, text) => { input.value = text; input.dispatchEvent(new Event("input", { bubbles: true })); };
const head = (text) => all("th button", figure).find((button) => button.textContent === text);
const down = (key) => new KeyboardEvent("keydown", { key, bubbles: true });
const press = (key) => figure.querySelector(".viewport").dispatchEvent(down(key));
const term = (each) => [each.textContent, each.nextSibling.textContent];
const terms = () => Object.fromEntries(all(".opened dt", figure).map(term));
const seen = {};
"""
SAY = """
const told = Object.assign(document.createElement("pre"), { id: "seen", textContent: JSON.stringify(seen) });
document.body.replaceChildren(told);
"""


def seen_in(document_of, html, driver, folder, address=""):
    """What a driver saw in the page, whose policy lets that one script run too."""
    script = f"addEventListener('DOMContentLoaded', () => {{ {HELPERS}{driver}{SAY} }});"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert html.count("script-src &#x27;") == 1
    html = html.replace("script-src &#x27;", f"script-src &#x27;sha256-{digest}&#x27; &#x27;", 1)
    page = folder / "page.html"
    page.write_text(html.replace("</body>", f'<script type="module">{script}</script></body>'), encoding="utf-8")
    found = re.search(r'<pre id="seen">(.*?)</pre>', document_of(f"{page.as_uri()}{address}"), re.DOTALL)
    assert found, "the driver did not end"
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


DRIVE = """
seen.first = names(); seen.drawn = rows().length; seen.sums = sums();
head("name").click(); seen.byName = names(); seen.sorted = head("name").parentNode.ariaSort;
head("name").click(); seen.byNameBack = names();
head("padded").click(); seen.byPadded = names();
head("moved").click(); seen.again = names();
const [search, least] = all(".controls > input", figure);
type(search, "transpose"); seen.searched = sums();
type(search, "transpose -main"); seen.without = sums();
type(search, ""); type(least, "1 GiB"); seen.large = sums();
type(least, "x"); seen.invalid = least.getAttribute("aria-invalid"); type(least, "");
const menu = all("details.facet", figure)[0]; menu.open = true; menu.dispatchEvent(new Event("toggle"));
const box = all("input", menu).find((each) => each.value === "transpose"); box.click();
seen.chosen = sums(); seen.address = location.hash;
rows()[0].querySelector("td").click();
seen.opened = terms(); seen.lead = figure.querySelector(".opened .lead").textContent;
seen.canvases = all(".opened canvas", figure).map((each) => each.width * each.height > 0);
seen.said = all(".opened .extra p", figure).map((each) => each.textContent);
seen.link = location.hash;
press("ArrowDown"); seen.next = terms().name;
press("Escape"); seen.closed = figure.querySelector(".opened").hidden; seen.closedLink = location.hash;
all(".reset", figure)[0].click(); seen.reset = sums();
all(".part", figure)[0].click(); seen.part = sums();
"""


@pytest.fixture(scope="module")
def largest(data_folder):
    """The report of the largest program."""
    return report(load(data_folder / "hlo_written" / "train_step.hlo"))


@pytest.fixture(scope="module")
def shown(largest):
    """What its page shows: equal rows as one."""
    return largest.alike


@pytest.fixture(scope="module")
def driven(document_of, largest, tmp_path_factory):
    """What a driver saw in its page."""
    return seen_in(document_of, largest.to_html(), DRIVE, tmp_path_factory.mktemp("page"))


def _by_weight(rows):
    return sorted(rows, key=lambda row: -row.total_bytes)


def _sums(rows, report):
    moved = sum(row.total_bytes for row in rows)
    share = f" of {bytes_text(report.moved_bytes)}, {100 * moved / report.moved_bytes:.1f} %"
    return f"{count_text(len(rows))} of {count_text(len(report.rows))} rowsmoved {bytes_text(moved)}{share}"


def test_rows_are_drawn_as_they_come_into_view(driven, shown):
    assert driven["first"] == [title(row) for row in _by_weight(shown.rows)[:5]]
    assert driven["drawn"] < 60 < len(shown.rows)
    assert driven["sums"] == f"{count_text(len(shown.rows))} rowsmoved {bytes_text(shown.moved_bytes)}"


def test_every_column_sorts(driven, shown):
    def natural(row):
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", title(row))]

    assert driven["byName"] == [title(row) for row in sorted(shown.rows, key=natural)[:5]]
    assert driven["byNameBack"] == [title(row) for row in sorted(shown.rows, key=natural, reverse=True)[:5]]
    assert driven["sorted"] == "ascending"
    by_padded = sorted(_by_weight(shown.rows), key=lambda row: -row.padded_bytes)
    assert driven["byPadded"] == [title(row) for row in by_padded[:5]]
    assert driven["again"] == driven["first"]


def _texts(row):
    own = (row.op, row.name, row.from_short, row.to_layout, row.category, row.source, row.path, row.reason, row.op_name)
    return "\n".join([*own, *row.also])


def test_totals_follow_search_bound_and_choice(driven, shown):
    found = [row for row in shown.rows if "transpose" in _texts(row)]
    assert driven["searched"] == _sums(found, shown)
    assert driven["without"] == _sums([row for row in found if "main" not in _texts(row)], shown)
    assert driven["large"] == _sums([row for row in shown.rows if row.total_bytes >= 1 << 30], shown)
    assert driven["invalid"] == "true"
    assert driven["chosen"] == _sums([row for row in shown.rows if row.op == "transpose"], shown)
    assert driven["address"] == "#operation=transpose"
    assert driven["reset"] == driven["sums"]
    most = next(iter(shown.moved_by_op))
    assert driven["part"] == _sums([row for row in shown.rows if row.op == most], shown)


def test_a_click_opens_the_row_and_draws_its_layouts(driven, shown):
    turned = _by_weight(row for row in shown.rows if row.op == "transpose")
    opened = driven["opened"]
    assert opened["name"] == title(turned[0])
    assert opened["path"] == turned[0].path
    assert opened["to"] == turned[0].to_layout
    assert opened["padded"] == f"{bytes_text(turned[0].padded_bytes)} ({count_text(turned[0].padded_bytes)})"
    assert driven["lead"] == turned[0].reason
    assert driven["canvases"] == [True, True]
    assert any("every element keeps its byte" in text for text in driven["said"])
    assert driven["link"].endswith(f"&row={turned[0].name}")
    assert driven["next"] == title(turned[1])
    assert driven["closed"]
    assert driven["closedLink"] == driven["address"]


@pytest.mark.nightly
def test_an_address_opens_its_row_in_its_state(document_of, largest, shown, tmp_path):
    """By day: an address that opens a row, in the test of the drawings."""
    row = _by_weight(shown.rows)[20]
    driver = "seen.name = terms().name; seen.sums = sums(); seen.sorted = head('name').parentNode.ariaSort;"
    address = f"#q={row.op}&sort=name:down&row={row.name}"
    found = seen_in(document_of, largest.to_html(), driver, tmp_path, address)
    assert (found["name"], found["sorted"]) == (title(row), "descending")
    assert found["sums"].startswith(f"{len([each for each in shown.rows if row.op in _texts(each)])} of ")


def test_the_drawings_count_what_moves(document_of, tmp_path):
    a, b = "f32[3,5]{1,0:T(2,2)}", "f32[3,5]{1,0:T(4,2)}"
    found = report(load(f"HloModule m\nENTRY e {{\n p = {a} parameter(0)\n ROOT c = {b} copy(p)\n}}"))
    driver = "seen.said = all('.opened .extra p').map((each) => each.textContent);"
    driver += "const box = all('.opened canvas')[1], at = box.getBoundingClientRect();"
    driver += "box.dispatchEvent(new MouseEvent('mousemove', { clientX: at.x + 160, clientY: at.y + 50 }));"
    driver += "seen.place = figure.querySelector('.said').textContent;"
    said = seen_in(document_of, found.to_html(), driver, tmp_path, "#row=c")
    moved = compare(parse(a), parse(b)).moved_elements
    assert f"15 elements, {moved} of them move, 9 slots of padding" in said["said"]
    index, before, after = re.fullmatch(r"(\(.*\)) at offset (\d+) → \(.*\) at offset (\d+).*", said["place"]).groups()
    place = tuple(map(int, index.strip("()").split(",")))
    assert (parse(a).offset(*place), parse(b).offset(*place)) == (int(before), int(after))


def big_module(count):
    """A chain of reshapes between layouts of many shapes and orders, each from a line of its own."""
    draw, previous, size = random.Random(1), "p", 6144 * 125
    lines = ["HloModule big", "ENTRY main {", f"  p = f32[{size}]{{0:T(1024)}} parameter(0)"]
    for number in range(count):
        shape = [draw.choice((2, 3, 4, 5, 6, 8, 10, 12, 16)) for _ in range(draw.choice((1, 2, 3)))]
        inner = draw.choice([d for d in range(1, 800) if size % (math.prod(shape) * d) == 0] or [0])
        shape = [*shape, size // math.prod(shape) // inner, inner] if inner else [6144, 125]
        order = ",".join(map(str, draw.sample(range(len(shape)), len(shape))))
        text = f"f32[{','.join(map(str, shape))}]{{{order}:{draw.choice(('T(8,128)', 'T(4,128)'))}}}"
        place = f'metadata={{op_name="jit(main)/layer{number}/op" source_file="m.py" source_line={number}}}'
        lines.append(f"  r.{number} = {text} reshape({previous}), {place}")
        previous = f"r.{number}"
    return "\n".join([*lines, "}"])


def page_of_many(count):
    found = report(load(big_module(count)))
    html = found.to_html()
    assert len(found.rows) == count
    assert len(html) < 450 * count + 500_000
    return html


def test_thousands_of_operations_stay_small():
    page_of_many(400)


@pytest.mark.nightly
def test_thousands_of_operations_are_drawn_quickly(document_of, tmp_path):
    """By day: what the page draws of the largest program of the data, and the size of another page."""
    count = 10_000
    html = page_of_many(count)
    driver = "seen.drawn = all('tr').length; rows()[0].querySelector('td').click();"
    driver += "seen.canvases = all('canvas').length; press('Escape');"
    driver += "type(all('.controls > input')[0], 'layer%d'); seen.sums = sums();"
    driver += "rows()[0].querySelector('td').click(); seen.name = terms().name;"
    seen = seen_in(document_of, html, driver % (count - 1), tmp_path)
    assert seen["drawn"] < 200
    assert seen["canvases"] == 2
    assert seen["sums"].startswith(f"1 of {count:,} rows")
    assert seen["name"] == f"r.{count - 1}"


# -- drawings against the core -----------------------------------------------------------------------------------------

PAIRS = [
    ("f32[3,5]{1,0:T(2,2)}", "f32[3,5]{1,0:T(4,2)}", None),
    ("f32[336,50]{1,0:T(8,128)}", "f32[16800]{0:T(1024)}", None),
    ("bf16[14,14,256]{2,1,0:T(8,128)(2,1)}", "bf16[196,256]{1,0:T(8,128)(2,1)}", None),
    ("f32[48,350]{1,0:T(8,128)}", "f32[350,48]{1,0:T(8,128)}", (1, 0)),
    ("s8[6,40,200]{2,0,1:T(8,128)(4,1)}", "s8[200,6,40]{1,2,0:T(8,128)(4,1)}", (2, 0, 1)),
    ("f32[9,129]{0,1:T(8,128)}", "bf16[9,129]{1,0:T(8,128)(2,1)}", None),
    ("f32[4,4,4,4]{0,2,1,3}", "f32[64,4]{1,0:T(8,128)}", None),
    ("u4[33,70]{1,0:T(8,128)E(4)}", "u4[2310]{0:E(4)}", None),
]


def _sample(shape, draw):
    return [[draw.randrange(size) for size in shape] for _ in range(200)]


@pytest.fixture(scope="module")
def drawn(document_of, tmp_path_factory):
    """Offsets, matches and moves as the page's module computes them, on random elements of every pair."""
    draw, folder = random.Random(7), tmp_path_factory.mktemp("drawn")
    asked = []
    for a, b, turn in PAIRS:
        forms = digit_forms([a, b])
        way = "index" if turn is None else ",".join(map(str, turn))
        asked.append({"a": forms[a], "b": forms[b], "way": way, "at": _sample(parse(a).shape, draw)})
    driver = (
        f"const asked = {json.dumps(asked)};"
        "const seen = asked.map(({ a, b, way, at }) => {"
        "[a, b] = [formOf(a), formOf(b)]; const match = matcher(a, b, way); return at.map((from) => {"
        "const to = match.onward(from); return [offsetOf(a, from), offsetOf(b, to), moves(a, b, from, to), to,"
        "match.back(to)]; }) });"
    )
    script = f'<script type="module">{drawing_module()}\n{driver}{SAY}</script>'
    (folder / "page.html").write_text(f"<!DOCTYPE html><body>{script}</body>", encoding="utf-8")
    document = document_of(folder / "page.html")
    return asked, json.loads(re.search(r'<pre id="seen">(.*?)</pre>', document)[1])


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_the_page_computes_the_offsets_of_the_core(drawn, number):
    asked, seen = drawn[0][number], drawn[1][number]
    a, b, turn = parse(PAIRS[number][0]), parse(PAIRS[number][1]), PAIRS[number][2]
    whole = compare(a, b, turn)
    indices = np.array(asked["at"])
    onward = whole.onward(indices)
    moved = whole.moves(a.addresses(indices), b.addresses(onward))
    assert [each[0] for each in seen] == a.offsets(indices).tolist()
    assert [each[1] for each in seen] == b.offsets(onward).tolist()
    assert [each[2] for each in seen] == moved.tolist()
    assert [each[3] for each in seen] == onward.tolist()
    assert [each[4] for each in seen] == asked["at"]


def test_layouts_without_an_exact_form_are_left_out():
    texts = [
        "f32[0,4]{1,0}",
        "f32[4503599627370496,8]{1,0}",
        "(f32[4]{0}, f32[4]{0})",
        "f32[7,6]{1,0:T(*,4)}",
        "f32[2]{0}",
    ]
    assert set(digit_forms(texts)) >= {"f32[2]{0}"}
    assert not {"f32[0,4]{1,0}", "f32[4503599627370496,8]{1,0}", "(f32[4]{0}, f32[4]{0})"} & set(digit_forms(texts))


def _row(body):
    return report(load(f"HloModule m\nENTRY e {{\n{body}\n}}")).rows[0]


@pytest.mark.parametrize(
    ("shapes", "dims", "way"),
    [
        (("f32[4,6]{1,0}", "f32[6,4]{1,0}"), "1,0", "1,0"),
        (("f32[4,4]{1,0}", "f32[4,4]{1,0}"), "1,0", "1,0"),
        (("f32[4,1,6]{2,1,0}", "f32[6,1,4]{2,1,0}"), "2,1,0", "2,1,0"),
        (("f32[4,4,4]{2,1,0}", "f32[4,4,4]{2,1,0}"), "1,2,0", ""),  # sizes leave five ways
    ],
)
def test_a_transpose_is_matched_where_sizes_leave_one_way(shapes, dims, way):
    row = _row(f" p = {shapes[0]} parameter(0)\n ROOT t = {shapes[1]} transpose(p), dimensions={{{dims}}}")
    assert matching(row) == way


def test_what_is_no_rearrangement_is_not_matched():
    part = _row(" p = f32[8]{0} parameter(0)\n ROOT s = f32[4]{0} slice(p), slice={[0:4]}")
    free = _row(" p = f32[8]{0} parameter(0)\n ROOT s = f32[2,4]{1,0} reshape(p)")
    operands = " p = f32[8]{0:T(8)} parameter(0)\n q = f32[4]{0} parameter(1)\n"
    joined = _row(f"{operands} ROOT s = f32[12]{{0}} concatenate(p, q), dimensions={{0}}")
    assert (matching(part), matching(free), matching(joined)) == ("", "place", "")
    assert first_layout(joined) == "f32[8]{0:T(8)}"
