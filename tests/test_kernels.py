"""Compiled kernels: in the user's cache folder, one folder per state of the sources; after `warm` none is compiled."""

from __future__ import annotations

import ast
import dis
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from types import CodeType, FunctionType, ModuleType

import pytest
from numba.extending import is_jitted

from tests.cli.conftest import completed
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
for dtype in ("int8", "uint8", "int16", "int32", "float32", "float16"):
    for transpose in (False, True):
        a, b, config = np.ones((5, 40), dtype), np.ones((40, 7), dtype), MatrixUnitConfig(threads=16)
        matmul(a, b, transpose_b=transpose, config=config)
    for again in range(3):
        matmul(np.ones((70, 70), dtype), np.ones((70, 70), dtype))
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
    assert completed("warm").returncode == 0
    if python("-c", FIRST_CALLS) != "[]":
        mine = {"XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": ""}
        python("-m", "tilewright", "warm", **mine)
        assert python("-c", FIRST_CALLS, **mine) == "[]"


FOLDER = "from tilewright.kernels import cache_text; print(cache_text({room!r}))"


@pytest.mark.parametrize("place", ["/x", "relative", ""])
def test_the_folder_is_the_users(place, tmp_path):
    absolute = f"{tmp_path}{place}" if place.startswith("/") else place
    user = {"XDG_CACHE_HOME": absolute, "HOME": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    within = tmp_path / "x" if place == "/x" else tmp_path / ".cache"
    assert python("-c", FOLDER.format(room=""), **user) == str(within / "tilewright")
    embed = within / "tilewright" / kernels.cache_folder("embed").name
    assert python("-c", FOLDER.format(room="embed"), **user) == str(embed)


def test_a_folder_that_is_given_wins(tmp_path):
    assert python("-c", FOLDER.format(room=""), NUMBA_CACHE_DIR=str(tmp_path / "mine")) == str(
        tmp_path / "mine" / "tilewright"
    )


def test_without_a_folder_kernels_run_all_the_same(tmp_path):
    (tmp_path / "file").write_text("")
    code = "import numpy as np; from tilewright.embed.host.hash_kernels import hash_ids, _hash_all;"
    code += "print(len(hash_ids(np.arange(3)))); print(_hash_all.stats.cache_path)"
    assert python("-c", code, NUMBA_CACHE_DIR=str(tmp_path / "file" / "x")) == "3\nNone"


def test_other_kernels_of_the_process_keep_their_folder(tmp_path):
    (tmp_path / "others.py").write_text("import numba\n@numba.njit(cache=True)\ndef f(): pass\n")
    code = "import tilewright.embed.host.hash_kernels as ours, others;"
    code += "print(ours._hash_all.stats.cache_path, others.f.stats.cache_path)"
    mine = {"XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": "", "PYTHONPATH": str(tmp_path)}
    ours, others = python("-c", code, **mine).split()
    assert ours == str(tmp_path / "tilewright" / kernels.cache_folder("embed").name)
    assert others == str(tmp_path / "__pycache__")


# Two rooms: `doubled` of one has a helper and a constant in other files, a table writer beside it, and a comment.
TINY = {
    "one/kernels.py": """
        from tilewright.kernels import njit
        from tilewright.one.deep.helpers import twice

        @njit(cache=True)
        def doubled(x):
            return twice(x)  # a kernel

        def write_table():
            return "a table"
    """,
    "one/callbacks.py": """
        from tilewright.kernels import cfunc
        from tilewright.one.deep.helpers import twice

        def callback(kernel, number):
            @cfunc("int64(int64)")
            def called(x):
                return kernel(x) + number

            return called

        callbacks = [callback(twice, 1), callback(twice, 3)]
    """,
    "one/deep/helpers.py": """
        from tilewright.kernels import inner
        from tilewright.one.constants import TWO

        @inner()
        def twice(x):
            return TWO * x
    """,
    "one/constants.py": "TWO = 2\nTHREE = 3",
    "one/rewrites.py": "def rewrite(): pass",
    "two/kernels.py": """
        from tilewright.kernels import njit

        @njit(cache=True)
        def halved(x):
            return x // 2
    """,
}
TINY_CALLS = """
from tilewright.kernels import compiled
from tilewright.one.callbacks import callbacks
from tilewright.one.kernels import doubled
from tilewright.two.kernels import halved
print(doubled(4), halved(4), *(each.ctypes(4) for each in callbacks), *(not each.cache_hits for each in callbacks))
print(*(name for name, count in compiled().items() if count and ".called." not in name))
"""


def test_what_is_compiled_again(tmp_path):
    """Nothing for a comment or for other code, a room's kernels for what they are made of; old folders go.

    Callbacks that differ only in what they close over are kernels of their own.
    """
    kept = tmp_path / "cache" / "tilewright"

    def calls(checkout):
        return python("-c", TINY_CALLS, PYTHONPATH=str(checkout), NUMBA_CACHE_DIR=str(kept.parent))

    def change(checkout, inside, old, new):
        path = checkout / "tilewright" / inside
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    first, second = tmp_path / "first", tmp_path / "second"
    for inside, text in TINY.items():
        path = first / "tilewright" / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    for name in ("compiling.py", "kernels.py", "llvm_text.py"):
        shutil.copy(os.path.join(os.path.dirname(kernels.__file__), name), first / "tilewright" / name)
    (first / "tilewright" / "__init__.py").write_text("")
    with ThreadPoolExecutor(2) as both:  # of two processes at once one compiles, the other waits and finds it
        done = [text.replace("\n", " ").split(" ") for text in both.map(calls, [first, first])]
    assert [words[:4] for words in done] == [["8", "2", "9", "11"]] * 2
    compiled = "True True tilewright.one.kernels.doubled tilewright.two.kernels.halved"
    assert sorted(word for words in done for word in words[4:] if word not in ("", "False")) == compiled.split()

    shutil.copytree(first, second, ignore=shutil.ignore_patterns("__pycache__"))
    change(second, "one/rewrites.py", "pass", "return 1")
    change(second, "one/constants.py", "THREE = 3", "THREE = 4")
    change(second, "one/kernels.py", "\n@njit", '\n# A comment: "\n\n@njit')
    change(second, "one/kernels.py", "(x):\n", '(x):\n    """Twice, # x\n\n    as said."""\n\n')
    change(second, "one/kernels.py", "a table", "another table")
    change(second, "one/kernels.py", "# a kernel", "")
    assert calls(second) == "8 2 9 11 False False"

    old = {f"{name}-{number:016x}" for name in ("kernels", "one") for number in range(10)}
    for folder in [*old, "not-ours"]:
        (kept / folder).mkdir()
        (kept / folder / "file").write_text("")
        os.utime(kept / folder, (0, 0))
    os.utime(kept / "one-0000000000000007")  # used a moment ago
    before = {path.name for path in kept.iterdir()} - old
    longer = "TWO = 2 + 3"  # lest Python, which looks at size and second, takes the compiled module for it
    change(second, "one/constants.py", "TWO = 2", longer)
    assert calls(second) == "20 2 21 23 True True\ntilewright.one.kernels.doubled"
    after = {path.name for path in kept.iterdir()}
    assert before | {"one-0000000000000007"} < after
    assert len(after - {"not-ours"}) == 12


def globals_of(code):
    """The global names that a function uses, or one inside of it."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return names.union(*(globals_of(part) for part in code.co_consts if isinstance(part, CodeType)))


@pytest.mark.parametrize("room", ["layout", "isa", "embed"])
def test_the_key_covers_what_kernels_use(room):
    """What the sources say is compared with the loaded kernels: the functions and constants they use, at any depth."""
    reached = kernels.reached(room)
    folder = kernels.cache_text(room)
    done = set()

    def follow(function):
        module = sys.modules[function.__module__]
        if function in done or not module.__name__.startswith("tilewright."):
            return
        done.add(function)
        assert (module.__name__, function.__qualname__.partition(".")[0]) in reached
        for name in globals_of(function.__code__) & vars(module).keys():
            value = inspect.unwrap(vars(module)[name])
            if isinstance(value, ModuleType):
                assert not value.__name__.startswith("tilewright")
                continue
            assert (module.__name__, name) in reached
            if isinstance(value, FunctionType):
                follow(value)

    for name in sorted({name for name, _ in reached if name.startswith(f"tilewright.{room}.")}):
        for value in list(vars(importlib.import_module(name)).values()):
            if is_jitted(value) and value.__module__ == name and not value.targetoptions.get("no_cpython_wrapper"):
                assert value.stats.cache_path == (folder or None)
                follow(value.py_func)
            elif isinstance(value, FunctionType) and value.__module__ == name and (name, value.__name__) in reached:
                follow(value)
    assert len(done) > 10


def test_sources_are_read_as_python_reads_them():
    """The patterns find the statements that Python's parser finds, and take out docstrings and comments only."""
    for module in {module for room in ("layout", "isa", "embed") for module, _ in kernels.reached(room)}:
        text = kernels._path(module).read_text()
        tree, bare = ast.parse(text), kernels._bare(text)
        statements = kernels._STATEMENT.findall(bare)
        assert "".join(statements) == bare
        assert len(statements) == len(tree.body)
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) and len(node.body) > 1:
                del node.body[0]
        assert ast.dump(ast.parse(bare)) == ast.dump(tree), module


def test_every_kernel_is_declared_here():
    for path in SOURCE.rglob("*.py"):
        if path.name != "kernels.py":
            assert not re.search(r"numba import njit|\b(?:nb|numba)\.njit", path.read_text()), path
