"""The tensors of tpu-mlir's ``final.mlir`` in an NPU's local memories: what Sophgo's compiler placed where.

    %9 = "tpu.Group"(%1, %2) ({
      %20 = "tpu.Load"(%1) {ginfo = #tpu.lg<out_addr = 0, out_size = 896, ..., n_slice = [1], h_slice = [14, 14], ...>}
                     : (tensor<1x64x28x28xf16, 4294967296 : i64>) -> tensor<1x64x28x28xf16> loc(#loc3)

One operation stands on a line. A layer group computes slice by slice in local memory. ``ginfo`` has the first byte of
an operation's result (``out_addr``), its bytes on every NPU, the sizes of its slices, whether channels are rounded up
to the execution unit (``eu_align``), and a buffer of its own. The largest slice is the tensor. A layout of these sizes
must take the bytes that the compiler says, else the region is kept and its layout is left open.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import ParseError, TilewrightError, UnsupportedError, UsageError, placed_at
from tilewright.layout.kinds.lanes import LaneLayout, lane_memory, lanes
from tilewright.layout.kinds.local_plan import BankConflict, LocalPlan, PlacedTensor, conflicts_of, fitted
from tilewright.targets import LaneMemory

_CHIP = re.compile(r'module\.chip = "(\w{1,40})"')
_OPERATION = re.compile(r'\s*(?:(%[\w.$-]+)(?::\d+)?(?:, %[\w.$-]+)* = )?"([\w.]+)"\(([^()]*)\)')
_GINFO = re.compile(r"\bginfo = (?:#tpu\.lg<([^<>]*)>|\{([^{}]*)\})")
_FIELD = re.compile(r"\b(\w+) = (?:array<i64(?:: ([-\d, ]*))?>|\[([^\[\]]*)\]|(-?\d+|true|false))")
_NUMBER = re.compile(r"-?\d+")
_RESULT = re.compile(r"-> \(?tensor<((?:\d+x)*)(?:!quant\.\w+<)?(\w+)")
_SKIPPED = ("tpu.Store", "tpu.Yield")
"""What hands results on to global memory or out of the group, and has none of its own in local memory."""
_MOST = 4096
"""Tensors of a layer group; each is compared with those alive beside it."""
_LARGEST = 2**40


@dataclass(frozen=True)
class LayerGroup:
    """One layer group of a ``final.mlir``: its tensors as the compiler placed them.

    ==============  ==============================================================================================
    ``name``        the group's own name in the file (``%9``)
    ``line``        its line
    ``plan``        the tensors in the file's order, with bases and banks; conflicts by instruction
    ``operations``  the operation that makes each tensor (``tpu.Load``), by the tensor's name
    ``steps``       the name of each instruction's operation, as conflicts count them
    ``open``        tensors whose bytes the sizes of their slices do not explain: regions without a layout
    ``shared``      (first, second) tensors that share bytes although the first is still read behind the second
    ==============  ==============================================================================================
    """

    name: str
    line: int
    plan: LocalPlan
    operations: Mapping[str, str]
    steps: tuple[str, ...]
    open: tuple[str, ...]
    shared: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Line:
    """An operation with a place in local memory."""

    number: int
    name: str
    operation: str
    operands: tuple[str, ...]
    ginfo: Mapping[str, tuple[int, ...]]
    shape: tuple[int, ...]
    dtype: str

    def one(self, key: str) -> int:
        """A field that is one number, 0 where it is left out."""
        return self.ginfo.get(key, (0,))[0]


def is_tpu_mlir(text: str) -> bool:
    """Whether a text is of tpu-mlir's dialects, for :func:`read_tpu_mlir`.

    >>> is_tpu_mlir('%3 = "tpu.Group"(%1) ({'), is_tpu_mlir('chip = "bm1684x"')
    (True, False)
    """
    return _CHIP.search(text) is not None or re.search(r'"tpu\.\w+"\(', text) is not None


def read_tpu_mlir(text: str, chip: str | None = None, where: str = "") -> tuple[LayerGroup, ...]:
    """The layer groups of a ``final.mlir``, in its order. ``chip``: in place of the one that the file names.

    Raises UsageError for a file without a chip or without a layer group, ParseError for a line that cannot be read,
    LocalMemoryError where a tensor lies beyond the memory.

    >>> ginfo = "#tpu.lg<out_addr = 64, out_size = 64, eu_align = true, n_slice = [1], h_slice = [2], w_slice = [4]>"
    >>> load = f'%2 = "tpu.Load"(%1) {{ginfo = {ginfo}}} : (tensor<1x3x4x4xf16>) -> tensor<1x3x4x4xf16>'
    >>> (group,) = read_tpu_mlir(f'%3 = "tpu.Group"(%1) ({{\\n{load}\\n}})', "bm1684x")
    >>> [(tensor.name, str(tensor.layout), tensor.base, tensor.end) for tensor in group.plan.tensors]
    [('%2', 'f16[1,3,2,4] over 64 NPUs (aligned, start 0)', 64, 128)]
    """
    found = _CHIP.search(text)
    name = chip or (found[1].lower() if found else "")
    if not name:
        raise UsageError("no chip is named", where=where, how="pass --chip, such as bm1684x")
    with placed_at(where, TilewrightError):
        memory = lane_memory(name, None, None)
    groups = [_group(head, number, lines, memory, where) for head, number, lines in _groups(text, where) if lines]
    if not groups:
        raise UsageError("no tensor lies in local memory: the file has no layer group (tpu.Group)", where=where)
    return tuple(groups)


def _groups(text: str, where: str) -> Iterator[tuple[str, int, list[_Line]]]:
    """(name, line, operations in local memory) of each group; operations outside of one make a group without a name."""
    name, start, lines = "", 1, list[_Line]()
    at = 0
    for number, line in enumerate(text.split("\n"), 1):
        match = _OPERATION.match(line)
        if match and match[2] == "tpu.Group":
            yield name, start, lines
            name, start, lines = match[1] or "", number, []
        elif match and match[2] not in _SKIPPED and (ginfo := _GINFO.search(line, match.end())):
            fields = _fields(ginfo[1] or ginfo[2] or "", text, at + ginfo.start(), where)
            if read := _line(number, match, fields, line, (text, at, where)):
                lines.append(read)
            if len(lines) > _MOST:
                raise UnsupportedError(f"more than {_MOST} tensors in one group", where=f"{where}: line {number}")
        elif line.lstrip().startswith(("})", "func.func")):
            yield name, start, lines
            name, start, lines = "", number, []
        at += len(line) + 1
    yield name, start, lines


def _line(
    number: int, match: re.Match[str], fields: Mapping[str, tuple[int, ...]], line: str, place: tuple[str, int, str]
) -> _Line | None:
    text, at, where = place
    if match[1] is None or ("out_addr" not in fields and "out_size" not in fields):
        return None
    result = _RESULT.search(line, match.end())
    if result is None:
        raise ParseError("no tensor type behind ->", text=text, column=at + len(line), where=where)
    shape = tuple(_whole(size, text, at + result.start(), where) for size in result[1].split("x")[:-1])
    operands = tuple(operand.strip().partition("#")[0] for operand in match[3].split(","))
    return _Line(number, match[1], match[2], operands, fields, shape, result[2])


def _fields(body: str, text: str, at: int, where: str) -> dict[str, tuple[int, ...]]:
    """Every number or list of numbers of a ``ginfo``; true is 1."""
    fields: dict[str, tuple[int, ...]] = {}
    for key, array, listed, one in _FIELD.findall(body):
        words = [one] if one else _NUMBER.findall(array or re.sub(r": i\d+", "", listed))
        numbers = {"true": 1, "false": 0}
        fields[key] = tuple(numbers[word] if word in numbers else _whole(word, text, at, where) for word in words)
    return fields


def _whole(word: str, text: str, at: int, where: str) -> int:
    value = int(word) if len(word) < 16 else -1
    if not 0 <= value < _LARGEST:
        shown = word if len(word) < 24 else f"{word[:20]}..."
        raise ParseError(f"{shown} is no size or address", text=text, column=at, where=where)
    return value


def _group(name: str, start: int, lines: Sequence[_Line], memory: LaneMemory, where: str) -> LayerGroup:
    placed: dict[str, PlacedTensor] = {}
    unexplained: list[str] = []
    for line in lines:
        layout, explained = _layout(line, memory, where)
        if line.name in placed:
            raise UsageError(f"two tensors are called {line.name!r}", where=f"{where}: line {line.number}")
        placed[line.name] = _placed(line.name, layout, line.one("out_addr"), memory, where, line)
        if not explained:
            unexplained.append(line.name)
        if size := line.one("buffer_size"):
            buffer = f"{line.name} buffer"
            region = _region(size, memory)
            placed[buffer] = _placed(buffer, region, line.one("buffer_addr"), memory, where, line)
    plan = LocalPlan(memory, tuple(placed.values()), tuple(_conflicts(lines, placed)))
    operations = {line.name: line.operation for line in lines}
    steps = tuple(f"{line.operation} {line.name}" for line in lines)
    return LayerGroup(name, start, plan, operations, steps, tuple(unexplained), tuple(_shared(lines, placed)))


def _placed(name: str, layout: LaneLayout, base: int, memory: LaneMemory, where: str, line: _Line) -> PlacedTensor:
    how = "is it the chip that the file was compiled for?"
    return fitted(PlacedTensor(name, layout, base, memory), f"{where}: line {line.number}: {name}", how)


def _layout(line: _Line, memory: LaneMemory, where: str) -> tuple[LaneLayout, bool]:
    """The largest slice's layout, and whether it takes the bytes that the file says; else the region of those bytes."""
    size = line.one("out_size")
    mode = "aligned" if line.one("eu_align") else "compact"
    for shape in (_slice(line), _whole_tensor(line.shape)):
        if math.prod(shape) >= _LARGEST:
            continue
        with placed_at(f"{where}: line {line.number}", TilewrightError):
            low = line.dtype.lower()
            layout = lanes(shape, {"f8e4m3": "f8e4m3fn"}.get(low, low), memory, mode=mode)
        if layout.bytes_per_npu == size or "out_size" not in line.ginfo:
            return layout, True
    return _region(size, memory), False


def _region(size: int, memory: LaneMemory) -> LaneLayout:
    """``size`` bytes on every NPU, whatever lies there."""
    return lanes((1, memory.npu_num, 1, size), "u8", memory, mode="compact")


def _whole_tensor(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """(N, C, H, W) of a tensor as the compiler has it: from the left, the rest in W."""
    n, c, h = (*shape[:3], 1, 1, 1)[:3]
    return n, c, h, math.prod(shape[3:])


def _slice(line: _Line) -> tuple[int, int, int, int]:
    """(N * D, C, H, W) of the largest slice; older files list slices of N and H only."""
    n, c, h, w = _whole_tensor(line.shape)
    largest = {key: max(line.ginfo.get(f"{key}_slice") or (whole,)) for key, whole in zip("ncdhw", (n, c, 1, h, w))}
    return largest["n"] * largest["d"], largest["c"], largest["h"], largest["w"]


def _conflicts(lines: Sequence[_Line], placed: Mapping[str, PlacedTensor]) -> Iterator[BankConflict]:
    """Operands, result and buffer of one computing instruction that touch the same bank; a result may replace an
    operand in its place."""
    for number, line in enumerate(lines):
        if line.operation == "tpu.Load":
            continue
        names = [name for name in (*line.operands, line.name, f"{line.name} buffer") if name in placed]
        yield from conflicts_of(number, names, placed, in_place=False)


def _shared(lines: Sequence[_Line], placed: Mapping[str, PlacedTensor]) -> Iterator[tuple[str, str]]:
    """Tensors that overlap although the earlier one is read by an operation behind the one that makes the later."""
    last = {operand: number for number, line in enumerate(lines) for operand in line.operands}
    alive: list[str] = []
    for number, line in enumerate(lines):
        alive = [name for name in alive if last.get(name, -1) > number]
        new = placed[line.name]
        for name in alive:
            if placed[name].base < new.end and new.base < placed[name].end:
                yield name, line.name
        alive.append(line.name)
