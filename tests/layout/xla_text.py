"""XLA's own shape parser in a process of its own, random shape texts, and where the two parsers may differ."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys

# -- XLA's parser ------------------------------------------------------------------------------------------------------

# A text that ends XLA's parser ends this process, so every answer is written out at once.
_READER = """
import json, sys
from jaxlib import _hlo
for line in sys.stdin:
    text = json.loads(line)
    module = "HloModule m\\n\\nENTRY e {\\n  ROOT p = \\n" + text + "\\n parameter(0)\\n}\\n"
    try:
        printed = _hlo.hlo_module_from_text(module).to_string().split("ROOT %p = ", 1)[1]
        answer = printed[: printed.index(" parameter(0)")]
    except Exception:
        answer = False
    print(json.dumps(answer), flush=True)
"""
DIED = None


def reachable():
    """Whether jaxlib lets its parser of HLO text be called."""
    code = "from jaxlib import _hlo; _hlo.hlo_module_from_text('HloModule m ENTRY e { ROOT p = f32[] parameter(0) }')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def ask_xla(texts, most_deaths=20, timeout=600):
    """For every text XLA's canonical text, False where it is refused, or DIED where it ends the process."""
    answers = []
    for _ in range(most_deaths + 1):
        feed = "".join(json.dumps(text) + "\n" for text in texts[len(answers) :])
        done = subprocess.run(
            [sys.executable, "-c", _READER], input=feed, capture_output=True, text=True, timeout=timeout
        )
        answers += [json.loads(line) for line in done.stdout.splitlines()]
        if len(answers) == len(texts):
            return answers
        answers.append(DIED)
    raise AssertionError(f"XLA's parser died more than {most_deaths} times; the last: {texts[len(answers) - 1]}")


# -- random texts ------------------------------------------------------------------------------------------------------

TYPES = [
    "pred",
    "s1",
    "s2",
    "s4",
    "s8",
    "s16",
    "s32",
    "s64",
    "u1",
    "u2",
    "u4",
    "u8",
    "u16",
    "u32",
    "u64",
    "f4e2m1fn",
    "f6e2m3fn",
    "f6e3m2fn",
    "f8e3m4",
    "f8e4m3",
    "f8e4m3b11fnuz",
    "f8e4m3fn",
    "f8e4m3fnuz",
    "f8e5m2",
    "f8e5m2fnuz",
    "f8e8m0fnu",
    "f16",
    "bf16",
    "f32",
    "f64",
    "c64",
    "c128",
]
_ALPHABET = "0123456789,:*()[]{}<=?#+-~TLESCMDPb fsu/ \t"
_BLANKS = (" ", "  ", "\t", "/*c*/", " /*index=5*/ ", "\n", "// c\n")


class Texts:
    """Random shape texts: sound ones, and sound ones with an edit or two."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def number(self):
        if self.random.random() < 0.005:
            return self.random.choice(
                ("2147483648", "9223372036854775807", "9223372036854775808", "1" + "0" * 30, "007")
            )
        return str(self.random.choice((1, 2, 3, 5, 8, 16, 128, 1024, 100000)))

    def list_of(self, item, least, most):
        return ",".join(item() for _ in range(self.random.randint(least, most)))

    def tile(self):
        stars = self.random.random() < 0.1
        return f"({'*,' if stars else ''}{self.list_of(self.number, 1, 3)})"

    def tail(self, rank):
        pick = lambda chance, text: text() if self.random.random() < chance else ""  # noqa: E731
        any_of = self.random.choice
        parts = [
            pick(0.1, lambda: f"D({self.list_of(lambda: any_of(('D', 'C', 'S+', 'D~', 'C+~', 'H')), 0, 3)})"),
            pick(0.6, lambda: "T" + "".join(self.tile() for _ in range(self.random.randint(1, 3)))),
            pick(0.15, lambda: f"L({self.number()})"),
            pick(0.1, lambda: f"#({any_of(('u32', 's8', 'u4'))})"),
            pick(0.1, lambda: f"*({any_of(('u32', 's64'))})"),
            pick(0.2, lambda: f"E({any_of((0, 4, 8, 16, 32, 64, 128))})"),
            pick(0.3, lambda: f"S({any_of((0, 1, 5, 127))})"),
            pick(0.1, lambda: "SC" + "".join(f"({d}:1)" for d in range(rank))) if rank else "",
            pick(0.02, lambda: "P(f32[3])"),
            pick(0.1, lambda: f"M({any_of((0, 16, 1024))})"),
        ]
        if self.random.random() < 0.05:
            self.random.shuffle(parts)
        return "".join(parts)

    def array(self):
        if self.random.random() < 0.03:
            return self.random.choice(("token[]", "opaque[]"))
        rank = self.random.randint(0, 4)
        sizes = [self.random.choice(("", "", "", "", "<=")) + self.number() for _ in range(rank)]
        sizes = [self.random.choice(("?", "0", "7")) if self.random.random() < 0.04 else size for size in sizes]
        order = list(range(rank))
        self.random.shuffle(order)
        tail = self.tail(rank) if self.random.random() < 0.7 else ""
        text = f"{self.random.choice(TYPES)}[{','.join(sizes)}]"
        if tail or (rank and self.random.random() < 0.6):
            text += "{" + ",".join(map(str, order)) + (":" + tail if tail else "") + "}"
        return f"b({text})" if self.random.random() < 0.05 else text

    def shape(self, depth=0):
        if depth < 3 and self.random.random() < 0.15:
            return "(" + ", ".join(self.shape(depth + 1) for _ in range(self.random.randint(0, 7))) + ")"
        return self.array()

    def spaced(self, text):
        """Blanks and comments between the signs of a text."""
        pieces = re.split(r"([^A-Za-z0-9_.])", text)
        return "".join(p + (self.random.choice(_BLANKS) if self.random.random() < 0.1 else "") for p in pieces)

    def edited(self, text):
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            at = self.random.randint(0, len(text))
            new = self.random.choice(_ALPHABET)
            kind = self.random.randint(0, 3)
            if kind == 0:
                text = text[:at] + new + text[at:]
            elif kind == 1:
                text = text[:at] + text[at + 1 :]
            elif kind == 2:
                text = text[:at] + new + text[at + 1 :]
            else:
                to = self.random.randint(at, min(len(text), at + 6))
                text = text[:at] + text[at:to] * 2 + text[to:]
        return text

    def text(self):
        text = self.shape()
        if self.random.random() < 0.2:
            text = self.spaced(text)
        return self.edited(text) if self.random.random() < 0.5 else text


# -- where the two may differ ------------------------------------------------------------------------------------------

_INT = r"-?\d+"
_LIST = rf"(?:(?:{_INT}|\*)(?:,(?:{_INT}|\*))*)?"
_LEVELS = r"(?:[DCSH]\+?~?(?:,[DCSH]\+?~?)*)?"
_TAIL = re.compile(
    rf"(?:D\({_LEVELS}\))?(?P<T>T(?:\({_LIST}\))+)?(?:L\((?P<L>{_INT})\))?(?:#\((?P<index>\w+)\))?"
    rf"(?:\*\((?P<pointer>\w+)\))?(?:E\((?P<E>{_INT})\))?(?:S\((?P<S>{_INT})\))?"
    rf"(?P<SC>SC(?:\({_INT}:{_LIST}\))+)?(?:P\(.*\))?(?:M\((?P<M>{_INT})\))?"
)
_LAYOUT = re.compile(r"([A-Za-z0-9]+)\[([^\[\]{}]*)\]\{([-0-9,]*)(?::([^{}]*))?\}")
_NARROW = {"pred": 1, "f4e2m1fn": 4, "bf16": 16, "c64": 64, "c128": 128}


def squeezed(text):
    """The text without blanks and comments."""
    return re.sub(r"/\*.*?\*/|//[^\r\n]*|[ \t\r\n]", "", text, flags=re.DOTALL)


def _layouts(text):
    """(element type, sizes, minor_to_major, tail or None) of every layout in the text."""
    for dtype, dims, order, tail in _LAYOUT.findall(squeezed(text)):
        yield dtype, dims.split(",") if dims else [], order.split(",") if order else [], tail


def _tails(text):
    for dtype, dims, order, tail in _layouts(text):
        if found := _TAIL.fullmatch(tail):
            yield dtype, dims, [int(d) for d in order], found


def _wrapped(text):
    """A number as XLA's lexer reads it: one that needs the 64th bit comes out negative."""
    value = int(text)
    return value - 2**64 if 2**63 <= value < 2**64 else value


def _width(dtype):
    return _NARROW.get(dtype) or int(re.match(r"[a-z]+(\d+)", dtype).group(1))


def _tiles(found):
    return [tile.split(",") for tile in re.findall(r"\(([^()]*)\)", found["T"] or "")]


def _bytes(dtype, dims):
    sizes = [int(d.removeprefix("<=")) for d in dims if d != "?"]
    return math.prod(sizes) * -(-_width(dtype) // 8)


def _bad_splits(dims, order, found):
    seen = set()
    for dim, cuts in re.findall(rf"\(({_INT}):([^)]*)\)", found["SC"] or ""):
        points = [int(c) if c != "*" else 0 for c in cuts.split(",")] if cuts else []
        if not 0 <= int(dim) < len(dims) or int(dim) in seen or not points or points != sorted(set(points)):
            return True
        seen.add(int(dim))
        size = dims[order[-1 - int(dim)]] if sorted(order) == list(range(len(dims))) else "?"
        if points[0] < 1 or size == "?" or points[-1] >= max(1, int(size.removeprefix("<="))):
            return True
    return False


NONSENSE = {
    "minor_to_major is no order of the dims": lambda t: any(
        sorted(order) != [str(d) for d in range(len(dims))]
        for _, dims, order, _ in _layouts(t)
        if sorted(map(int, order)) != list(range(len(dims)))
    ),
    "a field's parentheses hold something else, are not closed or are missing": lambda t: any(
        not _TAIL.fullmatch(tail) for _, _, _, tail in _layouts(t)
    ),
    "a tile dim of 0": lambda t: any(
        int(d) == 0 for *_, f in _tails(t) for tile in _tiles(f) for d in tile if d not in ("*", "")
    ),
    "a tile without dims": lambda t: any(tile == [""] for *_, f in _tails(t) for tile in _tiles(f)),
    "a `*` in the most minor place of a tile": lambda t: any(
        tile[-1] == "*" for *_, f in _tails(t) for tile in _tiles(f)
    ),
    "`#(..)` or `*(..)` with a type that is no integer": lambda t: any(
        f[key] and f[key][0] not in "su" for *_, f in _tails(t) for key in ("index", "pointer")
    ),
    "E(n) narrower than the type": lambda t: any(
        f["E"] and int(f["E"]) and int(f["E"]) < _width(dtype) for dtype, *_, f in _tails(t)
    ),
    "S(n) outside 0..127 (XLA wraps it around)": lambda t: any(
        f["S"] and not 0 <= int(f["S"]) <= 127 for *_, f in _tails(t)
    ),
    "M(n) below 0": lambda t: any(f["M"] and int(f["M"]) < 0 for *_, f in _tails(t)),
    "SC(..) with a dim or a cut point that is not there, twice or out of order": lambda t: any(
        _bad_splits(dims, order, f) for _, dims, order, f in _tails(t)
    ),
    "a minus sign, as in -0": lambda t: "-" in squeezed(t),
    "an array of more than 2**63 - 1 bytes": lambda t: any(
        _bytes(dtype, dims.split(",") if dims else []) >= 2**63
        for dtype, dims in re.findall(r"([a-z0-9]+)\[([0-9,<=?]*)\]", squeezed(t))
        if dtype in TYPES
    ),
    "a number above 2**63 - 1 (XLA wraps it around)": lambda t: any(int(n) >= 2**63 for n in re.findall(r"\d+", t)),
    "shapes nested more than 64 deep": lambda t: squeezed(t).count("(") > 64,
}
"""XLA's parser accepts these; ours refuses them. Documented in docs/layout_grammar.md in these words."""

FATAL = {
    "a tile dim below 0 (here -1 is a `*`)": lambda t: any(
        d not in ("*", "") and -(2**63) < _wrapped(d) < 0 for *_, f in _tails(t) for tile in _tiles(f) for d in tile
    ),
    "L(n) below 1": lambda t: any(f["L"] and _wrapped(f["L"]) < 1 for *_, f in _tails(t)),
    "token or opaque with dims or a layout": lambda t: bool(
        re.search(r"\b(?:token|opaque)\[(?:[^\]]+\]|\]\{[:\d-])", squeezed(t))
    ),
}
"""These end the process of XLA's parser; ours refuses them."""

LENIENT = {
    "upper-case letters in an element type": lambda t: bool(
        re.search(r"[A-Z][A-Za-z0-9]*\[|[#*]\([^()]*[A-Z]", squeezed(t))
    ),
    "`#(..)` or `*(..)` inside a tuple or a buffer (alone XLA accepts it)": lambda t: bool(
        re.match(r"b?\(.*[#*]\([su]\d+\)", squeezed(t))
    ),
}
"""XLA's parser refuses these; ours accepts them."""


def reasons(table, text):
    """The entries of a table that fit a text."""
    return [name for name, fits in table.items() if fits(text)]
