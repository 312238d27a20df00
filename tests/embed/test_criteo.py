"""Criteo files against Python's csv and a hash written out once more; bad files."""

from __future__ import annotations

import csv
import io
import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.embed import CRITEO_CARDINALITIES, Clicks, read_criteo, scale_vocabs
from tilewright.embed.logs import criteo
from tilewright.errors import UsageError

VOCABS = [1, 2, 3, *(10**4 + i for i in range(23))]
NAMES = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]


def bucket(text, vocab):
    if not text or vocab < 2:
        return 0
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD % 2**64
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 % 2**64
    return 1 + (h ^ h >> 33) % (vocab - 1)


def expected(rows):
    labels = [float(row["label"]) for row in rows]
    numeric = [[math.log1p(max(float(row[n] or 0), 0)) for n in NAMES[1:14]] for row in rows]
    ids = [[bucket(row[n], v) for n, v in zip(NAMES[14:], VOCABS)] for row in rows]
    return np.array(labels, np.float32), np.array(numeric, np.float32), np.array(ids, np.int32)


def same(clicks, rows):
    labels, numeric, ids = expected(rows)
    assert np.array_equal(clicks.labels, labels)
    np.testing.assert_allclose(clicks.numeric, numeric, rtol=1e-6)
    assert np.array_equal(clicks.categorical, ids)


def test_a_log_with_a_header(click_log):
    with click_log.open(newline="") as file:
        rows = list(csv.DictReader(file))
    parts = list(read_criteo(click_log, VOCABS, batch=64))
    assert [len(part) for part in parts] == [64, 64, 64, 8]
    same(Clicks.join(parts), rows)


numbers = st.one_of(
    st.just(""), st.integers(-5, 10**6).map(str), st.floats(-10, 1e6, allow_nan=False).map(lambda x: f"{x:.3f}")
)
words = st.text("0123456789abcdef", max_size=8)
row_of = st.fixed_dictionaries(
    {"label": st.sampled_from("01"), **dict.fromkeys(NAMES[1:14], numbers), **dict.fromkeys(NAMES[14:], words)}
)


@settings(max_examples=tries(10))
@given(rows=st.lists(row_of, min_size=1, max_size=5), batch=st.integers(1, 6), last=st.booleans(), dos=st.booleans())
def test_any_tsv(tmp_path_factory, rows, batch, last, dos):
    end = "\r\n" if dos else "\n"
    text = end.join("\t".join(row[n] for n in NAMES) for row in rows) + (end if last else "")
    path = tmp_path_factory.mktemp("log") / "log.tsv"
    path.write_bytes(text.encode())
    parts = list(read_criteo(path, VOCABS, batch))
    assert [len(part) for part in parts][:-1] == [batch] * (len(parts) - 1)
    same(Clicks.join(parts), rows)


def plain_row(**changes):
    return {**dict.fromkeys(NAMES, "1"), **changes}


def test_columns_by_name_in_any_order_with_others_between(tmp_path):
    names = ["C26", "time", *reversed(NAMES[:-1])]
    rows = [plain_row(C26="x", C1="y", I13="7.5", label="0"), plain_row(C26='"x"')]
    lines = [",".join(names), *(",".join({**row, "time": "noon"}[n] for n in names) for row in rows)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines) + "\n\n")
    same(Clicks.join(list(read_criteo(path, VOCABS))), [rows[0], plain_row(C26="x")])


def test_ids_only_needs_no_labels(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(",".join(NAMES[14:]) + "\n" + ",".join("abc" for _ in range(26)) + "\n")
    (part,) = read_criteo(path, VOCABS, ids_only=True)
    assert part.categorical[0, 25] == bucket("abc", VOCABS[25])
    with pytest.raises(UsageError, match="line 1: the header has no column label, I1, I2, I3 and 10 more"):
        next(read_criteo(path, VOCABS))


def test_numbers_with_exponents_and_large_ones(tmp_path):
    path = tmp_path / "log.tsv"
    values = ["1e3", "2.5E-1", "+4", "-7", "123456789.125", ".5", "5.", "1e+2", "", "0", "00012", "3.25", "1e-30"]
    row = plain_row(**dict(zip(NAMES[1:14], values)))
    path.write_text("\t".join(row[n] for n in NAMES))
    (part,) = read_criteo(path, VOCABS)
    same(part, [row])


def test_line_by_line_the_same_rows_are_read(tmp_path, monkeypatch):
    """What pyarrow is not there for, or refuses: blanks and quotes around values, lines of blanks, a plus sign."""
    odd = plain_row(I3='"2"', C2=' " x" ', C3=" y ", I4=" 3 ")
    rows = [plain_row(C1="é", I5="-3.25"), odd, plain_row(label="0", C26="", I13="")]
    path = tmp_path / "log.tsv"
    path.write_text("".join("\t".join(row[n] for n in NAMES) + end for row, end in zip(rows, ("\n \n", "\r\n", ""))))
    rows[1] = odd | {"I3": "2", "C2": " x", "C3": "y", "I4": "3"}
    same(Clicks.join(list(read_criteo(path, VOCABS, 2))), rows)
    monkeypatch.setattr(criteo, "_by_arrow", lambda data, layout: None)
    same(Clicks.join(list(read_criteo(path, VOCABS, 2))), rows)


def test_standard_input(monkeypatch):
    row = plain_row()
    data = io.BytesIO("\t".join(row.values()).encode())
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": data}))
    same(next(read_criteo("-", VOCABS)), [row])


def line(**changes):
    return "\t".join(plain_row(**changes)[n] for n in NAMES) + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "log.tsv: the file is empty"),
        ("\n\n", "log.tsv: no rows in the file"),
        (",".join(NAMES) + "\n", "log.tsv: no rows in the file"),
        (line() + line()[2:], "log.tsv: line 2: 39 columns where 40 are expected"),
        (line() + "\n" + "x\t" + line(), "log.tsv: line 3: 41 columns where 40 are expected"),
        (line() + line(I3="1.2.3"), "log.tsv: line 2: '1.2.3' in numeric column I3 is not a number"),
        (line(I13="inf"), "log.tsv: line 1: 'inf' in numeric column I13 is not a number"),
        (line(I1="1e999"), "log.tsv: line 1: '1e999' in numeric column I1 is not a number"),
        (line(I2="-"), "log.tsv: line 1: '-' in numeric column I2 is not a number"),
        (line(label="2"), "log.tsv: line 1: the label is '2'"),
        (line(label=""), "log.tsv: line 1: the label is ''"),
        ("hello\n", "log.tsv: line 1: 1 columns where 40 are expected"),
    ],
)
def test_bad_files_are_one_clear_error(tmp_path, text, message):
    path = tmp_path / "log.tsv"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        list(read_criteo(path, VOCABS, batch=2))
    assert message in str(error.value)


def test_a_missing_file_is_refused_at_once(tmp_path):
    with pytest.raises(UsageError, match="cannot read it: No such file"):
        read_criteo(tmp_path / "nothing.tsv", VOCABS)
    with pytest.raises(UsageError, match="cannot read it"):
        read_criteo(tmp_path, VOCABS)


def test_an_endless_line_is_refused(tmp_path):
    path = tmp_path / "log.tsv"
    path.write_bytes(b"x" * (17 << 20))
    with pytest.raises(UsageError, match="line 1: a line of more than"):
        list(read_criteo(path, VOCABS))


@pytest.mark.parametrize(
    ("vocabs", "batch", "text"),
    [([9] * 25, 8, "25 vocabularies"), ([9] * 25 + [0], 8, "a vocabulary of 0"), ([9] * 26, 0, "a batch of 0 rows")],
)
def test_wrong_arguments(tmp_path, vocabs, batch, text):
    with pytest.raises(UsageError, match=text):
        read_criteo(tmp_path / "log.tsv", vocabs, batch)


def test_published_cardinalities():
    assert sum(CRITEO_CARDINALITIES["kaggle"]) == 33_762_577
    assert {len(v) for v in CRITEO_CARDINALITIES.values()} == {26}
    scaled = scale_vocabs(CRITEO_CARDINALITIES["kaggle"], 0.01)
    assert all(min(4, whole) <= small <= whole for small, whole in zip(scaled, CRITEO_CARDINALITIES["kaggle"]))
    for factor in (0, -1, 1.5):
        with pytest.raises(UsageError):
            scale_vocabs((10,), factor)


def test_clicks_are_cut_and_joined():
    rows = np.arange(7)
    clicks = Clicks(rows.astype(np.float32), np.zeros((7, 13), np.float32), np.tile(rows[:, None], 26).astype(np.int32))
    assert [b.labels.tolist() for b in clicks.batches(3)] == [[0, 1, 2], [3, 4, 5]]
    assert np.array_equal(Clicks.join([clicks[:2], clicks[2:]]).categorical, clicks.categorical)
    assert clicks.features()["C26"].shape == (7, 1)
