"""The pieces a page is built of: key figures, notes, code, lists. All text is escaped unless it is :class:`Html`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tilewright.render.markup import Html, element, escape, join, json_for_script

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
    return element("div", *(_card(figure) for figure in figures), class_="cards")


def _card(figure: Card) -> Html:
    parts = [element("dt", figure.label), element("dd", figure.value, class_="value")]
    if figure.note:
        parts.append(element("dd", figure.note, class_="note"))
    return element("dl", *parts, class_=f"card {figure.tone}")


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
