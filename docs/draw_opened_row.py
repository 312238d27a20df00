"""The README's picture: a row of a report, opened; `./run python docs/draw_opened_row.py` writes both schemes' files.

The report is of a module that a TPU v5e's own compiler made; the row is one of its reshapes.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tilewright import hlo

HERE = Path(__file__).parent
DUMP = HERE.parent / "tests" / "data" / "hlo_tpu" / "v5e_reshape_zoo.after.hlo"
ROW = "reshape.13"
SIZE = {"width": 1240, "height": 1400}
OPENED, LAST = ".opened:not([hidden])", ".opened .key"  # what the picture begins and ends with


def main() -> None:
    """Write docs/pictures/opened_row.png and opened_row_dark.png."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder, "report.html")
        page_file.write_text(hlo.report(hlo.load(DUMP), "tpu-v5e").to_html(), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme, name in (("light", "opened_row.png"), ("dark", "opened_row_dark.png")):
            page = browser.new_page(
                color_scheme=scheme, viewport={"width": 1240, "height": 1400}, device_scale_factor=1.5
            )
            page.goto(f"file://{page_file}#row={ROW}")
            page.wait_for_selector(LAST)
            whole, last = page.locator(OPENED).bounding_box(), page.locator(LAST).bounding_box()
            clip = {**whole, "height": last["y"] + last["height"] + 10 - whole["y"]}
            page.screenshot(path=HERE / "pictures" / name, clip=clip)


if __name__ == "__main__":
    main()
