"""Numbers as people read them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.render import bytes_text, count_text, percent_text, seconds_text
from tilewright.render.formats import format_value, ratio_text

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (-1536, "-1.50 KiB"),
        (2**20 - 1, "1.00 MiB"),
        (2**62, "4096 PiB"),
    ],
)
def test_bytes(value, text):
    assert bytes_text(value) == text


@given(st.integers(0, 2**60))
def test_bytes_say_the_size_to_three_digits(value):
    number, unit = bytes_text(value).split()
    assert math.isclose(float(number) * UNITS[unit], value, rel_tol=0.006, abs_tol=0.5)


@given(st.integers(-(10**15), 10**15))
def test_counts_read_back(value):
    assert int(count_text(value).replace(",", "")) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"), (3e-9, "3.00 ns"), (0.9996, "1.00 s"), (59.9, "59.9 s"), (59.96, "1 min 00 s"),
        (3599.7, "1 h 00 min"), (-0.002, "-2.00 ms"), (7325, "2 h 02 min"),
    ],
)  # fmt: skip
def test_seconds(value, text):
    assert seconds_text(value) == text


def test_ratio_percent_and_compact_counts():
    assert ratio_text(9.999) == "10.0×"
    assert ratio_text(-2) == "-2.00×"
    assert percent_text(0.005) == "0.5 %"
    assert count_text(999_950, compact=True) == "1.00 M"
    assert count_text(2.5) == "2.50"


@pytest.mark.parametrize("write", [bytes_text, count_text, seconds_text, ratio_text, percent_text])
def test_what_is_not_finite_is_said(write):
    assert write(math.nan) == "nan"
    assert write(math.inf) == "inf"


def test_values_by_kind():
    assert format_value(None, "bytes") == "–"
    assert format_value(True, "count") == "yes"
    assert format_value(np.int64(2048), "bytes") == "2.00 KiB"
    assert format_value(np.float32(0.5), "percent") == "50.0 %"
    assert format_value(0.000012345, "number") == "1.234e-05"
    assert format_value("n/a", "seconds") == "n/a"
    assert format_value((3, 5)) == "(3, 5)"
