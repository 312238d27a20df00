"""The family of errors."""

from __future__ import annotations

import pickle

from tilewright.errors import CheckFailed, LimitError, ParseError, TilewrightError, UnsupportedError, UsageError


def test_one_line_says_what_where_and_how():
    error = UsageError("no rows", where="clicks.tsv", how="give a longer log")
    assert str(error) == "clicks.tsv: no rows; give a longer log"
    assert [c("x").exit_code for c in (CheckFailed, UsageError, UnsupportedError)] == [1, 2, 3]


def test_a_parse_error_points_at_its_column():
    error = ParseError("expected ]", text="one\nf32[3,5", column=11)
    assert (error.line, error.line_column, error.where) == (2, 7, "line 2, column 8")
    assert error.caret() == "f32[3,5\n       ^"
    far = ParseError("no", text="x" * 500 + "!", column=500)
    assert far.caret().splitlines()[0].endswith("!")
    assert far.caret().splitlines()[1].index("^") == far.caret().splitlines()[0].index("!")


def test_errors_survive_pickling():
    for error in (
        ParseError("bad", text="abc", column=1, how="mend"),
        LimitError("too many", table="t", shard=3, observed=9, limit=4),
        TilewrightError("x", where="y"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
