"""Markup that cannot be forgotten to be escaped: text is escaped, :class:`Html` is not."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from functools import cache

_EMPTY_HTML = {"br", "col", "hr", "img", "input", "link", "meta"}
_EMPTY_SVG = {"circle", "line", "path", "polygon", "polyline", "rect", "use"}
_EMPTY = _EMPTY_HTML | _EMPTY_SVG  # written <name/>, which HTML and SVG both read
_NO_CHARACTER = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # XML 1.0 allows none of these
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9:-]*")


@cache
def shared_asset(name: str) -> str:
    """The text of a style, module or drawing in ``assets``."""
    from importlib.resources import files  # here: whoever writes no page does not wait for it

    return files("tilewright.render").joinpath("assets", name).read_text(encoding="utf-8")


class Html(str):
    """Text that is markup already. Every other string is escaped where it enters markup."""

    __slots__ = ()

    def __add__(self, other: str) -> Html:
        """Markup followed by more; plain text is escaped."""
        return Html(str.__add__(self, escape(other)))


class Sortable(Html):
    """Markup in a cell of numbers that sorts by ``key``; None sorts last."""

    key: float | None

    def __new__(cls, markup: Html, key: float | None) -> Sortable:
        """``markup`` as it is shown."""
        cell = super().__new__(cls, markup)
        cell.key = key
        return cell


class Scripted(Html):
    """Markup that needs a module to come alive: a block for :meth:`Page.section`, which takes the module along."""

    module: str

    def __new__(cls, markup: Html, module: str) -> Scripted:
        """``module`` is the source of an ES module that imports nothing."""
        block = super().__new__(cls, markup)
        block.module = module
        return block


def escape(text: object) -> Html:
    """Text as markup; characters no document may hold become U+FFFD.

    >>> escape('a < "b"')
    'a &lt; &quot;b&quot;'
    """
    if isinstance(text, Html):
        return text
    return Html(html.escape(_NO_CHARACTER.sub("\ufffd", str(text)), quote=True))


def join(parts: Iterable[str], separator: str = "") -> Html:
    """The parts one behind the other, each escaped unless it is markup."""
    return Html(escape(separator).join(escape(part) for part in parts))


def number(value: float) -> str:
    """A coordinate, as short as two decimals allow.

    >>> number(12.5), number(3.0), number(-0.001)
    ('12.5', '3', '0')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def element(name: str, /, *children: str, **attributes: str | float | bool | None) -> Html:
    """One element. ``None`` and ``False`` attributes are left out; ``class_`` and ``data_sort`` lose their underscores.

    >>> element("td", "a<b", class_="number", data_sort=3)
    '<td class="number" data-sort="3">a&lt;b</td>'
    """
    opening = "".join([f"<{name}", *(_attribute(key, value) for key, value in attributes.items())])
    if name in _EMPTY and not children:
        return Html(f"{opening}/>")
    return Html(f"{opening}>{join(children)}</{name}>")


def _attribute(key: str, value: str | float | bool | None) -> str:
    key = key.rstrip("_").replace("_", "-")
    if not _NAME.fullmatch(key):
        raise ValueError(f"not an attribute's name: {key!r}")
    if value is None or value is False:
        return ""
    if value is True:
        return f' {key}=""'
    return f' {key}="{escape(value if isinstance(value, str) else number(value))}"'


def json_for_script(value: object) -> Html:
    """JSON that may stand inside a script element: no ``</script>`` and no ``<!--`` can occur in it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return Html(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
