"""What Pallas' lowering and the Mosaic compiler say of TPU kernels they refuse: the known messages, in one table."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilewright.hlo.allocation.shape import LANES, SUBLANES


@dataclass(frozen=True)
class KernelError:
    """One message about a kernel, explained.

    ===========  ====================================================================================
    ``text``     the words it was known by
    ``meaning``  what they mean
    ``where``    the kernel, its line and its argument, as far as the message names them; else ""
    ``how``      what to write instead
    ===========  ====================================================================================
    """

    text: str
    meaning: str
    where: str
    how: str

    def to_json(self) -> dict[str, str]:
        """Plain values."""
        return {"text": self.text, "meaning": self.meaning, "where": self.where, "how": self.how}

    def __str__(self) -> str:
        """What is wrong, where, and how to mend it."""
        place = f"\n  where: {self.where}" if self.where else ""
        return f"a kernel is refused: {self.meaning}{place}\n  mend it: {self.how}"


#: A pattern of the message with its line ends as blanks -> its meaning and how to mend it. A name in braces stands for
#: the group of that name. Said by jax 0.10.2 and libtpu 0.0.42; what else they say is not known here.
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r"requires that the last two dimensions of your block shape are divisible by 8 and 128",
        "a block is moved in tiles of 8 x 128, so its last two sizes are multiples of 8 and 128, or all of the array's",
        "take sizes that are multiples of 8 and 128, or the array's own",
    ),
    (
        r"requires that rank 1 block shapes, either.{0,400}?multiple of (?P<chunk>\d+)"
        r".{0,200}?tiling size \((?P<least>\d+)",
        "a block of one dim is the whole array, a multiple of {chunk}, or a power of 2 of at least {least}",
        "take such a size, or make the array one of two dims with 128 in the last",
    ),
    (
        r"supports only blocks of rank >= 1",
        "an array without dims cannot be a block",
        "give it memory_space=pltpu.SMEM without a block, or one dim of size 1",
    ),
    (
        r"supports in memory space ANY only blocks having the same block shape",
        "an argument in memory space ANY (or HBM) stays there: nothing is fetched, so it cannot be cut in blocks",
        "pl.BlockSpec(memory_space=pl.ANY) without a block shape, and pltpu.async_copy of the part in use; or leave "
        "the memory space out, and blocks are fetched",
    ),
    (
        r"Unimplemented primitive in Pallas TPU lowering for (?P<core>\w+): (?P<name>[\w-]+)",
        "{name} has no lowering for the core {core!r} of a TPU",
        "{instead}",
    ),
    (
        r"Only single \(1\) and double \(2\) buffering are supported. Got (?P<count>\d+)",
        "a block of pallas_call is kept once or twice, not {count} times",
        "pl.Buffered(1) or pl.Buffered(2); more only in a pipeline of your own (pltpu.emit_pipeline)",
    ),
    (
        r"Only interpret mode is supported on CPU backend",
        "the kernel was to run on a CPU, and TPU kernels are compiled for TPUs only",
        "interpret=True (slow, with the kernel's values); to know whether it lowers, no TPU is needed: "
        'jax.jit(f).trace(*args).lower(lowering_platforms=("tpu",))',
    ),
    (
        r"Unsupported TPU device kind: (?P<kind>\w+)",
        "the lowering asks which TPU it is for, and the device here is {kind}",
        "lower it where a TPU is; blocks of two dims or more, and gathers left out, do without the question",
    ),
    (
        r"Loads (?:and stores )?are only allowed on VMEM and SMEM references",
        "a reference in HBM (memory space ANY) was read or written like an array",
        "pltpu.async_copy it into a scratch buffer in VMEM first, or give it a block without that memory space",
    ),
    (
        r"Can only load scalars from SMEM|Can only store scalars to SMEM|SMEM store does not support masks",
        "scalar memory was used for an array: it has one number at a time",
        "index every dim of it (x[i, j]), or put the argument in VMEM by leaving memory_space=pltpu.SMEM out",
    ),
    (
        r"Cannot store scalars to VMEM|Cannot swap scalars to VMEM",
        "one number was written to vector memory, which is written by vectors",
        "keep it in scalar memory (memory_space=pltpu.SMEM), or store a slice: o[0:1, 0:1] = jnp.full((1, 1), x)",
    ),
    (
        r"Unsigned integer dtype (?P<type>\w+) is not supported for dot_general",
        "the matrix unit takes integers as signed, and this product is of {type}",
        "cast to a signed type before the product, and take what the sign changes away after it",
    ),
    (
        r"Reductions over (?P<type>unsigned integers|\w+) not implemented",
        "there is no reduction over {type} on a TPU's vector unit",
        "cast to int32 or float32 before it, where the values allow that",
    ),
    (
        r"Length of grid does not match length of dimension semantics\. len\(grid\)=(?P<grid>\d+)",
        "dimension_semantics has another length than the grid",
        'give one word, "parallel" or "arbitrary", for each of the {grid} dims of the grid',
    ),
    (
        r"Axis (?P<axis>\d+) is out of bounds for grid (?P<grid>\([^)]*\))",
        "the kernel asks for its place along dim {axis} of the grid {grid}, which has no such dim",
        "give pallas_call a grid with it, or ask for another axis",
    ),
    (
        r"captures constants (?P<what>\[.{0,200}?\])\. You",
        "the kernel uses an array from outside of it, {what}: it sees its references alone",
        "pass it as an argument with a block of its own; Python numbers may be used as they are",
    ),
    (
        r"must return (?P<count>\d+) values to match block_shape",
        "the index map says too few or too many block indices",
        "return {count}, one for each dim of the block, in blocks and not in elements",
    ),
    (
        r"must have the same number of dimensions as the array shape (?P<array>\([^)]*\))",
        "the block has another number of dims than the array of shape {array}",
        "give a size for each dim; pl.squeezed for those that the kernel shall not see",
    ),
    (
        r"Invalid shape for `swap`.{0,80}?Expected shape: (?P<shape>\([^)]*\)). Value shape: (?P<value>\([^)]*\))",
        "a value of shape {value} is stored where {shape} is expected",
        "store into a slice of the value's shape, or broadcast the value",
    ),
    (
        r"E2002: CompileTimeMosaicMisalignedBlockAndTiling",
        "the compiler lays this array out in tiles that the block does not cut at their edges, although 8 and 128 "
        "divide it: narrow types have taller tiles (16 rows of 2 bytes, 32 of 1 byte)",
        "take multiples of 32 rows for types of one byte and of 16 for two, and of 128 in the last dim",
    ),
)
_INSTEAD = {
    "cumsum": "a product with a triangle of ones, or log2(n) steps of pltpu.roll and add",
    "sort": "sort outside of the kernel, or compare and exchange over pltpu.roll",
    "gather": "prefetched indices that the index map reads, or a product with a one-hot matrix",
    "scatter": "a product with a one-hot matrix, or one row at a time with pl.ds",
}
#: What a message says of its place: (pattern, words); the block's and the array's sizes where it has them.
_SPEC = re.compile(
    r"Block spec for (?P<argument>\S+) in pallas_call (?P<kernel>.{1,200}?) has block shape"
    r" \((?P<block>[^{}]{0,400}?)\), array shape \((?P<array>[\d, ]*)\)"
)
_PLACES = (
    (_SPEC, "{argument} of {kernel}"),
    (
        re.compile(r"Index map function (?P<map>.{1,200}?) for (?P<argument>\S+) must"),
        "{argument}, its index map {map}",
    ),
    (re.compile(r"Block shape for (?P<argument>\S+) \(="), "{argument}"),
    (re.compile(r"The kernel function in the pallas_call (?P<kernel>.{1,200}?) captures"), "{kernel}"),
    (re.compile(r"Failed to set window params for (?P<argument>(?:in|out)put \d+)"), "{argument}"),
)
_BLOCK_SIZE = re.compile(r"block_size=(\d+)\)|^(\d+)$")
_NEAR = 700


def explain_kernel(text: str) -> tuple[KernelError, ...]:
    """Every known message about a TPU kernel in a text, in its order and each once; empty where there is none.

    >>> explain_kernel("ValueError: Cannot store scalars to VMEM")[0].meaning
    'one number was written to vector memory, which is written by vectors'
    """
    line = " ".join(text.split())
    found = []
    for pattern, meaning, how in _KNOWN:
        for match in re.finditer(pattern, line):
            words = match.groupdict()
            words["instead"] = _INSTEAD.get(words.get("name", ""), "write it with operations that have one")
            where, block = _place(line, match)
            if block and "8 and 128" in match[0]:
                how = f"({block}) for instance, or other multiples of 8 and 128, or the array's own sizes"
            error = KernelError(match[0], meaning.format(**words), where, how.format(**words))
            found.append((match.start(), error))
    return tuple(dict.fromkeys(error for _, error in sorted(found, key=lambda pair: pair[0])))


def _place(line: str, match: re.Match[str]) -> tuple[str, str]:
    """What the message that matched is about, and a block like its own that can be moved; "" for what is unknown."""
    near = line[max(0, match.start() - _NEAR) : match.end() + _NEAR]
    for pattern, words in _PLACES:
        if place := pattern.search(near):
            return words.format(**place.groupdict()), _movable(place) if pattern is _SPEC else ""
    return "", ""


def _movable(spec: re.Match[str]) -> str:
    """The block's sizes, the last two raised to multiples of 8 and 128, but to the array's at most."""
    sizes = [_BLOCK_SIZE.search(part.strip()) for part in re.split(r", (?![^(]*\))", spec["block"])]
    array = [int(size) for size in spec["array"].split(",") if size.strip()]
    if None in sizes or len(sizes) != len(array) or len(sizes) < 2:
        return ""  # squeezed dims and other kinds of blocks
    block = [int(size[1] or size[2]) for size in sizes if size]
    for dim, unit in ((-2, SUBLANES), (-1, LANES)):
        block[dim] = min(-(-block[dim] // unit) * unit, array[dim])
    return ", ".join(map(str, block))
