"""What Pallas' lowering and the Mosaic compiler say of TPU kernels they refuse, as far as it is known (a TOML file)."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

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
        return dict(vars(self))

    def __str__(self) -> str:
        """What is wrong, where, and how to mend it."""
        place = f"\n  where: {self.where}" if self.where else ""
        return f"a kernel is refused: {self.meaning}{place}\n  mend it: {self.how}"


@cache
def _known() -> dict[str, Any]:
    """``messages``: pattern, meaning and how of each; ``instead``: what to write for operations without a lowering."""
    text = files("tilewright.hlo.allocation").joinpath("kernel_errors.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


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
    for known in _known()["messages"]:
        for match in re.finditer(known["pattern"], line):
            words, how = match.groupdict(), known["how"]
            words["instead"] = _known()["instead"].get(words.get("name", ""), "write it with operations that have one")
            where, block = _place(line, match)
            if block and "8 and 128" in match[0]:
                how = f"({block}) for instance, or other multiples of 8 and 128, or the array's own sizes"
            error = KernelError(match[0], known["meaning"].format(**words), where, how.format(**words))
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
