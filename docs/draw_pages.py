"""Pictures of pages, written anew by `./run python docs/draw_pages.py`.

A row of a report, opened (the README's, of a module that a TPU v5e's own compiler made), a report's page, the page of a
whole run (the README's; the run takes a minute or two), and the explorer's views of a layout and a kernel.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tilewright import hlo

HERE = Path(__file__).parent
PICTURES, ROOT = HERE / "pictures", HERE.parent
DUMP = ROOT / "tests" / "data" / "hlo_tpu" / "v5e_reshape_zoo.after.hlo"
ROW = "reshape.13"
OPENED, LAST = ".opened:not([hidden])", ".opened .key"  # what the opened row begins and ends with
LAYOUT = "layout?text=bf16[20,300]{1,0:T(8,128)(2,1)}&at=3,130&level=1"


def main() -> None:
    """Write docs/pictures: opened_row.png, opened_row_dark.png, report-page.png, report.png, explore-layout.png,
    explore-kernel.png."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        opened_row(browser, Path(folder, "row.html"))
        report_page(browser, Path(folder, "report.html"))
        run_page(browser, Path(folder, "run"))
        explorer(browser)


def opened_row(browser: Browser, file: Path) -> None:
    """The panel of an open row, to the key of its drawings."""
    file.write_text(hlo.report(hlo.load(DUMP), "tpu-v5e").to_html(), encoding="utf-8")
    for scheme, name in (("light", "opened_row.png"), ("dark", "opened_row_dark.png")):
        page = browser.new_page(color_scheme=scheme, viewport={"width": 1240, "height": 1400}, device_scale_factor=1.5)
        page.goto(f"file://{file}#row={ROW}")
        page.wait_for_selector(LAST)
        whole, last = page.locator(OPENED).bounding_box(), page.locator(LAST).bounding_box()
        clip = {**whole, "height": last["y"] + last["height"] + 10 - whole["y"]}
        page.screenshot(path=PICTURES / name, clip=clip)


def report_page(browser: Browser, file: Path) -> None:
    """The page of the example's loss, its second row opened."""
    words = ["report", "examples/resnet_groupnorm.py:loss", "--target", "vector8x128", "-o", file]
    subprocess.run([sys.executable, "-m", "tilewright", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    page = browser.new_page(viewport={"width": 1280, "height": 1240}, reduced_motion="reduce")
    page.goto(f"file://{file}#movement")
    page.locator("tbody tr[data-row]").nth(1).click()
    page.wait_for_selector(LAST)
    page.mouse.move(5, 600)
    page.screenshot(path=PICTURES / "report-page.png")


def run_page(browser: Browser, folder: Path) -> None:
    """How the page of a recommender's run begins, to the end of its cards."""
    words = ["run", "examples/dlrm.py", "--out", folder]
    subprocess.run([sys.executable, "-m", "tilewright", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    page = browser.new_page(viewport={"width": 1280, "height": 1060}, reduced_motion="reduce")
    page.goto(f"file://{folder}/report.html")
    last = page.locator(".cards").first.bounding_box()
    page.set_viewport_size({"width": 1280, "height": round(last["y"] + last["height"]) + 18})
    page.screenshot(path=PICTURES / "report.png")


def explorer(browser: Browser) -> None:
    """The view of a layout, an element chosen; and that of a kernel, at one of its steps."""
    for files, state, drawn, name in (
        ([], LAYOUT, ".derived dd", "explore-layout.png"),
        (["examples/pallas_matmul.py:rows_last"], "kernel?step=9&target=tpu-v6e", ".beside", "explore-kernel.png"),
    ):
        command = [sys.executable, "-m", "tilewright", "explore", *files, "--no-browser"]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            page = browser.new_page(viewport={"width": 1180, "height": 860}, reduced_motion="reduce")
            page.goto(f"{process.stdout.readline().strip()}#{state}")
            page.wait_for_selector(drawn, timeout=120_000)
            page.wait_for_timeout(500)  # the part about the element
            if files:
                page.locator(".kernel-parts section", has_text="The first steps").evaluate("it => it.scrollIntoView()")
                page.mouse.wheel(0, -120)
                page.wait_for_timeout(300)
            page.screenshot(path=PICTURES / name)
            process.terminate()


if __name__ == "__main__":
    main()
