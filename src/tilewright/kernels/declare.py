"""How a kernel is declared: compiled on its first call, once per user, under a name of its own.

numba names compiled code by module, qualified name, argument types and a number that counts the functions a process has
compiled so far. So functions made by one factory have the same name, and in different processes the same number:
loaded together, one would answer for the other. Here a function that closes over something says which ``variant`` it
is, and the variant is part of its qualified name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tilewright.errors import UsageError
from tilewright.kernels.cache import PACKAGE, CachedKernel, compilations

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
Job = tuple[str, Callable[[], object]]

_ALWAYS: dict[str, Any] = {"no_cfunc_wrapper": True, "error_model": "numpy"}
_variants: dict[str, tuple[str, ...]] = {}
"""Of each function that closes over values, by its name: what they are."""


def named(function: Kernel, variant: str) -> Kernel:
    """The function, its variant in its qualified name.

    Raises :class:`UsageError` for one that closes over values and names no variant, and for a variant that was given to
    other values.
    """
    if function.__closure__ and not variant:
        how = "give variant=, a text that tells it from its like"
        raise UsageError("a kernel that closes over values needs a variant", where=_name(function), how=how)
    if variant:
        function.__qualname__ = f"{function.__qualname__.replace('.<locals>', '')}_{variant}"
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        values = tuple(str(getattr(value, "__qualname__", None) or repr(value)) for value in cells)
        if _variants.setdefault(_name(function), values) != values:
            how = "give each its own variant"
            raise UsageError("two kernels of one variant close over different values", where=_name(function), how=how)
    return function


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _keep(kernel: Any, function: Callable[..., Any]) -> None:
    """Let a kernel be kept, if it is the package's."""
    if function.__module__.startswith(f"{PACKAGE}."):
        kernel._cache = CachedKernel(_name(function))


def njit(*, cache: bool = False, variant: str = "", **options: Any) -> Callable[[Kernel], Kernel]:
    """``numba.njit``, kept in :func:`~tilewright.kernels.cache_folder` where ``cache`` asks for it.

    Nobody calls such kernels from C, so the wrapper for that is left out. No kernel divides by zero: none looks for it.
    """

    def declare(function: Kernel) -> Kernel:
        import numba

        kernel: Kernel = numba.njit(**{**_ALWAYS, **options})(named(function, variant))
        if cache:
            _keep(kernel, function)
        return kernel

    return declare


def inner(**options: Any) -> Callable[[Kernel], Kernel]:
    """``numba.njit`` for what only kernels call: no way in from Python, and nothing kept but inside of its callers."""
    return njit(**{"nogil": True, "no_cpython_wrapper": True, **options})


class Callback:
    """A compiled function that kernels and XLA call by its ``address``; compiled, or found, when that is asked for."""

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        self._function, self._signature = function, signature
        self._lock, self._compiled = threading.Lock(), None

    @property
    def compiled(self) -> Any:
        """numba's compiled function."""
        with self._lock:
            if self._compiled is None:
                from numba.core import ccallback, sigutils

                types: Any = sigutils
                options = {"boundscheck": False, "error_model": "numpy"}
                signature = types.normalize_signature(self._signature)
                kernel: Any = ccallback.CFunc(self._function, signature, locals={}, options=options)
                _keep(kernel, self._function)
                kernel.compile()
                self._compiled = kernel
            return self._compiled

    @property
    def address(self) -> int:
        """The address of its compiled code."""
        return int(self.compiled.address)


def cfunc(signature: str, variant: str = "") -> Callable[[Callable[..., Any]], Callback]:
    """``numba.cfunc`` in :func:`~tilewright.kernels.cache_folder`, for what kernels call by its ``.address``."""
    return lambda function: Callback(named(function, variant), signature)


def compiled() -> dict[str, int]:
    """How often each kept kernel that was used was compiled in this process, rather than found."""
    return dict(compilations)


def do_jobs(jobs: Iterable[Job], report: Callable[[str, float], None] | None) -> None:
    """Do each (name, job); ``report`` is told its name and seconds."""
    for name, job in jobs:
        start = time.perf_counter()
        job()
        if report is not None:
            report(name, time.perf_counter() - start)
