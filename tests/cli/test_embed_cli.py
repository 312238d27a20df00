"""`tilewright embed`, as a user runs it."""

from __future__ import annotations

import html
import io
import json
import re
import shlex
from pathlib import Path

import pytest

from tilewright.embed import read_limits

SMALL = ("--vocab", "300", "--batch", "64", "--rows", "192", "--width", "8")


@pytest.fixture
def sample(tmp_path):
    """Sixty rows without header, tab-separated."""
    path = tmp_path / "log.tsv"
    rows = ([str(i % 2), *("5" for _ in range(13)), *(f"{i * k % 7:x}" for k in range(26))] for i in range(60))
    path.write_text("\n".join("\t".join(row) for row in rows))
    return str(path)


def test_a_generated_log_on_the_terminal(run):
    code, out, _ = run("embed", "plan", *SMALL, "--chips", "2")
    assert code == 0
    assert "3 batches, 192 samples, 26 tables in 1 stack on 8 SparseCores (2 chips)" in out
    assert "compiles and fits on tpu-v5p" in out
    for heading in ("limits holding", "compiler, per SparseCore", "HBM of one chip", "tables", "lower limits"):
        assert heading in out


def test_a_file_as_json(run, sample):
    code, out, err = run("embed", "plan", sample, "--batch", "16", "--target", "tpu-v6e", "--no-stacking", "--json")
    assert code == 0
    assert "the last 12 rows are less than a batch and left out" in err
    value = json.loads(out)
    assert (value["schema_version"], value["kind"], value["batches"]) == (1, "embedding_plan", 3)
    assert value["topology"] == {"chips": 1, "sparsecores_per_chip": 2, "devices": 1, "sparsecores": 2}
    assert len(value["stacks"]) == 26
    assert value["tables"][2]["vocab"] == 10131227


def test_the_limits_file(run, sample, tmp_path):
    out = str(tmp_path / "limits.json")
    code, stdout, err = run("embed", "plan", sample, "--batch", "16", "--vocab", "50", "--optimizer", "sgd", "-o", out)
    assert (code, stdout) == (0, "")
    assert f"wrote {out}" in err
    (limits,) = read_limits(out).values()
    assert limits.max_ids_per_partition >= limits.max_unique_ids_per_partition >= 1


def test_the_page(run, tmp_path):
    out = tmp_path / "plan.html"
    assert run("embed", "plan", *SMALL, "-o", str(out))[0] == 0
    page = out.read_text()
    assert "<title>Embedding plan</title>" in page
    assert 'id="embedding-plan"' in page
    assert "http" not in page.split("<body>")[1].replace("http://www.w3.org", "")


def test_the_pages_commands_work_as_pasted(run, sample, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("clicks.csv").write_text("user,item\n" + "".join(f"{k % 9},{k % 7}\n" for k in range(64)))
    tables = "".join(f'[[table]]\nname = "{name}"\nvocab = 9\nwidth = 8\n' for name in ("user", "item"))
    features = '[[feature]]\nname = "user"\n[[feature]]\nname = "item"\n'
    Path("model.toml").write_text(f'target = "tpu-v5p"\nchips = 2\nbatch = 16\n{tables}{features}')
    of_criteo = ["--batch", "16", "--chips", "2", "--vocab", "50"]
    for log, model in (("clicks.csv", ["--config", "model.toml"]), (sample, of_criteo)):
        assert run("embed", "plan", log, *model, "-o", "plan.html")[0] == 0
        commands = re.findall(r">(tilewright [^<]*)<", Path("plan.html").read_text())
        assert len(commands) >= 3
        for line in html.unescape("\n".join(commands)).splitlines():
            words, _, file = line.replace("LOG", log).partition(" > ")
            code, out, err = run(*shlex.split(words)[1:])
            assert (code, err.count("error")) == (0, 0), (line, err)
            assert line.count("--chips") <= 1
            if file:
                Path(file).write_text(out)
    assert "<title>" in Path("diff.html").read_text()


def test_rows_bounds_what_is_read(run, sample):
    code, out, err = run("embed", "plan", sample, "--batch", "16", "--vocab", "50", "--rows", "32", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["samples"] == 32


def test_a_log_with_a_header(run, click_log):
    path = str(click_log)
    code, out, _ = run("embed", "plan", path, "--target", "tpu-v5p", "--batch", "32", "--json")
    assert code == 0
    value = json.loads(out)
    assert (value["batches"], value["fits"]) == (6, True)
    assert sum(t["vocab"] for t in value["tables"]) == 33_762_577
    code, out, _ = run("embed", "plan", path)
    assert code == 0
    assert out.startswith("1 batch, 200 samples, 26 tables in 1 stack on 4 SparseCores (1 chip)")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("no.tsv",), "no.tsv: cannot read it: No such file"),
        (("--target", "tpu-v5"), "no target called 'tpu-v5'; did you mean tpu-v5p"),
        (("--target", "tpu-v5e"), "tpu-v5e has no SparseCores"),
        (("--batch", "33"), "33 does not divide over 4 SparseCores; take a multiple of them, such as 32"),
        (("--batch", "0"), "--batch"),
        (("--chips", "0"), "chips = 0"),
        (("--width", "0"), "width = 0"),
        (("--quantile", "2", "--rows", "4096"), "quantile 2"),
        (("--vocab", "3,4"), "unknown vocabularies '3,4'"),
        (("--scale", "0"), "vocabulary scale of 0"),
        (("--optimizer", "adamax"), "unknown optimizer 'adamax'; known: sgd, adagrad"),
        (("--optimizer", "adam:b1"), "'b1'; such as adam:learning_rate=0.1,b1=0.8"),
        (("--optimizer", "adam:b3=1"), "unknown key 'b3'"),
        (("--optimizer", "adam:b1=1"), "b1 = 1; give a number of at least 0, below 1"),
        (("--rows", "7"), "7 rows are less than one batch"),
        (("-o", "plan.png"), "no writer for 'plan.png'; end the name in .json or .html"),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_two(run, words, text):
    code, out, err = run("embed", "plan", *words)
    assert (code, out) == (2, "")
    assert text in err
    assert err.count("\n") == 1


def test_a_log_shorter_than_a_batch(run, sample, tmp_path):
    """The default batch gives way; one that was asked for does not."""
    code, out, err = run("embed", "plan", sample, "--json")
    assert code == 0
    assert "less than a batch of 4096, so the batch is 60; --batch sets another" in err
    assert json.loads(out)["samples"] == 60
    code, _, err = run("embed", "plan", sample, "--batch", "64")
    assert code == 2
    assert "only 60 rows, less than one batch of 64; give --batch of at most 60" in err
    code, _, err = run("embed", "plan", sample, "--chips", "16")
    assert code == 2
    assert "take a longer log, or fewer --chips" in err


def test_a_bad_line_is_named(run, sample, tmp_path):
    path = tmp_path / "bad.tsv"
    path.write_text(Path(sample).read_text() + "\n1\t2\n")
    code, _, err = run("embed", "plan", str(path), "--batch", "16")
    assert code == 2
    assert f"{path}: line 61: 2 columns where 40 are expected" in err


E3001 = (
    "E3001: CompileTimeSparseCoreInvalidReplicaCount: No viable logical replica count; "
    "fixed_size_allocation_bytes = 553984, row_dependent_size_allocation_bytes = 184320, "
    "total_spmem_size_bytes = 524128"
)


def test_explain_error_from_words_a_file_and_stdin(run, tmp_path, monkeypatch):
    path = tmp_path / "build.log"
    path.write_text(f"line one\n{E3001}\nline three\n")
    code, said, _ = run("embed", "explain-error", E3001)
    assert code == 0
    assert "tpu-v5p, update (measured)" in said
    assert "lower both limits to 14,448 ids and 14,448 distinct ids" in said
    assert run("embed", "explain-error", str(path)) == (0, said, "")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    code, out, _ = run("embed", "explain-error", "-", "--json")
    value = json.loads(out)
    assert (code, value["kind"]) == (0, "explained_errors")
    assert value["errors"][0]["limits"]["max_ids_per_partition"] == 15360


@pytest.mark.parametrize(
    ("words", "text"),
    [(("nothing.log",), "neither a file nor"), (("all is well",), "no SparseCore memory error"), (("-",), "no Sparse")],
)
def test_explain_error_without_an_error(run, monkeypatch, words, text):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    code, out, err = run("embed", "explain-error", *words)
    assert (code, out) == (2, "")
    assert text in err
    assert err.count("\n") == 1
