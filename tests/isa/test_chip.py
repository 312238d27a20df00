"""The whole machine: the five steps, page states, several processing elements, barriers, parts of tensors, state."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.errors import UsageError
from tilewright.isa import (
    Machine,
    MatrixUnit,
    MatrixUnitConfig,
    MatrixUnitError,
    Memory,
    Part,
    by_blocks,
    by_diagonals,
    by_dim,
    contract,
    matmul,
)

SMALL = MatrixUnitConfig(threads=8, registers=32, pes=4, line_bytes=8, l1_bytes=512, l2_bytes=4096)
ADD_PE = """
    segment ur1, $T
    segget.size ur2, ur1, 2
    segget.size ur3, ur1, 1
    peid ur4
    tid r2
    mov r1, 0
again:
    ld r3, ur1:rf1:0
    add r3, r3, ur4
    add r3, r3, 100
    st r3, ur1:rf1:0
    add r1, r1, 1
    loop ur3, again
"""
"""Every element of the segment $T (two dims of int32) plus 100 and the number of the processing element."""


def machine_with(array, config=SMALL, **pages):
    machine = Machine(config)
    machine.system["T"] = array
    machine.page_table("T", **pages)
    return machine


def states(machine, name="T"):
    return [(e.state, e.location) for e in machine.chip.storages[name].table.entries()]


def test_the_five_steps():
    source = np.arange(64, dtype=np.int32).reshape(8, 8)
    machine = machine_with(source, page=(4, 4), line=(1, 2))
    assert states(machine) == [("absent", "")] * 4
    machine.dma_in("T")
    assert states(machine) == [("loading", "L2")] * 4
    machine.start(ADD_PE, pe=2)
    machine.segment("T", Part((0, 0), (8, 8)), pe=2)
    results = machine.run()
    assert [r.executed > 0 for r in results] == [False, False, True, False]
    assert results[2].queue["page"] > 0  # the loads met pages that were loading
    assert (machine.tensor("T") == source + 102).all()
    assert (machine.system["T"] == source).all()
    assert (machine.fetch("T") == source).all()  # nothing has been written back
    machine.dma_out("T")
    assert states(machine) == [("absent", "")] * 4
    assert (machine.fetch("T") == source + 102).all()
    assert (machine.system["T"] == source + 102).all()
    assert machine.chip.dma.bytes("in") == machine.chip.dma.bytes("out") == 256
    units = [c.unit for c in machine.commands]
    assert units == ["page table", *["DMA"] * 4, "PE 2", "PE 2", "host", *["DMA"] * 4, "host"]
    assert "start" in machine.log()


SPLITS = {
    "by d2": lambda: by_dim((8, 8), 0, 2),
    "by d1": lambda: by_dim((8, 8), 1, 2),
    "by diagonals": lambda: by_diagonals((8, 8), (4, 4), 2),
    "by blocks": lambda: by_blocks((8, 8), (3, 5), 4),
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("page", [(4, 4), (8, 2), (2, 8)])
def test_figure_4_work_is_dealt_whatever_the_pages(split, page):
    """Four pages of an image of 8 x 8, dealt out by either dim, by diagonals, by blocks that lie across pages."""
    source = np.arange(64, dtype=np.int32).reshape(8, 8)
    machine = machine_with(source, page=page, line=(1, 2))
    machine.dma_in("T")
    assert len(states(machine)) == 4
    expected = source + 100
    for pe, parts in SPLITS[split]().items():
        for part in parts:
            machine.start(ADD_PE, pe=pe, segments={"T": part})
            expected[part.slices] += pe
    for result in machine.run():
        assert result.errors == ()
    machine.dma_out("T")
    assert (machine.fetch("T") == expected).all()


def test_figure_3_segments_of_one_tensor_have_their_own_pages_and_elements():
    """Three segments: the first has four pages and eight elements work on it, the second one page and four."""
    config = dataclasses.replace(SMALL, pes=8)
    machine = Machine(config)
    machine.system["X"] = source = np.arange(20 * 8, dtype=np.int32).reshape(20, 8)
    parts = {"S1": Part((0, 0), (8, 8)), "S2": Part((8, 0), (4, 8)), "S3": Part((12, 0), (8, 8))}
    pages = {"S1": (4, 4), "S2": (4, 8), "S3": (8, 2)}
    expected = source.copy()
    for name, part in parts.items():
        machine.page_table(name, tensor="X", part=part, page=pages[name], line=(1, 2))
        machine.dma_in(name)
    assert [len(states(machine, name)) for name in parts] == [4, 1, 4]
    for name, pes, shape in (("S1", 8, (8, 8)), ("S2", 4, (4, 8)), ("S3", 3, (8, 8))):
        for pe, mine in by_dim(shape, 1, pes).items():
            for part in mine:
                machine.start(ADD_PE, pe=pe, segments={"T": (name, part)})
                expected[parts[name].slices][part.slices] += 100 + pe
    machine.run()
    for name in parts:
        machine.dma_out(name)
        machine.fetch(name)
    assert (machine.system["X"] == expected).all()


@settings(max_examples=tries(15))
@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.data())
def test_every_split_covers_every_element_once(shape, data):
    pes = data.draw(st.integers(1, 5))
    block = [data.draw(st.integers(1, 9)) for _ in shape]
    splits = (by_dim(shape, len(shape) - 1, pes), by_blocks(shape, block, pes), by_diagonals(shape, block, pes))
    for split in splits:
        seen = np.zeros(shape, int)
        for pe, parts in split.items():
            assert 0 <= pe < pes
            for part in parts:
                seen[part.slices] += 1
        assert (seen == 1).all()


def test_one_part_to_several_elements_and_a_barrier_between():
    """Everyone writes its own slice, waits, and reads what the others wrote."""
    text = """
        segment ur1, $T
        peid ur2
        tid r1
        mov r2, ur2
        add r3, r1, ur2
        st r3, ur1:rf1:0        # row of this element
        bar 3
        add r2, r2, 1
        rem r2, r2, 4
        ld r4, ur1:rf1:0        # row of the next one
    """
    machine = machine_with(np.zeros((4, 8), np.int32), mapped=True)
    machine.start(text)
    results = machine.run()
    for pe, result in enumerate(results):
        assert result.errors == ()
        assert (result.registers[:, 4] == np.arange(8) + (pe + 1) % 4).all()
    assert [r.queue["barrier"] >= 0 for r in results] == [True] * 4


def test_divergent_barriers_are_records_and_nothing_hangs():
    machine = Machine(SMALL)
    machine.start("tid r1\ncmp.lt p1, r1, 3\n@p1, bar\nmov r2, 7", pe=0)
    machine.start("nop", pe=1)
    machine.start("bar 5\nmov r2, 8", pe=2)
    first, second, third, _ = machine.run()
    assert [(e.kind, e.pc, e.column) for e in first.errors] == [
        ("divergent_barrier", 2, 3),
        ("divergent_barrier", 2, -1),
    ]
    assert second.errors == ()
    assert [(e.kind, e.pe) for e in third.errors] == [("divergent_barrier", 2)]
    assert str(third.errors[0]).startswith("PE 2, pc 0: divergent_barrier")
    assert (first.registers[:, 2] == 7).all()
    assert (third.registers[:, 2] == 8).all()


def test_results_are_the_same_whatever_the_times():
    source = np.arange(64, dtype=np.int32).reshape(8, 8)
    found = []
    for more in ({}, {"l2_latency": 999, "dma_latency": 7, "alu_latency": 9}):
        machine = machine_with(source, dataclasses.replace(SMALL, **more), page=(4, 4), line=(1, 2))
        machine.dma_in("T")
        for pe, parts in by_diagonals((8, 8), (4, 4), 4).items():
            for part in parts:
                machine.start(ADD_PE, pe=pe, segments={"T": part})
        results = machine.run()
        assert all(sum(r.queue.values()) == r.cycles for r in results)
        found.append((machine.tensor("T").tobytes(), [(r.registers.tobytes(), r.counts, r.traffic) for r in results]))
    assert found[0] == found[1]


def test_state_prints_and_compares():
    machines = [machine_with(np.arange(64, dtype=np.int32).reshape(8, 8), page=(4, 4), line=(1, 2)) for _ in range(2)]
    for machine in machines:
        machine.dma_in("T", pages=[1])
        machine.start(ADD_PE, pe=0, uniform={9: 5})
        machine.run()
    one, other = (machine.chip for machine in machines)
    assert one == other
    assert one.pes[0] != one.pes[1]
    text = str(one)
    for part in ("page 1: loaded, L2 at byte 0, stored to", "page 0: absent", "T page 1 in: 64 bytes", "ur9    5"):
        assert part in text
    other.pes[0].registers[3, 3] += 1
    assert one != other


def test_a_run_that_never_ends_says_where():
    machine = Machine(dataclasses.replace(SMALL, max_instructions=50))
    machine.start("again: jump again", pe=1)
    with pytest.raises(MatrixUnitError, match="did not end") as caught:
        machine.run()
    assert caught.value.result.executed == 50


def test_double_buffering_hides_transfers():
    """Segment s + 1 comes in while s is worked on; waiting for each transfer first takes longer; one segment: equal."""
    load = "tid r1\nmul r1, r1, 32\nadd r1, r1, ur9"
    use = "\n".join(["ld r2, ur1:rf1:0", *["add r3, r3, r2"] * 300])

    def cycles(pages, overlapped):
        machine = Machine(dataclasses.replace(SMALL, pes=1))
        machine.system["T"] = np.ones(256 * pages, np.int32)
        machine.page_table("T", page=(256,))
        text = ["segment ur1, $T", "dmain ur1, 0", "mov ur9, 0"]
        for page in range(pages):
            more = [f"dmain ur1, {page + 1}"] * (page + 1 < pages)
            text += [load, *(more if overlapped else []), use, *([] if overlapped else more), "add ur9, ur9, 256"]
        machine.start("\n".join(text))
        (result,) = machine.run()
        assert result.errors == ()
        assert (result.registers[:, 3] == 300 * pages).all()
        return result.cycles

    assert cycles(1, True) == cycles(1, False)
    # Each of the three later transfers takes 400 + 32 cycles, most of them hidden behind 300 additions.
    assert cycles(4, False) - cycles(4, True) > 3 * 250


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda m: m.page_table("U"), "no tensor 'U'"),
        (lambda m: m.page_table("T"), "cannot be called"),
        (lambda m: m.page_table("V", tensor="T", part=Part((4, 0), (8, 8))), r"part \[4:12, 0:8\]"),
        (lambda m: m.page_table("V", tensor="T", part=Part((4,), (8,))), "part"),
        (lambda m: m.dma_in("U"), "no page table called 'U'; there are T"),
        (lambda m: m.dma_in("T", pages=[4]), "page 4 of T, which has 4"),
        (lambda m: m.start("halt", pe=4), "pe = 4 of 4"),
        (lambda m: m.start("halt", uniform={64: 0}), "no register ur64"),
        (lambda m: m.start("halt", segments={"T": Part((0, 0), (9, 1))}), "which has shape"),
        (lambda m: m.segment("Z", "U"), "no page table"),
        (lambda m: m.fetch("U"), "no page table"),
    ],
)
def test_the_host_is_told_what_is_wrong(call, reason):
    machine = machine_with(np.zeros((8, 8), np.int32), page=(4, 4), line=(1, 2))
    with pytest.raises(UsageError, match=reason):
        call(machine)


def test_no_room_in_l2():
    machine = machine_with(np.zeros((64, 32), np.int32), page=(32, 32))
    with pytest.raises(UsageError, match="no room in L2 for page 1 of T"):
        machine.dma_in("T")


def test_results_print_and_compare():
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    a[0, 0] = np.nan
    for make in (
        lambda: matmul(a, a.T),
        lambda: contract("mk,nk->mn", a, a),
        lambda: MatrixUnit(MatrixUnitConfig(threads=4)).run("tid r1\ndiv r1, r1, 0"),
    ):
        one, other = make(), make()
        assert one == other
        assert "cycles" in str(one)
        assert len(repr(one)) < 1200
        other.cycles += 1
        assert one != other
    assert "error pc 1: divide_by_zero (column 0) in: div r1, r1, 0" in str(one)
    assert "value: float32[3, 3]" in str(matmul(a, a.T))


ADD_ONE = "segment ur1, $X\ntid r1\nmov r2, 0\nld r3, ur1:rf1:0\nadd r3, r3, 1\nst r3, ur1:rf1:0\nhalt"


def test_two_page_tables_over_the_same_elements_are_views_of_the_same_bytes():
    machine = Machine(dataclasses.replace(SMALL, threads=8))
    machine.system["X"] = source = np.arange(16 * 8, dtype=np.int32).reshape(16, 8)
    machine.page_table("X", page=(4, 8))
    for name, how in {
        "again": {"page": (4, 8)},
        "half": {"page": (4, 8), "part": Part((8, 0), (8, 8))},
        "larger": {"page": (8, 8)},
        "turned": {"order": (0, 1)},
    }.items():
        machine.page_table(name, tensor="X", mapped=name in ("larger", "turned"), **how)
    assert [c.text.partition("view of ")[2] for c in machine.commands] == ["", "X", "X", "X", ""]
    machine.dma_in("half", pages=[0])  # the third page of X
    assert [entry.location for entry in machine.chip.storages["X"].table.entries()] == ["", "", "L2", ""]
    machine.start(ADD_ONE, 0, segments={"X": ("again", Part((8, 0), (1, 8)))})
    machine.run()
    assert (machine.tensor("half")[0] == source[8] + 1).all()
    assert (machine.tensor("larger")[8] == source[8]).all()  # by its entry the page is in device memory still
    machine.dma_out("X")
    for name in ("X", "again", "larger"):
        assert (machine.tensor(name)[8] == source[8] + 1).all()
    assert (machine.tensor("turned") == source).all()
    machine.start(ADD_ONE, 0, segments={"X": ("larger", Part((9, 0), (1, 8)))})
    machine.run()
    assert (machine.fetch("half")[:2] == source[8:10] + 1).all()
    machine.page_table("later", tensor="X", page=(4, 8))
    assert (machine.tensor("later")[9] == source[9] + 1).all()
    machine.system["X"] = source * 2  # another array: nothing of it stands in device memory
    machine.page_table("other", tensor="X", page=(4, 8))
    assert (machine.tensor("other") == source * 2).all()


def test_what_makes_runs_slow_is_said():
    assert "slower" not in str(MatrixUnit(SMALL).run(ADD_ONE, {"X": np.zeros(8, np.int32)}))
    slow = dataclasses.replace(SMALL, pred_scope="both", math_issue="instruction")
    text = str(MatrixUnit(slow).run(ADD_ONE, {"X": np.zeros(8, np.int32)}))
    assert "pred_scope, math_issue: loops run instruction by instruction, many times slower" in text


def test_a_page_is_loaded_once_its_load_has_happened_64():
    """Nobody touches the second page; by the end of a long enough run it is there all the same."""
    machine = Machine(MatrixUnitConfig(threads=1))
    machine.system["X"] = np.zeros(32, np.int32)
    machine.page_table("X", page=(16,), line=(16,))
    machine.dma_in("X")
    assert states(machine, "X") == [("loading", "L2"), ("loading", "L2")]
    machine.start("segment ur1, $X\nmov r0, 0\nld r1, ur1:rf0:0\nadd r1, r1, 1")
    machine.run()
    assert states(machine, "X") == [("loaded", "L2"), ("loaded", "L2")]
    assert "loading" not in str(machine.chip)


def test_entries_may_be_relative_to_another_pages_address_63():
    """An entry has the distance from the first page in the same memory."""
    machine = Machine(MatrixUnitConfig(threads=4, page_addresses="relative"))
    machine.system["X"] = np.arange(16, dtype=np.int32).reshape(4, 4)
    machine.page_table("X", page=(1, 16), line=(1, 16), mapped=True)
    table = machine.chip.storages["X"].table
    first = table.phys[0]
    assert [(e.base, e.distance) for e in table.entries()] == [(None, 0), (0, 64), (0, 128), (0, 192)]
    assert str(table.entries()[2]) == f"page 2: loaded, DDR at byte {first + 128} (page 0 + 128)"
    machine.dma_in("X", pages=[0, 3])  # the next page takes its place; L2 has addresses of its own
    assert [e.base for e in table.entries(machine.now)] == [None, None, 1, 0]
    machine.start("segment ur1, $X\ntid r1\nmov r0, 3\nld r2, ur1:rf0:0\nadd r2, r2, 100\nst r2, ur1:rf0:0")
    machine.run()
    machine.dma_out("X")
    assert machine.fetch("X").tolist() == [[0, 1, 2, 103], [4, 5, 6, 107], [8, 9, 10, 111], [12, 13, 14, 115]]


def test_relative_entries_change_no_value_and_cost_the_other_pages_translation_63():
    def run(**how):
        memory = Memory()
        memory.add("X", np.arange(16, dtype=np.int32), page=(4,), line=(4,))
        text = "segment ur1, $X\nmov r0, 12\nld r1, ur1:rf0:0"
        return MatrixUnit(MatrixUnitConfig(threads=1, line_bytes=16, **how)).run(text, memory)

    plain, relative = run(), run(page_addresses="relative")
    assert (relative.registers == plain.registers).all()
    assert relative.cycles == plain.cycles
    # Page 3 counts from page 0, which must be translated, too.
    waited = [run(page_miss_cycles=1000, page_addresses=each).queue["port"] for each in ("absolute", "relative")]
    assert waited == [1000, 2000]
