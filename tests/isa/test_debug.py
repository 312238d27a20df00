"""One instruction at a time: the same run, and everything of it can be looked at."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.isa import Debugger, MatrixUnit, MatrixUnitConfig, matmul

LOOP = "mov ur1, 0\nagain:\nadd ur1, ur1, 1\nmul r2, r2, 3\nbr.lt ur1, 5, again\nhalt"


def product():
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-9, 9, (20, 20)).astype(np.int8) for _ in range(2))
    made = matmul(a, b, config=MatrixUnitConfig(threads=8))
    return made, {"A": a, "B": np.ascontiguousarray(b.T), "C": np.zeros((20, 20), np.int32)}


def test_a_stepped_run_is_the_plain_run():
    made, memory = product()
    plain = MatrixUnit(MatrixUnitConfig(threads=8)).run(made.program, memory)
    debugger = Debugger(made.program, memory, MatrixUnitConfig(threads=8))
    while not debugger.done:
        debugger.command("step 7")
    assert debugger.result() == plain
    assert (debugger.result().tensor("C") == made.value).all()
    assert debugger.where().startswith(f"ended after {plain.executed:,} instructions, {plain.cycles:,} cycles")


def test_breakpoints_labels_lines_and_addresses():
    debugger = Debugger(LOOP)
    assert debugger.command("break again") == "0001  add ur1, ur1, 1"
    assert debugger.command("run") == "0001  add ur1, ur1, 1"
    assert debugger.command("run") == "0001  add ur1, ur1, 1"
    assert debugger.command("print ur1") == "ur1 = 1"
    assert debugger.command("delete 1") == "no breakpoints"
    assert debugger.command("until :6") == "0004  halt"
    assert debugger.command("print ur1") == "ur1 = 5"
    assert debugger.command("list 3").splitlines()[-1] == "> 0004  halt"
    assert "cycles" in debugger.command("run")
    assert debugger.command("step") == debugger.where()


def test_values_are_shown_as_asked():
    debugger = Debugger("tid r0\nmov r1, 1.5\ncmp.lt p1, r0, 2\nhalt", config=MatrixUnitConfig(threads=20))
    debugger.command("run")
    assert debugger.command("print r0[3]") == "r0[3] = 3"
    assert debugger.command("p r0[1:4]") == "r0[1:4] = 1 2 3"
    assert debugger.command("p r0").endswith("14 15 ... (r0[0:20] shows all)")
    assert debugger.command("p r1[0] as f32") == "r1[0] as f32 = 1.5"
    assert debugger.command("p r1[0] as hex") == "r1[0] as hex = 0x3fc00000"
    assert debugger.command("p p1[0:4]") == "p1[0:4] = 1 1 0 0"


def test_tensors_pages_caches_tokens():
    made, memory = product()
    debugger = Debugger(made.program, memory, MatrixUnitConfig(threads=8))
    debugger.command("run")
    assert debugger.command("print C[0, 1]") == f"C[0, 1] = {made.value[0, 1]}"
    assert "is [20, 20]" in debugger.command("print C[77]")
    assert "A: pages of" in debugger.command("print pages")
    assert f"{made.counts.l1_touches} touches" in debugger.command("print caches")
    assert "issued" in debugger.command("print queue")
    assert "macs" in debugger.command("print counts")
    for what in ("tokens", "segments", "stalls", "errors", "state", ""):
        assert debugger.command(f"print {what}")


def test_a_program_without_end_stops():
    debugger = Debugger("again:\njump again", config=MatrixUnitConfig(max_instructions=50))
    assert debugger.command("run").startswith("stopped: the program ran 50 instructions")
    assert debugger.done
    assert debugger.command("step").startswith("stopped")


def test_a_barrier_nobody_else_comes_to():
    debugger = Debugger("bar 1\nmov r0, 7\nhalt")
    assert "ended" in debugger.command("run")
    assert debugger.command("print r0[0]") == "r0[0] = 7"


WORDS = st.sampled_from(["step", "run", "until", "break", "delete", "list", "print", "r0", "ur1", "p9", "again", ":3"])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.lists(WORDS, max_size=4).map(" ".join), st.text(max_size=12)), max_size=8))
def test_any_commands_are_answered(lines):
    debugger = Debugger(LOOP, config=MatrixUnitConfig(threads=2, max_instructions=100))
    for line in lines:
        assert isinstance(debugger.command(line), str)
