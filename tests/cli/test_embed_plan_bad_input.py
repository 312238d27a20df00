"""What is wrong with a log or a model is said in one line, exit code 2; the same words with good data work after."""

from __future__ import annotations

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

MODEL = """
target = "tpu-v5p"
batch = 8
[[table]]
name = "user"
vocab = 100
width = 16
[[feature]]
name = "user"
weights = "w"
"""


def good():
    return {"user": np.arange(16) % 7, "w": np.ones(16, np.float32)}


def write(folder, name="log.parquet", **columns):
    parquet.write_table(pa.table({**good(), **columns}), folder / name)
    return str(folder / name)


@pytest.fixture
def plan(run, tmp_path, monkeypatch):
    """Run `embed plan` on a file under the model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.toml").write_text(MODEL)
    return lambda file, *words: run("embed", "plan", file, "--config", "model.toml", *words)


def weird(folder, kind):
    raw = (folder / "log.parquet").read_bytes()
    texts = {"ragged.csv": "user,w\n1,1\n1,2,3\n", "word.csv": "user,w\n1,much\n" * 8, "bare.csv": "label\n1\n"}
    if kind in texts:
        (folder / kind).write_text(texts[kind])
    elif kind == "cut.parquet":
        (folder / kind).write_bytes(raw[: len(raw) // 2])
    elif kind == "text.parquet":
        (folder / kind).write_text("label\tC1\n1\t2\n")
    return str(folder / kind)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("text.parquet", "not a Parquet file"),
        ("cut.parquet", "not a Parquet file"),
        ("ragged.csv", "cannot be read as a table"),
        ("word.csv", "weights that are not numbers"),
        ("bare.csv", "no column user, w"),
        ("gone.parquet", "No such file"),
    ],
)
def test_malformed_files(plan, tmp_path, kind, text):
    path = write(tmp_path)
    code, out, err = plan(weird(tmp_path, kind))
    assert (code, out) == (2, "")
    assert text in err
    assert kind in err
    assert err.count("\n") == 1
    assert plan(path)[0] == 0


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (
            {"w": np.where(np.arange(16) == 5, np.nan, 1).astype(np.float32)},
            "batch 1, feature 'user': weights[5] is nan",
        ),
        ({"w": np.full(16, np.inf, np.float32)}, "weights[0] is inf"),
        ({"user": np.arange(16) / 2}, "'0.500000' is not a whole number"),
        (
            {"user": np.arange(16) % 10 - 3},
            "batch 1, table 'user', feature 'user': id -3 of sample 0 is not in 0 .. 99",
        ),
        ({"user": np.arange(16) + 90}, "batch 2, table 'user', feature 'user': id 100 of sample 2 is not in 0 .. 99"),
    ],
)
def test_bad_values(plan, tmp_path, columns, text):
    code, out, err = plan(write(tmp_path, "bad.parquet", **columns))
    assert (code, out) == (2, "")
    assert text in err
    assert err.count("\n") == 1
    assert plan(write(tmp_path))[0] == 0


def test_offsets_that_decrease(plan, tmp_path):
    offsets = np.array([0, 1, 3, 2, *range(4, 17)])
    np.savez(tmp_path / "log.npz", **{"user.values": np.arange(16), "user.offsets": offsets, "w": np.ones(16)})
    code, _, err = plan("log.npz")
    assert code == 2
    assert "offsets decrease: offsets[2] = 3, offsets[3] = 2" in err


def test_a_batch_that_does_not_divide(plan, tmp_path):
    code, _, err = plan(write(tmp_path), "--batch", "6")
    assert code == 2
    assert "a batch of 6 does not divide over 4 SparseCores; take a multiple of them, such as" in " ".join(err.split())
