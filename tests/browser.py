"""Pages in chromium, driven by playwright: one browser a session (and worker), on a thread of its own.

    @in_browser
    def test_a_page(visit, tmp_path):
        seen = visit(tmp_path / "report.html", width=420, scheme="dark")
        seen.page.keyboard.press("Tab")
        seen.check()

playwright's blocking calls keep an event loop running in their thread, where no other loop could then run. So the
browser has a thread, and the decorated test runs on it. Tests are skipped where chromium or playwright is missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

_THREAD = ThreadPoolExecutor(1, thread_name_prefix="browser")
_QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
]
_NO_NAMES = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"  # other hosts are refused at once
_OURS = ("file:", "data:", "blob:", "about:", "http://127.0.0.1:")
_SERIOUS = ("serious", "critical")

# Pages are looked at in these, a width in pixels and colours: the explorer's views in the first two, others by day in
# one of them, at night in all.
BY_DAY = [(1400, "light"), (420, "dark")]
EVERY_LOOK = [*BY_DAY, (1400, "dark"), (420, "light")]
_ROWS = 4  # that axe-core sees of a table or a list: the others are like them


def in_browser(test: Callable[..., None]) -> Callable[..., None]:
    """The test, run on the browser's thread."""

    @wraps(test)
    def on_its_thread(*arguments: Any, **named: Any) -> None:
        _THREAD.submit(test, *arguments, **named).result()

    return on_its_thread


@dataclass
class Visit:
    """A page opened by a test, and what went wrong on it."""

    page: Any
    errors: list[str] = field(default_factory=list)
    """What stood on the console as an error or a warning, and what no script caught."""
    elsewhere: list[str] = field(default_factory=list)
    """Addresses off the machine that were asked for."""
    _heard: dict[str, Callable[[Any], None]] = field(default_factory=dict)

    def listen(self) -> None:
        """Note what goes wrong from now on."""
        self._heard = {
            "pageerror": lambda error: self.errors.append(str(error)),
            "console": lambda said: self.errors.append(said.text) if said.type in ("error", "warning") else None,
            "request": lambda it: None if it.url.startswith(_OURS) else self.elsewhere.append(it.url),
        }
        for event, hear in self._heard.items():
            self.page.on(event, hear)

    def leave(self) -> None:
        """The page as the next visit wants it."""
        for event, hear in self._heard.items():
            self.page.remove_listener(event, hear)
        self.page.goto("about:blank")

    def quiet(self) -> None:
        """No error, nothing fetched from elsewhere."""
        assert not self.errors
        assert not self.elsewhere

    def tab_to(self, selector: str, key: str = "Tab", most: int = 120) -> Any:
        """Press Tab until an element of these has the focus, as who has no mouse does; it must be in view."""
        for _ in range(most):
            self.page.keyboard.press(key)
            if self.page.evaluate("which => document.activeElement.matches(which)", selector):
                focused = self.page.evaluate_handle("document.activeElement").as_element()
                box = focused.bounding_box()
                assert box, f"{selector} had the focus and is gone: the page was drawn again"
                assert box["y"] + box["height"] > 0, f"{selector} has the focus out of view"
                assert box["y"] < self.page.viewport_size["height"], f"{selector} has the focus out of view"
                return focused
        raise AssertionError(f"{most} times {key} do not lead to {selector}")

    def check(self) -> None:
        """Quiet, no sideways scrolling, and axe-core finds nothing serious."""
        self.quiet()
        over = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over <= 0, f"the page is {over} px too wide"
        found = self.serious()
        assert not found, "\n".join(found)

    def serious(self) -> list[str]:
        """What axe-core finds of serious or critical impact: rule, and the element."""
        from axe_playwright_python.sync_playwright import Axe

        where = {"exclude": [[f"{rows}:nth-child(n+{_ROWS + 1})"] for rows in ("tbody tr", "ol.rows li")]}
        found = Axe().run(self.page, where, options={"resultTypes": ["violations"]}).response["violations"]
        hits = [(rule["id"], node) for rule in found if rule["impact"] in _SERIOUS for node in rule["nodes"]]
        return [f"{rule}: {node['target']} {node['html'][:200]}: {node['failureSummary']}" for rule, node in hits]


@pytest.fixture(scope="session")
def chromium() -> Any:
    """The browser, without a window."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None or find_spec("playwright") is None or find_spec("axe_playwright_python") is None:
        pytest.skip("no chromium, or no playwright to drive it")
    from playwright.sync_api import sync_playwright

    driver = _THREAD.submit(lambda: sync_playwright().start()).result()
    launch = driver.chromium.launch
    browser = _THREAD.submit(launch, executable_path=program, args=[*_QUIET, _NO_NAMES]).result()
    yield browser
    _THREAD.submit(browser.close).result()
    _THREAD.submit(driver.stop).result()


@pytest.fixture(scope="session")
def _pages() -> list[Any]:
    """Pages that no test uses now: a new one costs a second, one that was used before a third of it."""
    return []


@pytest.fixture
def visit(chromium: Any, _pages: list[Any]) -> Any:
    """visit(address or path, width=1400, scheme="light", height=900) -> Visit; each of a test has a page of its own."""
    visits = list[Visit]()

    def open_(address: str | Path, width: int = 1400, scheme: str = "light", height: int = 900) -> Visit:
        seen = Visit(_pages.pop() if _pages else chromium.new_context().new_page())
        visits.append(seen)
        seen.page.set_default_timeout(300_000)
        seen.page.set_viewport_size({"width": width, "height": height})
        seen.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        seen.listen()
        seen.page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
        return seen

    yield open_
    for seen in visits:
        _THREAD.submit(seen.leave).result()
        _pages.append(seen.page)


@pytest.fixture(scope="session")
def document_of(chromium: Any, _pages: list[Any]) -> Callable[[str | Path], str]:
    """document_of(path or address) -> the document that a page has become after its scripts ran."""

    def open_(address: str | Path) -> str:
        page = _pages.pop() if _pages else chromium.new_context().new_page()
        page.set_viewport_size({"width": 800, "height": 600})
        page.emulate_media(color_scheme="light", reduced_motion="reduce")
        page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
        page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
        document = page.content()
        page.goto("about:blank")
        _pages.append(page)
        return str(document)

    return lambda address: _THREAD.submit(open_, address).result()
