"""The stage of an NPU with lanes: what its local memories hold, layer by layer; no time is modelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo import Program
from tilewright.isa import Compiled, compile
from tilewright.layout import LocalPlan, plan_svg
from tilewright.machine.whole.npu import Planned, need_of, planned_layers
from tilewright.machine.whole.operands import layers_of
from tilewright.machine.whole.parts import Change, Check, Held, Memory, Misfit, Moved, Studied, ranked
from tilewright.machine.whole.subject import Subject
from tilewright.render import Card, Column, Html, badge, bytes_text, count_text, percent_text, table
from tilewright.render.markup import element
from tilewright.render.page import details, note
from tilewright.targets import LaneMemory, Target

_SAMPLES = 64
_DRAWN = 3
_OPENED = 24
_COMMANDS = (
    ("See where a tensor's elements lie.", "tilewright layout lanes 'f16[1,64,28,28]' --chip bm1684x"),
    (
        "Plan tensors of your own, with bases you choose.",
        "tilewright layout plan tensors.toml --chip bm1684x -o plan.svg",
    ),
)


def study_on_npu(subject: Subject, chip: Target, watch: Callable[[int, int], None] | None = None) -> Studied:
    """Every layer of ``subject`` in the local memories of ``chip``: lanes, banks, operands, slices where it must."""
    memory = chip.lanes
    if memory is None or not memory.local_bytes:
        raise UnsupportedError(f"{chip.name} has no local memories with lanes", how="name an NPU such as bm1684x")
    if subject.program.kind != "stablehlo":
        raise UnsupportedError("a program as XLA compiled it", how="give StableHLO, or the function it was made from")
    layers = _planned(subject.program, memory, watch)
    whole, moved = sum(each.alone for each in layers), sum(each.loads + each.stores for each in layers)
    most = max(layers, key=lambda each: each.loads + each.stores)
    conflicts = sum(len(each.plan.conflicts) for each in layers if each.plan is not None)
    share = percent_text((most.loads + most.stores) / max(1, moved))
    bottleneck = (
        f"No time is modelled for {chip.name}: none was measured. A step moves {bytes_text(moved)} between global and "
        f"local memory, {share} of it for {most.layer.name}"
    )
    kept = sum(len(each.found) for each in layers)
    cut = sum(each.cut is not None for each in layers)
    how = f"{kept} tensors are found where a layer before left them, {cut} layers are cut"
    return Studied(
        None,
        bottleneck,
        tuple(_advice(layers)),
        _memory(subject, memory, layers),
        Moved(whole, moved, "between global and local memory", f"{how} (before: every layer alone, whole)"),
        _checks(layers, memory),
        details={"layers": [_plain(each) for each in layers]},
        cards=_cards(layers, memory, conflicts),
        layers=tuple(_blocks(layers, memory)),
        commands=_COMMANDS,
    )


def _planned(program: Program, memory: LaneMemory, watch: Callable[[int, int], None] | None) -> list[Planned]:
    compiled = compile(program)
    layers = list(layers_of(compiled, memory))
    if not layers:
        raise UnsupportedError("a program that computes nothing")
    return planned_layers(layers, memory, _results(compiled), watch)


def _results(compiled: Compiled) -> set[int]:
    reading = compiled.lowering.reading
    return {id(reading.root(value)) for value in reading.results}


def _advice(layers: Sequence[Planned]) -> Iterator[str]:
    """The layers that move most, those that do not fit, operands that share a bank."""
    total = sum(each.loads + each.stores for each in layers)
    for each in sorted(layers, key=lambda each: -(each.loads + each.stores))[:3]:
        own = each.loads + each.stores
        if own > 0.05 * total:
            how = f", in {each.cut.slices} slices ({each.cut.text})" if each.cut is not None else ""
            head = f"{bytes_text(own)} ({percent_text(own / total)})"
            yield f"{head}: {each.layer.name} between global and local memory{how}"
    for each in layers:
        if each.plan is None:
            yield f"{each.layer.name}: {bytes_text(each.need)} on every NPU, and no slices along two dims fit"
    shared = [each for each in layers if each.plan is not None and each.plan.conflicts]
    if shared:
        first = shared[0].plan.conflicts[0] if shared[0].plan is not None else None
        names = ", ".join(each.layer.name for each in shared[:4])
        said = "" if first is None else f"; in {shared[0].layer.name}: {first.first} and {first.second}"
        yield f"operands share a bank in {len(shared)} layers ({names}){said}: smaller slices leave banks of their own"


def _memory(subject: Subject, memory: LaneMemory, layers: Sequence[Planned]) -> Memory:
    needs = [each.need for each in layers]
    fullest = max(layers, key=lambda each: each.need)
    names = tuple(each.layer.name for each in layers)
    at = names.index(fullest.layer.name)
    over = sorted((each for each in layers if each.need > memory.local_bytes or each.cut), key=lambda each: -each.need)
    misfits = tuple(
        Misfit(each.layer.name, each.need, memory.local_bytes, each.cut.text if each.cut else "no slices tried fit")
        for each in over
    )
    cuts = [
        Change(each.cut.text, each.need, each.plan.bytes_used, True, None, each.cut.moved, each.layer.name)
        for each in over
        if each.cut is not None and each.plan is not None
    ]
    changes = ranked(tuple(_variants(subject, memory, fullest.need)))
    largest = [
        Held(each.name, each.place({}).bytes_per_npu, at, at, str(each.place({}))) for each in fullest.layer.operands
    ]
    return Memory(
        *("Local memory of an NPU", memory.local_bytes, fullest.need, fullest.layer.name, names, tuple(needs)),
        standing=tuple(each.plan.bytes_used if each.plan is not None else 0 for each in layers),
        largest=tuple(sorted(largest, key=lambda held: -held.bytes)),
        misfits=misfits,
        changes=(*changes, *cuts),
        counts="bytes on every NPU",
        noun="layers",
        remedy=_remedy(over, changes),
    )


def _remedy(over: Sequence[Planned], changes: Sequence[Change]) -> str:
    """What is done with layers that do not fit whole, and what would make them fit."""
    cut = [each for each in over if each.cut is not None]
    said = []
    if cut:
        first = cut[0]
        assert first.cut is not None
        some = "Cut into slices each fits" if len(cut) == len(over) else f"{len(cut)} fit in slices"
        said.append(
            f"{some}; the cheapest cut of {first.layer.name} is {first.cut.text}: {first.cut.slices} slices of "
            f"{bytes_text(first.cut.plan.bytes_used)} that move {bytes_text(first.cut.moved)}."
        )
    if len(cut) < len(over):
        names = [each.layer.name for each in over if each.cut is None]
        more = f" and {len(names) - 2} others" if len(names) > 2 else ""
        said.append(f"No slices that were tried fit for {', '.join(names[:2])}{more}.")
        best = next((change for change in changes if change.fits), None)
        said += [f"The cheapest change with which every layer fits whole: {best.what}."] if best else []
    return " ".join(said)


def _variants(subject: Subject, memory: LaneMemory, before: int) -> Iterator[Change]:
    """The function on other arguments: what its fullest layer needs then."""

    def change(what: str, _: int, program: Program) -> Change:
        after = max((need_of(layer) for layer in layers_of(compile(program), memory)), default=0)
        return Change(what, before, after, after <= memory.local_bytes)

    return subject.tried(change)


# What was checked.


def _checks(layers: Sequence[Planned], memory: LaneMemory) -> tuple[Check, ...]:
    planned = [each.plan for each in layers if each.plan is not None]
    wrong = [text for plan in planned for text in misplaced(plan, memory)]
    many = sum(len(plan.tensors) for plan in planned)
    places = Check(
        "elements lie where their tensor does, and lead back",
        not wrong,
        wrong[0] if wrong else f"{count_text(many)} tensors, {_SAMPLES} elements of each",
    )
    met = [text for plan in planned for text in overlapping(plan)]
    apart = Check("tensors that stand at once are apart", not met, met[0] if met else "none shares a byte with another")
    return places, apart


def misplaced(plan: LocalPlan, memory: LaneMemory) -> Iterator[str]:
    """Elements, drawn at random, that are not where their tensor is, or that their place does not lead back to."""
    draw = np.random.default_rng(0)
    for each in plan.tensors:
        layout = each.layout
        if not layout.num_elements:
            continue
        indices = np.stack([draw.integers(0, size, _SAMPLES) for size in layout.shape], -1)
        places = layout.addresses(indices)
        starts = each.base + places[:, 1] * layout.element_bits // 8
        inside = (starts >= each.base) & (starts < each.end) & (places[:, 0] < memory.npu_num)
        banked = np.isin(starts // memory.bank_bytes, each.banks)
        back = [layout.index(*map(int, place)) == tuple(map(int, i)) for place, i in zip(places, indices, strict=True)]
        bad = ~(inside & banked & np.array(back))
        if bad.any():
            yield f"{each.name}: element {indices[bad][0].tolist()}"


def overlapping(plan: LocalPlan) -> Iterator[str]:
    """Tensors that share a byte."""
    ordered = sorted((each for each in plan.tensors if each.end > each.base), key=lambda each: each.base)
    for one, other in pairwise(ordered):
        if other.base < one.end:
            yield f"{one.name} and {other.name}"


# The page.


def _cards(layers: Sequence[Planned], memory: LaneMemory, conflicts: int) -> tuple[Card, ...]:
    cut = sum(each.cut is not None for each in layers)
    return (
        Card("layers cut", f"{cut} of {len(layers)}", "into slices that fit"),
        Card("bank conflicts", count_text(conflicts), f"pairs of operands, {memory.banks} banks"),
        Card("lanes", f"{memory.npu_num}", f"NPUs of {bytes_text(memory.local_bytes)} each"),
    )


def _busy(each: Planned) -> int:
    """NPUs that hold something of what the layer makes."""
    if each.plan is None:
        return 0
    made = next(operand.name for operand in reversed(each.layer.operands) if operand.role == "out")
    return sum(1 for size in each.plan[made].data_bytes_per_npu if size)


def _blocks(layers: Sequence[Planned], memory: LaneMemory) -> Iterator[Html]:
    columns = [
        Column("layer", "code"),
        Column("whole", "bytes", "bytes on every NPU uncut"),
        Column("used", "bytes", "of local memory, with what stands beside"),
        Column("NPUs", "count", "that hold something of what it makes"),
        Column("slices"),
        Column("found in place"),
        Column("loads", "bytes"),
        Column("stores", "bytes"),
        Column("conflicts", "count", "pairs of operands of an instruction in one bank"),
    ]
    rows = [
        (
            each.layer.name,
            each.need,
            each.plan.bytes_used if each.plan is not None else None,
            _busy(each),
            "" if each.cut is None else f"{each.cut.slices}: {each.cut.text}",
            ", ".join(each.found),
            each.loads,
            each.stores,
            len(each.plan.conflicts) if each.plan is not None else None,
        )
        for each in layers
    ]
    yield table(columns, rows)
    yield note(
        "Images [n, c, h, w] have their channels round the NPUs, matrices their rows; a layer is a product with what "
        "is done to its sums, or a region of work on elements. A base is the same byte on every NPU."
    )
    fullest = sorted(layers, key=lambda each: -each.need)[:_DRAWN]
    shown = sorted(layers, key=lambda each: -each.need)[:_OPENED]
    for each in [layer for layer in layers if layer in shown]:
        if each.plan is not None:
            drawing = (element("figure", Html(plan_svg(each.plan))),) if each in fullest else ()
            head = f"{each.layer.name}: {len(each.layer.operands)} operands, {bytes_text(each.plan.bytes_used)} used"
            yield details(head, *drawing, _operands(each), open_=each is fullest[0])


def _operands(each: Planned) -> Html:
    columns = [
        Column("operand", "code"),
        Column("layout", "code"),
        Column("bytes per NPU", "bytes"),
        Column("base", "count"),
        Column("end", "count"),
        Column("banks"),
        Column(""),
    ]
    assert each.plan is not None
    shared = {name for c in each.plan.conflicts for name in (c.first, c.second)}
    rows = [
        (
            *(t.name, str(t.layout), t.layout.bytes_per_npu, t.base, t.end, ", ".join(map(str, t.banks))),
            badge("shares a bank", "warn") if t.name in shared else "",
        )
        for t in each.plan.tensors
    ]
    return table(columns, rows)


def _plain(each: Planned) -> dict[str, Any]:
    cut = None if each.cut is None else {"sizes": each.cut.sizes, "slices": each.cut.slices, "moved": each.cut.moved}
    return {
        "name": each.layer.name,
        "need": each.need,
        "cut": cut,
        "found": list(each.found),
        "beside": list(each.beside),
        "loads": each.loads,
        "stores": each.stores,
        "alone": each.alone,
        "instructions": [list(names) for names in each.layer.instructions],
        "plan": None if each.plan is None else each.plan.to_dict(),
    }
