"""Ctrl-C and SIGTERM: the exit code, the cursor, nothing half done. ``interrupted.py`` tries ten commands at random."""

import signal

import pytest

from tests.cli.interrupted import OLD, complaints, interrupted

#: A command in the middle of all there is to undo; before that, a process it forked is ended like any other.
BUSY = """
import hashlib, os, pathlib, signal, sys, time
from tilewright.cli.streams import progress
from tilewright.cli.streams import leaving_at_once
from tilewright.files import making_folder, scratch_folder, write_whole, writing_whole

with leaving_at_once(), progress("working") as advance, making_folder("a/b/c"), scratch_folder() as scratch:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, b"!")
        time.sleep(60)
    os.read(reader, 1)
    os.kill(child, signal.SIGTERM)
    assert os.waitpid(child, 0)[1] == signal.SIGTERM
    pathlib.Path("scratch").write_text(str(scratch))
    write_whole("whole.bin", b"new")
    with writing_whole("old.bin") as file, writing_whole("other.bin"):
        file.write(bytes(1 << 20))
        (scratch / "something").touch()
        advance(1, 2, "READY")
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # one call of minutes: the main thread hears of nothing
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_begun_is_undone(number, tmp_path):
    (tmp_path / "old.bin").write_bytes(OLD)
    code, seen = interrupted(["-c", BUSY], number, b"READY", tmp_path)
    assert code == 128 + number, seen
    before = {"old.bin", "whole.bin", "scratch"}
    assert complaints(code, seen, number, tmp_path, before, ["old.bin"]) == []
    assert b"\x1b[?25l" in seen  # it had been hidden
    assert {path.name for path in tmp_path.iterdir()} == before
    assert not (tmp_path / (tmp_path / "scratch").read_text()).exists()
    assert seen.rstrip().endswith(b"interrupted" if number == signal.SIGINT else b"terminated")


def test_a_command_gives_the_cursor_back(tmp_path):
    (tmp_path / "plan.html").write_bytes(OLD)
    words = ["embed", "plan", "--rows", "200000", "--batch", "2048", "-o", "plan.html"]
    code, seen = interrupted(words, signal.SIGINT, b"\x1b[?25l", tmp_path)
    assert code == 130, seen
    assert complaints(code, seen, signal.SIGINT, tmp_path, {"plan.html"}, ["plan.html"]) == []
    assert (tmp_path / "plan.html").read_bytes() == OLD
