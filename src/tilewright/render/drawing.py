"""A small SVG builder: typed primitives, escaped text, one palette for light and dark."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Literal

from tilewright.render.markup import Html, element, join, number

Anchor = Literal["start", "middle", "end"]


@cache
def _style() -> Html:
    return Html(files("tilewright.render").joinpath("assets", "figure.css").read_text(encoding="utf-8"))


def text_width(text: str, size: float = 12.0) -> float:
    """An estimate of a text's width in user units, on the wide side for the faces of figure.css.

    >>> text_width("1024") > text_width("17")
    True
    """
    return sum(1.0 if ord(c) > 0x2E80 else 0.36 if c in " .,:;'|ijl()[]" else 0.64 for c in text) * size


class Drawing:
    """An SVG of ``width`` by ``height`` user units (pixels at natural size), drawn in the order of the calls.

    Looks come from ``style``, one or more classes of assets/figure.css:

    ==============  ====================================================================
    fills           ``c0`` to ``c7`` (tiles), ``r0`` to ``r7`` (a ramp from light to deep), ``cell`` (thin edge),
                    ``bar s0`` to ``s3``, ``moved``
    lines           ``grid``, ``axis``, ``edge l0`` to ``l3`` (tile levels), ``mark``
    text            ``soft``, ``small``, ``strong``, ``mono``
    ==============  ====================================================================

    ``ground`` lays a background, so that a file reads well wherever it is shown.

    >>> drawing = Drawing(40, 20, title="one cell")
    >>> drawing.rect(0, 0, 40, 20, "cell c0", tip="(0, 0)")
    >>> str(drawing.svg()).startswith("<svg")
    True
    """

    def __init__(self, width: float, height: float, *, title: str, description: str = "", ground: bool = False) -> None:
        self.width, self.height, self._ground = width, height, ground
        self._title, self._description = title, description
        self._hatch = "hatch-" + hashlib.sha256(f"{title}\n{description}".encode()).hexdigest()[:8]
        self._hatched = False
        self._parts: list[Html] = []

    def rect(
        self, x: float, y: float, width: float, height: float, style: str, *, tip: str = "", radius: float = 0
    ) -> None:
        """A rectangle; ``tip`` shows on hover."""
        inner = (element("title", tip),) if tip else ()
        self._parts.append(_rect(x, y, width, height, inner, class_=style, rx=radius or None))

    def padding(self, x: float, y: float, width: float, height: float, *, tip: str = "") -> None:
        """A hatched rectangle: memory that holds no element."""
        self._hatched = True
        inner = (element("title", tip),) if tip else ()
        self._parts.append(_rect(x, y, width, height, (), class_="cell pad"))
        self._parts.append(_rect(x, y, width, height, inner, fill=f"url(#{self._hatch})"))

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        """A straight line."""
        self._parts.append(element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=style))

    def polyline(self, points: Iterable[tuple[float, float]], style: str) -> None:
        """A line through the points."""
        path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self._parts.append(element("polyline", points=path, class_=style))

    def polygon(self, points: Iterable[tuple[float, float]], style: str) -> None:
        """A closed shape."""
        path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self._parts.append(element("polygon", points=path, class_=style))

    def circle(self, x: float, y: float, radius: float, style: str, *, tip: str = "") -> None:
        """A dot."""
        inner = element("title", tip) if tip else ""
        markup = f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}" class="{style}">{inner}</circle>'
        self._parts.append(Html(markup))

    def text(self, x: float, y: float, text: str, style: str = "", *, anchor: Anchor = "start") -> None:
        """Text with its baseline at ``y``."""
        side = None if anchor == "start" else anchor
        self._parts.append(element("text", text, x=x, y=y, class_=style or None, text_anchor=side))

    def svg(self) -> Html:
        """The drawing as a document of its own, which a page may also hold as it is."""
        head = [element("title", self._title)]
        if self._description:
            head.append(element("desc", self._description))
        head.append(element("style", _style()))
        if self._hatched:
            head.append(element("defs", _hatch(self._hatch)))
        if self._ground:
            head.append(_rect(0, 0, self.width, self.height, (), class_="ground"))
        return element(
            "svg",
            *head,
            Html("\n"),
            join(self._parts, Html("\n")),
            Html("\n"),
            xmlns="http://www.w3.org/2000/svg",
            class_="tw",
            viewBox=f"0 0 {number(self.width)} {number(self.height)}",
            width=self.width,
            height=self.height,
            role="img",
        )


def _rect(x: float, y: float, width: float, height: float, inner: Sequence[Html], **looks: str | float | None) -> Html:
    place = element("rect", x=x, y=y, width=width, height=height, **looks)
    return Html(f"{place[:-2]}>{join(inner)}</rect>") if inner else place


def _hatch(name: str) -> Html:
    stroke = element("path", d="M-1 5L5 -1M-1 11L11 -1M5 11L11 5", class_="hatch")
    return element("pattern", stroke, id=name, width=10, height=10, patternUnits="userSpaceOnUse")
