"""Profiles of several processing elements: each adds up to its own run, and all of them to the machine's."""

import csv
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.errors import UsageError
from tilewright.isa import Counts, Machine, MatrixUnitConfig, MatrixUnitError, Part, matmul, profile

SHARED = """
segment ur3, $A
segment ur4, $B
segment ur5, $C
peid ur7
mul ur0, ur7, 16
tid r280
add r295, r280, ur0
add r299, r280, ur0
mov r291, r280
clr r0, 16
mov ur2, 0
depth:
mov r294, ur2
ld r256, ur3:rf294:0x00, 2
mov r290, ur2
mm8.sa.sb r0, ur4:rf290:0x00, r256
add ur2, ur2, 8
br.lt ur2, 32, depth
bar 0
mov r298, 0
st r0, ur5:rf298:0x00, 16
halt
"""


def matrices(m, n, k):
    rng = np.random.default_rng(m * 10_000 + n * 100 + k)
    return rng.integers(-128, 128, (m, k)).astype(np.int8), rng.integers(-128, 128, (k, n)).astype(np.int8)


def shared_product(pes=4):
    """Every element runs the same program on 16 rows of its own."""
    a, b = matrices(16 * pes, 16, 32)
    machine = Machine(MatrixUnitConfig(threads=16, pes=pes))
    machine.system |= {"A": a, "B": np.ascontiguousarray(b.T), "C": np.zeros((16 * pes, 16), np.int32)}
    for name in "ABC":
        machine.page_table(name, mapped=True)
    machine.start(SHARED)
    return machine


def divided_product(m, n, k, pes, how):
    """Every element runs a program of its own, as ``matmul`` writes them."""
    a, b = matrices(m, n, k)
    config = MatrixUnitConfig(threads=16, pes=pes)
    result = matmul(a, b, config, split="columns", **how)
    machine = Machine(config)
    machine.system |= {"A": a, "B": np.ascontiguousarray(b.T), "C": np.zeros((m, n), np.int32)}
    for name in "ABC":
        machine.page_table(name, mapped=True)
    for run, program in zip(result.pes, result.programs, strict=True):
        pe = run.state.number
        first, end = n * pe // pes, n * (pe + 1) // pes
        windows = {"A": Part((0, 0), (m, k)), "B": Part((first, 0), (end - first, k))}
        machine.start(program, pe, {**windows, "C": Part((0, first), (m, end - first))})
    return machine, result


def adds_up(found, runs):
    """Each profile to its element's run, the lines of all to the totals, the lines of memory to the counters."""
    parts = found.pes or (found,)
    assert [part.result for part in parts] == runs
    for part, run in zip(parts, runs, strict=True):
        sums = part.totals
        assert (sums.executed, sums.cycles, sums.math_cycles) == (run.executed, run.cycles, run.math_cycles)
        assert (sums.queue, sums.stalls, sums.counts, sums.traffic) == (run.queue, run.stalls, run.counts, run.traffic)
        seen = sum(lines.sum(axis=0) for lines in part.seen.values()).tolist()
        c, t = run.counts, run.traffic
        assert seen == [c.l1_touches, c.l1_misses, c.l2_misses, t.load_lines, t.store_lines]
    assert found.totals.cycles == sum(run.cycles for run in runs)
    assert found.totals.counts == Counts.together(run.counts for run in runs)
    assert found.result.cycles == max(run.cycles for run in runs)
    for name in found.seen:
        assert (found.heat(name).lines == sum(part.heat(name).lines for part in parts)).all()


def test_one_program_on_every_element():
    plain, machine = shared_product(), shared_product()
    runs, found = plain.run(), profile(machine)
    adds_up(found, runs)
    assert machine.now == plain.now
    assert (machine.tensor("C") == plain.tensor("C")).all()
    assert all(line.pes == (0, 1, 2, 3) for line in found.lines)
    (barrier,) = (line for line in found.lines if line.text.startswith("bar"))
    assert barrier.queue["barrier"] == sum(run.queue["barrier"] for run in runs) > 0
    assert found.lines[0].waits == {"host": sum(run.queue["host"] for run in runs)}
    for part in found.pes:  # rows of A are its own, B is everyone's
        own = part.heat("A").loads[16 * part.number : 16 * part.number + 16]
        assert own.sum() == part.heat("A").loads.sum() > 0
    assert found.heat("B").touches.min() == 4 * found.pes[0].heat("B").touches.min() > 0


@settings(max_examples=tries(8))
@given(
    st.tuples(st.integers(1, 20), st.integers(1, 30), st.integers(1, 30)),
    st.integers(2, 4),
    st.fixed_dictionaries(
        {"ka": st.integers(1, 2), "kb": st.integers(1, 2), "order": st.sampled_from(["k_outer", "column_outer"])}
    ),
)
def test_a_program_for_every_element(mnk, pes, how):
    m, n, k = mnk
    (plain, result), (machine, _) = (divided_product(m, n, k, pes, how) for _ in range(2))
    runs, found = [run for run in plain.run() if run.executed], profile(machine)
    adds_up(found, runs)
    assert (machine.tensor("C") == result.value).all()
    texts = [[str(each) for each in program.instructions] for program in result.programs]
    for line in found.lines:  # those of one text are counted together
        same = [
            part.number
            for part, text in zip(found.pes or [found], texts, strict=True)
            if text == texts_of(found, line.pes)
        ]
        assert line.pes == tuple(same)


def texts_of(found, pes):
    """The instructions of the program that these elements run."""
    return [line.text for line in found.lines if line.pes == pes]


def test_programs_one_after_another_and_a_machine_that_ran_before():
    def told():
        machine = Machine(MatrixUnitConfig(threads=4, pes=2))
        machine.start("tid r1\nmul r2, r1, r1\nhalt")
        first = machine.run()
        machine.start("mov ur1, 0\nagain: add ur1, ur1, 1\nbr.lt ur1, 3, again", 1)
        machine.start("tid r3\nbar 0\nhalt")
        machine.start("tid r3\nbar 0\nhalt")
        return machine, first

    (plain, before), (machine, _) = told(), told()
    ended = [(run.executed, run.cycles) for run in before]
    runs, found = plain.run(), profile(machine)
    assert found.totals.executed == sum(run.executed for run in runs) - 2 * 3
    assert [part.totals.executed for part in found.pes] == [6, 1 + 3 + 3 + 6]
    assert [part.totals.queue["issued"] for part in found.pes] == [6, 13]
    assert [run.cycles for run in runs] == [part.result.cycles for part in found.pes]
    assert ended == [(3, before[0].cycles), (3, before[1].cycles)]
    texts = [(line.text, line.executed, line.pes) for line in found.pes[1].lines]
    assert texts[:4] == [
        ("mov ur1, 0", 1, (1,)),
        ("add ur1, ur1, 1", 3, (1,)),
        ("br.lt ur1, 3, again", 3, (1,)),
        ("tid r3", 2, (1,)),
    ]
    machine.start("halt")
    assert all(run.state.heat is None for run in machine.run())


def test_segments_that_come_by_dma():
    def told():
        machine = Machine(MatrixUnitConfig(threads=16, pes=2, l2_bytes=4096))
        machine.system["B"] = matrices(32, 32, 64)[1]
        machine.page_table("B", page=(8, 64))
        machine.start("segment ur4, $B\nmov r290, 0\ntid r291\ndmain ur4\nmm8.sa.sb r0, ur4:rf290:0, r256\nhalt")
        return machine

    runs, found = told().run(), profile(told())
    adds_up(found, runs)
    assert runs[0].traffic == found.pes[0].totals.traffic


def test_csv_json_and_text_have_a_row_for_every_element():
    found = profile(shared_product(2))
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [row["pe"] for row in rows] == ["0"] * len(found.lines) + ["1"] * len(found.lines)
    assert sum(int(row["cycles"]) for row in rows) == found.totals.cycles
    value = found.to_dict()
    assert value["totals"] == found.totals.to_dict()
    assert [each["pe"] for each in value["pes"]] == [0, 1]
    for name in ("executed", "cycles", "math_cycles"):
        assert sum(each["totals"][name] for each in value["pes"]) == value["totals"][name]
    assert value["tensors"]["B"]["touches"] == sum(each["tensors"]["B"]["touches"] for each in value["pes"])
    assert str(found).splitlines()[-1].endswith("cycles of 2 processing elements")


def test_bad_input():
    with pytest.raises(UsageError, match="no program was started"):
        profile(Machine(MatrixUnitConfig(threads=4)))
    with pytest.raises(UsageError, match="its own memory and config"):
        profile(shared_product(2), {})
    machine = Machine(MatrixUnitConfig(threads=4, pes=2, max_instructions=10))
    machine.start("halt", 0)
    machine.start("again: jump again", 1)
    with pytest.raises(MatrixUnitError, match="did not end") as stop:
        profile(machine)
    assert stop.value.result is not None
    assert all(pe.heat is None for pe in machine.chip.pes)
