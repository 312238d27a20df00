"""Walks over B in random programs: one call or one instruction after another, and what is awaited is what was not used.

Products follow one another over two segments: all of K for some of the columns, or column by column; pages come and go,
windows change, columns are off.
"""

from dataclasses import fields
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tests.isa.test_blocks import both, same
from tilewright.isa import MatrixUnit, MatrixUnitConfig, MatrixUnitError, Memory
from tilewright.isa.chip.state import same_state
from tilewright.isa.kernels.records import WALK


def machine(r: Random) -> MatrixUnitConfig:
    line = r.choice((8, 16, 64))
    return MatrixUnitConfig(
        threads=r.choice((8, 16, 32)),
        line_bytes=line,
        l1_bytes=line * r.choice((2, 4, 8, 16)),
        l1_ways=r.choice((0, 0, 2)),
        l2_bytes=r.choice((0, 1024, 4096)),
        retention=r.choice(("bypass", "bypass", "evict")),
        kb_mode=r.choice(("chunk", "split")),
        ka_split=r.choice(("blocked", "interleaved")),
        bus_bytes_per_cycle=r.choice((0, 4)),
        fetch_cycles=r.choice((0, 2)),
        a_bytes=r.choice((4, 8)),
    )


def memory(r: Random, line: int) -> Memory:
    tensors = Memory()
    for name in "BD":
        shape = r.choice((16, 24, 40)), r.choice((16, 32, 40))
        tensors.add(name, np.ones(shape, np.int8), page=r.choice((None, (8, line))))
    return tensors


def product(r: Random, number: int, threads: int) -> list[str]:
    segment, ends = r.choice(("ur4", "ur4", "ur5")), r.choice((8, threads))
    before = [f"setmm {r.randint(1, threads)}", f"segsize {segment}, 1, {r.randint(4, 16)}", f"dmain {segment}"]
    before += [f"dmaout {segment}\nptmap {segment}"]
    lines = [line for line in before if r.random() < 0.2] + ["clr r0, 32"] * (r.random() < 0.7)
    suffix = r.choice((".ka1", ".ka2", ".kb2")) + r.choice((".t1", ".t1", ".t1", ".t0"))
    depth = ["mov ur0, 0", "mov r291, 0", f"depth{number}:", f"@p1, mm8{suffix} r0, {segment}:rf290:0x00, r256"]
    depth += ["add ur0, ur0, 8", "add r291, r291, 8", f"br.lt ur0, {r.choice((16, 24, 40))}, depth{number}"]
    if r.random() < 0.5:
        condition = r.choice(("lt", "eq", "ne", "ge"))
        return [*lines, f"cmp.{condition} p1, r290, {r.randint(0, threads)}", *depth]
    lines += [f"mov ur1, {r.randint(0, 2)}", f"column{number}:", "cmp.eq p1, r290, ur1", *depth]
    return [*lines, f"add ur1, ur1, {r.choice((1, 1, 2))}", f"br.lt ur1, {ends}, column{number}"]


@settings(max_examples=tries(25))
@given(st.integers(0, 2**32))
def test_walks_are_the_same_in_one_call_and_keep_their_books(seed):
    r = Random(seed)
    config = machine(r)
    tensors = memory(r, config.line_bytes)
    lines = ["segment ur4, $B", "segment ur5, $D", "tid r290", "mov r291, 0", f"setmm {r.randint(1, config.threads)}"]
    for number in range(r.randint(2, 5)):
        lines += product(r, number, config.threads)

    def work():
        try:
            return MatrixUnit(config).run("\n".join(lines), tensors)
        except MatrixUnitError as error:
            return error.result

    one, other, _ = both(work)
    same(one, other)
    compared = [f.name for f in fields(one.state) if f.compare]
    assert [n for n in compared if not same_state(getattr(one.state, n), getattr(other.state, n))] == []
    assert one.state.chip.l2.lines() == other.state.chip.l2.lines()
    keep_their_books(one.state)


def keep_their_books(pe):
    """A line awaits what no walk selected of it; what is retained awaits something; L2 has one capacity."""
    waiting = set()
    for segment in (segment for segment in pe.segments.values() if segment.selected.size):
        per_line = segment.map.line_elements
        used = segment.selected.reshape(-1, per_line).sum(axis=1, dtype=np.int32)
        assert (segment.awaited == segment.at_first - used).all()
        assert segment.walk.view(WALK.dtype)[0]["left"] == segment.awaited.sum()
        for number in np.flatnonzero(segment.awaited).tolist():
            page, offset = divmod(number * per_line, segment.map.page_elements)
            waiting.add((int(segment.table.phys[page]) + offset) // pe.config.line_bytes)
    assert {line for retained, line in pe.l1.lines() if retained} <= waiting
    pages = [line for page, line in pe.chip.l2.lines() if page]
    assert len(pages) * pe.config.line_bytes == sum(pe.chip.l2_pages.values())
    assert len(pe.chip.l2.lines()) * pe.config.line_bytes <= pe.chip.l2_end
