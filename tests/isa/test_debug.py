"""One instruction at a time: the same run, and everything of it can be looked at."""

from __future__ import annotations

import json
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.errors import UsageError
from tilewright.isa import Debugger, Machine, MatrixUnit, MatrixUnitConfig, Part, matmul

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
        debugger.command("explain")
    assert debugger.result() == plain
    assert (debugger.result().tensor("C") == made.value).all()
    assert debugger.where().startswith(f"ended after {plain.executed:,} instructions, {plain.cycles:,} cycles")


def test_breakpoints_labels_lines_and_addresses():
    debugger = Debugger(LOOP)
    assert debugger.command("break again") == "0001  add ur1, ur1, 1"
    assert debugger.command("run") == "0001  add ur1, ur1, 1"
    assert debugger.command("run") == "0001  add ur1, ur1, 1"
    assert debugger.command("print ur1") == "ur1 = 1"
    assert debugger.command("list 3").splitlines() == [
        "  0000  mov ur1, 0",
        "        again:",
        "> 0001  add ur1, ur1, 1",
        "  0002  mul r2, r2, 3",
    ]
    assert debugger.command("delete 1") == "no breakpoints"
    assert debugger.command("delete 1").startswith("no breakpoint at '1'")
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
    assert debugger.command("p r0[17:]") == "r0[17:] = 17 18 19"
    assert debugger.command("p r0").endswith("14 15 ... (r0[0:20] shows all)")
    assert debugger.command("p r1[0] as f32") == "r1[0] as f32 = 1.5"
    assert debugger.command("p  r1[0]  as hex") == "r1[0] as hex = 0x3fc00000"
    packed = Debugger("mov r0, 0x80ff0201\nmov r1, 0x3f803c00", config=MatrixUnitConfig(threads=2))
    packed.command("run")
    assert packed.command("p r0 as s8") == "r0 as s8 = 1,2,-1,-128 1,2,-1,-128"
    assert packed.command("p r0[1] as u16") == "r0[1] as u16 = 513,33023"
    assert packed.command("p r1[0] as f16") == "r1[0] as f16 = 1,1.875"
    assert packed.command("p r1[0] as bf16") == "r1[0] as bf16 = 0.0078125,1"
    assert packed.answer("p r0 as s8").value == [[1, 2, -1, -128]] * 2
    assert debugger.command("p p1[0:4]") == "p1[0:4] = 1 1 0 0"
    assert debugger.command("p r0[20]") == "no threads '20'; 0 to 19, as [3], [0:8] or [8:]"
    assert "shared by all threads" in debugger.command("p ur1[3]")
    assert debugger.answer("p r1[0] as f32").value == 1.5
    assert debugger.answer("p r0").value == list(range(20))
    assert debugger.answer("p ur1").value == 0


def test_tensors_pages_caches_tokens():
    made, memory = product()
    debugger = Debugger(made.program, memory, MatrixUnitConfig(threads=8))
    debugger.command("run")
    assert debugger.command("print C[0, 1]") == f"C[0, 1] = {made.value[0, 1]}"
    assert debugger.answer("print C[-1, ::7]").value == made.value[-1, ::7].tolist()
    assert "is [20, 20]" in debugger.command("print C[77]")
    assert "A: 1 page of" in debugger.command("print pages")
    assert f"{made.counts.l1_touches} touches" in debugger.command("print caches")
    assert "issued" in debugger.command("print queue")
    assert debugger.answer("print counts").value == made.counts.to_dict()
    assert "handle 1: $A, s8[20, 20] of A" in debugger.command("print segments")
    for what in ("tokens", "segments", "stalls", "errors", "state", "traffic", ""):
        assert debugger.command(f"print {what}")
        json.dumps(debugger.answer(f"print {what}").value, allow_nan=False)


WRONG = (
    ":::",
    "",
    "1:2:3:4",
    "0:1:0",
    "a",
    "1,2,3",
    "99",
    "²",
    "1.5",
    "0x1",
    "--1",
    "9" * 5000,
    ":" + "9" * 5000,
    "None",
)


@pytest.mark.parametrize("place", WRONG)
def test_wrong_places_of_a_tensor_are_said(place):
    debugger = Debugger("halt", {"A": np.arange(12).reshape(3, 4).astype(np.int32)})
    answer = debugger.answer(f"print A[{place}]")
    assert not answer.ok
    assert "A is [3, 4]" in answer.text
    assert len(answer.text) < 200


LONG = (
    "step N",
    "until N",
    "until :N",
    "break N",
    "list N",
    "print rN",
    "print urN",
    "print r0[N]",
    "print r0[0:N]",
    "pe N",
)


@pytest.mark.parametrize("command", [*LONG, "print A[N]", "print A[:N]", "delete N", "watch rN", "explain :N", "N"])
def test_long_numbers_are_no_numbers(command):
    debugger = Debugger(LOOP, {"A": np.zeros(3, np.int8)})
    answer = debugger.answer(command.replace("N", "9" * 5000))
    assert not answer.ok
    assert len(answer.text) < 300
    assert debugger.answer("step " + "0" * 5000 + "1").ok
    assert debugger.answer("print A[0:999999999999999999]").ok


def test_watched_things_stop_the_run():
    debugger = Debugger(LOOP, config=MatrixUnitConfig(threads=40))
    assert debugger.command("watch ur1") == "ur1 = 0"
    assert debugger.command("run") == "changed: ur1 = 0\n     now: ur1 = 1\n0002  mul r2, r2, 3"
    assert debugger.command("run").startswith("changed: ur1 = 1\n     now: ur1 = 2\n")
    assert debugger.command("unwatch ur1") == "nothing is watched"
    assert debugger.command("run").startswith("ended after")
    assert not debugger.answer("watch zork").ok
    hidden = Debugger("tid r0\ncmp.gt p1, r0, 38\n@p1, mov r1, 7\nnop\nhalt", config=MatrixUnitConfig(threads=40))
    hidden.command("watch r1")
    assert hidden.command("run").splitlines()[-1] == "0003  nop", "a change in a thread that is not shown"


def test_a_tensor_that_is_watched():
    debugger = Debugger("segment ur1, $A\nmov r0, 0\nmov r1, 5\nst r1, ur1:rf0:2\nhalt", {"A": np.zeros(4, np.int32)})
    debugger.command("watch A[2]")
    assert debugger.command("run") == "changed: A[2] = 0\n     now: A[2] = 5\n0004  halt"


def test_a_program_without_end_stops():
    debugger = Debugger("again:\njump again", config=MatrixUnitConfig(max_instructions=50))
    assert debugger.command("run").startswith("stopped: the program ran 50 instructions")
    assert debugger.where().endswith("\nat 0000  jump again")
    assert debugger.done
    assert debugger.command("step").startswith("stopped")


def test_a_barrier_nobody_else_comes_to():
    debugger = Debugger("bar 1\nmov r0, 7\nhalt")
    assert "ended" in debugger.command("run")
    assert debugger.command("print r0[0]") == "r0[0] = 7"
    last = Debugger("nop\nbar 1")
    assert last.command("step 2") == "at barrier 1"
    assert last.command("list")
    assert last.command("step").startswith("ended after 2 instructions")


SHARED = (
    "segment ur1, $X\npeid ur2\nmov r0, ur2\nmov r1, 3\nmul r2, r0, r1\nst r2, ur1:rf0:0\nbar 0\nld r3, ur1:rf9:1\nhalt"
)


def shared(pes=2):
    machine = Machine(MatrixUnitConfig(pes=pes, threads=1, l2_bytes=1024))
    machine.system["X"] = np.zeros(pes, np.int32)
    machine.page_table("X", mapped=True)
    machine.start(SHARED)
    return machine


def test_several_processing_elements_take_turns():
    debugger, plain = Debugger(shared()), shared()
    results = plain.run()
    assert debugger.command("break 5") == "0005  st r2, ur1:rf0:0x00"
    assert debugger.command("run") == "> PE 0  0005  st r2, ur1:rf0:0x00\n  PE 1  0005  st r2, ur1:rf0:0x00"
    assert debugger.command("print r2") == "r2 = 0"
    assert debugger.command("pe 1").splitlines()[1] == "> PE 1  0005  st r2, ur1:rf0:0x00"
    assert debugger.command("print r2") == "r2 = 3"
    assert debugger.command("watch X[1]") == "PE 1, X[1] = 0"
    assert debugger.command("step 2").startswith("changed: PE 1, X[1] = 0\n     now: X[1] = 3\n")
    assert "  PE 0  at barrier 0" in debugger.command("step")
    assert not debugger.answer("pe 7").ok
    debugger.command("run")
    assert debugger.done
    assert debugger.result() == results[1]


def test_a_product_in_segments_over_elements_steps_as_it_runs():
    config = MatrixUnitConfig(pes=2, threads=8, l2_bytes=8192)
    x = np.arange(64, dtype=np.int32)
    for begin in ("run", "debug"):
        machine = Machine(config)
        machine.system["X"] = x
        machine.page_table("X")
        machine.dma_in("X")
        text = "segment ur1, $P\ntid r1\nld r2, ur1:rf1:0\nadd r2, r2, 1\nst r2, ur1:rf1:0"
        for pe, base in ((0, 0), (1, 32), (0, 16)):  # the first has two starts
            machine.start(text, pe, segments={"P": ("X", Part((base,), (16,)))})
        if begin == "run":
            results, now = deepcopy(machine.run()), machine.now
        else:
            debugger = Debugger(machine)
            debugger.command("run")
            assert (debugger.done, machine.now) == (True, now)
            for pe in (0, 1):
                debugger.command(f"pe {pe}")
                assert debugger.result() == results[pe]
        machine.dma_out("X")
        assert (machine.fetch("X") == x + np.isin(x // 8, (0, 2, 4))).all()


def test_what_a_machine_cannot_be():
    with pytest.raises(UsageError, match="no program was started"):
        Debugger(Machine())
    with pytest.raises(UsageError, match="its own memory"):
        Debugger(shared(), {"A": np.zeros(3)})


def test_whoever_watches_sees_every_element():
    a = np.ones((64, 16), np.int8)
    for how in ({}, {"pes": 2}, {"pes": 4}):
        told = []
        made = matmul(a, a.T.copy(), MatrixUnitConfig(threads=8, **how), watch=told.append)
        seen = [counts.macs for counts in told]
        assert seen[-1] == made.counts.macs == 64 * 64 * 16
        assert seen == sorted(seen)
    made = matmul(a, a.T.copy(), MatrixUnitConfig(threads=8), segments=4, watch=told.append)
    assert told[-1] == made.counts


COMMANDS = [
    "step",
    "run",
    "until",
    "break",
    "delete",
    "list",
    "print",
    "watch",
    "unwatch",
    "explain",
    "pe",
    "help",
    "zork",
]
NUMBERS = ["0", "1", "3", "99", "-1", "9" * 18, "9" * 5000, "0" * 5000, "٣", "²", "1e9", "0x4"]
PLACES = st.sampled_from(["again", ":3", "all", *NUMBERS])
INDEX = st.lists(st.sampled_from([":", "::", ":::", ",", "", " ", *NUMBERS]), max_size=5).map("".join)
THINGS = st.one_of(
    st.builds("{}[{}]".format, st.sampled_from(["A", "F", "r0", "p1", "ur1", "zork", "r", "é"]), INDEX),
    st.builds(
        "{}{} as {}".format,
        st.sampled_from(["r", "ur", "p"]),
        st.sampled_from(NUMBERS),
        st.sampled_from(["f32", "hex", "u32", "x"]),
    ),
    st.sampled_from(
        ["A", "F", "tokens", "segments", "pages", "caches", "counts", "queue", "stalls", "errors", "state", ""]
    ),
)
LINES = st.one_of(
    st.builds("{} {}".format, st.sampled_from(COMMANDS), st.one_of(PLACES, THINGS, st.text(max_size=6))),
    st.text(max_size=12),
)


@settings(max_examples=tries(40))
@given(st.lists(LINES, max_size=8))
def test_any_commands_are_answered(lines):
    text = f"segment ur4, $A\n{LOOP.removesuffix('halt')}mm r0, ur4:rf10:0, r6\nadd r1, r2, r3"
    memory = {"A": np.arange(12, dtype=np.int8).reshape(3, 4), "F": np.array([np.nan, np.inf, 1], np.float32)}
    debugger = Debugger(text, memory, MatrixUnitConfig(threads=2, registers=16, max_instructions=100, l2_bytes=64))
    for line in lines:
        answer = debugger.answer(line)
        assert isinstance(answer.text, str)
        assert answer.text or not answer.ok
        json.dumps(answer.value, allow_nan=False)


SMALL = ("list", "step", "break 0", "until x", "explain", "explain 0", "print", "where", "run", "list 3", "explain")


@pytest.mark.parametrize("text", ["", "x:", "halt", "bar 3", "nop\nx:"])
def test_any_commands_on_the_smallest_programs(text):
    debugger = Debugger(text)
    for line in SMALL:
        assert debugger.answer(line).text
    assert debugger.done
    assert debugger.where().startswith("ended after")


def test_an_error_stops_every_element_and_says_so():
    machine = Machine(MatrixUnitConfig(pes=2, threads=2, on_error="raise"))
    machine.start("peid ur1\nbr.eq ur1, 0, fine\nsegment ur4, $nobody\nfine:\nhalt")
    debugger = Debugger(machine)
    assert debugger.command("run").startswith("stopped: PE 1, pc 2: unknown_segment in: segment ur4, $nobody")
    assert debugger.done
    assert debugger.command("list 1") == debugger.command("list 1")
    debugger.command("pe 1")
    assert "unknown_segment" in debugger.command("print errors")
