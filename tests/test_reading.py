"""What is read is bounded, unpacked piece by piece, and never a device or a pipe that nobody fills."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import tracemalloc

import pytest

from tilewright.errors import UsageError
from tilewright.reading import open_bytes, parse, read_bytes, read_file, read_stream, unpacked

MIB = 1 << 20


@pytest.fixture
def one_mib(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_TEXT_MIB", "1")


def test_a_text_is_read_up_to_its_bound(tmp_path, one_mib, monkeypatch):
    path = tmp_path / "text"
    path.write_bytes(b"x" * MIB)
    assert read_bytes(path) == b"x" * MIB
    path.write_bytes(b"x" * (MIB + 1))
    with pytest.raises(UsageError, match=r"more than 1 MiB of text; .*TILEWRIGHT_TEXT_MIB"):
        read_bytes(path)
    monkeypatch.setenv("TILEWRIGHT_TEXT_MIB", "2")
    assert len(read_bytes(path)) == MIB + 1
    with pytest.raises(UsageError, match="more than 2 MiB"):
        read_stream(io.BytesIO(b"x" * (3 * MIB)), "stdin")


def test_a_bomb_ends_at_the_bound(one_mib):
    bomb = gzip.compress(b" " * (48 * MIB), 1)
    tracemalloc.start()
    with pytest.raises(UsageError, match="more than 1 MiB"):
        unpacked(bomb, "bomb.gz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * MIB
    assert unpacked(gzip.compress(b"text"), "") == b"text"
    with pytest.raises(UsageError, match="damaged gzip"):
        unpacked(bomb[:5000], "bomb.gz", 1 << 40)


def test_an_xz_file_is_unpacked_to_the_bound(one_mib):
    whole = lzma.compress(b"te") + lzma.compress(b"xt") + b"\0" * 8  # two streams, and padding
    assert unpacked(whole, "") == b"text"
    with pytest.raises(UsageError, match="more than 1 MiB"):
        unpacked(lzma.compress(b" " * (48 * MIB)), "bomb.xz")
    for damaged in (whole[:20], whole[:30] + b"x" * 40, b"\xfd7zXZ\x00"):
        with pytest.raises(UsageError, match="a damaged xz file"):
            unpacked(damaged, "x.xz")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_only_files_and_what_is_open_already(tmp_path):
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to("/dev/zero")
    os.mkfifo(pipe)  # nobody writes: reading it would wait for ever
    for path in (link, pipe, "/dev/zero"):
        with pytest.raises(UsageError, match="neither a file nor standard input"):
            open_bytes(path)
    with pytest.raises(UsageError, match="Is a directory"):
        open_bytes(tmp_path)
    reader, writer = os.pipe()
    os.write(writer, b"from another process")
    os.close(writer)
    assert read_bytes(f"/dev/fd/{reader}") == b"from another process"
    os.close(reader)


@pytest.mark.parametrize("number", ["1" * 400, "18446744073709551616", "-9223372036854775809", "9" * 5000])
@pytest.mark.parametrize(("kind", "text"), [("JSON", '{"a": {"b": [1, %s]}}'), ("TOML", "[a]\nb = [1, %s]")])
def test_numbers_are_of_64_bits(kind, text, number):
    with pytest.raises(UsageError, match=r"64 bits|digits"):
        parse(text % number, kind, "here")
    assert parse(text % 9223372036854775807, kind, "here")["a"]["b"][1] == 2**63 - 1


def test_settings_are_shorter_than_programs(tmp_path, one_mib):
    path = tmp_path / "limits.json"
    path.write_text("[" + "[]," * 50_000 + "[]]")  # twenty times its text in memory
    with pytest.raises(UsageError, match="of text"):
        read_file(path, "JSON")
