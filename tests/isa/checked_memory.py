"""The machine with every access of its kernels checked: run as a program, with the first seed and how many.

Kernels run as Python, and what they read and write by address is looked up among the arrays they were given.
"""

from __future__ import annotations

import ctypes
import sys
import types
import warnings
from bisect import insort
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"cell": ctypes.c_int64, "word": ctypes.c_int32, "byte": ctypes.c_uint8}
spans: list[tuple[int, int]] = []
records_at: dict[int, Any] = {}
named: deque[np.ndarray] = deque(maxlen=300)  # arrays of which a block has the address only


def begin(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def check(at: int, size: int) -> int:
    if not any(low <= at and at + size <= high for low, high in spans):
        raise MemoryError(f"{size} bytes at {at} belong to no array of the {len(spans)} that were given")
    return at


class Checked:
    """A record at an address, every field of which is looked up."""

    def __init__(self, layout: Any, at: Any) -> None:
        vars(self).update(layout=layout, at=int(at))

    def field(self, name: str) -> Any:
        return ctypes.c_int64.from_address(check(self.at + 8 * self.layout.places[name], 8))

    def __getattr__(self, name: str) -> int:
        return int(self.field(name).value)

    def __setattr__(self, name: str, value: Any) -> None:
        self.field(name).value = int(value)


def dots(a: np.ndarray, b: np.ndarray, depth: int, rows: Any, columns: Any, sums: np.ndarray) -> None:
    """Of four rows of each."""
    if min(*rows, *columns) < 0 or depth % 64 or depth > min(a.shape[1], b.shape[1]) or len(sums) < 16:
        raise MemoryError(f"rows {rows} and {columns} of {a.shape} and {b.shape}")
    sums[:16] = (a[list(rows), :depth].astype(np.int32) @ b[list(columns), :depth].astype(np.int32).T).ravel()


def copied(to: Any, of: Any, length: Any) -> None:
    """Bytes from one address to another."""
    ctypes.memmove(check(int(to), int(length)), check(int(of), int(length)), int(length))


def pointers() -> types.ModuleType:
    """:mod:`tilewright.isa.kernels.pointers`, checked."""
    from tilewright.isa.kernels import records

    module: Any = types.ModuleType("tilewright.isa.kernels.pointers")
    for name, kind in SIZES.items():
        size = ctypes.sizeof(kind)

        def read(table: Any, place: Any, kind: Any = kind, size: int = size) -> int:
            return int(kind.from_address(check(int(table) + size * int(place), size)).value)

        def write(table: Any, place: Any, value: Any, kind: Any = kind, size: int = size) -> None:
            kind.from_address(check(int(table) + size * int(place), size)).value = int(value)

        setattr(module, name, read)
        setattr(module, {"cell": "put"}.get(name, f"put_{name}"), write)
    module.copy_bytes = copied
    module.sixteen_dots = dots
    for name, layout in vars(records).items():
        if isinstance(layout, records.Layout):
            setattr(module, f"{name.lower()}_at", partial(Checked, layout))
    return module


def given(part: Any) -> None:
    """A record and all it names, or an array."""
    array = part if isinstance(part, np.ndarray) else part.numbers
    for each in [] if isinstance(part, np.ndarray) else part.kept:
        given(each)
    insort(spans, (begin(array), begin(array) + array.nbytes))


def arrays_in(arguments: Any) -> list[np.ndarray]:
    """The arrays of arguments, those of tuples too."""
    arrays: list[np.ndarray] = []
    for argument in arguments:
        if isinstance(argument, tuple):
            arrays += arrays_in(argument)
        elif isinstance(argument, np.ndarray):
            arrays.append(argument)
    return arrays


def kernel(function: Any) -> Any:
    depth = []

    def call(*arguments: Any) -> Any:
        if not depth:
            spans.clear()
        for array in arrays_in((*arguments, *named)):
            given(records_at.get(begin(array), array))
        depth.append(1)
        try:
            return function(*arguments)
        finally:
            depth.pop()

    return call


def install() -> None:
    """Before anything of :mod:`tilewright.isa` is there."""
    from tilewright import kernels
    from tilewright.kernels import vectors

    sys.modules["tilewright.isa.kernels.pointers"] = pointers()
    vectors.copy_vector = copied
    real = kernels.njit, kernels.inner

    def ours(function: Any) -> bool:
        return str(function.__module__).startswith("tilewright.isa")

    kernels.njit = lambda **o: lambda f: kernel(f) if ours(f) else real[0](**o)(f)  # type: ignore[assignment]
    kernels.inner = lambda **o: lambda f: f if ours(f) else real[1](**o)(f)  # type: ignore[assignment]
    from tilewright.isa.execute import blocks as _blocks
    from tilewright.isa.execute import memory as _memory
    from tilewright.isa.kernels import block_kernels as _kernels
    from tilewright.isa.kernels import records as _records

    address, start, alu = _records.address, _records.Record.__init__, _kernels.alu

    def seen(array: np.ndarray, dtype: Any) -> int:
        named.append(array)
        return address(array, dtype)

    def made(self: Any, layout: Any, values: Any, like: Any = None) -> None:
        start(self, layout, values, like)
        records_at[begin(self.numbers)] = self

    _records.Record.__init__ = made  # type: ignore[method-assign]
    _blocks.address = _memory.address = seen  # type: ignore[attr-defined]
    # numpy's 64 bits do not wrap silently
    _kernels.wrap = lambda value: (int(value) + 2**31) % 2**32 - 2**31
    _kernels.alu = lambda op, x, y: alu(int(op), int(x), int(y))


def main(first: int, count: int) -> int:
    """Tensor multiplies that ran in compiled blocks."""
    install()
    sys.path.insert(0, str(Path(__file__).parent))
    from wild import wild

    from tilewright.isa import MatrixUnit, MatrixUnitConfig, MatrixUnitError, matmul
    from tilewright.isa.execute import run as running

    ran, fast = [0], running.run_block

    def counted(pe: Any, state: Any, most: int) -> bool:
        before = pe.counts.instructions
        done = fast(pe, state, most)
        state.flush_counts(pe)
        ran[0] += pe.counts.instructions - before
        return done

    running.run_block = counted
    for seed in range(first, first + count):
        config, memory, text = wild(seed)
        try:
            MatrixUnit(config).run(text, memory)
        except MatrixUnitError:  # without end
            pass
        except MemoryError as error:
            raise SystemExit(f"seed {seed}: {error}") from error
        records_at.clear()
        named.clear()
    for transpose in (False, True):
        a = np.arange(500, dtype=np.int8).reshape(5, 100)
        found = matmul(a, a.T, MatrixUnitConfig(threads=16), transpose_b=transpose)
        assert np.array_equal(found.value, a.astype(np.int32) @ a.T.astype(np.int32))
    return ran[0]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(main(int(sys.argv[1]), int(sys.argv[2])))
