"""The family of errors."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tilewright.embed import FTRL, AdagradMomentum, SparseCoreConfig
from tilewright.errors import CheckFailed, LimitError, ParseError, TilewrightError, UnsupportedError, UsageError
from tilewright.isa import MatrixUnitConfig


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


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (FTRL, "multiply_linear_by_learning_rate"),
        (AdagradMomentum, "use_nesterov"),
        (SparseCoreConfig, "detect_nan"),
        (MatrixUnitConfig, "loads_through_l1"),
    ],
)
def test_a_flag_may_be_numpys(kind, name):
    """As with Python's own: the same value, which is what is hashed, compared and written."""
    for flag in (False, True):
        made = kind(**{name: np.bool_(flag)})
        assert getattr(made, name) is flag
        assert made == kind(**{name: flag})
    for wrong in (0, 1, "true", np.int8(1), np.array([True, False]), None):
        with pytest.raises(UsageError, match=f"{name} = .* is neither true nor false"):
            kind(**{name: wrong})
