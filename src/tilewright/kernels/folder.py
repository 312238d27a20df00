"""The folder of a room's compiled kernels: one for every state of the files that the kernels are made of.

``$XDG_CACHE_HOME/tilewright/<room>-<digest>`` (``~/.cache`` by default; ``NUMBA_CACHE_DIR`` wins). A room is the first
folder below the package. The digest is of the bytes of the files that declare the room's kernels and of every file of
the package that those import, directly or not. Where the package lies is not in it: checkouts with the same kernels
share a folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

PACKAGE = __name__.partition(".")[0]
_SOURCES = Path(sys.modules[PACKAGE].__path__[0])
_DECLARES = re.compile(rb"\b(?:njit|cfunc)\(")
_IMPORT = re.compile(rf"^[ \t]*(?:from|import) ({PACKAGE}[\w.]*)(?: import (?:\(([^)]*)\)|(.*)))?", re.MULTILINE)
_KEPT, _DAYS = 12, 3  # the folders that stay: the last so many, and all used within so many days

_said: set[str] = set()


def say_once(text: str) -> None:
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
def sources(room: str) -> dict[str, bytes]:
    """The files that a room's kernels are made of: path inside the package -> its bytes."""
    found: dict[str, bytes] = {}
    todo = [path for path in (_SOURCES / room).rglob("*.py") if _DECLARES.search(path.read_bytes())]
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
def cache_folder(room: str) -> Path:
    """The folder of a room's compiled kernels for the sources as they are now; it need not be there."""
    digest = hashlib.sha256()
    for inside, content in sorted(sources(room).items()):
        digest.update(f"{inside}\0{len(content)}\0".encode() + content)
    return _root() / f"{room}-{digest.hexdigest()[:16]}"


@cache
def cache_text(room: str = "") -> str:
    """A room's folder (without one, the folder of all) as text: made, and found usable; empty where it is not.

    Kept kernels are code that runs, so a folder of another user's is not used. What is wrong is said on stderr, once.
    """
    folder = cache_folder(room) if room else _root()
    fresh = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        own = not hasattr(os, "getuid") or folder.stat().st_uid in (os.getuid(), 0)
        if not own or not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(None, "it cannot be written" if own else "it is another user's")
    except OSError as error:
        cannot_keep(folder, error)
        return ""
    if room:
        with suppress(OSError):
            os.utime(folder)  # its last use
        if fresh:
            _prune(folder.parent)
    return str(folder)


def cannot_keep(folder: Path, error: OSError) -> None:
    """Say why kernels are compiled anew in every process."""
    reason = error.strerror or str(error)
    say_once(f"compiled kernels are not kept in {folder.parent}: {reason}; XDG_CACHE_HOME names another place")


def _prune(root: Path) -> None:
    """Remove the folders nobody used for some days, but for the last few; who still runs on one makes it anew."""
    with suppress(OSError):
        folders = [entry for entry in os.scandir(root) if re.fullmatch(r"\w+-[0-9a-f]{16}", entry.name)]
        for entry in sorted(folders, key=lambda entry: entry.stat().st_mtime)[:-_KEPT]:
            if entry.stat().st_mtime < time.time() - _DAYS * 86400 and entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry, ignore_errors=True)
