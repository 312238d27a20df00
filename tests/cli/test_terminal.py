"""Streams and terminals of any kind: closed, full, not UTF-8, of no width; and texts that would steer a terminal."""

import io
import os
import subprocess
import sys

import pytest

from tests.cli.conftest import completed
from tilewright.cli.streams import usable_streams

PLACE = 'metadata={source_file="\x1b]0;\x07\u202em.py" source_line=3}'
STEERING = f"""HloModule m
ENTRY e {{
 p = f32[64,60,8]{{2,1,0:T(8,128)}} parameter(0), metadata={{op_name="\x1b[2Jx"}}
 ROOT c = f32[64,60,8]{{0,1,2:T(8,128)}} transpose(p), dimensions={{0,1,2}}, {PLACE}
}}
"""


def steers(raw):
    return any((ord(letter) < 32 and letter not in "\n\t") or letter in "\x7f\x9b\u202e" for letter in raw.decode())


@pytest.mark.parametrize("words", [["report"], ["time", "--target", "tpu-v6e"], ["report", "--by", "padding"]])
def test_a_dump_does_not_steer_the_terminal(words):
    done = completed(words[0], "-", *words[1:], stdin=STEERING.encode(), COLUMNS="100")
    assert done.returncode == 0
    assert b"m.py:3" in done.stdout
    assert not steers(done.stdout + done.stderr)


def test_an_error_does_not_either():
    done = completed("layout", "explain", "\x1b]0;x\x07f32[")
    assert done.returncode == 2
    assert not steers(done.stderr)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1"])
def test_letters_that_an_encoding_lacks(monkeypatch, encoding):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding, write_through=True))
    usable_streams()
    print("50 → 48, 2.93×, 漢")
    assert raw.getvalue().decode(encoding).replace("×", "x") == "50 -> 48, 2.93x, ?\n"


@pytest.mark.parametrize(("columns", "kept"), [("0", None), ("", None), ("00", None), ("120", "120"), ("10", "10")])
def test_no_columns_are_the_usual_ones(monkeypatch, columns, kept):
    monkeypatch.setenv("COLUMNS", columns)
    usable_streams()
    assert os.environ.get("COLUMNS") == kept


def test_closed_and_full_streams():
    command = f"{sys.executable} -m tilewright targets"
    for redirected, code, words in ((">&-", 0, ""), ("> /dev/full", 2, "cannot write stdout: No space left")):
        done = subprocess.run(f"{command} {redirected}", shell=True, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert words in done.stderr
        assert len(done.stderr.splitlines()) <= 2


def test_what_takes_long_is_told_once_from_its_pace(monkeypatch):
    from tilewright.cli import streams

    now, said = [0.0], []
    monkeypatch.setattr(streams, "EVERY", 10.0)
    monkeypatch.setattr(streams, "remark", said.append)
    monkeypatch.setattr(streams.time, "monotonic", lambda: now[0])
    pace, quick = streams.Pace("a study"), streams.Pace("quick")
    for second in (1, 3, 4):
        now[0] = second
        pace(second, 60)
        quick(second, 6)
    assert said == ["a study: about 1 min 00 s in all, at the pace of its first 3/60"]
    pace = streams.Pace("train")
    for now[0], done in ((12, 1), (15, 31), (16, 41)):
        pace(done, 301)
    assert said[1:] == ["train: about 38.0 s in all, at the pace of its first 31/301"], "the first step compiles"


def test_a_run_stays_within_the_memory_that_is_allowed(monkeypatch):
    from tilewright.errors import UnsupportedError
    from tilewright.machine.running import _afford
    from tilewright.machine.stages import Stages

    said = []
    monkeypatch.setenv("TILEWRIGHT_CHILD_GIB", "6")
    stages = Stages(lambda stage, done, total: said.append(stage))
    _afford(stages, 1 << 30, "tables")
    _afford(stages, 5 << 30, "tables")
    assert said == ["tables take 5.00 GiB"]
    with pytest.raises(UnsupportedError, match=r"7\.00 GiB, of 6\.00 GiB that are allowed"):
        _afford(stages, 7 << 30, "tables")
