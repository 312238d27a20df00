"""Compiled kernels on disk, a file each, in a folder for each package: an optimisation, never a condition.

The folder is ``$XDG_CACHE_HOME/tilewright/<package>-<digest>`` (``~/.cache`` by default; ``NUMBA_CACHE_DIR`` wins); a
package is the first folder below ``tilewright``. The digest is of the bytes of the files that declare the package's
kernels and of every file of ours that those import, directly or not. Where the files lie is not in it: checkouts with
the same kernels share a folder. A file is

::

    magic  | sha256 of the rest | pickle of (key, symbols, numba's compiled result)

The key names the kernel, its variant, argument types, processor and compiler; a file of another key, one that is cut or
damaged, and one that cannot be rebuilt are as good as none: the kernel is compiled anew and a whole file takes the
place. ``symbols`` are the functions that the file defines for the whole process: the linker takes the first of two with
one name without a word, so a file that brings other code under a name that is in use is refused.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.errors import TilewrightError

try:
    import fcntl
except ImportError:  # a system without such locks: two processes may compile the same kernel, each its own
    fcntl = None  # type: ignore[assignment]

PACKAGE = __name__.partition(".")[0]
_SOURCES = Path(sys.modules[PACKAGE].__path__[0])
_DECLARES = re.compile(rb"\b(?:njit|cfunc)\(")
_IMPORT = re.compile(rf"^[ \t]*(?:from|import) ({PACKAGE}[\w.]*)(?: import (?:\(([^)]*)\)|(.*)))?", re.MULTILINE)
_KEPT, _DAYS = 12, 3  # the folders that stay: the last so many, and all used within so many days
_MAGIC = b"tilewright kernel 1\n"
_DIGEST = hashlib.sha256().digest_size
_PATIENCE = 60  # seconds to wait for another process that compiles the same kernel

_symbols: dict[str, str] = {}
"""What this process has loaded or compiled: symbol -> digest of its code."""
compilations: Counter[str] = Counter()
"""How often each kernel was compiled in this process; 0: it was found."""
before_compiling: list[Callable[[], None]] = []
"""Called once, when the first kernel is compiled."""
_said: set[str] = set()


def _say_once(text: str) -> None:
    """One line on stderr, the first time: something about kept kernels that ends no call."""
    if text not in _said:
        _said.add(text)
        print(f"{PACKAGE}: {text}", file=sys.stderr)


def _imported(text: str) -> Iterator[Path]:
    """The files that may be meant by the imports of a source text."""
    for module, several, one in _IMPORT.findall(text):
        place = _SOURCES.joinpath(*module.split(".")[1:])
        yield from (place.with_suffix(".py"), place / "__init__.py")
        yield from (place / f"{name.split()[0]}.py" for name in (several or one).split(",") if name.strip())


@cache
def sources(package: str) -> dict[str, bytes]:
    """The files that a package's kernels are made of: path inside the package -> its bytes."""
    found: dict[str, bytes] = {}
    todo = [path for path in (_SOURCES / package).rglob("*.py") if _DECLARES.search(path.read_bytes())]
    while todo:
        path = todo.pop()
        inside = path.relative_to(_SOURCES).as_posix()
        if inside not in found and path.is_file():
            found[inside] = path.read_bytes()
            todo += _imported(found[inside].decode())
    return found


def _root() -> Path:
    given, caches = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME", "")
    if given:
        return Path(given).absolute() / PACKAGE
    return Path(caches if os.path.isabs(caches) else os.path.expanduser("~/.cache")) / PACKAGE


@cache
def cache_folder(package: str) -> Path:
    """The folder of a package's compiled kernels for the sources as they are now; it need not be there."""
    digest = hashlib.sha256()
    for inside, content in sorted(sources(package).items()):
        digest.update(f"{inside}\0{len(content)}\0".encode() + content)
    return _root() / f"{package}-{digest.hexdigest()[:16]}"


@cache
def cache_text(package: str = "") -> str:
    """A package's folder ("": the folder of all) as text: made, and found usable; empty where it is not.

    Kept kernels are code that runs, so a folder of another user's is not used. What is wrong is said on stderr, once.
    """
    folder = cache_folder(package) if package else _root()
    fresh = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        own = not hasattr(os, "getuid") or folder.stat().st_uid in (os.getuid(), 0)
        if not own or not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(None, "it cannot be written" if own else "it is another user's")
    except OSError as error:
        _cannot_keep(folder, error)
        return ""
    if package:
        with suppress(OSError):
            os.utime(folder)  # its last use
        if fresh:
            _prune(folder.parent)
    return str(folder)


def _cannot_keep(folder: Path, error: OSError) -> None:
    """Say why kernels are compiled anew in every process."""
    reason = error.strerror or str(error)
    _say_once(f"compiled kernels are not kept in {folder.parent}: {reason}; XDG_CACHE_HOME names another place")


def _prune(root: Path) -> None:
    """Remove the folders nobody used for some days, but for the last few; who still runs on one makes it anew."""
    with suppress(OSError):
        folders = [entry for entry in os.scandir(root) if re.fullmatch(r"\w+-[0-9a-f]{16}", entry.name)]
        for entry in sorted(folders, key=lambda entry: entry.stat().st_mtime)[:-_KEPT]:
            if entry.stat().st_mtime < time.time() - _DAYS * 86400 and entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry, ignore_errors=True)


class KernelClash(TilewrightError):
    """Two kernels define one symbol with different code."""


class CachedKernel:
    """numba's interface of caches (``numba.core.caching._Cache``) for one kernel; numba holds a lock around calls."""

    def __init__(self, name: str) -> None:
        self._name, self._package = name, name.split(".")[1]
        self._turn: tuple[int, Path] | None = None  # the lock file of the types that are being compiled

    @property
    def cache_path(self) -> str | None:
        """The folder; None where nothing can be kept."""
        return cache_text(self._package) or None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The kernel for these types, or None: then it is to be compiled, by this process alone."""
        target_context.refresh()
        key = _key(self._name, sig, target_context.codegen())
        found = self._load(key, target_context)
        if found is None:
            while before_compiling:
                before_compiling.pop()()
            self._take_turn(key)
            found = self._load(key, target_context)  # another process may have compiled it meanwhile
        if found is not None:
            self._end_turn()
            compilations[self._name] += 0
        return found

    def save_overload(self, sig: Any, cres: Any) -> None:
        """Keep what was compiled; where that fails the kernel works all the same."""
        from numba.core import serialize

        compilations[self._name] += 1
        try:
            symbols = _defined(cres.library)
            _claim(symbols)
            if self.cache_path:
                key = _key(self._name, sig, cres.codegen)
                dumps: Any = serialize.dumps
                payload = dumps((key, symbols, cres._reduce()))
                _write(self._file(key), _MAGIC + hashlib.sha256(payload).digest() + payload)
        finally:
            self._end_turn()

    def _file(self, key: str) -> Path:
        name = ".".join(self._name.split(".")[-2:])
        return cache_folder(self._package) / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.kernel"

    def _load(self, key: str, target_context: Any) -> Any:
        from numba.core import compiler

        if not self.cache_path:
            return None
        try:
            content = self._file(key).read_bytes()
        except OSError:
            return None
        payload = content[len(_MAGIC) + _DIGEST :]
        if content[: len(_MAGIC) + _DIGEST] != _MAGIC + hashlib.sha256(payload).digest():
            return None
        try:
            its_key, symbols, reduced = pickle.loads(payload)
            if its_key != key:
                return None
            _claim(symbols)
            results: Any = compiler.CompileResult
            return results._rebuild(target_context, *reduced)
        except KernelClash as clash:
            _say_once(f"{clash}; it is compiled anew")
        except Exception:  # whole, and yet not to be rebuilt here: whatever the reason, compiling does not need it
            return None
        return None

    def _take_turn(self, key: str) -> None:
        """From here on this process alone compiles it, where locks work and nobody takes longer than a minute."""
        if fcntl is None or self._turn is not None or not self.cache_path:
            return
        path, late = self._file(key).with_suffix(".lock"), time.monotonic() + _PATIENCE
        with suppress(OSError):
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            while self._turn is None and time.monotonic() < late:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._turn = lock, path
                except OSError:
                    time.sleep(0.02)
            if self._turn is None:
                os.close(lock)

    def _end_turn(self) -> None:
        if self._turn is not None:
            lock, path = self._turn
            with suppress(OSError):
                path.unlink()  # who waits for it holds it open
            os.close(lock)
            self._turn = None


def _key(name: str, sig: Any, codegen: Any) -> str:
    import llvmlite
    import numba

    versions = numba.__version__, llvmlite.__version__, sys.implementation.cache_tag
    return repr((name, str(sig), codegen.magic_tuple(), versions))


def _defined(library: Any) -> dict[str, str]:
    """The symbols that a library defines for the whole process, each with a digest of its code.

    Functions that only kernels call are not listed: their names tell all that their code is made of (`declare.named`).
    """
    return {
        function.name: hashlib.sha256(str(function).encode()).hexdigest()
        for function in library.get_defined_functions()
        if function.linkage.name == "external"
    }


def _claim(symbols: dict[str, str]) -> None:
    """These symbols come into the process; KernelClash where one is there with other code."""
    for symbol, code in symbols.items():
        if _symbols.get(symbol, code) != code:
            raise KernelClash("a kept kernel has other code under a name that is in use", where=symbol)
    _symbols.update(symbols)


def _write(path: Path, content: bytes) -> None:
    """The whole file or none of it, and at most one line where there is no room for it."""
    partial = path.with_suffix(f".{os.getpid()}.part")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        _cannot_keep(path.parent, error)
        with suppress(OSError):
            partial.unlink()
