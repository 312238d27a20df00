"""The vector and scalar memory that a kernel takes, and the limits of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.hlo.program import Operation
from tilewright.hlo.reading.kernel import Kernel, Window
from tilewright.hlo.reading.kernel_tree import block_bytes
from tilewright.layout import TensorLayout, TupleLayout, parse, predict
from tilewright.targets import Target

_KEPT_IN_REGISTERS = 36 * 4096
"""Bytes of what waits that stay in the 64 registers; found on 40 kernels that normalise rows."""
_DEEP = 1024
"""Products at least so deep are added up in several passes: a left block in an array's tiling, which a window has, is
kept in the unit's beside it; the kernel's own buffers have that from the start."""
_OF_DEEP = 80 << 10
"""Bytes that such a product spills in any case; both found on 40 products."""
_ALL_REGISTERS = 64 * 4096
_LARGE = 128 << 20


@dataclass(frozen=True)
class Memory:
    """Bytes of vector memory by what takes them, and of scalar memory."""

    windows: int
    scratch: int
    spilled: int  # an estimate; the other two are exact
    scalar: int

    @property
    def vector(self) -> int:
        """All of it."""
        return self.windows + self.scratch + self.spilled

    def asked(self, limit: int) -> int:
        """What the compiler asks for: where windows and scratch alone are too much, it does not get to the body."""
        exact = self.windows + self.scratch
        return exact if limit and exact > limit else self.vector


def memory_of(kernel: Kernel, target: Target, near: Sequence[bool] = ()) -> Memory:
    """What a kernel takes; ``near``: which of its windows' arrays lie in vector memory already and need no buffers."""
    held = [w for k, w in enumerate(kernel.windows) if w.space == "vmem" and not (k < len(near) and near[k])]
    windows = sum(window.block_bytes * window.buffers for window in held)
    scratch = sum(block_bytes(sizes, kind) for sizes, kind, space in kernel.scratch if space == "vmem")
    scalars = [(sizes, kind) for sizes, kind, space in (*kernel.scratch, *kernel.tables) if space == "smem"]
    scalars += [(window.block, window.dtype) for window in kernel.windows if window.space == "smem"]
    spilled = max(0, kernel.held_bytes - _KEPT_IN_REGISTERS) + _spilled_by_products(kernel, target)
    return Memory(windows, scratch, spilled, sum(_scalar_bytes(sizes) for sizes, _ in scalars))


def _scalar_bytes(sizes: Sequence[int]) -> int:
    """A table in scalar memory: words of 4 bytes, the last of several dims in lines of 128."""
    return 4 * prod((*sizes[:-1], -(-sizes[-1] // 128) * 128)) if len(sizes) > 1 else 4 * prod(sizes)


def _spilled_by_products(kernel: Kernel, target: Target) -> int:
    width = target.matrix.columns if target.matrix else 128
    spilled = 0
    for product in kernel.products:
        _, rows, columns, depth, kind = product
        if depth >= _DEEP and rows >= 64:
            left = block_bytes((rows, depth), kind)
            narrow = product not in kernel.from_own and (kind == "bf16" or kind.startswith("f8"))
            again = narrow and columns > width and left > _ALL_REGISTERS
            spilled = max(spilled, _OF_DEEP + left * again)
    return spilled


def limit_of(kernel: Kernel, target: Target) -> int:
    """Bytes of vector memory that the kernel may take, on SparseCores those of one subcore; 0 where nothing says it."""
    if kernel.sparse:
        return target.sparse.tile_spmem_bytes if target.sparse else 0
    memory = target.memory("vmem")
    return kernel.vmem_limit or (memory.kernel_bytes if memory else 0)


def near_arrays(op: Operation, windows: Sequence[Window], program_kind: str, target: Target) -> list[bool]:
    """Which windows' arrays lie in vector memory when the kernel runs.

    A dump says it. Of StableHLO, arguments and results come in the layout with the least padding; where that is not
    the kernel's own order, rows last, a copy stands between, and where vector memory is large (v5e, v6e) what the copy
    makes stays there. A block that reaches beyond its array has buffers all the same.
    """
    layouts = [*(layout for text in op.operand_shapes for layout in _layouts(text)), *_layouts(op.shape)]
    memory = target.memory("vmem")
    room = (memory.bytes - memory.kernel_bytes) / 2 if memory and memory.bytes >= _LARGE else 0.0
    found = []
    for window in windows:
        layout = layouts[window.operand] if window.operand < len(layouts) else None
        if layout is None or len(window.block) != layout.rank or layout.rank < 2:
            found.append(layout is not None and layout.memory_space == 1)
            continue
        even = all(size % max(1, cut) == 0 for size, cut in zip(layout.shape, window.block))
        if program_kind != "stablehlo":
            found.append(even and layout.memory_space == 1)
            continue
        chosen = predict("tpu", layout.shape, layout.dtype, boundary=True)
        copied = tuple(chosen.minor_to_major) != tuple(reversed(range(layout.rank)))
        found.append(even and copied and chosen.size_bytes <= room)
    return found


def _layouts(text: str) -> list[TensorLayout]:
    layout = parse(text)
    if isinstance(layout, TupleLayout):
        return [part for part in layout.elements if isinstance(part, TensorLayout)]
    return [layout]
