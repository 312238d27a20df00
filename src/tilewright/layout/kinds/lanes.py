"""Tensors over the local memories of an NPU (source: Sophgo's tensor storage): axes ``npu`` and ``offset``.

    npu(c) = (start + c) mod X        offset = n*N_stride + ((start + c) div X)*C_stride + h*H_stride + w*W_stride

Strides count elements; every batch starts again at NPU ``start`` on a fresh row. Matrices and weights are stored as
such a tensor too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tilewright.errors import UsageError, check_known
from tilewright.layout.index.address_map import Axis, is_injective
from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.index.steps import Pad, Split, Step, sizes_behind
from tilewright.layout.index.types import TYPE_BITS, dtype_name, round_up, to_int, to_ints, type_bits
from tilewright.layout.kinds.tiled import TensorLayout, tiled
from tilewright.targets import LaneMemory, target

Four = tuple[int, int, int, int]
_MODES = ("aligned", "compact", "row_aligned")
_N_STRIDES = ("with_start", "without_start")


@dataclass(frozen=True, repr=False)
class LaneLayout(IndexMap):
    """A tensor over ``lane_count`` local memories.

    ==============  ==================================================================================
    ``tensor``      the (N, C, H, W) tensor as which the array is stored; ``shape`` itself for tensors
    ``strides``     (N, C, H, W) strides of that tensor in elements
    ``lane_count``  X, the number of NPUs
    ``eu_bytes``    bytes of one NPU's execution unit
    ``start``       the NPU of channel 0
    ``mode``        ``aligned``, ``compact``, ``row_aligned``, ``free``, ``matrix``, ``matrix2`` or ``weights``
    ==============  ==================================================================================
    """

    strides: Four = (0, 0, 0, 0)
    lane_count: int = 1
    eu_bytes: int = 1
    start: int = 0
    mode: str = "free"
    tensor: Four = (0, 0, 0, 0)

    @property
    def byte_strides(self) -> Four:
        """The strides in bytes, as CV180X states them; a :class:`UsageError` where one is not a whole byte (int4)."""
        bits = tuple(stride * self.element_bits for stride in self.strides)
        if any(b % 8 for b in bits):
            raise UsageError(f"{self} has strides that are not whole bytes", how="use .strides, in elements")
        n, c, h, w = (b // 8 for b in bits)
        return n, c, h, w

    @property
    def needs_aligned_base(self) -> bool:
        """Whether the tensor's first byte must be a multiple of ``eu_bytes``."""
        return self.mode in ("aligned", "row_aligned", "matrix", "matrix2")

    @property
    def base_unit(self) -> int:
        """What the tensor's first byte must be a multiple of: the execution unit's bytes, or an element's."""
        return self.eu_bytes if self.needs_aligned_base else max(1, self.element_bits // 8)

    def byte_address(self, *index: int, base: int = 0) -> dict[str, int]:
        """NPU of an element and the byte of its memory, the tensor beginning at byte ``base`` of each of them.

        Of a 4-bit element it is the byte that it shares. Raises :class:`UsageError` where ``base`` is no multiple of
        :attr:`base_unit` (the text: an aligned tensor's start address is divisible by EU_BYTE).

        >>> lanes((2, 3, 4, 5), "f16", lanes=4, eu_bytes=64, start=2).byte_address(0, 2, 0, 0, base=128)
        {'npu': 0, 'byte': 192}
        """
        base = to_int(base, "the base address")
        if base < 0 or base % self.base_unit:
            how = f"take a multiple of {self.base_unit}"
            raise UsageError(f"{self} cannot begin at byte {base}", where="base", how=how)
        place = self.address(*index)
        return {"npu": place["npu"], "byte": base + place["offset"] * self.element_bits // 8}

    @property
    def bytes_per_npu(self) -> int:
        """Bytes from the tensor's base to the end of its last row, the same on every NPU."""
        return -(-self.axis_terms[1].extent * self.element_bits // 8)

    @property
    def dim_names(self) -> tuple[str, ...]:
        """The names of the logical dims: of a tensor, of weights or of a matrix."""
        if self.rank == 2:
            return ("row", "column")
        return ("oc", "ic", "kh", "kw") if self.mode == "weights" else ("n", "c", "h", "w")

    @property
    def coloured_dims(self) -> dict[str, int]:
        """Channel and batch of a tensor; of a matrix or weights what lies on different NPUs."""
        if self.rank == 4 and self.mode != "weights":
            return {"channel": 1, "batch": 0}
        return {"channel": 0} if self.mode == "weights" else {}

    @property
    def folds(self) -> tuple[tuple[str, int], ...]:
        """The N stride and the C stride, where one holds whole steps of the other."""
        batch, channel = self.strides[:2]
        counts = (self.tensor[0], -(-(self.start + self.tensor[1]) // self.lane_count))
        if not channel or batch % channel or channel <= (self.tensor[2] - 1) * self.strides[2]:
            return ()
        steps = (("N stride", batch), ("C stride", channel))
        return tuple(step for step, count in zip(steps, counts, strict=True) if count > 1 and step[1])

    @property
    def first_npu(self) -> int | None:
        return self.start

    @property
    def particulars(self) -> dict[str, Any]:
        """Mode, start NPU, strides, and the tensor as which it is stored where that is another one."""
        stored = {"tensor": list(self.tensor)} if self.tensor != self.shape else {}
        facts = {"mode": self.mode, "start": self.start, **stored, "strides": list(self.strides)}
        return super().particulars | facts

    @cached_property
    def injective(self) -> bool:
        """Whether no two elements share a place; two channels of one NPU are a multiple of ``lane_count`` apart."""
        batch, channels, height, width = self.tensor
        rows = (channels - 1) // self.lane_count + 1
        return not self.num_elements or is_injective(list(zip((batch, rows, height, width), self.strides, strict=True)))

    def __str__(self) -> str:
        dims = ",".join(map(str, self.shape))
        return f"{self.dtype}[{dims}] over {self.lane_count} NPUs ({self.mode}, start {self.start})"

    def __repr__(self) -> str:
        return f"<{self}, strides {self.strides}>"


def lane_bits(dtype: str) -> int:
    """Bits of one element in local memory: whole bytes, but two 4-bit values share one, the low nibble first."""
    return 4 if TYPE_BITS[dtype] == 4 else type_bits(dtype)


def lane_memory(chip: Any, count: int | None, eu_bytes: int | None, n_stride: str | None = None) -> LaneMemory:
    """The memory of a chip (its name, its target or its memory), or one of ``count`` NPUs."""
    if chip is not None:
        memory = chip if isinstance(chip, LaneMemory) else target(chip).lanes
        if memory is None:
            raise UsageError(f"{target(chip).name} has no lane memories", how="name an NPU such as bm1684x")
    elif count is None or eu_bytes is None or count < 1 or eu_bytes < 1:
        raise UsageError("a lane memory needs chip=, or lanes= and eu_bytes=")
    else:
        memory = LaneMemory(count, eu_bytes, local_bytes=0, banks=1)
    if n_stride is None:
        return memory
    check_known(n_stride, _N_STRIDES, f"no rule {n_stride!r} for the N stride")
    return replace(memory, n_stride=n_stride)


def _strides(rule: str | Four, tensor: Four, dtype: str, memory: LaneMemory, start: int) -> Four:
    bits = lane_bits(dtype)
    if memory.eu_bytes * 8 % bits:
        raise UsageError(f"eu_bytes {memory.eu_bytes} is not a multiple of the {bits // 8} bytes of {dtype}")
    if not isinstance(rule, str):
        return rule
    _, channels, height, width = tensor
    unit = memory.eu_bytes * 8 // bits
    row = round_up(width, unit) if rule == "row_aligned" else width
    channel = round_up(height * row, unit) if rule == "aligned" else height * row
    before = start if memory.n_stride == "with_start" else 0
    return -(-(before + channels) // memory.npu_num) * channel, channel, row, 1


@dataclass(frozen=True)
class Stored:
    """How an array is stored as a tensor (N, C, H, W): ``n .. w`` are the coordinates that count along its dims."""

    tensor: Four  # the tensor's sizes
    rule: str | Four  # aligned, compact, row_aligned, or four free strides in elements
    n: int | None  # None: there is none
    c: int
    h: tuple[int, ...]  # its parts, major first
    w: int | None
    steps: tuple[Step, ...] = ()  # what makes those coordinates out of the array's index


def _terms(stored: Stored, strides: Four, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """(coordinate, stride) of the offset; splitting the channels put the NPU's coordinate behind ``c``."""

    def behind(k: int) -> int:
        return k + 1 if k > stored.c else k

    terms = [(stored.c, strides[1])] + ([] if stored.n is None else [(behind(stored.n), strides[0])])
    stride = strides[2]
    for part in reversed(stored.h):
        terms.append((behind(part), stride))
        stride *= sizes[behind(part)]
    return terms if stored.w is None else [*terms, (behind(stored.w), strides[3])]


def build(
    dtype: str, shape: tuple[int, ...], stored: Stored, memory: LaneMemory, start: int = 0, mode: str = ""
) -> LaneLayout:
    """The layout of an array that is ``stored`` as a tensor from NPU ``start`` on; ``mode`` names it (the rule)."""
    start = to_int(start, "the start NPU")
    if not 0 <= start < memory.npu_num:
        raise UsageError(f"start NPU {start} is outside 0..{memory.npu_num - 1}")
    free = not isinstance(stored.rule, str)
    strides = _strides(stored.rule, stored.tensor, dtype, memory, start)
    steps = (*stored.steps, Pad(stored.c, low=start), Split(stored.c, memory.npu_num))
    sizes = sizes_behind(steps, shape)
    terms = _terms(stored, strides, sizes)
    extent = 0
    if all(shape) and free:
        extent = 1 + sum((sizes[k] - 1) * stride for k, stride in terms)
    elif all(shape):
        extent = (stored.tensor[0] - 1) * strides[0] + sizes[stored.c] * strides[1]
    bits = lane_bits(dtype)
    npu = Axis("npu", ((stored.c + 1, 1),), memory.npu_num)
    offset = Axis("offset", tuple(terms), round_up(extent * bits, 8) // bits)  # whole bytes on every NPU
    label = mode or ("free" if free else str(stored.rule))
    own = (strides, memory.npu_num, memory.eu_bytes, start, label, stored.tensor)
    return LaneLayout(dtype, shape, steps, (npu, offset), (), bits, *own)


def lanes(
    shape: Sequence[int],
    dtype: Any,
    chip: Any = None,
    *,
    lanes: int | None = None,
    eu_bytes: int | None = None,
    start: int = 0,
    mode: str | Sequence[int] = "aligned",
    n_stride: str | None = None,
) -> LaneLayout:
    """Where the elements of a tensor (N, C, H, W) lie in an NPU's local memories.

    ``chip`` names a target with lanes (or pass ``lanes=`` and ``eu_bytes=``); ``start`` is the NPU of channel 0;
    ``mode`` is ``aligned`` (channels rounded up to the execution unit), ``compact``, ``row_aligned`` or four free
    strides (N, C, H, W) in elements. The base address of an aligned tensor must be a multiple of ``eu_bytes``. Of 4-bit
    types two share a byte, the low nibble first. ``n_stride`` is the chip's rule, ``with_start``: ceil((start + C) / X)
    rows to a batch, or ``without_start``: ceil(C / X), as CV180X has it.

    >>> fp16 = lanes((2, 3, 4, 5), "f16", lanes=4, eu_bytes=64, start=2)
    >>> fp16.strides, fp16.address(0, 2, 0, 0)
    ((64, 32, 5, 1), {'npu': 0, 'offset': 32})
    """
    dims = _four(shape, "a size", "a lane tensor has four sizes (N, C, H, W)")
    memory = lane_memory(chip, lanes, eu_bytes, n_stride)
    if not isinstance(mode, str):
        rule: str | Four = _four(mode, "a stride", "free strides are four whole numbers (N, C, H, W) from 0 up")
    elif mode in _MODES:
        rule = mode
    else:
        raise UsageError(f"no lane mode called {mode!r}", how=f"one of {', '.join(_MODES)}, or four strides")
    return build(dtype_name(dtype), dims, Stored(dims, rule, 0, 1, (2,), 3), memory, start)


def _four(values: Sequence[int], name: str, rule: str) -> Four:
    """Four whole numbers from 0 up; ``name`` is one of them, ``rule`` what they must be."""
    numbers = to_ints(values, name)
    if len(numbers) != 4 or any(n < 0 for n in numbers):
        raise UsageError(f"{rule}, got {numbers}")
    return numbers[0], numbers[1], numbers[2], numbers[3]


def _matrix_sizes(rows: int, columns: int) -> tuple[int, int]:
    sizes = to_int(rows, "a size"), to_int(columns, "a size")
    if min(sizes) < 0:
        raise UsageError(f"a matrix has sizes from 0 up, got {rows} x {columns}")
    return sizes


def lane_matrix(
    rows: int,
    columns: int,
    dtype: Any,
    chip: Any = None,
    *,
    columns_per_npu: int,
    lanes: int | None = None,
    eu_bytes: int | None = None,
    start: int = 0,
    n_stride: str | None = None,
) -> LaneLayout:
    """A matrix of which every NPU holds ``columns_per_npu`` neighbouring columns: a tensor (rows, .., 1, w), aligned.

    >>> matrix = lane_matrix(5, 100, "s8", "bm1684x", columns_per_npu=16)
    >>> matrix.tensor, matrix.strides, matrix.address(4, 99)
    ((5, 7, 1, 16), (64, 64, 16, 1), {'npu': 6, 'offset': 259})
    """
    r, c = _matrix_sizes(rows, columns)
    if columns_per_npu < 1:
        raise UsageError(f"columns_per_npu={columns_per_npu} is below 1")
    memory = lane_memory(chip, lanes, eu_bytes, n_stride)
    tensor = (r, -(-c // columns_per_npu), 1, int(columns_per_npu))
    stored = Stored(tensor, "aligned", n=0, c=1, h=(), w=2, steps=(Split(1, int(columns_per_npu)),))
    return build(dtype_name(dtype), (r, c), stored, memory, start, "matrix")


def lane_matrix2(
    rows: int,
    columns: int,
    dtype: Any,
    chip: Any = None,
    *,
    lanes: int | None = None,
    eu_bytes: int | None = None,
    start: int = 0,
    n_stride: str | None = None,
) -> LaneLayout:
    """A matrix whose rows go round the NPUs: a tensor (1, rows, 1, columns), aligned.

    >>> matrix = lane_matrix2(5, 100, "f16", "bm1684x", start=1)
    >>> matrix.strides, matrix.address(4, 99)
    ((128, 128, 100, 1), {'npu': 5, 'offset': 99})
    """
    r, c = _matrix_sizes(rows, columns)
    memory = lane_memory(chip, lanes, eu_bytes, n_stride)
    stored = Stored((1, r, 1, c), "aligned", n=None, c=0, h=(), w=1)
    return build(dtype_name(dtype), (r, c), stored, memory, start, "matrix2")


def lane_weights(
    shape: Sequence[int],
    dtype: Any,
    chip: Any = None,
    *,
    lanes: int | None = None,
    eu_bytes: int | None = None,
    ic_parallel: int | None = None,
) -> LaneLayout:
    """Weights (oc, ic, kh, kw) with IC input channels side by side ("alignIC"): NPU = oc mod X.

    IC follows from the chip's ``ic_parallel`` (or the argument) and the element's width; ``ic`` is padded to IC.

    >>> weights = lane_weights((67, 70, 3, 3), "s8", "bm1684x")
    >>> weights.address(66, 69, 2, 2)
    {'npu': 2, 'offset': 2245}
    """
    dims = _four(shape, "a size", "weights have four sizes (oc, ic, kh, kw)")
    memory = lane_memory(chip, lanes, eu_bytes)
    name = dtype_name(dtype)
    parallel = memory.ic_parallel if ic_parallel is None else ic_parallel
    if parallel < 1:
        raise UsageError("this memory has no IC_PARALLEL", how="pass ic_parallel=")
    bits = lane_bits(name)
    if bits not in (4, 8, 16, 32):
        raise UsageError(f"weights of {bits} bits have no place beside each other", how="4, 8, 16 or 32 bits")
    side = {4: parallel * 2, 8: parallel, 16: max(1, parallel // 2), 32: 1}[bits]  # input channels side by side
    oc, ic, kh, kw = dims
    tensor = (1, oc, -(-ic // side) * kh * kw, side)
    # oc, ic div IC, ic mod IC, kh, kw: h counts (ic div IC, kh, kw), w counts ic mod IC.
    stored = Stored(tensor, "compact", n=None, c=0, h=(1, 3, 4), w=2, steps=(Split(1, side),))
    return build(name, dims, stored, memory, mode="weights")


def global_memory(shape: Sequence[int], dtype: Any) -> TensorLayout:
    """A tensor in global memory, one contiguous DDR: row-major, strides C*H*W, H*W, W, 1 in elements.

    >>> tensor = global_memory((2, 2, 3, 2), "f32")
    >>> str(tensor), tensor.offset(1, 1, 2, 1)
    ('f32[2,2,3,2]{3,2,1,0}', 23)
    """
    return tiled(shape, dtype)
