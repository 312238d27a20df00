"""An allocator message, explained, as a value and on the terminal: the entrance to this folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.errors import TilewrightError, UsageError
from tilewright.hlo.allocation.reading import Allocation, AllocatorMessage, Kind, Label, StatedSize, read_messages
from tilewright.hlo.allocation.shape import Explained, Fix, PaddedShape, find_fixes, padded_shape, saved_by_best
from tilewright.render import bytes_text, percent_text
from tilewright.render.delivery import Line
from tilewright.render.tables import Heading, Table
from tilewright.targets import target, target_names

_LARGE = 0.5
_SPACES = {"hbm": "HBM", "vmem": "vector memory", "smem": "scalar memory", "sflag": "memory of sync flags"}


_MEANINGS = {
    Kind.PROGRAM: "compile time: the program needs{figures} of {where}{excess}",
    Kind.SINGLE: "compile time: one allocation of{figures} of {where} is larger than the memory{excess}",
    Kind.TEMPORARIES: "compile time: the intermediate values alone need{figures} of {where}{excess}",
    Kind.CORES: "compile time: TensorCores and SparseCores together need{figures} of {where}{excess}",
    Kind.ESTIMATE: "compile time: the compiler gave up early; an estimate of{figures} of {where}{excess}",
    Kind.STACK: "compile time: {instruction} needs {scoped}{excess}",
    Kind.LOAD: "run time: loading the program{program} takes {need}{free}",
    Kind.BUFFER: "run time: an array takes {need}{free}",
    Kind.LISTING: "the largest allocations of a program in {where}{needed}",
}


def meaning(message: AllocatorMessage) -> str:
    """What happened, in a sentence."""
    need, have, where = str(message.used or ""), str(message.limit or ""), _SPACES.get(message.space, message.space)
    if message.kind is Kind.PROGRAM and not need:
        return f"compile time: {where} is full"
    figures = f" {need} of {have}" if need and have else f" {need}" if need else ""
    over = str(message.over or "") or (bytes_text(message.excess) if message.excess else "")
    room = (message.free, "are free"), (message.reservable, "of them can be reserved")
    sizes = (*room, (message.largest_free, "are the largest piece"))
    pieces = [f"{size} {words}" for size, words in sizes if size is not None]
    name = message.instruction.name
    return _MEANINGS[message.kind].format(
        need=need,
        where=where,
        figures=figures,
        excess=f", {over} too much" if over else "",
        instruction=f"the instruction {name}" if name else "one instruction",
        scoped=f"{need} of scoped {where} and may have {have}" if need and have else f"too much scoped {where}",
        program=f" {message.program}" if message.program else "",
        free=f"; {', '.join(pieces)}" if pieces else "",
        needed=f", which needs{figures}" if figures else "",
    )


def advice(message: AllocatorMessage, explained: Sequence[Explained]) -> tuple[str, ...]:
    """What else to change, the most telling first."""
    if message.kind in (Kind.LOAD, Kind.BUFFER):
        return tuple(_free_memory(message))
    if message.kind is Kind.CORES:
        return tuple(_both_cores(message))
    match message.space:
        case "hbm":
            return tuple(_main_memory(message, explained))
        case "vmem":
            return tuple(_vector_memory(message, explained))
        case "smem":
            pages = "prefetched arguments such as page tables lie there whole; larger pages or fewer sequences"
            return f"fewer scalars: {pages}", "leave large index arrays in HBM and read the part in use"
    return ("split the program, or its batch: the number of operations in flight fills this memory",)


def _main_memory(message: AllocatorMessage, explained: Sequence[Explained]) -> Iterator[str]:
    limit = message.limit.bytes if message.limit else 0
    listed = sum(shape.bytes for _, shape in explained)
    padding = sum(shape.padding for _, shape in explained)
    if listed:
        share = percent_text(padding / listed)
        yield f"padding is {bytes_text(padding)} of the {bytes_text(listed)} that are listed ({share})"
    for allocation, shape in explained:
        if limit and shape.data_bytes > _LARGE * limit:
            yield (
                f"allocation {allocation.number} alone takes {percent_text(shape.data_bytes / limit)} of the memory "
                "without its padding: look for a missing sharding annotation or a left-over debug print"
            )
            break
    arguments, output = message.total("arguments"), message.output
    if arguments and message.used and arguments.bytes > _LARGE * message.used.bytes:
        yield f"arguments (weights, optimizer state, batch) take {arguments}: shard them further"
    if arguments and output:
        donated = min(output.bytes, arguments.bytes) - (message.output_shared.bytes if message.output_shared else 0)
        if donated > 0:
            yield f"donate arguments (jax.jit's donate_argnums): outputs could share up to {bytes_text(donated)} more"
    if message.fragmentation and message.fragmentation > 0.05:
        yield f"{percent_text(message.fragmentation)} of the temporaries are holes between them"
    temporary = dict(message.parts).get("HLO temp")
    if message.kind is Kind.ESTIMATE:
        yield "look at the sizes first: the compiler does not try programs so far from fitting"
        flag = message.flag or "--xla_tpu_impure_oom_fast_exit_threshold=-1"
        whose = "the message's own flag" if message.flag else "the flag for it"
        yield f"LIBTPU_INIT_ARGS={flag} ({whose}) has it compile on and list the largest allocations"
    elif temporary or message.kind is Kind.TEMPORARIES or not listed:
        size = f" ({temporary})" if temporary else ""
        yield f"temporaries{size} follow the batch: micro-batches, jax.checkpoint around layers, or more chips"
    yield (
        "with the program at hand, tilewright run FILE.py:STEP -t CHIP tries these on it: donated arguments, moments "
        "in bfloat16, smaller batches, arrays computed again or kept on the host, each with bytes and time"
    )


def _vector_memory(message: AllocatorMessage, explained: Sequence[Explained]) -> Iterator[str]:
    spills = [a.size.bytes for a in message.allocations if a.spills and a.size]
    if spills:
        yield (
            f"{bytes_text(sum(spills))} hold values that found no register: smaller blocks, a loop over parts of a "
            "block, fewer values alive at once"
        )
    elif any(a.spills for a in message.allocations):
        yield "values that found no register are kept there: smaller blocks, fewer values alive at once"
    if message.kind is Kind.SINGLE and message.used and message.limit:
        times = -(-message.used.bytes // max(1, message.limit.bytes))
        yield f"cut the kernel's block (BlockSpec) into at least {times} parts; the grid then reads them in turn"
    called = ("custom-call" in a.label.opcode or "pallas_call" in a.op_name for a in message.allocations)
    kernel = "tpu_custom_call" in message.instruction.text or any(called)
    yield "smaller blocks (BlockSpec, block_q and the like): two copies of each window are kept, one being filled"
    if message.kind is not Kind.SINGLE and message.used and message.limit and message.used.bytes > message.limit.bytes:
        yield _higher_limit(message.used.bytes, kernel)
    if not kernel and message.kind is Kind.STACK:
        yield "no kernel of yours is named: the compiler chose these buffers; split the operation, and report it to XLA"


def _higher_limit(need: int, kernel: bool) -> str:
    kib = -(-need // 2**20) * 1024
    flag = f"LIBTPU_INIT_ARGS=--xla_tpu_scoped_vmem_limit_kib={kib}"
    limit = f"raise the limit: {f'vmem_limit_bytes={kib * 1024} of the kernel, or ' if kernel else ''}{flag}"
    tpus = [target(name) for name in target_names() if name.startswith("tpu-")]
    chips = [tpu.name for tpu in tpus if (memory := tpu.memory("vmem")) and memory.bytes > need]
    return f"{limit}; chips with more vector memory than that: {', '.join(chips) or 'none'}"


def _both_cores(message: AllocatorMessage) -> Iterator[str]:
    sparse = message.sparsecores
    if sparse and message.used:
        dense = message.used.bytes - sparse.bytes
        yield f"SparseCores take {sparse}, TensorCores {bytes_text(dense)}"
    yield "SparseCores: --xla_sc_num_serialized_tables_to_optimize_hbm=2 or more, lower max_unique_ids_per_partition"
    yield "inputs fetched ahead: a lower maximum_parallel_iterations"
    yield "see what tables, slots, inputs and stack take: `tilewright embed plan LOG --config MODEL`"


def _free_memory(message: AllocatorMessage) -> Iterator[str]:
    if message.excess:
        yield f"free {bytes_text(message.excess)} first: drop references to arrays that are done with, donate arguments"
    free = message.free.bytes if message.free else 0
    piece = message.largest_free or message.reservable
    if message.used and piece and free >= message.used.bytes > piece.bytes:
        yield (
            f"{message.free} are free but in pieces (the largest usable {piece}): make the large arrays first, or load "
            "the program before them"
        )
    if message.kind is Kind.LOAD:
        yield "compiled programs stay loaded: jax.clear_caches() and fewer shapes (pad the batch) leave room"
        yield "the program's own temporaries are in this size: what the compiler lists for it is where to save"
    else:
        yield "smaller caches or batches, shards over more chips, a narrower dtype"


def _named(message: AllocatorMessage) -> Iterator[str]:
    """What the message itself says to set."""
    for flag in message.flags:
        why = ", and the compiler goes on and lists the arrays: explain that list" * (message.kind is Kind.ESTIMATE)
        yield f"the message names a flag itself: set LIBTPU_INIT_ARGS={flag}{why}"


@dataclass(frozen=True)
class AllocationReport:
    """One message, explained.

    =============  ==========================================================================================
    ``message``    what it says
    ``meaning``    what happened, in a sentence
    ``shapes``     number of the allocation -> its shape, recomputed
    ``fixes``      changes to arrays, by bytes saved
    ``advice``     what else helps
    ``unread``     what is in the text but could not be read, or is not as the layouts say
    =============  ==========================================================================================
    """

    message: AllocatorMessage
    meaning: str
    shapes: dict[int, PaddedShape]
    fixes: tuple[Fix, ...]
    advice: tuple[str, ...]
    unread: tuple[str, ...]

    @property
    def padding_bytes(self) -> int:
        """Bytes without data in all allocations that are listed."""
        return sum(shape.padding for shape in self.shapes.values())

    @property
    def saved_together(self) -> int:
        """Bytes that the best fix of every allocation saves."""
        return saved_by_best(self.fixes)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        apart = ("over", "flag", "allocations", "flags", "unread")
        said = {name: _plain(value) for name, value in vars(self.message).items() if name not in apart}
        return said | {
            "meaning": self.meaning,
            "excess_bytes": self.message.excess,
            "allocations": [self._allocation(each) for each in self.message.allocations],
            "padding_bytes": self.padding_bytes,
            "fixes": [fix.to_json() for fix in self.fixes],
            "saved_together_bytes": self.saved_together,
            "advice": list(self.advice),
            "unread": list(self.unread),
        }

    def _allocation(self, each: Allocation) -> dict[str, Any]:
        shape, label = self.shapes.get(each.number), each.label
        before = ("number", "size", "unpadded", "shape", "op_type", "op_name", "source")
        return {
            **{name: _plain(getattr(each, name)) for name in before},
            "instruction": label.name,
            "opcode": label.opcode,
            "label": label.text,
            "type": each.type,
            "tag": each.tag,
            "layout": shape.to_json() if shape else None,
        }

    def lines(self, top: int = 10) -> Iterator[Line]:
        """What happened, ``top`` allocations with their padding and as many fixes by bytes saved, what else helps."""
        message = self.message
        yield f"{message.code}: {self.meaning}" if message.code else self.meaning
        for name, sizes in ((f"{message.space} in all", message.totals), ("of the program", message.parts)):
            if sizes:
                yield f"  {name}: {', '.join(_part(message, part, size) for part, size in sizes)}"
        if message.allocations:
            yield from self._allocation_lines(top)
        if self.fixes:
            yield from self._fix_lines(top)
        for title, texts in {"what else helps": self.advice, "not read, or not as stated": self.unread}.items():
            if texts:
                yield ""
                yield "bold", title
                yield from (f"- {text}" for text in texts)

    def _allocation_lines(self, top: int) -> Iterator[Line]:
        sizes: list[Heading] = [("size", "bytes"), ("data", "bytes"), ("padding", "bytes"), ("factor", "ratio")]
        rows = []
        for each in self.message.allocations[:top]:
            shape = self.shapes.get(each.number)
            size = shape.bytes if shape else each.size.bytes if each.size else None
            figures = (shape.data_bytes, shape.padding, shape.factor) if shape else (None, None, None)
            words = shape.words.rpartition(": ")[0] if shape else ""
            text = shape.shape if shape else each.shape or "–"
            rows.append([str(each.number), size, *figures, text, words or "–", _shortened(each)])
        title = f"largest allocations, {bytes_text(self.padding_bytes)} of padding"
        yield from ("", Table(["#", *sizes, "shape", "why", "from"], rows, title))
        if len(self.message.allocations) > top:
            yield f"{len(self.message.allocations) - top} more"

    def _fix_lines(self, top: int) -> Iterator[Line]:
        columns: list[Heading] = [("saves", "bytes"), ("left", "bytes"), "of", "by", "to", "how"]
        rows = [
            [fix.saved, fix.bytes_after, _numbers(fix.allocations), fix.kind, fix.after or "nothing", fix.text]
            for fix in self.fixes[:top]
        ]
        yield from ("", Table(columns, rows, "fixes by bytes saved (alternatives where they are of one allocation)"))
        if len(self.fixes) > top:
            yield f"{len(self.fixes) - top} more"
        must = self.message.excess
        goal = f"; {bytes_text(must)} must go" if must else ""
        yield f"the best of each saves {bytes_text(self.saved_together)} where all of these live at once{goal}"


def _plain(value: object) -> object:
    """A stated size as its text and its bytes, named ones by their names, an instruction as its name; else as it is."""
    if isinstance(value, StatedSize):
        return {"text": value.text, "bytes": value.bytes}
    if isinstance(value, tuple):
        return {name: _plain(size) for name, size in value}
    return value.name if isinstance(value, Label) else value


def explain_allocation(text: str) -> tuple[AllocationReport, ...]:
    """Every TPU allocator message in a text (pasted, or a whole log), explained, each once.

    Raises :class:`UsageError` where there is none.

    >>> found = explain_allocation('''Ran out of memory in memory space hbm. Used 41.74G of 16.00G hbm.
    ...   Largest program allocations in hbm:
    ...   1. Size: 32.00G
    ...      Shape: s32[8388608,8,4]{2,1,0:T(8,128)}
    ...      Unpadded size: 1.00G
    ...      Allocation type: HLO temp''')[0]
    >>> found.shapes[1].bytes, found.fixes[0].after, found.fixes[0].saved
    (34359738368, 's32[8,4,8388608]{2,1,0:T(4,128)}', 33285996544)
    """
    messages = read_messages(text)
    if not messages:
        raise UsageError(
            "no TPU allocator message in the text",
            where="explain-error",
            how='paste it from "Ran out of memory", "Attempting to allocate" or "Largest program allocations" on',
        )
    return tuple(_explain(message) for message in messages)


def _explain(message: AllocatorMessage) -> AllocationReport:
    explained: list[Explained] = []
    notes = [*message.unread, *_disagreeing_head(message)]
    numbered: dict[int, Allocation] = {}
    largest = 0
    for each in message.allocations:  # a list pasted twice over: numbers name one allocation each
        number = each.number if each.number not in numbered else largest + 1
        numbered[number], largest = replace(each, number=number), max(largest, number)
    message = replace(message, allocations=tuple(numbered.values()))
    for each in message.allocations:
        if not each.shape:
            continue
        try:
            shape = padded_shape(each.shape, each.size, each.windows)
        except TilewrightError as error:
            notes.append(f"allocation {each.number}: the shape {each.shape[:80]!r}: {error.what}")
            continue
        explained.append((each, shape))
        notes += _disagreeing(each, shape)
    shapes = {allocation.number: shape for allocation, shape in explained}
    fixes = find_fixes(explained, message.space)
    advised = (*advice(message, explained), *_named(message))
    return AllocationReport(message, meaning(message), shapes, fixes, advised, tuple(notes))


def _disagreeing(each: Allocation, shape: PaddedShape) -> Iterator[str]:
    """Where the message and the layout do not come to the same bytes."""
    for name, stated, count in (
        ("Size", each.size, shape.bytes),
        ("Unpadded size", each.unpadded, shape.data_bytes),
        ("Extra memory due to padding", each.padding, shape.padding),
    ):
        if stated is not None and not stated.covers(count):
            yield f"allocation {each.number}: {name} says {stated.text}, {shape.shape} comes to {count:,} bytes"


def _disagreeing_head(message: AllocatorMessage) -> Iterator[str]:
    used, limit, over = message.used, message.limit, message.over
    if used and limit and over and not used.low - limit.high - 2**20 <= over.bytes <= used.high - limit.low + 2**20:
        yield f"the head: {used.text} of {limit.text} is not {over.text} too much"


_WIDE = 60
"""Characters of a name in a table."""


def _part(message: AllocatorMessage, name: str, size: StatedSize | None) -> str:
    data = message.utilization if name == "HLO temp" else None
    text = f"{name} {'of unknown size' if size is None else size}"
    return text if data is None else f"{text} ({percent_text(data)} of it data)"


def _numbers(numbers: tuple[int, ...]) -> str:
    few = numbers if len(numbers) <= 4 else numbers[:2]
    return ",".join(map(str, few)) + (f" and {len(numbers) - 2} more" if few != numbers else "")


def _shortened(each: Allocation) -> str:
    """The end of a framework's long name, the beginning of anything else."""
    line = " ".join(each.what.split())
    if len(line) <= _WIDE:
        return line or "–"
    return f"…{line[1 - _WIDE :]}" if each.op_name else f"{line[: _WIDE - 1]}…"
