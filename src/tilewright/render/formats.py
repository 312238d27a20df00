"""Numbers and places as people read them; the only place where they are formatted."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from typing import Any, Literal

Kind = Literal["text", "code", "count", "bytes", "seconds", "ratio", "percent", "number"]

_DASH = "–"
_INSTALLED = re.compile(r"/lib/python3\.\d+/(?:site|dist)-packages/")


_CONTROLS = dict.fromkeys(
    [*range(9), *range(11, 32), *range(127, 160), 0x061C, *range(0x200E, 0x2010), *range(0x202A, 0x202F)], "\ufffd"
) | dict.fromkeys(range(0x2066, 0x206A), "\ufffd")


def visible(text: str) -> str:
    """A text for a terminal: what would steer it, or turn the direction of writing, is shown as a mark in its place.

    >>> visible("a\\x1b[2Jb\\tc\\n"), visible("one\\r\\ntwo\\r")
    ('a\ufffd[2Jb\\tc\\n', 'one\\ntwo')
    """
    return text.replace("\r\n", "\n").rstrip("\r").translate(_CONTROLS)


def place_text(source: str) -> str:
    """``file:line`` with the file as seen from the working folder or from where packages are installed, if below it.

    >>> place_text(os.path.join(os.getcwd(), "models", "norm.py") + ":12"), place_text("/elsewhere/norm.py:12")
    ('models/norm.py:12', '/elsewhere/norm.py:12')
    >>> place_text("/venv/lib/python3.12/site-packages/maxtext/layers/linears.py:162")
    'maxtext/layers/linears.py:162'
    """
    path, colon, line = source.rpartition(":")
    if installed := _INSTALLED.search(path):
        return f"{path[installed.end() :]}{colon}{line}"
    below = os.path.relpath(path) if os.path.isabs(path) else path
    return source if below.startswith("..") else f"{below}{colon}{line}"


def finite(value: Any) -> Any:
    """The same plain value with None for every number that JSON cannot write; an array as nested lists.

    >>> finite({"losses": (0.5, float("nan"))})
    {'losses': [0.5, None]}
    """
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if hasattr(value, "tolist"):  # also of types that only numpy knows, such as bfloat16
        return value.tolist() if value.dtype.kind in "biu" else finite(value.astype("float64").tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _three_digits(value: float) -> str:
    """Three significant digits for 0 <= value < 1024, without an exponent."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def bytes_text(count: float) -> str:
    """A byte count in binary units, three digits.

    >>> bytes_text(512), bytes_text(1536), bytes_text(4 * 2**30)
    ('512 B', '1.50 KiB', '4.00 GiB')
    """
    if not math.isfinite(count):
        return str(count)
    sign, size = ("-" if count < 0 else ""), abs(count)
    if size < 1024:
        return f"{sign}{size:g} B" if size == int(size) else f"{sign}{_three_digits(size)} B"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        size /= 1024
        if size < 1023.5 or unit == "PiB":
            break
    return f"{sign}{_three_digits(size)} {unit}"


def count_text(count: float, *, compact: bool = False) -> str:
    """A count with groups of three; ``compact`` keeps three digits and a decimal unit.

    >>> count_text(1234567), count_text(1234567, compact=True), count_text(999, compact=True)
    ('1,234,567', '1.23 M', '999')
    """
    if not math.isfinite(count):
        return str(count)
    if not compact or abs(count) < 10_000:
        return f"{int(count):,}" if count == int(count) else f"{count:,.2f}"
    sign, size = ("-" if count < 0 else ""), abs(count)
    for unit in ("k", "M", "G", "T", "P"):
        size /= 1000
        if size < 999.5 or unit == "P":
            break
    return f"{sign}{_three_digits(size)} {unit}"


def counted(n: int, one: str, several: str = "") -> str:
    """A number and its noun.

    >>> counted(1, "batch"), counted(1024, "batch", "batches")
    ('1 batch', '1,024 batches')
    """
    return f"{count_text(n)} {one if n == 1 else several or one + 's'}"


def first_rows(rows: Sequence[Any], most: int, indent: str = "", noun: str = "") -> list[str]:
    """The first rows as lines, and how many more (of what ``noun`` says, after a space) there are."""
    more = [f"{indent}... and {len(rows) - most} more{noun}"] if len(rows) > most else []
    return [*(f"{indent}{row}" for row in rows[:most]), *more]


def seconds_text(seconds: float) -> str:
    """A duration: nanoseconds to hours.

    >>> seconds_text(0.0000042), seconds_text(0.25), seconds_text(3.5), seconds_text(125)
    ('4.20 µs', '250 ms', '3.50 s', '2 min 05 s')
    """
    if not math.isfinite(seconds):
        return str(seconds)
    sign, size = ("-" if seconds < 0 else ""), abs(seconds)
    if size == 0:
        return "0 s"
    if size < 59.95:
        for scale, unit in ((1e9, "ns"), (1e6, "µs"), (1e3, "ms"), (1.0, "s")):
            if size * scale < 999.5 or unit == "s":
                break
        return f"{sign}{_three_digits(size * scale)} {unit}"
    minutes, rest = divmod(round(size), 60)
    if minutes < 60:
        return f"{sign}{minutes} min {rest:02} s"
    return f"{sign}{minutes // 60} h {minutes % 60:02} min"


def ratio_text(ratio: float) -> str:
    """A factor.

    >>> ratio_text(1.6), ratio_text(32), ratio_text(12345)
    ('1.60×', '32.0×', '12,345×')
    """
    if not math.isfinite(ratio):
        return str(ratio)
    return f"{ratio:,.0f}×" if abs(ratio) >= 1000 else f"{'-' if ratio < 0 else ''}{_three_digits(abs(ratio))}×"


def percent_text(share: float) -> str:
    """A share of one, in percent.

    >>> percent_text(0.1234), percent_text(1)
    ('12.3 %', '100.0 %')
    """
    return f"{share * 100:.1f} %" if math.isfinite(share) else str(share)


def format_value(value: object, kind: Kind = "text") -> str:
    """A cell of a table: by ``kind`` when it is a number, as text otherwise; ``None`` is a dash."""
    if value is None:
        return _DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()  # a numpy scalar
    if not isinstance(value, (int, float)):
        return str(value)
    match kind:
        case "bytes":
            return bytes_text(value)
        case "count":
            return count_text(value)
        case "seconds":
            return seconds_text(value)
        case "ratio":
            return ratio_text(value)
        case "percent":
            return percent_text(value)
        case "number":
            return f"{value:.4g}" if isinstance(value, float) else f"{value:,}"
    return str(value)
