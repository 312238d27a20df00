"""A place in a text that a reader moves along; a failed expectation names its column."""

from __future__ import annotations

import re

from tilewright.errors import ParseError

LARGEST = 2**63 - 1
"""The largest number a shape may hold, as in XLA."""

_BLANKS = re.compile(r"(?:[ \t\r\n]+|/\*.*?\*/|//[^\r\n]*)*", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_DIGITS = re.compile(r"[0-9]+")


def after_blanks(text: str, at: int) -> int:
    """The offset behind blanks and comments (``/* .. */`` and ``// ..``) at ``at``."""
    blanks = _BLANKS.match(text, at)
    return blanks.end() if blanks else at


class Cursor:
    """``text`` and the offset ``at`` of the next thing in it, blanks and comments skipped."""

    def __init__(self, text: str, at: int) -> None:
        self.text, self.at = text, after_blanks(text, at)

    def fail(self, what: str, at: int | None = None, how: str = "") -> ParseError:
        """An error at ``at``, or here."""
        return ParseError(what, text=self.text, column=self.at if at is None else at, how=how)

    def move(self, to: int) -> None:
        """Go on behind ``to`` and the blanks there."""
        self.at = after_blanks(self.text, to)

    def peek(self, token: str) -> bool:
        """Whether ``token`` is next."""
        return self.text.startswith(token, self.at)

    def take(self, token: str) -> bool:
        """Go past ``token`` if it is next."""
        if not self.peek(token):
            return False
        self.move(self.at + len(token))
        return True

    def expect(self, token: str, context: str) -> None:
        """Go past ``token``, which must be next."""
        if not self.take(token):
            raise self.fail(f"expected {token!r} {context}")

    def key(self, key: str) -> bool:
        """Go past ``KEY (`` if it is next; a letter key ends where its letters end."""
        if not self.peek(key):
            return False
        behind = self.at + len(key)
        word = _NAME.match(self.text, self.at)
        if word and word.end() != behind:
            return False
        opening = after_blanks(self.text, behind)
        if not self.text.startswith("(", opening):
            raise self.fail(f"expected '(' after {key}", opening)
        self.move(opening + 1)
        return True

    def integer(self, context: str, least: int = 0, most: int = LARGEST) -> int:
        """A whole number in least..most."""
        match = _DIGITS.match(self.text, self.at)
        if not match:
            raise self.fail(f"expected a whole number of at least {least} {context}")
        digits, start = match.group().lstrip("0") or "0", self.at
        value = int(digits) if len(digits) < 20 else most + 1
        if value > most:
            raise self.fail(f"expected a whole number of at most {most} {context}", start)
        if value < least:
            raise self.fail(f"{value} {context}: at least {least} is needed", start)
        self.move(match.end())
        return value

    def name(self, context: str) -> str:
        """A name."""
        match = _NAME.match(self.text, self.at)
        if not match:
            raise self.fail(f"expected {context}")
        self.move(match.end())
        return match.group()
