"""The child that compiles kernels ahead: started when one is compiled, gone with its parent, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tilewright import ahead, kernels

PARENT = """
import time
from tilewright import ahead, kernels
with ahead.compiling_ahead({"layout": ["moves"], "isa": ["mm of floats"]}):
    kernels._tell["ahead"]()
    time.sleep(60)
"""


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def awaited(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_without_a_kernel_to_compile_there_is_no_child(monkeypatch):
    monkeypatch.setattr(ahead, "_child", None)
    with ahead.compiling_ahead({"layout": ["moves"]}):
        assert "ahead" in kernels._tell
    assert "ahead" not in kernels._tell


def test_the_child_ends_with_the_block(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_THREADS", "2")
    before = set(children(os.getpid()))
    with ahead.compiling_ahead({"layout": ["short runs"]}):
        kernels._tell.pop("ahead")()
        (child,) = set(children(os.getpid())) - before
    assert not alive(child)


def test_the_child_ends_with_a_killed_parent_and_leaves_no_partial_file(tmp_path):
    mine = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": "", "TILEWRIGHT_THREADS": "2"}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], env=mine)
    try:
        awaited(lambda: children(parent.pid))
        (child,) = children(parent.pid)
        awaited(lambda: [*tmp_path.glob("tilewright/*/*.nbc")])  # it keeps kernels
        parent.send_signal(signal.SIGKILL)
        awaited(lambda: not alive(child))
    finally:
        parent.kill()
        parent.wait()
    assert not [*tmp_path.glob("tilewright/*/*.tmp.*")]
