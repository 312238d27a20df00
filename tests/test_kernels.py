"""Compiled kernels: in the user's cache folder, one folder per state of the sources; after `warm` none is compiled."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tilewright import kernels

SOURCE = ROOT / "src" / "tilewright"

FIRST_CALLS = """
import numpy as np
from tilewright.embed import COO, Feature, Limits, Table, Topology, preprocess, stack
from tilewright.isa import MatrixUnitConfig, matmul
from tilewright.kernels import compiled
from tilewright.layout import lanes, mod_sharded, parse, relayout

for dtype in ("pred", "s4", "u8", "bf16", "f16", "f32", "s64", "f64", "c64", "c128"):
    for text in ("{1,0:T(8,128)}", "{0,1:T(8,128)(2,1)}", "{1,0:T(8,128)(4,1)}", "{1,0:T(3,5)(2,2)}", "{0,1}"):
        layout = parse(f"{dtype}[37,300]{text}")
        array = np.zeros(layout.shape, layout.numpy_dtype)
        assert (layout.unpack(layout.pack(array)) == array).all()
        relayout(layout, parse(f"{dtype}[37,300]")).apply(layout.pack(array))
    no_digits = parse("s8[3,7,5]{2,1,0:T(*,2,3)}")
    for layout in (lanes((2, 9, 5, 5), "s8", "bm1684x"), mod_sharded(100, 8, 16, 3), no_digits):
        array = np.zeros(layout.shape, layout.numpy_dtype)
        assert (layout.unpack(layout.pack(array)) == array).all()
parse("f32[100,100]{1,0:T(8,128)}").offsets(np.zeros((50, 400, 2), np.int64))
for dtype in ("int8", "uint8", "int16", "float32", "float16"):
    for transpose in (False, True):
        a, b, config = np.ones((5, 40), dtype), np.ones((40, 7), dtype), MatrixUnitConfig(threads=16)
        matmul(a, b, transpose_b=transpose, config=config)
table = Table("t", 100, 8)
plan = stack([Feature("a", table), Feature("b", Table("u", 50, 8, combiner="sqrtn"))], Topology(1, 4))
for dtype in (np.int32, np.int64):
    for ids in (np.zeros((16, 3), dtype), [[1, 2], [3]] * 8, (np.ones(16, dtype), np.arange(17))):
        for overflow in ("minibatch", "drop"):
            preprocess({"a": ids, "b": ids}, plan)
            limits = {name: Limits(1, 1) for name in plan.stacks}
            preprocess({"a": ids, "b": ids}, plan, limits, overflow=overflow, allow_id_dropping=True)
found = compiled()
assert len(found) > 40, found
print(sorted(name for name, count in found.items() if count))
"""


def python(*arguments, **environment):
    done = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_is_compiled_after_warm(tmp_path):
    """Processes that fill one folder at once may lose each other's kernels; then a folder of its own decides."""
    warm = "import sys; sys.argv = ['tilewright', 'warm']; from tilewright.cli import main; main()"
    python("-c", warm)
    if python("-c", FIRST_CALLS) != "[]":
        mine = {"XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": ""}
        python("-c", warm, **mine)
        assert python("-c", FIRST_CALLS, **mine) == "[]"


FOLDER = "from tilewright.kernels import cache_text; print(cache_text())"


@pytest.mark.parametrize("place", ["/x", "relative", ""])
def test_the_folder_is_the_users(place, tmp_path):
    absolute = f"{tmp_path}{place}" if place.startswith("/") else place
    folder = python("-c", FOLDER, XDG_CACHE_HOME=absolute, HOME=str(tmp_path), NUMBA_CACHE_DIR="")
    within = tmp_path / "x" if place == "/x" else tmp_path / ".cache"
    assert folder == str(within / "tilewright" / kernels.cache_folder().name)


def test_a_folder_that_is_given_wins(tmp_path):
    assert python("-c", FOLDER, NUMBA_CACHE_DIR=str(tmp_path / "mine")) == str(tmp_path / "mine")


def test_without_a_folder_kernels_run_all_the_same(tmp_path):
    (tmp_path / "file").write_text("")
    code = "import numpy as np; from tilewright.embed.host.hash_kernels import hash_ids, bucket_of;"
    code += "print(len(hash_ids(np.arange(3)))); print(bucket_of.stats.cache_path)"
    assert python("-c", code, NUMBA_CACHE_DIR=str(tmp_path / "file" / "x")) == "3\nNone"


def test_other_kernels_of_the_process_keep_their_folder(tmp_path):
    code = "import numba, tilewright.embed.host.hash_kernels; print(repr(numba.config.CACHE_DIR))"
    assert python("-c", code, XDG_CACHE_HOME=str(tmp_path), NUMBA_CACHE_DIR="") == "''"


def test_every_state_of_the_kernels_has_a_folder(tmp_path):
    package = tmp_path / "tilewright"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    code = "from tilewright.kernels import cache_folder; print(cache_folder())"

    def folder():
        return python("-c", code, PYTHONPATH=str(tmp_path))

    before = folder()
    for inside in (
        "layout/move/vectors.py",
        "embed/host/hash_kernels.py",
        "embed/host/batch.py",
    ):  # the last holds a constant
        path = package / inside
        path.write_text(path.read_text() + "# changed\n")
        after = folder()
        assert after != before
        before = after
    path = package / "cli" / "warm.py"
    path.write_text(path.read_text() + "# changed\n")
    assert folder() == before


def test_every_kernel_is_declared_here():
    for path in SOURCE.rglob("*.py"):
        if path.name != "kernels.py":
            assert not re.search(r"numba import njit|\b(?:nb|numba)\.njit", path.read_text()), path
