"""What is done to products before they are stored: the body of a specification, over the product registers in pieces.

The first input of the specification is the products ("acc"); the others are segments of the same shape, or one number
for each column, each row or all. A block's products are worked on some registers at a time, in registers of their own
behind those of the product's program, and each piece is stored when it is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilewright.errors import UnsupportedError, UsageError
from tilewright.isa.vector.emit import Emitter, Layout, Reg, emit, stored_as_it_is, uses_of
from tilewright.isa.vector.spec import VectorSpec, size_of

COLUMN, LONGEST = 300, 64
"""Coordinates of columns, of all and of rows begin here (column, 0, 0, row); registers of a piece at most."""
_FIRST, _UNIFORM = 328, 23
"""Registers, and uniform registers of segments, from here on."""
_SIZE, _BYTES, _HALVES = "ur17", "ur18", "ur19"
"""N of a piece, and registers of so many packed elements of 8 and of 16 bits."""


@dataclass(frozen=True)
class _Pieces(Layout):
    """Run 0 is the products of the piece itself, the first of them in ``products``."""

    products: int = 0

    def number(self, reg: Reg) -> int:
        """The first register of a value."""
        if not reg.one and reg.slot == 0:
            return self.products
        return self.last - reg.slot if reg.one else self.first + (reg.slot - 1) * self.run


def check_epilogue(spec: VectorSpec, integers: bool, registers: int, uniform: int) -> None:
    """Refuse a specification that cannot be done to product registers."""
    first = spec.inputs[0] if spec.inputs else None
    kind = "s32" if integers else "f32"
    if first is None or (first.name, first.dtype, first.form) != ("acc", kind, "full"):
        raise UsageError("an epilogue's first input is the products", how=f"Input('acc', '{kind}')")
    if len(spec.outputs) != 1 or spec.outputs[0].form != "full":
        raise UsageError(f"an epilogue with {len(spec.outputs)} outputs", how="one, of form full")
    if spec.reduces or any(op.name.startswith("iota") for op in spec.body):
        raise UnsupportedError("reductions and iota in an epilogue", how="run_vector on its result")
    if any(each.form == "rows" for each in spec.inputs) or {each.name for each in spec.inputs} & {"A", "B", "C"}:
        raise UnsupportedError("an epilogue of repeated rows, or of tensors called A, B or C")
    if uniform < _UNIFORM + len(spec.inputs) or registers < 400:
        raise UsageError("an epilogue needs 400 registers and some uniform ones", where="config")


@lru_cache(maxsize=256)
def _body(spec: VectorSpec, broadcasts: bool, stride: str) -> Emitter:
    uses = uses_of(spec)
    e, (out,) = Emitter(spec, count=_SIZE), spec.outputs
    e.slots[False] = 1
    e.values[0] = Reg(0, False, uses.get(0, 0) + 1)
    e.stored = stored_as_it_is(spec, uses)
    words = {1: _BYTES, 2: _HALVES, 4: _SIZE}
    for number, each in enumerate(spec.inputs[1:], 1):
        if number not in uses:
            continue
        reg = e.values[number] = e.allocate(each.form in ("row", "one"), uses[number])
        size, handle = size_of(each.dtype), _UNIFORM + number
        place = {"full": "298", "col": str(COLUMN), "one": str(COLUMN + 1), "row": str(COLUMN + 2)}[each.form]
        whole = each.form == "one" or (each.form == "col" and broadcasts)
        name, along = ("ldb", "") if whole else ("@p1, ld", stride)
        if reg.one:
            text = f"{name}.n1 r{{}}, ur{handle}:rf{place}:0x00, 1"
        else:
            text = f"{name}{along} r{{}}, ur{handle}:rf{place}:0x{{at:02x}}, {words[size]}"
        e.lines.append((text, (reg,)))
        if size < 4:
            e.unpack(reg, each.dtype, reg)
    for number in range(len(spec.body)):
        emit(e, number, uses)
    count = {1: "r{bytes}", 2: "r{halves}", 4: "r{mine}"}[size_of(out.dtype)]
    e.lines.append((f"@p1, st{stride} r{{}}, ur5:rf298:0x{{at:02x}}, {count}", (e.packed(out),)))
    return e


def epilogue_lines(
    spec: VectorSpec, columns: int, registers: int, broadcasts: bool, stride: str, tag: str
) -> list[str]:
    """Work on up to ``columns`` products of each thread, and store them.

    ur13 has how many there are, r285 how many of them are a thread's own, r298 and r299 where its first one belongs.
    ``broadcasts``: all threads have the same columns; ``stride``: the suffix of elements that are not neighbours.
    """
    e = _body(spec, broadcasts, stride)
    last = registers - 4  # behind it: a thread's own elements of a piece, and registers of so many packed ones
    run = min(LONGEST, (last - e.slots[True] - _FIRST) // max(1, e.slots[False] - 1) // 4 * 4, -(-columns // 4) * 4)
    if run < 4:
        raise UnsupportedError(f"an epilogue of {e.slots[False]} values at a time", how="a shorter one")
    mine, packed, halves = last + 1, last + 2, last + 3
    named: dict[str, Any] = {"mine": mine, "bytes": packed, "halves": halves}
    lines = [f"segment ur{_UNIFORM + n}, ${each.name}" for n, each in enumerate(spec.inputs) if n]
    lines += [f"mov r{COLUMN}, r298", f"mov r{COLUMN + 1}, 0", f"mov r{COLUMN + 2}, 0", f"mov r{COLUMN + 3}, r299"]
    step, sizes = (
        int(stride[2:]) if stride else 1,
        {size_of(spec.outputs[0].dtype), *(size_of(each.dtype) for each in spec.inputs)},
    )
    for first in range(0, columns, run):
        lines += [f"br.le ur13, {first}, done{tag}"] if first else []
        lines += [f"sub {_SIZE}, ur13, {first}", f"min {_SIZE}, {_SIZE}, {run}"]
        lines += [f"sub r{mine}, r285, {first}", f"max r{mine}, r{mine}, 0", f"min r{mine}, r{mine}, {run}"]
        for size, shift, every, own in ((1, 2, _BYTES, packed), (2, 1, _HALVES, halves)):
            if size in sizes:
                up = 4 // size - 1
                lines += [f"add {every}, {_SIZE}, {up}", f"shr {every}, {every}, {shift}"]
                lines += [f"add r{own}, r{mine}, {up}", f"shr r{own}, r{own}, {shift}"]
        layout = _Pieces(_FIRST, run, last, first)
        for text, regs in e.lines:
            lines.append(text.format(*(layout.number(r) for r in regs), at=first * step, **named))
    return [*lines, f"done{tag}:"]
