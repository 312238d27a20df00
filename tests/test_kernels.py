"""Compiled kernels: in the user's cache folder, one folder per state of the sources; after `warm` none is compiled."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import os
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import FunctionType

import numba
import pytest
from numba.extending import is_jitted

from tests.cli.conftest import completed
from tests.conftest import ROOT
from tests.forks import Forks
from tilewright import kernels
from tilewright.errors import UsageError
from tilewright.kernels.cache import sources

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
assert len(found) > 25, found
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


def test_other_kernels_of_the_process_keep_their_folder(tmp_path):
    (tmp_path / "others.py").write_text("import numba\n@numba.njit(cache=True)\ndef f(): pass\n")
    code = "import tilewright.embed.host.write_kernels as ours, others;"
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
    """,
    "one/callbacks.py": """
        from tilewright.kernels import cfunc
        from tilewright.one.deep.helpers import twice

        def callback(kernel, number):
            @cfunc("int64(int64)", variant=str(number))
            def called(x):
                return kernel(x) + number

            return called

        callbacks = {number: callback(twice, number) for number in (1, 3)}

        def call(number, x):
            return callbacks[number].compiled.ctypes(x)
    """,
    "one/deep/helpers.py": """
        from tilewright.kernels import inner
        from tilewright.one.constants import TWO

        @inner()
        def twice(x):
            return TWO * x
    """,
    "one/constants.py": "TWO = 2",
    "one/rewrites.py": "def rewrite(): pass",
    "two/kernels.py": """
        from tilewright.kernels import njit

        @njit(cache=True)
        def halved(x):
            return x // 2
    """,
}
NAMES = [
    "one.callbacks.callback.called_1",
    "one.callbacks.callback.called_3",
    "one.kernels.doubled",
    "two.kernels.halved",
]
TINY_CALLS = """
from tilewright.kernels import compiled
from tilewright.one.callbacks import call
from tilewright.one.kernels import doubled
from tilewright.two.kernels import halved
print(doubled(4), halved(4), call(1, 4), call(3, 4), *sorted(name for name, count in compiled().items() if count))
"""


@pytest.fixture(scope="module")
def forks():
    with Forks() as entered:
        yield entered


@pytest.fixture
def tiny(tmp_path, forks):
    """(a checkout with a few small kernels, the folder it keeps them in, run(code) in a process of its own)."""
    checkout, kept = tmp_path / "first", tmp_path / "cache" / "tilewright"
    for inside, text in TINY.items():
        path = checkout / "tilewright" / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    shutil.copytree(SOURCE / "kernels", checkout / "tilewright" / "kernels", ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copy(SOURCE / "errors.py", checkout / "tilewright" / "errors.py")
    (checkout / "tilewright" / "__init__.py").write_text("")

    def run(*codes, folder=checkout, **environment):
        """(its words, what it said on stderr), or a list of that where several run at once."""
        places = {"NUMBA_CACHE_DIR": str(kept.parent), **environment}
        done = []
        for status, said, complaints in forks.run(list(codes) or [TINY_CALLS], folder, places):
            assert status == 0, complaints
            done.append((said.split(), complaints))
        return done[0] if len(done) == 1 else done

    return checkout, kept, run


VALUES = ["8", "2", "9", "11"]
ALL = [
    "tilewright.one.callbacks.callback.called_1",
    "tilewright.one.callbacks.callback.called_3",
    "tilewright.one.kernels.doubled",
    "tilewright.two.kernels.halved",
]


def test_what_is_compiled_again(tiny):
    """Nothing for what kernels are not made of, a room's kernels for what they are made of; old folders go."""
    first, kept, run = tiny
    done = [words for words, _ in run(TINY_CALLS, TINY_CALLS)]  # one compiles, the other waits and finds it
    assert [words[:4] for words in done] == [VALUES] * 2
    assert sorted(name for words in done for name in words[4:]) == ALL
    assert run()[0] == VALUES

    second = first.with_name("second")
    shutil.copytree(first, second, ignore=shutil.ignore_patterns("__pycache__"))
    (second / "tilewright/one/rewrites.py").write_text("def rewrite(): return 1")
    assert run(folder=second)[0] == VALUES

    old = {f"{name}-{number:016x}" for name in ("kernels", "one") for number in range(10)}
    for folder in [*old, "not-ours"]:
        (kept / folder).mkdir()
        (kept / folder / "file").write_text("")
        os.utime(kept / folder, (0, 0))
    os.utime(kept / "one-0000000000000007")  # used a moment ago
    before = {path.name for path in kept.iterdir()} - old
    (second / "tilewright/one/constants.py").write_text("TWO = 2 + 3")
    assert run(folder=second)[0] == ["20", "2", "21", "23", *ALL[:3]]
    after = {path.name for path in kept.iterdir()}
    assert before | {"one-0000000000000007"} < after
    assert len(after - {"not-ours"}) == 12


def test_variants_compiled_by_processes_of_their_own_work_together(tiny):
    """Each is its process's first: numba gives both the same number, and names its code by it."""
    _, _, run = tiny
    for number in (3, 1):
        run(f"from tilewright.one.callbacks import call; call({number}, 4)")
    for first, second in ((1, 3), (3, 1)):
        words, said = run(f"from tilewright.one.callbacks import call; print(call({first}, 4), call({second}, 4))")
        assert (words, said) == ([str(8 + first), str(8 + second)], "")


PLANT = """
from numba.core import ccallback, sigutils
from tilewright.kernels.cache import CachedKernel
from tilewright.one.callbacks import callbacks
function, name = callbacks[3]._function, "tilewright.one.callbacks.callback.called_3"
function.__qualname__ = "callback.called_1"
kernel = ccallback.CFunc(function, sigutils.normalize_signature("int64(int64)"), {}, {"error_model": "numpy"})
kernel._cache = CachedKernel(name)
kernel.compile()
"""


def test_a_file_with_a_symbol_in_use_is_refused(tiny):
    """The third's kernel, compiled under the name of the first's code: as numba named all that one factory made."""
    _, kept, run = tiny
    run("from tilewright.one.callbacks import call; call(1, 4)")
    run(PLANT)
    assert len(list(kept.glob("one-*/*.kernel"))) == 2
    words, said = run("from tilewright.one.callbacks import call; print(call(1, 4), call(3, 4))")
    assert words == ["9", "11"]
    assert "has other code under a name that is in use; it is compiled anew" in said
    assert run("from tilewright.one.callbacks import call; print(call(1, 4), call(3, 4))") == (["9", "11"], "")


def test_damaged_files_are_compiled_anew_and_replaced(tiny):
    _, kept, run = tiny
    run()
    cut, empty, garbage, foreign = files = sorted(kept.glob("*/*.kernel"))
    assert len(files) == 4
    cut.write_bytes(cut.read_bytes()[:-1])
    empty.write_bytes(b"")
    garbage.write_bytes(os.urandom(5000))
    foreign.write_bytes(files[2].read_bytes())
    assert run() == ([*VALUES, *ALL], "")
    pickled = b"\x80\x04."  # no kernel, under a right checksum
    cut.write_bytes(b"tilewright kernel 1\n" + hashlib.sha256(pickled).digest() + pickled)
    assert run() == ([*VALUES, ALL[0]], "")
    assert run() == (VALUES, "")


FULL = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
"""
KILLED = """
import os, signal
from pathlib import Path
Path.replace = lambda self, target: os.kill(os.getpid(), signal.SIGKILL)
from tilewright.one.kernels import doubled
doubled(4)
"""


def test_a_folder_that_is_full_or_another_users_ends_no_call(tiny, tmp_path):
    _, kept, run = tiny
    words, said = run(FULL + TINY_CALLS, PYTHONDONTWRITEBYTECODE="1")
    assert words == [*VALUES, *ALL]
    assert [line.split(" in ")[0] for line in said.splitlines()] == ["tilewright: compiled kernels are not kept"]
    assert not list(kept.glob("*/*.kernel"))
    assert not list(kept.glob("*/*.part"))
    with pytest.raises(AssertionError):  # killed by itself while it keeps its first kernel
        run(KILLED)
    assert [*kept.glob("one-*/*.part")]
    assert run() == ([*VALUES, *ALL], "")
    if hasattr(os, "getuid") and os.getuid() == 0:
        for folder in kept.iterdir():
            os.chown(folder, 65534, 65534)
        words, said = run()
        assert words == [*VALUES, *ALL]
        assert "it is another user's" in said
    (tmp_path / "file").write_text("")
    words, said = run(NUMBA_CACHE_DIR=str(tmp_path / "file" / "x"))
    assert words == [*VALUES, *ALL]
    assert said.startswith("tilewright: compiled kernels are not kept in ")
    assert len(said.splitlines()) == 1


def test_variants_are_named():
    def scaled(factor, variant=""):
        @kernels.inner(variant=variant)
        def scale(x):
            return factor * x

        return scale

    with pytest.raises(UsageError, match="needs a variant"):
        scaled(1)
    scaled(2, "twice")
    scaled(2, "twice")
    with pytest.raises(UsageError, match="close over different values"):
        scaled(3, "twice")


def test_no_two_kept_kernels_define_one_symbol():
    """All that this machine's cache holds for this Python, whichever processes compiled it."""
    assert completed("warm").returncode == 0
    mine, owners = numba.__version__, {}
    for path in (path for room in ("layout", "isa", "embed") for path in kernels.cache_folder(room).glob("*.kernel")):
        try:
            key, symbols, _ = pickle.loads(path.read_bytes()[len(b"tilewright kernel 1\n") + 32 :])
        except Exception:  # another Python's, which this one need not understand
            continue
        _, _, processor, versions = ast.literal_eval(key)
        if (versions[0], versions[2]) == (mine, sys.implementation.cache_tag):
            for symbol in symbols:
                owners.setdefault((symbol, processor), []).append(path.name)
    assert len(owners) > 40
    # numba's helper of errors made at run time, as of a slice put into a slice: up to 0.61 one name for several codes.
    assert not [symbol for symbol, _ in owners if "excinfo" in symbol]
    assert not {symbol: names for symbol, names in owners.items() if len(names) > 1}


@pytest.mark.parametrize("room", ["layout", "isa", "embed"])
def test_the_key_covers_what_kernels_use(room):
    """The files that loaded kernels' functions come from, at any depth, are in the key."""
    files, done = sources(room), set()

    def follow(function):
        if function in done or not (function.__module__ or "").startswith("tilewright."):
            return
        done.add(function)
        assert Path(inspect.getfile(function)).relative_to(SOURCE).as_posix() in files
        for value in inspect.getclosurevars(function).globals.values():
            inside = getattr(value, "py_func", None) or getattr(value, "_defn", None) or value
            if isinstance(inside, FunctionType):
                follow(inside)

    for inside in files:
        if inside.startswith(room):
            name = f"tilewright.{inside.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
            for value in list(vars(importlib.import_module(name)).values()):
                if is_jitted(value):
                    follow(value.py_func)
                elif isinstance(value, kernels.Callback):
                    follow(value._function)
    assert len(done) > 10


def test_nothing_of_numba_is_replaced():
    """No file assigns to an attribute of a module of numba's or llvmlite's, or of what it imports from one."""
    for path in SOURCE.rglob("*.py"):
        if not re.search(r"\b(?:numba|llvmlite)\b", text := path.read_text()):
            continue
        tree, theirs = ast.parse(text), set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = getattr(node, "module", None)
                for alias in node.names:
                    if (module or alias.name).split(".")[0] in ("numba", "llvmlite"):
                        theirs.add(alias.asname or alias.name.split(".")[0])
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                while isinstance(target, ast.Attribute):
                    target = target.value
                    assert not (isinstance(target, ast.Name) and target.id in theirs), f"{path}:{node.lineno}"


def test_every_kernel_is_declared_here():
    for path in SOURCE.rglob("*.py"):
        if path.name != "declare.py":
            text = path.read_text()
            assert "njit" not in text or not re.search(r"numba import njit|\b(?:nb|numba)\.njit", text), path
