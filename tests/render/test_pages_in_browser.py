"""Report, plan, run and tune pages as visitors meet them: keyboard alone, narrow and wide, light and dark."""

from __future__ import annotations

import json

import pytest

from tests.browser import BY_DAY, EVERY_LOOK, in_browser
from tests.cli.conftest import completed
from tests.conftest import ROOT

DUMP = ROOT / "tests" / "data" / "hlo_tpu" / "v5e_reshape_zoo.after.hlo"
MADE = {
    "report": ("report", DUMP, "--target", "tpu-v5e"),
    "plan": ("embed", "plan", "--chips", "2", "--scale", "0.001", "--rows", "1024", "--batch", "256"),
    "tune": ("isa", "tune", "--m", "16", "--n", "16", "--k", "16", "--most", "4"),
    "time": ("time", ROOT / "examples" / "group_norm.mlir", "--target", "tpu-v6e"),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Name -> the page; each is made once."""
    folder, made = tmp_path_factory.mktemp("pages"), {}

    def page(name):
        if name not in made:
            made[name] = folder / f"{name}.html"
            done = completed(*MADE[name], "-o", made[name])
            assert done.returncode == 0, done.stderr.decode()
        return made[name]

    return page


#: By day every page in one look, half of them in each of two; the report below, with a row open.
SEEN = [
    pytest.param(name, *look, marks=[] if look == BY_DAY[k % 2] and name != "report" else [pytest.mark.nightly])
    for k, name in enumerate(MADE)
    for look in EVERY_LOOK
]


@pytest.mark.parametrize(("name", "width", "scheme"), SEEN)
@in_browser
def test_a_page_opens_without_fault(visit, pages, name, width, scheme):
    seen = visit(pages(name), width=width, scheme=scheme)
    begins_with_what_to_do(seen.page)
    seen.check()


def begins_with_what_to_do(page):
    first = page.locator("main > section").first
    assert first.locator("h2").text_content() in ("What to do", "What to do first")
    assert first.locator("ol.steps li, ol li").count()


@pytest.mark.nightly
@pytest.mark.parametrize("name", MADE)
@in_browser
def test_a_page_is_walked_by_the_keyboard_alone(visit, pages, name):
    """By day the page of tests/machine/test_run.py: all have the same frame."""
    walk(visit(pages(name), width=420))


def walk(seen):
    """Colours are chosen, a section is gone to, a command copied and a table sorted, with Tab and Enter alone."""
    page = seen.page
    seen.tab_to("#theme")
    page.keyboard.press("Enter")
    assert page.locator(":root").get_attribute("data-theme") == "light"
    address = seen.tab_to("nav li:first-child a", "Shift+Tab").get_attribute("href")
    page.keyboard.press("Enter")
    assert page.url.endswith(address)
    if page.locator("pre.command").count():
        copy = seen.tab_to("pre.command button")
        page.keyboard.press("Enter")
        page.locator("pre.command [role=status]:not(:empty)").first.wait_for(state="attached")
        assert copy.text_content() in ("Copied", "Selected")
    head = seen.tab_to("th button").text_content()
    page.keyboard.press("Enter")
    assert head in page.locator("th[aria-sort$=ending] button").all_text_contents()
    seen.quiet()


@in_browser
def test_a_row_opens_turns_its_slices_and_closes_by_the_keyboard_alone(visit, pages):
    page = (seen := visit(pages("report"))).page
    begins_with_what_to_do(page)
    seen.tab_to(".viewport")
    page.keyboard.press("ArrowDown")
    assert page.locator(".explorer [role=status]").first.text_content().startswith("row 2 of ")
    page.keyboard.press("Enter")
    panel = page.locator("aside.opened").first
    assert panel.is_visible()
    assert page.locator('tr[aria-selected="true"]').count() == 1
    seen.check()
    seen.tab_to(".slices input")
    page.keyboard.type("3")
    seen.tab_to("canvas")
    page.keyboard.press("ArrowRight")
    before = panel.locator(".said").text_content()
    page.keyboard.press("ArrowRight")
    assert before.startswith("(3, 0, 0) at offset ")
    assert panel.locator(".said").text_content() != before
    page.keyboard.press("Escape")
    assert panel.is_hidden()
    assert page.evaluate("document.activeElement.className") == "viewport"


@in_browser
def test_two_plans_beside_each_other(visit, tmp_path):
    for name, chips in (("a", "1"), ("b", "2")):
        words = ("embed", "plan", "--chips", chips, "--scale", "0.001", "--rows", "1024", "--batch", "256", "--json")
        (tmp_path / f"{name}.json").write_bytes(completed(*words).stdout)
    assert json.loads((tmp_path / "a.json").read_bytes())["kind"] == "embedding_plan"
    done = completed("diff", tmp_path / "a.json", tmp_path / "b.json", "-o", tmp_path / "diff.html")
    assert done.returncode == 0, done.stderr.decode()
    seen = visit(tmp_path / "diff.html", width=420, scheme="dark")
    assert seen.page.locator(".change.good").count()
    seen.check()
