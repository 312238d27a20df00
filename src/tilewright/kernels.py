"""Where numba kernels are declared, so that they are compiled once per user and never found stale.

numba keeps compiled code beside the sources, which an installed package may not write, and looks at a kernel's own file
only: code that a changed kernel was inlined into stays as it was. Here a room's kernels have a folder for every state
of their sources: ``$XDG_CACHE_HOME/tilewright/<room>-<digest>`` (``~/.cache`` by default; ``NUMBA_CACHE_DIR`` wins). A
room is the first folder below the package.

The digest covers the statements that declare the room's kernels, and those they reach by name in any file, without
comments and docstrings. Where the package lies is not in it: checkouts with the same kernels share a folder. Only
kernels' files import this module, so numba is loaded with the first of them and no sooner.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tilewright.compiling import quicken

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
Job = tuple[str, Callable[[], object]]
_PACKAGE = __name__.partition(".")[0]
_SOURCES = Path(sys.modules[_PACKAGE].__path__[0])

# Python's own parser takes 30 ms for the kernels of a room; these patterns take a tenth. They rely on the formatter: a
# statement begins in the first column, and what continues it is indented or closes a bracket.
_STRING_OR_COMMENT = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"""'
    r"|'''(?:[^'\\]|\\.|'(?!''))*'''"
    r'|"(?:[^"\\]|\\.)*"'
    r"|'(?:[^'\\]|\\.)*'"
    r"|#[^\n]*",
    re.DOTALL,
)
_DOCSTRING = re.compile(r'(?<=:\n)[ \t]+[rR]?""".*"""\n')
_STATEMENT = re.compile(r"^(?:@.*\n(?:[ \t)\]}].*\n)*)*[^\s)\]}@].*\n(?:[ \t)\]}].*\n)*", re.MULTILINE)
_DEFINED = re.compile(r"^(?:(?:async )?def|class) (\w+)|^(\w+(?:, \w+)*)(?:: [^=\n]+)? = ", re.MULTILINE)
_IMPORTED = re.compile(rf"^\s*from ({_PACKAGE}[\w.]*) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)
_DECLARES = re.compile(r"njit\(|cfunc\(")
_WORD = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_KEPT, _DAYS = 12, 3  # the folders that stay: the last so many, and all used within so many days


class _File(NamedTuple):
    """The statements of a file by the names they define ("" for those that define none), and where its imports lead."""

    statements: dict[str, str]
    imports: dict[str, tuple[str, str]]


def _bare(text: str) -> str:
    """Source text without comments, docstrings and empty lines; strings of several lines become one line."""
    text = _STRING_OR_COMMENT.sub(lambda token: "" if token[0][0] == "#" else token[0].replace("\n", r"\n"), text)
    return _DOCSTRING.sub("", "".join(f"{line.rstrip()}\n" for line in text.split("\n") if line.strip()))


@cache
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text))


def _path(module: str) -> Path:
    path = _SOURCES.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _read(module: str) -> _File:
    file = _File({}, {})
    path = _path(module)
    for statement in _STATEMENT.findall(_bare(path.read_text("utf-8") if path.is_file() else "")):
        if statement.startswith(("if TYPE_CHECKING:", '"')):
            continue
        for target, several, one in _IMPORTED.findall(statement):
            for part in filter(str.strip, (several or one).split(",")):
                file.imports[part.split()[-1]] = target, part.split()[0]
        if statement.startswith(("from ", "import ")):
            continue
        defined = _DEFINED.search(statement)
        for name in (defined[1] or defined[2]).split(", ") if defined else [""]:
            file.statements[name] = file.statements.get(name, "") + statement
    return file


def _declaring(room: str) -> Iterable[tuple[str, str]]:
    """The statements of a room that declare kernels, as (module, name)."""
    for folder, _, files in os.walk(_SOURCES / room):
        for path in (Path(folder, file) for file in files if file.endswith(".py")):
            if _DECLARES.search(path.read_text("utf-8")):
                inside = path.with_suffix("").relative_to(_SOURCES).parts
                module = ".".join([_PACKAGE, *inside]).removesuffix(".__init__")
                statements = _read(module).statements.items()
                yield from ((module, name) for name, text in statements if _DECLARES.search(text))


@cache
def reached(room: str) -> dict[tuple[str, str], str]:
    """What a room's kernels are made of: the bare text of each (module, name) they reach.

    Of this file only what declares kernels counts, not what that calls. Where a name cannot be followed, the whole file
    that should define it counts.
    """
    texts: dict[tuple[str, str], str] = {}
    todo = list(_declaring(room))
    while todo:
        module, name = todo.pop()
        if (module, name) in texts:
            continue
        statements, imports = _read(module)
        texts[module, name] = statements.get(name, "")
        if module == __name__:
            continue
        if name in imports:
            todo.append(imports[name])
        if name and name in _words(statements.get("", "")):
            todo.append((module, ""))
        elif name not in statements and name not in imports:
            whole = f"{module}.{name}" if _path(f"{module}.{name}").is_file() else module
            todo += [(whole, each) for each in _read(whole).statements]
        todo += [(module, word) for word in _words(texts[module, name]) if word in statements or word in imports]
    return texts


def _root() -> Path:
    given, caches = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME", "")
    if given:
        return Path(given).absolute() / _PACKAGE
    return Path(caches if os.path.isabs(caches) else os.path.expanduser("~/.cache")) / _PACKAGE


@cache
def cache_folder(room: str) -> Path:
    """The folder of a room's compiled kernels for the sources as they are now."""
    digest = hashlib.sha256()
    for (module, name), text in sorted(reached(room).items()):
        digest.update(f"{module}\0{name}\0{text}\0".encode())
    return _root() / f"{room}-{digest.hexdigest()[:16]}"


@cache
def cache_text(room: str = "") -> str:
    """A room's folder (without one, the folder of all) as text: made, and found writable; empty where it is not."""
    folder = cache_folder(room) if room else _root()
    fresh = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return ""
    if not os.access(folder, os.W_OK):
        return ""
    if room:
        with suppress(OSError):
            os.utime(folder)  # its last use
        if fresh:
            _prune(folder.parent)
    return str(folder)


def _prune(root: Path) -> None:
    """Remove the folders nobody used for some days, but for the last few; who still runs on one makes it anew."""
    used: list[tuple[float, str]] = []
    with suppress(OSError):
        for entry in os.scandir(root):
            with suppress(OSError):
                if re.fullmatch(r"\w+-[0-9a-f]{16}", entry.name) and entry.is_dir(follow_symlinks=False):
                    used.append((entry.stat().st_mtime, entry.path))
    for last, path in sorted(used, reverse=True)[_KEPT:]:
        if last < time.time() - _DAYS * 86400:
            shutil.rmtree(path, ignore_errors=True)


class _Locator:
    """Tells numba where a kernel is kept. The folder says how fresh it is, so lines may move and files be touched."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._module = function.__module__
        self._py_file = file  # numba's warnings name it
        # A file for every closure: processes that write one index at once take one file for two kernels.
        within = hashlib.sha256(repr(_within(function)).encode()).hexdigest()[:8] if function.__closure__ else ""
        self._name = f"{self._module}.{within}".rstrip(".")

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> _Locator | None:
        return cls(function, file) if _kept(function) else None

    def get_cache_path(self) -> str:
        return str(cache_folder(_room(self._module)))

    def ensure_cache_path(self) -> None:
        os.makedirs(self.get_cache_path(), exist_ok=True)

    def get_source_stamp(self) -> str:
        return ""

    def get_disambiguator(self) -> str:
        return self._name


def _within(function: Callable[..., Any]) -> tuple[Any, ...]:
    """What a function closes over; other kernels by their names, which the folder's digest makes unique."""

    def named(value: Any) -> Any:
        inside = getattr(value, "py_func", None) or getattr(value, "_defn", None)  # of a kernel, of an intrinsic
        return (inside.__module__, inside.__qualname__, *_within(inside)) if inside else (type(value), value)

    return tuple(named(cell.cell_contents) for cell in function.__closure__ or ())


def _room(module: str) -> str:
    return module.split(".")[1]


def _kept(function: Callable[..., Any]) -> bool:
    """Whether a compiled function is kept: the key covers it, and its folder can be written."""
    module, name = function.__module__, function.__qualname__.partition(".")[0]
    if not module.startswith(f"{_PACKAGE}."):
        return False
    return (module, name) in reached(_room(module)) and bool(cache_text(_room(module)))


@cache
def _numba() -> Any:
    """numba, told of :class:`_Locator`; the process's other kernels keep their places."""
    import numba
    from numba.core import caching

    places: Any = caching.CacheImpl
    places._locator_classes = [_Locator, *places._locator_classes]
    kept: Any = caching.Cache
    kept._index_key = _stable_key(kept._index_key)
    _take_turns()
    quicken()
    return numba


def _stable_key(pickled: Callable[..., Any]) -> Callable[..., Any]:
    """numba pickles what a kernel closes over, and pickled kernels are others in every process; ours are named."""

    def key(self: Any, signature: Any, codegen: Any) -> Any:
        function = self._py_func
        if not function.__closure__ or not isinstance(self._impl.locator, _Locator):
            return pickled(self, signature, codegen)
        return signature, codegen.magic_tuple(), (function.__code__.co_code, repr(_within(function)))

    return key


_tell: dict[str, Callable[[], None]] = {}


def tell_first_compiled(who: str, tell: Callable[[], None] | None) -> None:
    """Call ``tell`` once, when the first kernel is compiled that will be kept; ``who`` may take it back with None."""
    _tell.pop(who, None)
    if tell is not None:
        _tell[who] = tell


_compiling = threading.local()  # of each thread: the kernels under way, one inside the other


def _take_turns() -> None:
    """Let one process compile a kernel; others that want it wait, and find it kept."""
    from numba.core import caching, ccallback, dispatcher

    kept: Any = caching.Cache
    load = kept.load_overload

    def load_in_turn(self: Any, signature: Any, context: Any) -> Any:
        found = load(self, signature, context)
        turns = _compiling.__dict__.get("turns")
        if found is not None or not turns or not isinstance(self._impl.locator, _Locator):
            return found
        while _tell:
            _tell.popitem()[1]()
        turns[-1].enter_context(_turn(self._impl.locator.get_cache_path(), self._impl.filename_base))
        return load(self, signature, context)

    def in_turn(compile_one: Callable[..., Any]) -> Callable[..., Any]:
        def compile_in_turn(self: Any, *signature: Any) -> Any:
            turns = _compiling.__dict__.setdefault("turns", [])
            with ExitStack() as turn:
                turns.append(turn)
                turn.callback(turns.pop)
                return compile_one(self, *signature)

        return compile_in_turn

    kept.load_overload = load_in_turn
    for kind in (dispatcher.Dispatcher, ccallback.CFunc):
        declared: Any = kind
        declared.compile = in_turn(declared.compile)


@cache
def _turns(folder: str) -> int:
    """The file whose bytes are a folder's locks. It stays open: with the first that is closed all locks would go."""
    return os.open(os.path.join(folder, "turns"), os.O_RDWR | os.O_CREAT, 0o666)


@contextmanager
def _turn(folder: str, name: str) -> Iterator[None]:
    """Alone with a kernel of a folder among all processes, as long as locks work and nobody takes over a minute."""
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    byte, late = zlib.crc32(name.encode()), time.monotonic() + 60
    while True:
        try:
            fcntl.lockf(_turns(folder), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError as taken:
            if taken.errno not in (errno.EACCES, errno.EAGAIN) or time.monotonic() > late:
                yield
                return
            time.sleep(0.02)
        else:
            break
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.lockf(_turns(folder), fcntl.LOCK_UN, 1, byte)


def njit(**options: Any) -> Callable[[Kernel], Kernel]:
    """``numba.njit`` whose ``cache=True`` means :func:`cache_folder`.

    Where the folder cannot be written the kernel is compiled anew in every process. Nobody calls kernels from C, so the
    wrapper for that is left out. No kernel divides by zero, so none looks whether it does.
    """

    def declare(function: Kernel) -> Kernel:
        cached = bool(options.get("cache")) and _kept(function)
        settings = {"no_cfunc_wrapper": True, "error_model": "numpy", **options, "cache": cached}
        kernel: Kernel = _numba().njit(**settings)(function)
        return kernel

    return declare


_callbacks: dict[str, Any] = {}


def cfunc(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """``numba.cfunc`` in :func:`cache_folder`, for what kernels call by its ``.address``."""

    def declare(function: Callable[..., Any]) -> Any:
        options: Any = {"boundscheck": False, "error_model": "numpy"}
        kernel = _numba().cfunc(signature, cache=_kept(function), **options)(function)
        values = (cell.cell_contents for cell in function.__closure__ or ())
        closure = [str(getattr(value, "dtype", value)) for value in values]
        _callbacks[".".join([function.__module__, function.__name__, *closure])] = kernel
        return kernel

    return declare


def inner(**options: Any) -> Callable[[Kernel], Kernel]:
    """``numba.njit`` for what only kernels call: no way in from Python, and nothing kept but inside of its callers."""
    import numba

    always = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy"}
    kernel: Callable[[Kernel], Kernel] = numba.njit(**{**always, **options})
    return kernel


def compiled() -> dict[str, int]:
    """How often each cached kernel was compiled in this process, rather than found in the cache."""
    import numba.extending

    found = {name: int(not kernel.cache_hits) for name, kernel in _callbacks.items()}
    for name in [name for name in sys.modules if name.startswith("tilewright.")]:
        for value in vars(sys.modules[name]).values():
            kernel: Any = value
            if numba.extending.is_jitted(value) and kernel.__module__ == name and kernel.stats.cache_path:
                found[f"{name}.{kernel.__name__}"] = sum(kernel.stats.cache_misses.values())
    return found


def do_jobs(jobs: Iterable[Job], report: Callable[[str, float], None] | None, only: Iterable[str] = ()) -> None:
    """Do each (name, job), or ``only`` those of these names; ``report`` is told its name and seconds."""
    by_name = dict(jobs)
    for name, job in [(name, by_name[name]) for name in only] or by_name.items():
        start = time.perf_counter()
        job()
        if report is not None:
            report(name, time.perf_counter() - start)
