"""Every view in a browser: by keyboard alone, narrow and wide, light and dark, nothing wrong on the console."""

import re
import subprocess
import sys

import pytest

from tests.browser import BY_DAY, in_browser
from tests.conftest import VECTORS
from tests.explore.test_explore_server import KERNEL, with_lines
from tilewright.hlo import from_python

DUMP = VECTORS / "hlo_tpu" / "v5e_transformer2_grad.after.hlo"

VIEWS = {
    "layout": ("?text=f32[3,5]{1,0:T(2,2)}&at=2,3&level=1", ".derived dd"),
    "compare": ("?a=f32[6,10]{1,0}&b=f32[6,10]{1,0:T(4,4)}", ".verdict.warn"),
    "program": ("?by=source", ".node"),
    "matrix": ("?step=13", "td.changed"),
    "plan": ("?scale=1&batch=64&all=50", ".bars i"),
}


@pytest.fixture(scope="module")
def address(chromium):
    """Of an explorer of a dump, as a user starts one."""
    command = [sys.executable, "-m", "tilewright", "explore", str(DUMP), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        yield process.stdout.readline().strip()
        process.terminate()


def settled(page):
    page.locator("body:not(.busy)").wait_for()


def redrawn(page, act):
    """Do it, and wait until another graph stands in this one's place; what of the old one has the focus loses it."""
    old = page.wait_for_selector(".graph-room")
    act()
    old.wait_for_element_state("hidden")
    page.wait_for_selector(".graph-room .node")


def says(page, selector, text):
    """Wait until an element says exactly this (a page under its policy evaluates no strings)."""
    from playwright.sync_api import expect

    expect(page.locator(selector).first).to_have_text(text, timeout=300_000)


@pytest.mark.nightly
@pytest.mark.parametrize("view", VIEWS)
@in_browser
def test_a_view_narrow_and_wide_light_and_dark(visit, address, view):
    """By day the tests below look at every view once, narrow or wide, after they have used it."""
    state, there = VIEWS[view]
    seen = visit(f"{address}#{view}{state}")
    seen.page.wait_for_selector(there)
    for width, scheme in BY_DAY:
        seen.page.set_viewport_size({"width": width, "height": 900})
        seen.page.emulate_media(color_scheme=scheme)
        seen.check()


@in_browser
def test_a_layout_by_keyboard(visit, address):
    page = (seen := visit(f"{address}#layout")).page
    seen.tab_to("textarea")
    page.keyboard.press("Control+a")
    page.keyboard.type("f32[4,8]{1,0:T(2,4)(2,1)}")
    page.wait_for_selector("button:has-text('T(2,4)')")
    seen.tab_to(".cells")
    for key in ("Home", "ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    says(page, ".derivation h2", "element (1, 2)")
    assert page.locator(".layout .readout").inner_text().startswith("offset 5: (1, 2)")
    assert "at=1%2C2" in page.url
    while seen.tab_to("input", "Shift+Tab").get_attribute("placeholder") != "17":
        pass
    page.keyboard.type("14")
    says(page, ".derivation h2", "element (0, 7)")
    while seen.tab_to(".steps-of button").inner_text() != "T(2,1)":
        pass
    page.keyboard.press("Enter")
    assert page.locator(".layout .readout").inner_text().endswith("block of offsets 14 to 15")
    page.reload()  # a link carries the state
    says(page, ".derivation h2", "element (0, 7)")
    page.get_by_label("Layout", exact=True).fill("f32[4,")
    page.wait_for_selector("[role=alert] pre")
    seen.check()


@pytest.mark.nightly
@in_browser
def test_a_device_of_a_mesh_is_opened_by_keyboard(visit, address):
    page = (seen := visit(f"{address}#layout?text=f32[8,4] --mesh d=4,m=2 --shard d,m")).page
    page.wait_for_selector(".cells:visible")
    settled(page)
    seen.tab_to(".cells")
    for device in (2, 3):
        page.keyboard.press("ArrowDown" if device == 2 else "ArrowRight")
        page.wait_for_function(f"location.href.endsWith('device={device}')")
        settled(page)
    says(page, ".derivation h2", "An element")
    page.get_by_label("Element").fill("7,1")
    says(page, ".derivation h2", "element (7, 1)")
    settled(page)
    assert page.locator(".layout .readout").inner_text() == "device 6, offset 3: (7, 1)"
    seen.check()


@in_browser
def test_a_mangled_link_is_no_error(visit, address):
    seen = visit(f"{address}#program?path=[[[&op=7&by=x")
    for state in ("plan?limits=}&chips=x&scale=1&batch=64", "layout?at=,,&level=99"):
        seen.page.locator("main h1").wait_for()
        settled(seen.page)
        seen.page.goto(f"{address}#{state}")
    settled(seen.page)
    seen.quiet()


@in_browser
def test_a_cell_that_is_chosen_by_keyboard_shows_where_it_goes(visit, address):
    page = (seen := visit(f"{address}#compare?a=f32[6,10]{{1,0}}&b=f32[6,10]{{1,0:T(4,4)}}")).page
    page.wait_for_selector(".verdict.warn")
    seen.tab_to(".cells")
    page.keyboard.press("Home")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    both = "offset 4: (0, 4) to offset 16; the other layout: offset 16: (0, 4) from offset 4"
    says(page, ".compare > .readout", both)
    seen.check()


@in_browser
def test_a_device_of_two_shardings_is_chosen_by_keyboard(visit, address):
    page = (seen := visit(f"{address}#compare", width=420, scheme="dark")).page
    page.wait_for_selector(".verdict.warn")
    page.get_by_role("button", name="a sharding").click()
    page.wait_for_selector("ol li:has-text('all-gather')")
    seen.tab_to(".cells")
    page.keyboard.press("ArrowDown")
    page.wait_for_url(lambda url: "device=2" in url)
    settled(page)
    seen.check()


@in_browser
def test_a_program_is_dropped_folded_and_walked(visit, address, tmp_path):
    page = (seen := visit(f"{address}#program", width=420)).page
    (tmp_path / "aot3.py").write_text("\n".join(f"line {n} of mine" for n in range(1, 60)))
    redrawn(page, lambda: page.locator("input[type=file]").set_input_files([tmp_path / "aot3.py", DUMP]))
    page.wait_for_url(lambda url: "file=" in url and "file=file" not in url)
    while "jvp()" not in seen.tab_to(".node.group").inner_text():
        pass
    redrawn(page, lambda: page.keyboard.press("Enter"))
    page.wait_for_selector(".node.single")
    name = with_lines()[0][1]
    while seen.tab_to(".node.single").query_selector("b").inner_text() != name:
        pass
    page.keyboard.press("Enter")
    page.wait_for_selector("figcaption:has-text('aot3.py')")
    assert "of mine" in page.locator(".excerpt .here").nth(1).inner_text()
    seen.tab_to(".walk button:last-child")
    page.keyboard.press("Enter")
    page.wait_for_selector(".rows [aria-current]")
    settled(page)
    seen.check()


@in_browser
def test_a_kernel_is_dropped_and_walked_by_keyboard(visit, address, tmp_path):
    page = (seen := visit(f"{address}#kernel", width=420, scheme="dark")).page
    page.wait_for_selector("[role=alert] p")  # the explorer's own file has no kernel
    (tmp_path / "rows.mlir").write_text(from_python(KERNEL).text)
    page.locator("input[type=file]").set_input_files([tmp_path / "rows.mlir"])
    page.wait_for_selector(".kernel-parts svg")
    settled(page)
    seen.tab_to("input[type=range]")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".kernel-parts p:has-text('Step 2 of 64, (0, 1)')")
    assert "step=1" in page.url
    settled(page)
    seen.check()


@in_browser
def test_a_machine_is_stepped_by_keyboard(visit, address):
    page = (seen := visit(f"{address}#matrix?step=12", width=420, scheme="dark")).page
    page.wait_for_selector("li[aria-current] code:has-text('mm8')")
    seen.tab_to(".instructions")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("td.changed:has-text('14')")
    seen.tab_to("[aria-label='To the end']", "Shift+Tab")
    page.keyboard.press("Enter")
    says(page, ".matrix .readout", re.compile("^ended after 17"))
    seen.tab_to("[aria-label='One back']", "Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("li[aria-current] code:has-text('halt')")
    seen.check()


@in_browser
def test_limits_are_moved_by_keyboard(visit, address):
    page = (seen := visit(f"{address}#plan?scale=1&batch=64", width=420, scheme="dark")).page
    page.wait_for_selector(".bars i")
    assert page.locator(".card.good .value").inner_text() == "0.0 %"
    seen.tab_to("input[type=range]")
    for _ in range(3):
        page.keyboard.press("PageDown")
    page.wait_for_selector(".card.warn .value")
    seen.tab_to(".stacks input")
    page.keyboard.press("ArrowLeft")
    page.wait_for_url("**limits=**")
    settled(page)
    seen.check()


@pytest.mark.nightly
@in_browser
def test_ten_thousand_cells_stay_fluid(visit, address):
    """Frames drawn while a pointer runs over sixteen thousand cells: a few milliseconds each.

    By day no clock is read, beside other work; the test of the keyboard draws cells and runs over them.
    """
    seen = visit(f"{address}#layout?text=f32[64,256]{{1,0:T(8,128)}}")
    page = seen.page
    page.wait_for_selector(".cells canvas")
    page.wait_for_selector("button:has-text('T(8,128)')")
    page.evaluate("""() => {
        window.taken = []
        const ask = requestAnimationFrame.bind(window)
        window.requestAnimationFrame = (work) => ask((now) => {
            const begun = performance.now(); work(now); taken.push(performance.now() - begun) })
    }""")
    box = page.locator(".cells").bounding_box()
    for k in range(25):
        page.mouse.move(box["x"] + 60 + 9 * k, box["y"] + 60 + 5 * k)
        page.mouse.wheel(20, 0)
    page.wait_for_function("taken.length > 9")
    taken = sorted(page.evaluate("taken"))
    assert taken[len(taken) // 2] < 16  # milliseconds
    seen.quiet()
