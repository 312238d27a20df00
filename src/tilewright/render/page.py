"""One self-contained HTML page: opens from disk, fetches nothing, prints, follows light and dark."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tilewright.files import write_whole
from tilewright.render.markup import Html, Scripted, element, escape, join, json_for_script, shared_asset
from tilewright.version import __version__

_IDENTIFIER = re.compile(r"[a-z][a-z0-9-]*")
_STYLES = ("page.css", "explorer.css", "figure.css")
_MODULES = ("tables.js", "explorer.js", "navigation.js")


class Page:
    """A report: a head with facts, then numbered sections that a sticky navigation lists.

    >>> from tilewright.render import Card, cards
    >>> page = Page("dlrm on tpu-v5p", "100 steps, batch 4096", facts=[("target", "tpu-v5p")])
    >>> page.section("summary", "Summary", cards([Card("AUC", "0.731", "0.500 before training", "good")]))
    >>> page.data("report", {"schema_version": 1})
    >>> page.html().startswith("<!DOCTYPE html>")
    True

    Content is a sequence of blocks; a block that is not :class:`Html` is escaped and becomes a paragraph. The page
    carries a content security policy that forbids every fetch and every script but its own. ``wide``: as wide as the
    window, for large tables.
    """

    def __init__(
        self, title: str, subtitle: str = "", *, facts: Iterable[tuple[str, str]] = (), wide: bool = False
    ) -> None:
        self.title, self.subtitle, self.facts, self._wide = title, subtitle, tuple(facts), wide
        self._sections: dict[str, tuple[str, Html]] = {}
        self._data: dict[str, Html] = {}
        self._modules = {name: shared_asset(name) for name in _MODULES}

    def section(self, name: str, heading: str, *content: str) -> None:
        """Add a section; ``name`` is its id (lower case, digits, hyphens) and so its address ``#name``.

        A block that is :class:`Scripted` brings a module, which the page carries once.
        """
        self._claim(name)
        self._modules |= {block.module: block.module for block in content if isinstance(block, Scripted)}
        blocks = (block if isinstance(block, Html) else element("p", block) for block in content)
        self._sections[name] = (heading, join(blocks, Html("\n")))

    def data(self, name: str, value: object) -> None:
        """Carry a JSON value in the page, as ``<script type="application/json" id=name>``."""
        self._claim(name)
        self._data[name] = json_for_script(value)

    def html(self) -> str:
        """The whole document."""
        sections = [element("section", element("h2", h), b, id=n) for n, (h, b) in self._sections.items()]
        footer = element("footer", f"Written by tilewright {__version__}. This file needs no network.")
        body = [self._navigation(), element("main", self._header(), *sections, footer)]
        body += [element("script", text, type="application/json", id=name) for name, text in self._data.items()]
        body += [element("script", Html(text), type="module") for text in self._modules.values()]
        document = element(
            "html", self._head(), element("body", *body, class_="wide" if self._wide else None), lang="en"
        )
        return f"<!DOCTYPE html>\n{document}\n"

    def write(self, path: Path | str) -> None:
        """Write the document (made whole or not at all); UsageError where that cannot be."""
        write_whole(path, self.html())

    def _claim(self, name: str) -> None:
        if not _IDENTIFIER.fullmatch(name):
            raise ValueError(f"not a section's name: {name!r}")
        if name in self._sections or name in self._data:
            raise ValueError(f"the page already has {name!r}")

    def _head(self) -> Html:
        style = Html("\n".join(shared_asset(name) for name in _STYLES))
        return element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=_policy(self._modules.values())),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("title", self.title),
            element("style", style),
        )

    def _navigation(self) -> Html:
        links = (element("li", element("a", h, href=f"#{n}")) for n, (h, _) in self._sections.items())
        mark = element("a", Html(shared_asset("mark.svg")), element("span", "tilewright"), href="#top", class_="mark")
        switch = element("button", "Auto", type="button", id="theme", title="Colours: auto, light, dark")
        return element("nav", mark, element("ol", *links), switch, aria_label="Sections")

    def _header(self) -> Html:
        facts = join(element("div", element("dt", key), element("dd", value)) for key, value in self.facts)
        subtitle = element("p", self.subtitle, class_="subtitle") if self.subtitle else ""
        listed = element("dl", facts, class_="facts") if facts else ""
        return element("header", element("h1", self.title), subtitle, listed, id="top")


def _policy(modules: Iterable[str]) -> str:
    """Nothing is fetched; only the page's own modules run, each by its hash."""
    digests = (hashlib.sha256(text.encode()).digest() for text in modules)
    scripts = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {scripts}"


# The pieces a page is built of: key figures, notes, code, lists. All text is escaped unless it is :class:`Html`.

Tone = Literal["plain", "good", "warn", "bad"]


@dataclass(frozen=True)
class Card:
    """A key figure: what it is, its value (already formatted), and what to compare it with."""

    label: str
    value: str
    note: str = ""
    tone: Tone = "plain"


def cards(figures: Sequence[Card]) -> Html:
    """Key figures in a row that wraps."""
    shown = []
    for figure in figures:
        note = [element("dd", figure.note, class_="note")] if figure.note else []
        parts = element("dt", figure.label), element("dd", figure.value, class_="value"), *note
        shown.append(element("dl", *parts, class_=f"card {figure.tone}"))
    return element("div", *shown, class_="cards")


@dataclass(frozen=True)
class Step:
    """Something to do: what, the command that does it (as it is typed), what it is worth, and the evidence.

    ``worth`` stands in front, set off: a time, bytes, a factor; ``tone`` is its colour.
    """

    what: str
    command: str = ""
    why: str = ""
    worth: str = ""
    tone: Tone = "plain"


_LONGEST_WORTH = 40


def advised(text: str) -> Step:
    """A line of advice as a step: what it begins with, where that is short and has a figure, is what it is worth.

    >>> advised("12.3 us (45 % of the step): a.py:3 waits for HBM").worth
    '12.3 us (45 % of the step)'
    """
    head, _, words = text.partition(": ")
    worth = words and len(head) <= _LONGEST_WORTH and any(map(str.isdigit, head))
    return Step(words, worth=head) if worth else Step(text)


def steps(items: Iterable[Step]) -> Html:
    """What to do, numbered, most urgent first: the beginning of a page. Commands have a button that copies them.

    >>> steps([Step("Write the limits", "tilewright embed plan -o limits.json")]).count("<li>")
    1
    """
    listed = [element("li", *_step(item)) for item in items]
    return element("ol", *listed, class_="steps") if listed else Html("")


def _step(item: Step) -> list[Html]:
    head = [badge(item.worth, item.tone), " "] if item.worth else []
    parts = [element("p", *head, item.what)]
    if item.command:
        parts.append(element("pre", element("code", item.command), class_="command", tabindex="0"))
    if item.why:
        parts.append(element("p", item.why, class_="why"))
    return parts


def paragraph(*parts: str) -> Html:
    """Running text; parts may be :class:`Html`, such as a badge."""
    return element("p", *parts)


def note(*parts: str, tone: Tone = "plain") -> Html:
    """A remark set apart."""
    return element("p", *parts, class_=f"remark {tone}")


def badge(text: str, tone: Tone = "plain") -> Html:
    """A word with a tone, for a cell or a sentence: accepted, refused, equal."""
    return element("span", text, class_=f"badge {tone}")


def code_block(text: str, caption: str = "") -> Html:
    """Text in a fixed-width face, line breaks kept."""
    block = element("pre", element("code", text), tabindex="0")
    return element("figure", element("figcaption", caption), block) if caption else block


def details(summary: str, *content: str, open_: bool = False) -> Html:
    """Content that unfolds (and is unfolded in print)."""
    return element("details", element("summary", summary), *content, open=open_)


def listing(items: Iterable[tuple[str, object]]) -> Html:
    """Terms and their values in two columns."""
    return element(
        "dl", join(element("dt", term) + element("dd", escape(value)) for term, value in items), class_="listing"
    )


def side_by_side(*content: str) -> Html:
    """Blocks beside each other while the page is wide enough."""
    return element("div", *(element("div", block) for block in content), class_="beside")


def carried(name: str, value: object) -> Html:
    """A JSON value inside a block, as ``<script type="application/json" id=name>``, for the module that reads it."""
    return element("script", json_for_script(value), type="application/json", id=name)
