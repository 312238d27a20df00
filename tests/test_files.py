"""Files are written whole: two writers, links, modes, pipes, disks that refuse."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading

import pytest

from tests.nightly.texts import torn_reads
from tilewright.errors import UsageError
from tilewright.files import write_whole, writing_whole


def test_two_writers_of_one_name_end_with_one_whole_file(tmp_path):
    path = tmp_path / "out.txt"
    with writing_whole(path) as first:
        first.write(b"a" * 1000)
        with writing_whole(path) as second:
            second.write(b"b" * 500)
        assert path.read_bytes() == b"b" * 500
        first.write(b"a" * 1000)
    assert path.read_bytes() == b"a" * 2000
    assert os.listdir(tmp_path) == ["out.txt"]


def test_every_read_between_two_processes_that_write_is_a_whole_file(tmp_path):
    reads, torn, failed = torn_reads(tmp_path, 60)
    assert reads > 0
    assert torn == failed == 0


def test_a_link_is_replaced_and_what_it_names_is_left_alone(tmp_path):
    inside, away = tmp_path / "folder", tmp_path / "elsewhere.txt"
    inside.mkdir()
    away.write_text("precious")
    (inside / "out.txt").symlink_to(away)
    write_whole(inside / "out.txt", "new")
    assert away.read_text() == "precious"
    assert not (inside / "out.txt").is_symlink()
    assert (inside / "out.txt").read_text() == "new"


def test_a_file_keeps_its_mode_and_a_new_one_has_the_usual(tmp_path):
    kept, new, usual = (tmp_path / name for name in ("kept", "new", "usual"))
    for mode in (0o600, 0o640, 0o755):
        kept.write_text("old")
        kept.chmod(mode)
        write_whole(kept, "new")
        assert stat.S_IMODE(kept.stat().st_mode) == mode
    write_whole(new, "new")
    usual.write_text("new")
    assert new.stat().st_mode == usual.stat().st_mode


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_and_standard_output_are_written_to(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, "through")
    reader.join()
    assert read == [b"through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    code = "from tilewright.files import write_whole; write_whole('/dev/stdout', 'seen')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"seen"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has these")
@pytest.mark.parametrize("path", ["/proc/out.txt", "/sys/out.txt", "/dev/full", "/nowhere/out.txt"])
def test_a_disk_that_refuses_is_one_error_of_ours(path):
    with pytest.raises(UsageError, match="cannot write it"):
        write_whole(path, "x" * 100_000)
