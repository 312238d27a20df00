"""The house keeps its shape: import direction, no circles, public names, file and folder sizes, a README everywhere."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from functools import cache

import pytest

from tests.conftest import ROOT

SOURCE = ROOT / "src" / "tilewright"
ROOMS = ("targets", "trace", "render", "layout", "hlo", "isa", "embed", "machine", "explore")
BENEATH = {
    "kernels": set(),
    "targets": set(),
    "trace": set(),
    "render": set(),
    "layout": {"targets", "trace", "render"},
    "hlo": {"targets", "trace", "render", "layout"},
    "isa": {"targets", "trace", "render", "layout", "hlo"},
    "embed": {"targets", "trace", "render", "layout"},
    "machine": {"targets", "trace", "render", "layout", "hlo", "isa", "embed"},
    "explore": {"targets", "trace", "render", "layout", "hlo", "isa", "embed", "machine"},
    "cli": {"targets", "trace", "render", "layout", "hlo", "isa", "embed", "machine", "explore"},
}
FILES = sorted(SOURCE.rglob("*.py"))
FOLDERS = sorted({path.parent for path in FILES})

MOST_LINES = 700
MOST_FILES = 16


def short(path):
    """A path as the messages of this test name it."""
    return str(path.relative_to(SOURCE.parent))


def module_of(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def statements(node):
    """All of a file, without what they are made of: a tenth of its nodes."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, field, ()):
            yield inner
            yield from statements(inner)


@cache
def imports(path):
    """(module, name) of all imports of a file, wherever in it; the name is None where the module itself is imported.

    Imports inside functions and for type checkers count, and `import_module` with a literal. That importing a module
    imports the packages around it does not.
    """
    found, text = [], path.read_text()
    tree = ast.parse(text)
    for node in ast.walk(tree) if "import_module" in text else statements(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{short(path)}: relative import"
            found += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            found += [(word.value, None) for word in node.args[:1] if isinstance(word, ast.Constant)]
    return found


@cache
def graph():
    """File -> the files it imports, as modules of the package."""
    arrows = {}
    for module, path in MODULES.items():
        ends = {f"{target}.{name}" if f"{target}.{name}" in MODULES else target for target, name in imports(path)}
        arrows[module] = sorted(end for end in ends & MODULES.keys() if end != module)
    return arrows


def circle(arrows):
    """The modules of one circle, in order; empty where there is none."""
    done, path = set(), []

    def visit(module):
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return []
        path.append(module)
        for end in arrows[module]:
            if around := visit(end):
                return around
        done.add(path.pop())
        return []

    return next((around for module in arrows if (around := visit(module))), [])


def test_a_circle_is_found_and_named():
    assert circle({"a": ["b"], "b": ["c", "d"], "c": [], "d": ["b"]}) == ["b", "d"]
    assert circle({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def test_no_file_imports_another_in_a_circle():
    around = circle(graph())
    assert not around, " -> ".join([*around, around[0]])


@pytest.mark.parametrize("room", sorted(BENEATH))
def test_imports_point_one_way(room):
    floor = {"child", "errors", "exports", "extras", "files", "kernels", "reading", "version", "__version__"}
    allowed = BENEATH[room] | {room} | floor
    for path in (SOURCE / room).rglob("*.py"):
        for module, name in imports(path):
            parts = f"{module}.{name}".split(".") if module == "tilewright" else module.split(".")
            if parts[0] == "tilewright":
                assert parts[1] in allowed, f"{short(path)} imports {'.'.join(parts)}"


@pytest.mark.parametrize("room", sorted(BENEATH))
def test_rooms_see_what_others_export(room):
    """Another room is entered through `tilewright.<room>`; of kernels, layout and render each file is open to all.

    Some of the kernels' files load numba, and others need not; layout and render list what most callers need, no more.
    """
    for path in (SOURCE / room).rglob("*.py"):
        for module, _ in imports(path):
            parts = module.split(".")
            inside = parts[0] != "tilewright" or parts[1:2] in ([room], ["kernels"], ["layout"], ["render"])
            assert inside or len(parts) <= 2, f"{short(path)} imports {module}: take it from {'.'.join(parts[:2])}"


def test_no_file_imports_private_names():
    for path in FILES:
        for module, name in imports(path):
            if module.startswith("tilewright") and name != "__version__":
                assert not (name or "").startswith("_"), f"{short(path)} imports {module}.{name}"


def test_jax_stays_in_its_rooms():
    for path in FILES:
        room = path.relative_to(SOURCE).parts[0]
        for module, name in imports(path):
            if module.split(".")[0] in ("jax", "jaxlib"):
                door = (
                    path.parent == SOURCE / "layout" / "exchange" or path.name == "xla_call.py"
                )  # imported when called
                assert door or room in ("hlo", "embed", "machine"), f"{short(path)} imports {module}"
                private = f"{module}.{name}".startswith(("jaxlib", "jax._src"))
                assert not private or path == SOURCE / "hlo" / "ir.py", f"{short(path)} imports {module}"


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
        and value.__module__ != "tilewright.exports"
    }
    assert public <= set(names), f"public members missing from __all__: {sorted(public - set(names))}"


def test_only_rooms_list_what_is_public():
    """`__all__` stands in the package and in the rooms, nowhere below: public is what a room exports."""
    rooms = {SOURCE / "__init__.py", *(SOURCE / room / "__init__.py" for room in BENEATH)}
    listed = [short(path) for path in FILES if path not in rooms and re.search(r"^__all__", path.read_text(), re.M)]
    assert not listed


def test_every_folder_says_why():
    for folder in FOLDERS:
        text = (folder / "README.md").read_text()
        assert (200 if folder.name in BENEATH else 80) < len(text) < 6000, short(folder)


def test_readmes_name_files_that_are_there():
    """A file in backticks, such as `page.py` or `draw/page.py`: in the room or in the package; and every link."""
    for folder in FOLDERS:
        text, room = (folder / "README.md").read_text(), SOURCE.joinpath(*folder.relative_to(SOURCE).parts[:1])
        for name in re.findall(r"`([\w/]+\.(?:py|js|css|toml))`", text):
            places = [*room.rglob(name), SOURCE / name, ROOT / name]
            assert any(place.exists() for place in places), f"{short(folder)}/README.md names {name}"
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (folder / link).exists(), f"{short(folder)}/README.md links to {link}"


def test_no_docstring_is_left_to_do():
    assert not [short(path) for path in FILES if '"""TODO' in path.read_text()]


def test_files_can_be_read_in_one_sitting():
    lines = {short(path): len(path.read_text().splitlines()) for path in FILES}
    assert not {path: count for path, count in lines.items() if count > MOST_LINES}


def test_folders_can_be_seen_at_a_glance():
    files = {short(folder): len(list(folder.glob("*.py"))) for folder in FOLDERS}
    assert not {folder: count for folder, count in files.items() if count > MOST_FILES}


def test_light_rooms_do_not_load_jax():
    """Nor does layout's door for JAX's values, where a type is given, nor packing."""
    code = (
        "import sys, tilewright.targets, tilewright.layout, tilewright.isa, tilewright.embed, tilewright.cli;"
        "from tilewright.layout import from_array, from_jax, parse; from_jax('float32[8,128]');"
        "parse('f32[2]').pack(__import__('numpy').zeros(2, 'f4'));"
        "assert 'jax' not in sys.modules, 'jax was loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_loads_nothing_heavy():
    """What makes `tilewright --help` answer at once: rooms' files (all but render's, light ones), numpy and rich wait.

    A room itself is a list of names.
    """
    code = (
        "import sys; from tilewright.cli import app\n"
        "try: app(args=['--help'])\n"
        "except SystemExit: pass\n"
        f"rooms = {tuple(f'tilewright.{room}.' for room in ROOMS if room != 'render')}\n"
        "loaded = {'numpy', 'rich', 'numba', 'jax'} & set(sys.modules)\n"
        "loaded |= {module for module in sys.modules if module.startswith(rooms)}\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_processes_of_ours_import_nothing_from_the_working_folder():
    """Python puts it first on the path of ``-c`` and ``-m``, and anybody's json.py may lie there, but for ``-P``."""
    for path in FILES:
        for options in re.findall(r"sys\.executable, ([^\]]*)", path.read_text()):
            assert options.startswith('"-P"'), f"{short(path)}: sys.executable, {options}"


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


def test_no_benchmark_imports_another_in_a_circle():
    files = {path.stem: path for path in (ROOT / "benchmarks").glob("*.py")}
    around = circle({stem: sorted({name for name, _ in imports(path)} & files.keys()) for stem, path in files.items()})
    assert not around, " -> ".join([*around, around[0]])
