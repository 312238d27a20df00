"""The house keeps its shape: import direction, public names, file lengths, a README in every room."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

SOURCE = ROOT / "src" / "tilewright"
ROOMS = ("targets", "trace", "render", "layout", "hlo", "isa", "embed", "machine")
BENEATH = {
    "targets": set(),
    "trace": set(),
    "render": set(),
    "layout": {"targets", "trace", "render"},
    "hlo": {"targets", "trace", "render", "layout"},
    "isa": {"targets", "trace", "render", "layout"},
    "embed": {"targets", "trace", "render", "layout"},
    "machine": {"targets", "trace", "render", "layout", "hlo", "isa", "embed"},
    "cli": {"targets", "trace", "render", "layout", "hlo", "isa", "embed", "machine"},
}
FILES = sorted(SOURCE.rglob("*.py"))


def imported(path):
    """Names of all modules a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            if node.module == "tilewright":
                yield from (f"tilewright.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("room", sorted(BENEATH))
def test_imports_point_one_way(room):
    allowed = BENEATH[room] | {room, "errors", "kernels", "threads", "vectors", "version", "__version__"}
    for path in (SOURCE / room).rglob("*.py"):
        for name in imported(path):
            parts = name.split(".")
            if parts[0] == "tilewright" and len(parts) > 1:
                assert parts[1] in allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_jax_stays_in_its_rooms():
    for path in FILES:
        room = path.relative_to(SOURCE).parts[0]
        for name in imported(path):
            if name.split(".")[0] in ("jax", "jaxlib"):
                assert room in ("hlo", "embed", "machine"), f"{path.relative_to(ROOT)} imports {name}"
                private = name.startswith(("jaxlib", "jax._src"))
                assert not private or (room == "hlo" and path.name == "ir.py"), f"{path} imports {name}"


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_public_names_are_documented_and_there(room):
    module = importlib.import_module(f"tilewright.{room}".rstrip("."))
    names = module.__all__
    assert len(names) == len(set(names))  # that it is sorted is ruff's to say (RUF022)
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            assert (value.__doc__ or "").strip(), f"{room}.{name} has no docstring"
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isroutine(value))
        and value.__module__.startswith("tilewright.")
    }
    assert public <= set(names), f"public members missing from __all__: {sorted(public - set(names))}"


@pytest.mark.parametrize("room", [*ROOMS, "cli"])
def test_every_room_says_why(room):
    text = (SOURCE / room / "README.md").read_text()
    assert 200 < len(text) < 6000


def test_files_can_be_read_in_one_sitting():
    long = {str(p.relative_to(ROOT)): n for p in FILES if (n := len(p.read_text().splitlines())) > 700}
    assert not long


def test_light_rooms_do_not_load_jax():
    code = (
        "import sys, tilewright.targets, tilewright.layout, tilewright.isa, tilewright.embed, tilewright.cli;"
        "assert 'jax' not in sys.modules, 'jax was loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_lock_names_no_index():
    lock = (ROOT / "requirements.lock").read_text()
    assert "--hash=sha256:" in lock
    assert not re.search(r"https?://|file://|--index|--find-links|--extra", lock.replace("--all-extras", ""))


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.name)
def test_benchmarks_import_what_is_there(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tilewright"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name) or importlib.import_module(f"{node.module}.{alias.name}")
