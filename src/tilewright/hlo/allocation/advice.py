"""What helps beyond the shapes, in words, with the figures of the message in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.hlo.allocation.fixes import Explained
from tilewright.hlo.allocation.message import AllocatorMessage, Kind
from tilewright.render import bytes_text, percent_text
from tilewright.targets import target, target_names

_LARGE = 0.5
_SPACES = {"hbm": "HBM", "vmem": "vector memory", "smem": "scalar memory", "sflag": "memory of sync flags"}


def space_name(space: str) -> str:
    """A memory space by its full name: ``vmem`` is vector memory."""
    return _SPACES.get(space, space)


_MEANINGS = {
    Kind.SINGLE: "compile time: one allocation of{figures} of {where} is larger than the memory{excess}",
    Kind.TEMPORARIES: "compile time: the intermediate values alone need{figures} of {where}{excess}",
    Kind.CORES: "compile time: TensorCores and SparseCores together need{figures} of {where}{excess}",
    Kind.ESTIMATE: "compile time: the compiler gave up early; an estimate of{figures} of {where}{excess}",
}


def meaning(message: AllocatorMessage) -> str:
    """What happened, in a sentence."""
    need, have = str(message.used or ""), str(message.limit or "")
    where = space_name(message.space)
    figures = f" {need} of {have}" if need and have else f" {need}" if need else ""
    over = str(message.over or "") or (bytes_text(message.excess) if message.excess else "")
    excess = f", {over} too much" if over else ""
    if message.kind in _MEANINGS:
        return _MEANINGS[message.kind].format(figures=figures, where=where, excess=excess)
    match message.kind:
        case Kind.STACK:
            name = f"the instruction {message.instruction.name}" if message.instruction.name else "one instruction"
            scoped = f"{need} of scoped {where} and may have {have}" if need and have else f"too much scoped {where}"
            return f"compile time: {name} needs {scoped}{excess}"
        case Kind.LOAD | Kind.BUFFER:
            return _runtime(message, need)
        case Kind.LISTING:
            return f"the largest allocations of a program in {where}{figures and f', which needs{figures}'}"
    return f"compile time: the program needs{figures} of {where}{excess}" if need else f"compile time: {where} is full"


def _runtime(message: AllocatorMessage, need: str) -> str:
    name = f" {message.program}" if message.program else ""
    what = f"loading the program{name} takes" if message.kind is Kind.LOAD else "an array takes"
    sizes = (message.free, "are free"), (message.reservable, "of them can be reserved")
    parts = [
        f"{size} {word}" for size, word in (*sizes, (message.largest_free, "are the largest piece")) if size is not None
    ]
    return f"run time: {what} {need}" + (f"; {', '.join(parts)}" if parts else "")


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
        donated = min(output.bytes, arguments.bytes) - (message.shared.bytes if message.shared else 0)
        if donated > 0:
            yield f"donate arguments (jax.jit's donate_argnums): outputs could share up to {bytes_text(donated)} more"
    if message.fragmented and message.fragmented > 0.05:
        yield f"{percent_text(message.fragmented)} of the temporaries are holes between them"
    temporary = dict(message.parts).get("HLO temp")
    if message.kind is Kind.ESTIMATE:
        yield "look at the sizes first: the compiler does not try programs so far from fitting"
    elif temporary or message.kind is Kind.TEMPORARIES or not listed:
        size = f" ({temporary})" if temporary else ""
        yield f"temporaries{size} follow the batch: micro-batches, jax.checkpoint around layers, or more chips"


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
    kernel = "tpu_custom_call" in message.instruction.text or any(
        "custom-call" in a.label.opcode or "pallas_call" in a.op_name for a in message.allocations
    )
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
