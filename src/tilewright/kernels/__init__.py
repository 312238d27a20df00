"""How kernels are declared, cached, called from inside jit, and given threads.

Compiled code is entered through here (``njit``, ``cfunc``, ``inner``) or through a file of this folder; nothing loads
numba before the first kernel is declared.
"""

from __future__ import annotations

from tilewright.kernels.cache import cache_folder, cache_text
from tilewright.kernels.declare import Callback, Job, cfunc, compiled, do_jobs, inner, njit

__all__ = ["Callback", "Job", "cache_folder", "cache_text", "cfunc", "compiled", "do_jobs", "inner", "njit"]
