"""An NPU with lanes: every layer's tensors in the local memories, cut where they are too large; no time is modelled.

A layer is planned whole, with what it shares with its neighbours where that stands already; what does not fit is cut
along one or two dims, in the way that moves the fewest bytes to and from the one global memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, permutations, product
from math import ceil, prod
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo import Program, Value
from tilewright.isa import compile
from tilewright.layout import LocalMemoryError, LocalPlan, LocalTensor, plan_local_memory, plan_svg
from tilewright.layout.kinds.local_plan import BankConflict
from tilewright.machine.model import Subject
from tilewright.machine.operands import NpuLayer, Operand, Sizes, layers_of
from tilewright.machine.results import Change, Check, Held, Memory, Misfit, Moved, Studied, ranked
from tilewright.render import Card, Html, badge, bytes_text, count_text, percent_text, table
from tilewright.render.markup import element
from tilewright.render.page import details, note
from tilewright.render.tables import Heading
from tilewright.targets import LaneMemory, Target


@dataclass(frozen=True)
class Cut:
    """A layer in slices: ``sizes`` of its axes at once, ``slices`` of them, ``moved`` bytes in and out of all."""

    sizes: dict[str, int]
    slices: int
    moved: int
    plan: LocalPlan
    text: str


@dataclass(frozen=True)
class Planned:
    """A layer in the local memories.

    ==============  ============================================================================================
    ``need``        bytes on every NPU that the layer takes whole
    ``plan``        where its tensors stand, of one slice if it is ``cut``; None where no cut fits
    ``found``       tensors that stand there from layers before; ``beside``: others that stand there for later
    ``loads``, ``stores``  bytes from and to global memory
    ``alone``       both, had it been planned by itself and whole
    ==============  ============================================================================================
    """

    layer: NpuLayer
    need: int
    plan: LocalPlan | None
    cut: Cut | None = None
    found: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    loads: int = 0
    stores: int = 0
    alone: int = 0

    @property
    def moved(self) -> int:
        return self.loads + self.stores

    @property
    def used(self) -> int | None:
        """Bytes of local memory that the plan takes, None where there is no plan."""
        return None if self.plan is None else self.plan.bytes_used

    @property
    def conflicts(self) -> Sequence[BankConflict]:
        """Pairs of operands of an instruction that share a bank."""
        return () if self.plan is None else self.plan.conflicts


def planned_layers(
    layers: Sequence[NpuLayer], memory: LaneMemory, results: set[Value], watch: Callable[[int, int], None] | None = None
) -> list[Planned]:
    """All layers in order; ``results``: values that the program returns."""
    walk = _Planner(layers, memory, results)
    for number in range(len(layers)):
        if watch is not None:
            watch(number, len(layers))
        walk.layer(number)
    return walk.done


def need_of(layer: NpuLayer) -> int:
    """Bytes on every NPU that a layer takes whole."""
    return sum(each.place({}).bytes_per_npu for each in layer.operands)


@dataclass
class _Resident:
    """A tensor that stands in the local memories: where, what it is, and whether global memory has it, too."""

    tensor: LocalTensor
    operand: Operand
    written: bool


@dataclass
class _Planner:
    """Plans layer after layer; ``standing``: tensors in the local memories by what they are, ``done``: plans so far."""

    layers: Sequence[NpuLayer]
    memory: LaneMemory
    results: set[Value]
    done: list[Planned] = field(default_factory=list)
    standing: dict[tuple[Any, ...], _Resident] = field(default_factory=dict)

    def layer(self, number: int) -> None:
        """Plan one layer: with all that stands, with less of it, alone, or in slices."""
        layer = self.layers[number]
        alone = sum(each.bytes({}) for each in layer.operands if each.role != "work")
        needed = {key for later in self.layers[number:] for each in later.operands if (key := each.key)}
        self.standing = {key: each for key, each in self.standing.items() if key in needed}
        spilled = 0
        while True:
            plan = self._try_plan(layer)
            if plan is not None or not self.standing:
                break
            own = {each.key for each in layer.operands}
            sizes = {key: (key not in own, each.tensor.layout.bytes_per_npu) for key, each in self.standing.items()}
            gone = self.standing.pop(max(sizes, key=sizes.__getitem__))
            spilled += 0 if gone.written else gone.operand.bytes({})  # stored because a tensor makes room
        if plan is None:
            self._cut(layer, alone, spilled)
            return
        found = tuple(each.name for each in layer.operands if each.key in self.standing)
        own = {each.key for each in layer.operands}
        beside = tuple(each.tensor.name for key, each in self.standing.items() if key not in own)
        loads = sum(e.bytes({}) for e in layer.operands if e.role == "in" and e.name not in found)
        stores = spilled
        read_later = {each.key for later in self.layers[number + 1 :] for each in later.operands}
        for each in layer.operands:
            if each.role == "work":
                continue
            written = each.role == "in" or self._must_be_stored(each, number)
            if each.role == "out" and written:
                stores += each.bytes({})
            if each.key is not None and each.key not in self.standing and each.key in read_later:
                base = plan[each.name].base
                name = f"{layer.name}: {each.name}"
                self.standing[each.key] = _Resident(LocalTensor(name, each.place({}), base), each, written)
        self.done.append(Planned(layer, need_of(layer), plan, None, found, beside, loads, stores, alone))

    def _must_be_stored(self, made: Operand, number: int) -> bool:
        """Whether an output must be in global memory: a result, or read turned."""
        if made.root in self.results or made.key is None:
            return True
        later = [each for layer in self.layers[number + 1 :] for each in layer.operands if each.role == "in"]
        return any(each.root == made.root and each.key != made.key for each in later)

    def _try_plan(self, layer: NpuLayer) -> LocalPlan | None:
        own = {each.key for each in layer.operands}
        tensors = [
            LocalTensor(
                each.name, each.place({}), self.standing[each.key].tensor.base if each.key in self.standing else None
            )
            for each in layer.operands
        ]
        tensors += [each.tensor for key, each in self.standing.items() if key not in own]
        return _plan(tensors, layer, self.memory)

    def _cut(self, layer: NpuLayer, alone: int, spilled: int) -> None:
        """In slices; everything comes from global memory and goes back."""
        best = best_cut(layer, self.memory)
        plan = None if best is None else best.plan
        loads = stores = 0
        if best is not None:
            out = sum(each.bytes({}) for each in layer.operands if each.role == "out")
            loads, stores = best.moved - out, out + spilled
        self.done.append(Planned(layer, need_of(layer), plan, best, (), (), loads, stores, alone))


def _plan(tensors: Sequence[LocalTensor], layer: NpuLayer, memory: LaneMemory) -> LocalPlan | None:
    """Places for all: with operands in banks of their own where that leaves room, else as close as they can stand."""
    if sum(each.layout.bytes_per_npu for each in tensors) > memory.local_bytes:
        return None
    order = sorted(tensors, key=lambda each: (each.base is None, -each.layout.bytes_per_npu))
    for some in (tensors, order):
        try:
            return plan_local_memory(some, memory, layer.instructions)
        except LocalMemoryError:
            continue
    try:
        close = plan_local_memory(order, memory)
    except LocalMemoryError:
        return None
    fixed = [replace(each, base=close[each.name].base) for each in tensors]
    return plan_local_memory(fixed, memory, layer.instructions)


def best_cut(layer: NpuLayer, memory: LaneMemory) -> Cut | None:
    """The slices that fit and move fewest bytes; of those the fewest slices. Tried: along any one or two axes.

    Where a third axis is left (images of a batch, products of a batch), it is tried uncut and one at a time.
    """
    found: list[tuple[int, int, dict[str, int]]] = []
    for sizes in _candidates(layer, memory):
        slices = prod(ceil(axis.size / sizes[axis.name]) for axis in layer.axes)
        found.append((moved_bytes(layer, sizes), slices, sizes))
    for moved, slices, sizes in sorted(found, key=lambda each: each[:2]):
        plan = _plan([LocalTensor(e.name, e.place(sizes), None) for e in layer.operands], layer, memory)
        if plan is not None:
            cut = [axis for axis in layer.axes if sizes[axis.name] < axis.size]
            said = " and ".join(f"{sizes[axis.name]} of {axis.size} {_AXIS_WORDS[axis.name]}" for axis in cut)
            return Cut(sizes, slices, moved, plan, f"{said} at once")
    return None


def _candidates(layer: NpuLayer, memory: LaneMemory) -> Iterator[dict[str, int]]:
    whole = layer.whole
    for axis in whole:
        if (sizes := _largest_slice(layer, whole, axis, memory)) is not None:
            yield sizes
    for first, second, *others in permutations(whole, min(3, len(whole))) if len(whole) > 1 else ():
        for third in others or [""]:
            for kept in ({}, {third: 1}) if third else ({},):
                size = whole[first]
                while size > 1:
                    size = ceil(size / 2)
                    if (sizes := _largest_slice(layer, {**whole, **kept, first: size}, second, memory)) is not None:
                        yield sizes
                        break


def _largest_slice(layer: NpuLayer, sizes: dict[str, int], axis: str, memory: LaneMemory) -> dict[str, int] | None:
    """The sizes with as much of one axis as fits, in slices of about one size; None where not even 1 of it does."""

    def fits(size: int) -> bool:
        some = {**sizes, axis: size}
        return sum(each.place(some).bytes_per_npu for each in layer.operands) <= memory.local_bytes

    low, high = 0, sizes[axis]
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    if not low:
        return None
    whole = layer.whole[axis]
    return {**sizes, axis: ceil(whole / ceil(whole / low))}


def moved_bytes(layer: NpuLayer, sizes: dict[str, int]) -> int:
    """Bytes from and to global memory of a layer in slices, taken in the best order of its loops.

    An operand is loaded again whenever the loop it depends on, or one around that, goes on.
    """
    counts = {axis.name: ceil(axis.size / sizes[axis.name]) for axis in layer.axes}
    cut = [name for name, count in counts.items() if count > 1]
    best = None
    own = {each.name: _sliced_bytes(layer, each, sizes) for each in layer.operands if each.role != "work"}
    for order in permutations(cut):
        moved = 0
        for each in layer.operands:
            if each.role == "work":
                continue
            inner = max((k for k, name in enumerate(order) if name in each.axes), default=-1)
            again = prod(counts[name] for name in order[: inner + 1] if name not in each.axes)
            moved += own[each.name] * again
        best = moved if best is None else min(best, moved)
    return best or 0


def _sliced_bytes(layer: NpuLayer, operand: Operand, sizes: Sizes) -> int:
    """Bytes of an operand's slices, each counted once; the rows that neighbours share count for both."""
    axes = [axis for axis in layer.axes if axis.name in operand.axes]
    parts = []
    for axis in axes:
        full, rest = divmod(axis.size, sizes[axis.name])
        parts.append([(sizes[axis.name], full), *([(rest, 1)] if rest else [])])
    total = 0
    for choice in product(*parts):
        some = {axis.name: size for axis, (size, _) in zip(axes, choice, strict=True)}
        total += prod(count for _, count in choice) * operand.bytes(some)
    return total


_AXIS_WORDS = {
    "n": "images",
    "h": "rows of pixels",
    "c": "channels",
    "batch": "products",
    "rows": "rows",
    "columns": "columns",
}


# The stage: what every layer has in the local memories, checks, and the page's blocks.

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
    compiled = compile(subject.program)
    read, reading = list(layers_of(compiled, memory)), compiled.lowering.reading
    if not read:
        raise UnsupportedError("a program that computes nothing")
    layers = planned_layers(read, memory, {reading.root(value) for value in reading.results}, watch)
    whole, moved = sum(each.alone for each in layers), sum(each.moved for each in layers)
    most = max(layers, key=lambda each: each.moved)
    share = percent_text(most.moved / max(1, moved))
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
        details={"layers": [_layer_json(each) for each in layers]},
        cards=_cards(layers, memory),
        layers=tuple(_layer_blocks(layers, memory)),
        commands=_COMMANDS,
    )


def _advice(layers: Sequence[Planned]) -> Iterator[str]:
    """The layers that move most, those that do not fit, operands that share a bank."""
    total = sum(each.moved for each in layers)
    for each in sorted(layers, key=lambda each: -each.moved)[:3]:
        if each.moved > 0.05 * total:
            how = f", in {each.cut.slices} slices ({each.cut.text})" if each.cut is not None else ""
            head = f"{bytes_text(each.moved)} ({percent_text(each.moved / total)})"
            yield f"{head}: {each.layer.name} between global and local memory{how}"
    for each in layers:
        if each.plan is None:
            yield f"{each.layer.name}: {bytes_text(each.need)} on every NPU, and no slices along two dims fit"
    if shared := [each for each in layers if each.conflicts]:
        first, names = shared[0].conflicts[0], ", ".join(each.layer.name for each in shared[:4])
        said = f"; in {shared[0].layer.name}: {first.first} and {first.second}"
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
        Change(each.cut.text, each.need, each.cut.plan.bytes_used, True, None, each.cut.moved, each.layer.name)
        for each in over
        if each.cut is not None
    ]
    changes = ranked(tuple(_variants(subject, memory, fullest.need)))
    largest = [
        Held(each.name, each.place({}).bytes_per_npu, at, at, str(each.place({}))) for each in fullest.layer.operands
    ]
    return Memory(
        *("Local memory of an NPU", memory.local_bytes, fullest.need, fullest.layer.name, names, tuple(needs)),
        standing=tuple(each.used or 0 for each in layers),
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

    return subject.try_changes(change)


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
    ordered = sorted((each for each in plan.tensors if each.end > each.base), key=lambda each: each.base)
    for one, other in pairwise(ordered):
        if other.base < one.end:
            yield f"{one.name} and {other.name}"


def _cards(layers: Sequence[Planned], memory: LaneMemory) -> tuple[Card, ...]:
    cut, conflicts = sum(each.cut is not None for each in layers), sum(len(each.conflicts) for each in layers)
    return (
        Card("layers cut", f"{cut} of {len(layers)}", "into slices that fit"),
        Card("bank conflicts", count_text(conflicts), f"pairs of operands, {memory.banks} banks"),
        Card("lanes", f"{memory.npu_num}", f"NPUs of {bytes_text(memory.local_bytes)} each"),
    )


def _npus_in_use(each: Planned) -> int:
    """NPUs that hold something of what the layer makes."""
    if each.plan is None:
        return 0
    made = next(operand.name for operand in reversed(each.layer.operands) if operand.role == "out")
    return sum(1 for size in each.plan[made].data_bytes_per_npu if size)


def _layer_blocks(layers: Sequence[Planned], memory: LaneMemory) -> Iterator[Html]:
    columns: list[Heading] = [("layer", "code"), ("whole", "bytes", "bytes on every NPU uncut")]
    columns += [("used", "bytes", "of local memory, with what stands beside")]
    columns += [("NPUs", "count", "that hold something of what it makes"), "slices", "found in place"]
    columns += [("loads", "bytes"), ("stores", "bytes")]
    columns += [("conflicts", "count", "pairs of operands of an instruction in one bank")]
    rows = [
        (
            each.layer.name,
            each.need,
            each.used,
            _npus_in_use(each),
            "" if each.cut is None else f"{each.cut.slices}: {each.cut.text}",
            ", ".join(each.found),
            each.loads,
            each.stores,
            None if each.plan is None else len(each.conflicts),
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
            head = f"{each.layer.name}: {len(each.layer.operands)} operands, {bytes_text(each.used or 0)} used"
            yield details(head, *drawing, _operands_table(each), open_=each is fullest[0])


def _operands_table(each: Planned) -> Html:
    columns: list[Heading] = [("operand", "code"), ("layout", "code"), ("bytes per NPU", "bytes")]
    columns += [("base", "count"), ("end", "count"), "banks", ""]
    assert each.plan is not None
    shared = {name for c in each.conflicts for name in (c.first, c.second)}
    rows = [
        (
            *(t.name, str(t.layout), t.layout.bytes_per_npu, t.base, t.end, ", ".join(map(str, t.banks))),
            badge("shares a bank", "warn") if t.name in shared else "",
        )
        for t in each.plan.tensors
    ]
    return table(columns, rows)


def _layer_json(each: Planned) -> dict[str, Any]:
    cut = None if each.cut is None else {"sizes": each.cut.sizes, "slices": each.cut.slices, "moved": each.cut.moved}
    return {
        "name": each.layer.name,
        "need": each.need,
        "cut": cut,
        "found": list(each.found),
        "beside": list(each.beside),
        **{name: getattr(each, name) for name in ("loads", "stores", "alone")},
        "instructions": [list(names) for names in each.layer.instructions],
        "plan": None if each.plan is None else each.plan.to_dict(),
    }
