"""A Pallas kernel as its custom call carries it: grid, windows, and what its body computes over the whole grid.

The body is MLIR bytecode; jaxlib turns it into text in a process of its own. The text is followed once: numbers that
depend on the grid alone are kept for all its steps at once, so that branches and index maps are counted exactly. What
depends on data (tables that the kernel loads) is assumed, and ``Kernel.assumed`` says what.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from functools import lru_cache

from tilewright.errors import UnsupportedError
from tilewright.hlo import jaxlib_child
from tilewright.hlo.reading.kernel import Kernel
from tilewright.hlo.reading.kernel_tree import module_of
from tilewright.hlo.reading.kernel_walk import Walk

_SECONDS = 5
_LONGEST_BODY = 4 << 20
"""Bytes of bytecode that are read; the longest kernels in use have a tenth of a megabyte."""
_NAME = re.compile(r'sym_name = "([^"]+)"')
_LIMIT = re.compile(r'"scoped_memory_configs":\[\{"memory_space":"?1"?,"offset":"?0"?,"size":"?(\d+)')
_BODY = re.compile(r'"body":"([A-Za-z0-9+/=]+)"')


@lru_cache(maxsize=64)
def read_kernel(backend_config: str, arrays: tuple[tuple[int, ...], ...] = ()) -> Kernel:
    """The kernel in a custom call's ``backend_config``; ``arrays``: the sizes of its operands and results.

    Where data decides how long the grid is, blocks whose place a table says are taken as passed in order: in one pass
    over the table no more of them are fetched than the array has.

    Raises :class:`UnsupportedError` where there is none, it cannot be read, or there is no jaxlib.
    """
    match = _BODY.search(backend_config)
    if match is None or len(match[1]) > _LONGEST_BODY:
        raise UnsupportedError("its text does not carry the kernel")
    try:
        raw = base64.b64decode(match[1], validate=True)
    except binascii.Error:
        raise UnsupportedError("its body is not base64") from None
    text = jaxlib_child.ask(b"k", raw, _SECONDS).decode("utf-8", errors="replace")
    try:
        kernel = kernel_of(text, arrays)
        limit = _LIMIT.search(backend_config.replace('": ', '":').replace(", ", ","))
        kernel.vmem_limit = int(limit[1]) if limit else 0
        return kernel
    except (ValueError, IndexError, KeyError, OverflowError, TypeError, RecursionError) as error:
        raise UnsupportedError(f"its body is not understood: {error}") from None


def kernel_of(text: str, arrays: Sequence[tuple[int, ...]] = ()) -> Kernel:
    """The kernel of a module's text in MLIR's generic form.

    ``arrays``: as of :func:`read_kernel`. Raises ValueError where no kernel stands in it.
    """
    functions = {
        name[1]: node
        for node in module_of(text).nodes
        if node.name == "func.func" and (name := _NAME.search(node.rest)) is not None
    }
    main = next((node for node in functions.values() if "iteration_bounds" in node.rest), None)
    main = main or functions.get("main") or next(iter(functions.values()), None)
    if main is None:
        raise ValueError("no function stands in it")
    return Walk(main, functions, arrays).walked()
