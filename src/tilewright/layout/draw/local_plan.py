"""A plan of a chip's local memories as an SVG: tensors over the banks, holes hatched, conflicts marked."""

from __future__ import annotations

from tilewright.layout.kinds.local_plan import LocalPlan, PlacedTensor
from tilewright.render import Drawing, bytes_text, count_text
from tilewright.render.drawing import text_width

_MARGIN, _ROW, _HIGH, _WIDE = 16.0, 30.0, 20.0, 960.0
_TOP = 86.0


def plan_svg(plan: LocalPlan) -> str:
    """Where the tensors of a plan lie in the local memories of a chip, as an SVG.

    From left to right the bytes of one NPU, the same on all of them, cut into banks; one row per tensor, its holes (of
    the start index, behind the last channel, inside the channels) hatched in proportion; a mark where two operands of
    one instruction share a bank.

    >>> from tilewright.layout import LocalTensor, lanes, plan_local_memory
    >>> plan = plan_local_memory([LocalTensor("image", lanes((1, 64, 28, 28), "f16", "bm1684x"))], "bm1684x")
    >>> "image: bytes 0 to 1599 of every NPU" in plan_svg(plan)
    True
    """
    return str(draw_plan(plan).svg())


def draw_plan(plan: LocalPlan) -> Drawing:
    """The picture of :func:`plan_svg`."""
    left = _MARGIN + max((text_width(t.name) for t in plan.tensors), default=0.0) + 12
    notes = [_conflict_text(plan, k) for k in range(len(plan.conflicts))]
    width = max(left + _WIDE, *(_MARGIN + text_width(note) for note in notes), 0) + _MARGIN
    rows = _TOP + _ROW * len(plan.tensors)
    title = f"local memory of {plan.memory.npu_num} NPUs, {bytes_text(plan.memory.local_bytes)} each"
    facts = f"{count_text(plan.bytes_used)} bytes used, {count_text(plan.bytes_free)} free on every NPU"
    drawing = Drawing(width, rows + 34 + 16 * len(notes), title=title, description=facts, ground=True)
    drawing.text(_MARGIN, 26, title, "strong large")
    drawing.text(_MARGIN, 46, facts, "soft")
    _banks(drawing, plan, left, rows)
    for k, tensor in enumerate(plan.tensors):
        _tensor(drawing, plan, tensor, k, left)
    drawing.padding(_MARGIN, rows + 12, 24, 12)
    drawing.text(_MARGIN + 30, rows + 22, "holes, in proportion", "soft")
    for k, note in enumerate(notes):
        drawing.text(_MARGIN, rows + 42 + 16 * k, note, "soft")
    return drawing


def _conflict_text(plan: LocalPlan, number: int) -> str:
    c = plan.conflicts[number]
    which = f"bank {c.banks[0]}" if len(c.banks) == 1 else f"banks {', '.join(map(str, c.banks))}"
    return f"instruction {c.instruction}: {c.first} and {c.second} share {which}"


def _banks(drawing: Drawing, plan: LocalPlan, left: float, bottom: float) -> None:
    """Bank numbers above, bank borders through all rows, bytes at the ends."""
    memory = plan.memory
    step = _WIDE / memory.banks
    shared = {bank for conflict in plan.conflicts for bank in conflict.banks}
    drawing.text(left, _TOP - 24, "0", "soft small")
    end = count_text(memory.local_bytes)
    drawing.text(left + _WIDE, _TOP - 24, f"{end} bytes", "soft small", anchor="end")
    for bank in range(memory.banks):
        x = left + bank * step
        drawing.line(x, _TOP - 4, x, bottom, "grid")
        drawing.text(x + step / 2, _TOP - 8, f"bank {bank}" if step > 50 else str(bank), "soft small", anchor="middle")
        if bank in shared:
            drawing.line(x + 2, _TOP - 3, x + step - 2, _TOP - 3, "mark")
    drawing.rect(left, _TOP - 2, _WIDE, bottom - _TOP + 2, "edge l2 plain")


def _tensor(drawing: Drawing, plan: LocalPlan, tensor: PlacedTensor, row: int, left: float) -> None:
    scale, y = _WIDE / plan.memory.local_bytes, _TOP + row * _ROW + 4
    drawing.text(left - 8, y + 14, tensor.name, anchor="end")
    size = tensor.end - tensor.base
    if not size:
        return
    x, wide = left + tensor.base * scale, max(2.0, size * scale)
    holes = tensor.start_hole + tensor.tail_hole + tensor.inside_hole
    share = min(1.0, holes / (size * tensor.layout.lane_count))
    tip = f"{tensor.name}: bytes {tensor.base} to {tensor.end - 1} of every NPU, {tensor.layout}"
    drawing.rect(x, y, wide * (1 - share), _HIGH, f"cell c{row % 8}", tip=tip)
    if share:
        drawing.padding(
            x + wide * (1 - share), y, wide * share, _HIGH, tip=f"{tip}; {count_text(holes)} bytes of holes"
        )
    label = f"{count_text(tensor.base)} + {count_text(size)}"
    if x + wide + text_width(label, 10.5) + 6 < left + _WIDE:
        drawing.text(x + wide + 5, y + 14, label, "soft small")
    else:
        drawing.text(x - 5, y + 14, label, "soft small", anchor="end")
