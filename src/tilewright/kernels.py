"""Where numba kernels are declared, so that they are compiled once per user and never found stale.

numba keeps compiled code beside the sources, which an installed package may not write, and looks at a kernel's own file
only: code that a changed kernel was inlined into stays as it was. Here every state of the kernels' sources has a folder
of its own: ``$XDG_CACHE_HOME/tilewright/kernels-<digest>`` (``~/.cache`` by default). A ``NUMBA_CACHE_DIR`` that is set
wins. Only kernels' files import this module, so numba is loaded with the first of them and no sooner.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["Job", "cache_folder", "cache_text", "cfunc", "compiled", "do_jobs", "inner", "njit"]

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
Job = tuple[str, Callable[[], object]]
_PACKAGE = Path(__file__).parent
_KERNELS = re.compile(r"\b(?:njit|cfunc|inner|intrinsic)\b")
_IMPORT = re.compile(r"^from tilewright\.([\w.]+) import", re.MULTILINE)


def _sources() -> list[Path]:
    """The files with kernels, and those whose constants the kernels take in as they are compiled."""
    kernels = {path for path in _PACKAGE.rglob("*.py") if _KERNELS.search(path.read_text("utf-8"))}
    named = {name for path in kernels for name in _IMPORT.findall(path.read_text("utf-8"))}
    around = {_PACKAGE.joinpath(*name.split(".")).with_suffix(".py") for name in named}
    return sorted(kernels | {path for path in around if path.is_file()})


@cache
def cache_folder() -> Path:
    """The folder of compiled kernels for the sources as they are now."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    given = os.environ.get("XDG_CACHE_HOME", "")
    caches = Path(given) if os.path.isabs(given) else Path(os.path.expanduser("~/.cache"))
    return caches / "tilewright" / f"kernels-{digest.hexdigest()[:16]}"


@cache
def cache_text() -> str:
    """The folder in use, as text: made, and found writable; empty where it is not."""
    folder = os.environ.get("NUMBA_CACHE_DIR") or str(cache_folder())
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return ""
    return folder if os.access(folder, os.W_OK) else ""


def njit(**options: Any) -> Callable[[Kernel], Kernel]:
    """``numba.njit`` whose ``cache=True`` means :func:`cache_folder`; the process's other kernels keep their own.

    Where the folder cannot be written the kernel is compiled anew in every process. Nobody calls kernels from C, so the
    wrapper for that is left out.
    """
    import numba

    settings: Any = numba.config
    folder = cache_text() if options.get("cache") else ""

    def declare(function: Kernel) -> Kernel:
        before, settings.CACHE_DIR = settings.CACHE_DIR, folder
        try:
            kernel = numba.njit(**{"no_cfunc_wrapper": True, **options, "cache": bool(folder)})(function)
        finally:
            settings.CACHE_DIR = before
        return kernel  # type: ignore[no-any-return]

    return declare


_callbacks: dict[str, Any] = {}


def cfunc(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """``numba.cfunc`` in :func:`cache_folder`, for what kernels call by its ``.address``."""
    import numba

    settings: Any = numba.config
    folder = cache_text()

    def declare(function: Callable[..., Any]) -> Any:
        before, settings.CACHE_DIR = settings.CACHE_DIR, folder
        try:
            options: Any = {"boundscheck": False, "error_model": "numpy"}
            kernel = numba.cfunc(signature, cache=bool(folder), **options)(function)
        finally:
            settings.CACHE_DIR = before
        values = (cell.cell_contents for cell in function.__closure__ or ())
        closure = [str(getattr(value, "dtype", value)) for value in values]
        _callbacks[".".join([function.__module__, function.__name__, *closure])] = kernel
        return kernel

    return declare


def inner(**options: Any) -> Callable[[Kernel], Kernel]:
    """``numba.njit`` for what only kernels call: no way in from Python, and nothing kept but inside of its callers."""
    import numba

    settings = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, **options}
    kernel: Callable[[Kernel], Kernel] = numba.njit(**settings)
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


def do_jobs(jobs: Iterable[Job], report: Callable[[str, float], None] | None) -> None:
    """Do each (name, job); ``report`` is told its name and seconds."""
    for name, job in jobs:
        start = time.perf_counter()
        job()
        if report is not None:
            report(name, time.perf_counter() - start)
