"""Whatever is given, the answer is one clear error of ours or a record; nothing else ends a run."""

from __future__ import annotations

import gc
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.errors import ParseError, TilewrightError, UsageError
from tilewright.isa import (
    Machine,
    MatrixUnit,
    MatrixUnitConfig,
    MatrixUnitError,
    Memory,
    Part,
    Program,
    assemble,
    by_blocks,
    by_dim,
    contract,
    conv2d,
    expected_conv2d_counts,
    expected_counts,
    explain,
    matmul,
)
from tilewright.isa.language.program import Address, Guard, Immediate, Instruction, Register

ONES = np.ones((2, 2), np.int8)
IMAGE, WEIGHTS = np.ones((1, 5, 5, 2), np.int8), np.ones((3, 3, 2, 4), np.int8)
SMALL = MatrixUnitConfig(threads=4, registers=32, predicates=2, uniform_registers=8)


@pytest.mark.parametrize(
    "wrong",
    [
        {"loaders": "x"},
        {"loaders": True},
        {"loaders": 2.0},
        {"a_bytes": "8"},
        {"line_bytes": 64.0},
        {"acc_window": (1,)},
        {"acc_window": "ab"},
        {"acc_window": 5},
        {"acc_window": (0, 2.5)},
        {"loads_through_l1": "yes"},
        {"max_errors": 0},
    ],
)
def test_configurations_of_another_type(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        MatrixUnitConfig(**wrong)


@pytest.mark.parametrize(
    "call",
    [
        lambda wrong: assemble("halt", wrong),
        lambda wrong: MatrixUnit(wrong),
        lambda wrong: Machine(wrong),
        lambda wrong: matmul(ONES, ONES, config=wrong),
        lambda wrong: contract("mk,kn->mn", ONES, ONES, config=wrong),
        lambda wrong: conv2d(IMAGE, WEIGHTS, config=wrong),
        lambda wrong: expected_counts(1, 1, 1, config=wrong),
        lambda wrong: expected_conv2d_counts(IMAGE.shape, WEIGHTS.shape, config=wrong),
    ],
)
def test_a_configuration_is_a_configuration(call):
    with pytest.raises(UsageError, match="config is dict"):
        call({"threads": 4})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mov r400, 1", "no register r400; the last one is r31"),
        ("@p7, mov r0, 1", "no register p7"),
        ("mov ur60, 1", "no register ur60"),
        ("segment ur1, $B\nmm8 r0, ur1:rf290:0, r256", "line 2"),
    ],
)
def test_a_program_for_a_larger_machine_is_refused(text, reason):
    program = assemble(text)
    machine = Machine(SMALL)
    for run in (lambda: MatrixUnit(SMALL).run(program, {"B": ONES}), lambda: machine.start(program)):
        with pytest.raises(ParseError, match=reason):
            run()


def a_machine():
    machine = Machine(SMALL)
    machine.system["A"] = np.zeros((8, 8), np.int8)
    machine.page_table("A")
    return machine


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: MatrixUnit().run(None), "program"),
        (lambda: MatrixUnit().run(b"halt"), "program"),
        (lambda: MatrixUnit().run("halt", [ONES]), "tensors by name"),
        (lambda: MatrixUnit().run("halt", ONES), "tensors by name"),
        (lambda: Memory({5: ONES}), "cannot be called 5"),
        (lambda: Memory().add("A", ONES, page=3), "page = 3 is not whole numbers"),
        (lambda: Memory().add("A", ONES, line=(1, 1.5)), "not a whole number"),
        (lambda: Part(("a",), (1,)), "base = 'a'"),
        (lambda: Part((0, 0), (1,)), "one number per dim each"),
        (lambda: Part((-1,), (1,)), "base = -1"),
        (lambda: a_machine().start(5), "program"),
        (lambda: a_machine().start("halt", uniform=[1]), "dicts"),
        (lambda: a_machine().start("halt", uniform={1: 2**32}), "32 bits"),
        (lambda: explain("mm8 r0, ur4:rf290:0x00, r256"), "takes an instruction"),
        (lambda: a_machine().page_table("X", tensor="A", part=((0, 0), (2, 2))), "as in Part"),
        (lambda: a_machine().page_table("X", tensor="A", order=3), "order = 3"),
        (lambda: a_machine().page_table(5, tensor="A"), "cannot be called 5"),
        (lambda: a_machine().segment("X", "A", ((0, 0), (2, 2))), "as in Part"),
        (lambda: a_machine().segment(5, "A"), "cannot be called 5"),
        (lambda: a_machine().dma_in("A", 0), "pages = 0"),
        (lambda: matmul(ONES, ONES, transpose_b="yes"), "transpose_b = 'yes'"),
        (lambda: matmul(ONES, ONES, split="diagonals"), "rows or columns"),
        (lambda: matmul(ONES, ONES, page="x"), "page = .x. is not"),
        (lambda: contract(5, ONES, ONES), "subscripts 5"),
        (lambda: contract("bmk,bkn->bmn", np.zeros((0, 2, 2)), np.zeros((0, 2, 2))), "float64"),
        (lambda: conv2d(IMAGE, WEIGHTS, stride=1.5), "stride = 1.5"),
        (lambda: conv2d(IMAGE, WEIGHTS, padding=None), "padding = None"),
        (lambda: by_dim((8, 8), "a", 2), "dim = 'a'"),
        (lambda: by_dim(8, 0, 2), "shape = 8"),
        (lambda: by_blocks((8, 8), 4, 2), "block = 4"),
    ],
)
def test_arguments_of_another_type(call, reason):
    with pytest.raises(UsageError, match=reason):
        call()


@pytest.mark.parametrize("gone", [{}, {"A": np.zeros(3, np.int8)}, {"A": np.zeros((7, 8), np.int8)}])
def test_results_need_the_tensor_they_belong_to(gone):
    machine = a_machine()
    machine.system = gone
    with pytest.raises(UsageError, match=r"leave tensors in machine\.system"):
        machine.fetch("A")


def test_numbers_of_numpy_and_lists_are_welcome():
    machine = a_machine()
    machine.page_table("X", tensor="A", part=Part([0, np.int64(4)], [8, 4]), page=np.array([4, 64]))
    machine.start("halt", pe=np.int64(0))
    machine.run()
    assert machine.chip.storages["X"].table.entries()[1].page == 1
    assert conv2d(IMAGE, WEIGHTS, stride=np.int64(2)).value.shape == (1, 2, 2, 4)


def test_empty_batches_have_the_type_of_their_products():
    empty = contract("bmk,bkn->bmn", np.zeros((0, 2, 3), np.float32), np.zeros((0, 3, 2), np.float32))
    assert (empty.value.dtype, empty.value.shape) == (np.float32, (0, 2, 2))


@pytest.mark.parametrize("body", ["div r1, r1, 0", "mm8 r20, ur4:rf24:0, r28", "segment ur9, $nobody"])
def test_errors_without_end_stop_the_run(body):
    config = MatrixUnitConfig(threads=8, registers=32, max_errors=1000)
    with pytest.raises(MatrixUnitError, match=r"error records: pc 1: .* mend the first") as caught:
        MatrixUnit(config).run(f"segment ur4, $B\nagain: {body}\njump again", {"B": ONES})
    assert 1000 < len(caught.value.result.errors) <= 1008


@pytest.mark.parametrize("line", ["@p1, ld r4, ur1:rf3:0, r2", "@p1, st r4, ur1:rf3:0, r2", "@p1, clr r4, r2"])
def test_counts_of_threads_that_are_off_do_not_matter(line):
    """Not even counts beyond the register file."""
    text = f"segment ur1, $A\ntid r1\ncmp.lt p1, r1, 2\nmov r2, 1000\n@p1, mov r2, 2\nmov r4, 7\nmov r5, 8\n{line}"
    run = MatrixUnit(SMALL).run(text, {"A": np.arange(3, dtype=np.int32)})
    assert run.errors == ()
    expected = {"ld": ([0, 1], [0, 1, 2]), "st": ([7, 8], [7, 8, 2]), "cl": ([0, 0], [0, 1, 2])}[line[5:7]]
    assert run.registers[:2, 4:6].tolist() == [expected[0]] * 2
    assert run.registers[2:, 4:6].tolist() == [[7, 8]] * 2
    assert run.tensor("A").tolist() == expected[1]


def test_every_error_is_of_one_family():
    assert issubclass(MatrixUnitError, TilewrightError)
    assert issubclass(ParseError, TilewrightError)


def by_hand(text, **changed):
    """An instruction with operands that no text has."""
    (made,) = assemble(text, SMALL).instructions
    return replace(made, **changed)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (by_hand("mov r1, 2", operands=(Register("r", -1), Immediate(2))), "expected a register"),
        (by_hand("mov r1, 2", operands=(Register("r", 32), Immediate(2))), "no register r32"),
        (by_hand("mov r1, 2", operands=(Register("r", 1), Immediate(2**70))), "is not within"),
        (by_hand("mov r1, 2", operands=(Register("r", 1),)), "expected a comma"),
        (by_hand("mov r1, 2", guard=Guard(-1)), "column"),
        (by_hand("ld r1, ur1:rf0:0", operands=(Register("r", 1), Address(1, -5000, 0))), "expected an address"),
        (by_hand("ld r1, ur1:rf0:0", operands=(Register("r", 1), Address(1, 0, 2**63 - 1))), "is not within"),
        (by_hand("ld r1, ur1:rf0:0", suffixes=("7", "1", "0")), "unknown suffix"),
        (by_hand("ld r1, ur1:rf0:0", suffixes=("0",)), "cannot be written"),
        (Instruction("nonsense"), "cannot be written"),
    ],
)
def test_instructions_made_by_hand_are_looked_at_too(made, reason):
    """Kernels that run loops would take such numbers for places in memory."""
    program = Program((made,) * 2 + assemble("halt").instructions)
    machine = Machine(SMALL)
    for call in (MatrixUnit(SMALL).run, machine.start, lambda each: explain(each.instructions[0], SMALL)):
        with pytest.raises((ParseError, UsageError), match=reason):
            call(program)


def test_a_program_made_by_hand_runs_as_its_text_does():
    text = "mov r1, 3\nagain: add r1, r1, ur2\nadd ur2, ur2, 1\nbr.lt ur2, 9, again"
    assembled = assemble(text, SMALL)
    made = Program(assembled.instructions, assembled.labels)
    assert made == assembled
    assert (MatrixUnit(SMALL).run(made).registers == MatrixUnit(SMALL).run(text).registers).all()
    for wrong in ((("again", -7),), (("again", 99),), ()):
        with pytest.raises(ParseError, match="no label"):
            MatrixUnit(SMALL).run(replace(made, labels=wrong))


def test_a_watcher_is_a_function():
    ones = np.ones((2, 2), np.int8)
    with pytest.raises(UsageError, match="watch = 7"):
        matmul(ones, ones, watch=7)


HUGE = (10**9, 2**70, 10**30, 10**5000, -(10**5000))
NUMBERS = [f.name for f in fields(MatrixUnitConfig) if type(f.default) is int or f.name in ("loaders", "acc_window")]


def resident():
    """Bytes of this process that are in memory, where the system says so: zeros that nobody wrote to are not."""
    gc.collect()  # machines are circles, which the collector finds when it likes
    try:
        return 4096 * int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0


@pytest.fixture(scope="module")
def small_heap():
    """Collections look at this file's machines alone: all that lives before is left out, once for all its numbers."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.usefixtures("small_heap")
def test_huge_numbers_are_refused_or_harmless(name):
    """A machine that can be made runs; making it takes no memory to speak of."""
    for value in HUGE:
        try:
            config = MatrixUnitConfig(**{name: (0, value) if name == "acc_window" else value})
        except UsageError as error:
            assert name.removesuffix("_ways") in str(error)
            assert len(str(error)) < 500
            continue
        assert MatrixUnit(config).run("halt").executed == 1  # the kernels of such a machine are loaded from here on
        before = resident()
        machine = MatrixUnit(config)
        assert machine.run("halt").executed == 1
        assert resident() - before < 100e6


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: conv2d(IMAGE, WEIGHTS, padding=10**9), "height of the result"),
        (lambda: expected_conv2d_counts(IMAGE.shape, WEIGHTS.shape, padding=10**9), "height of the result"),
        (lambda: conv2d(IMAGE, WEIGHTS, padding=10**5), "elements of the result"),
        (lambda: conv2d(IMAGE, WEIGHTS, stride=10**30), "stride"),
        (lambda: matmul(ONES, ONES, ka=10**30), "ka = 1000"),
        (lambda: by_dim((8, 8), 0, 10**30), "pes = 1000"),
    ],
)
def test_huge_arguments_are_one_error(call, reason):
    with pytest.raises(UsageError, match=reason):
        call()


def test_counts_of_any_depth_are_closed_forms():
    assert expected_counts(64, 64, 10**8).macs == 64 * 64 * 10**8
    odd = MatrixUnitConfig(line_bytes=16, a_bytes=24, kb_mode="chunk")
    for k in (1, 23, 24, 47, 191, 192, 193):
        lines = sum((min(k, at + 72) - 1) // 16 - at // 16 + 1 for at in range(0, k, 72))
        assert expected_counts(1, 1, k, odd, kb=3).l1_touches == lines
    assert matmul(ONES, ONES, segments=10**9).buffering == "double"
