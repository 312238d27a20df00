"""The one family of errors: what went wrong, where, and how to mend it.

Everything Tilewright raises on purpose derives from :class:`TilewrightError`. The command line prints such an error as
one line (plus a caret line where the place is a column of a text) and exits with the class's ``exit_code``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager


class TilewrightError(Exception):
    """Something the user can mend.

    ==========  =====================================================================
    ``what``    what is wrong, as a sentence without a full stop
    ``where``   the place: a file, a column, a table, an operation ("" if none)
    ``how``     what to do about it ("" if there is nothing to say)
    ==========  =====================================================================

    >>> str(TilewrightError("no such target 'tpu-v9'", how="did you mean tpu-v4?"))
    "no such target 'tpu-v9'; did you mean tpu-v4?"
    """

    exit_code: int = 2

    def __init__(self, what: str, *, where: str = "", how: str = "") -> None:
        self.what, self.where, self.how = what, where, how
        super().__init__(what)

    def __str__(self) -> str:
        """The whole situation in one line."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}; {self.how}" if self.how else text

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by state: the constructor's keywords are not in ``args``."""
        return (_rebuild, (type(self), dict(self.__dict__), self.args))


class UsageError(TilewrightError):
    """A wrong argument, option or file (exit code 2)."""


def true_or_false(value: object, name: str, where: str) -> bool:
    """A bool of Python's or numpy's as Python's; UsageError for anything else, 0 and 1 among it.

    >>> true_or_false(False, "use_nesterov", "AdagradMomentum")
    False
    """
    if isinstance(value, bool):
        return value
    import numpy

    if not isinstance(value, numpy.bool_):
        raise UsageError(f"{name} = {str(value)[:80]!r} is neither true nor false", where=where)
    return bool(value)


@contextmanager
def placed_at(where: str, kind: type[TilewrightError] = UsageError, *, within: bool = False) -> Iterator[None]:
    """Errors of a kind that are raised inside become UsageErrors whose place is ``where``, whatever theirs was, or
    theirs ``within`` it."""
    try:
        yield
    except kind as error:
        if within and error.where:
            where = error.where if error.where.startswith(where) else f"{where}: {error.where}"
        raise UsageError(error.what, where=where, how=error.how) from None


class UnsupportedError(TilewrightError):
    """A construct that is understood but not supported here (exit code 3)."""

    exit_code = 3


class CheckFailed(TilewrightError):
    """A check ran and found something (exit code 1)."""

    exit_code = 1


def check_known(
    name: object,
    known: Collection[object],
    problem: str,
    *,
    where: str = "",
    say: str = "one of",
    kind: type[TilewrightError] = UsageError,
) -> None:
    """An error that names a ``problem`` where a name is none of the ``known``: it lists them behind what to ``say``.

    >>> check_known("max", ("sum", "mean"), "unknown combiner 'max'")
    Traceback (most recent call last):
    tilewright.errors.UsageError: unknown combiner 'max'; one of sum, mean
    """
    if name not in known:
        raise kind(problem, where=where, how=f"{say} {', '.join(map(str, known)) or 'none'}")


class ParseError(TilewrightError):
    """A text that does not follow its grammar.

    ``text`` is the whole text, ``column`` the 0-based offset in it where reading stopped. For a text of several lines
    ``line`` is the 1-based line, ``column`` then counts from the start of the text all the same.
    """

    def __init__(self, what: str, *, text: str, column: int, where: str = "", how: str = "") -> None:
        self.text = text
        self.column = max(0, min(column, len(text)))
        self.line = text.count("\n", 0, self.column) + 1
        start = text.rfind("\n", 0, self.column) + 1
        self.line_column = self.column - start
        place = f"line {self.line}, column {self.line_column + 1}" if "\n" in text else f"column {self.column + 1}"
        super().__init__(what, where=f"{where}: {place}" if where else place, how=how)

    def caret(self, width: int = 100) -> str:
        """The offending line (cut to ``width`` around the place) with a caret under the column.

        >>> print(ParseError("expected ]", text="f32[3,5", column=7).caret())
        f32[3,5
               ^
        """
        start = self.column - self.line_column
        end = self.text.find("\n", start)
        line = self.text[start : len(self.text) if end < 0 else end]
        left = max(0, self.line_column - width * 3 // 4)
        shown = line[left : left + width]
        return f"{shown}\n{' ' * (self.line_column - left)}^"


class LimitError(TilewrightError):
    """A SparseCore limit was exceeded: ``observed`` > ``limit`` for ``table`` on ``shard``."""

    def __init__(
        self, what: str, *, table: str, shard: int, observed: int, limit: int, where: str = "", how: str = ""
    ) -> None:
        self.table, self.shard, self.observed, self.limit = table, shard, observed, limit
        super().__init__(what, where=where, how=how)


def _rebuild(cls: type[TilewrightError], state: dict[str, object], args: tuple[object, ...]) -> TilewrightError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error
