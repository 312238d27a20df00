"""What explain says is what the machine does: differential tests against whole runs, and the words."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import by_night, tries
from tilewright.errors import TilewrightError, UsageError
from tilewright.isa import Debugger, MatrixUnit, MatrixUnitConfig, Memory, assemble, explain, matmul, profile
from tilewright.isa.language.config import READINGS
from tilewright.isa.language.instructions import INSTRUCTIONS
from tilewright.isa.study.explain import plural, relevant_readings

TYPES = {"s8": "8", "u8": "8", "s16": "16", "u32": "32", "f16": "f16", "f32": "f32"}
REGISTERS = 48
readings = {
    "ka_split": st.sampled_from(["blocked", "interleaved"]),
    "kb_mode": st.sampled_from(["chunk", "split"]),
    "kb_acc": st.sampled_from(["first", "last"]),
    "offset_mode": st.sampled_from(["registers", "registers", "linear"]),
    "column_numbering": st.sampled_from(["gap", "compact"]),
    "pred_scope": st.sampled_from(["loader", "compute", "both"]),
    "uninitialized": st.sampled_from(["zero", "poison"]),
    "disjoint_sets": st.booleans(),
    "acc_window": st.sampled_from([None, None, None, (3, 20)]),
    "a_bytes": st.sampled_from([8, 8, 16]),
}
configs = st.builds(
    lambda threads, given: MatrixUnitConfig(threads=threads, registers=REGISTERS, l2_bytes=1024, **given),
    st.sampled_from([16, 32, 33, 64, 256]),
    st.fixed_dictionaries(readings),
)
near_ends = st.one_of(st.integers(0, 6), st.integers(8, 34), st.integers(REGISTERS - 5, REGISTERS - 1))
inner = st.integers(8, 40)
shapes = st.sampled_from([(9,), (300,), (24, 40), (7, 300), (40, 9), (3, 5, 20), (2, 3, 4, 9)])


@st.composite
def multiplies(draw):
    """(text of an mm, an array like B)."""
    dtype = draw(st.sampled_from(list(TYPES)))
    own = TYPES[dtype]
    written = draw(st.sampled_from([own, own, own, "", "8"]))
    name = "mm" + written
    name += draw(st.sampled_from(["", "", ".ka2", ".ka3", ".ka8", ".ka8.kb8"])) if draw(st.booleans()) else ""
    name += draw(st.sampled_from(["", ".kb2", ".kb3"])) if ".kb" not in name else ""
    name += draw(st.sampled_from(["", ".t0", ".t1"]))
    if written in ("", "8", "16", "32"):
        name += draw(st.sampled_from(["", ".ua", ".sa.ub"]))
    guard = draw(st.sampled_from(["", "", "@p1, ", "@!p0, "]))
    c, o, a = draw(st.one_of(st.tuples(near_ends, near_ends, near_ends), st.tuples(st.integers(0, 6), inner, inner)))
    immediate = draw(st.sampled_from([0, 0, 0, 1, -3, 250, -(2**31), 2**31 - 1]))
    return f"{guard}{name} r{c}, ur4:rf{o}:{immediate}, r{a}", np.zeros(draw(shapes), np.dtype(_numpy(dtype)))


def _numpy(dtype):
    return {"s": "i", "u": "u", "f": "f"}[dtype[0]] + str(int(dtype[1:]) // 8)


def placed(instruction, config, b):
    """A program that puts loader j at column j of B, k = 0, and does the instruction with all predicates on."""
    address, sizes = instruction.operands[1], b.shape[::-1]
    walk, size = int(instruction.suffix("t")), b.dtype.itemsize
    depth = config.depth(size, min(int(instruction.suffix("kb")), config.compute_threads))
    lines = [f"clr r0, {REGISTERS}", "segment ur4, $B", "cmp.eq p1, r0, r0"]
    others = [d for d in range(len(sizes)) if d != walk] or [0]
    alone = len(sizes) == 1 and walk == 0
    strides = [int(np.prod(sizes[:d])) for d in range(len(sizes))]
    for d in range(1 if config.offset_mode == "linear" else len(sizes)):
        r = f"r{address.offset + d}"
        if address.offset + d >= REGISTERS:
            break
        lines.append(f"tid {r}")
        if alone:
            lines.append(f"mul {r}, {r}, {depth}")
        elif config.offset_mode == "linear":
            lines += _linear(r, others, sizes, strides)
        elif d not in others:
            lines.append(f"mov {r}, 0")
        else:
            before = int(np.prod([sizes[e] for e in others[: others.index(d)]]))
            lines.append(f"div {r}, {r}, {before}")
            lines += [f"rem {r}, {r}, {sizes[d]}"] * (d != others[-1])
        if d == 0:
            lines += _less(r, address.immediate)
    return "\n".join([*lines, str(instruction), "halt"])


def _linear(r, others, sizes, strides):
    """Coordinates of the j-th column as one number: with the walked dim at 0, a stretch is left out per wrap."""
    if others[0] == 1 or len(sizes) == 1:  # d2 onwards are all others: their strides follow one another
        return [f"mul {r}, {r}, {strides[1] if len(sizes) > 1 else 1}"]
    if len(sizes) == 2:
        return []
    # d1, then d3 onwards: j + (j div S1) * (S1 * S2 - S1)
    apart = strides[2] - sizes[0]
    t = "r47" if r != "r47" else "r46"
    return [f"div {t}, {r}, {sizes[0]}", f"mad {r}, {t}, {apart}, {r}"]


def _less(r, immediate):
    if immediate == -(2**31):  # 2^31 and more: registers end before
        return [f"mov {r}, {2**31 - 1}"]
    return [f"sub {r}, {r}, {immediate}"] if immediate else []


def told(record):
    return record.kind, record.column, record.register, record.instruction


@settings(max_examples=tries(20))
@given(multiplies(), configs, st.data())
def test_a_staged_explanation_is_a_run(given_, config, data):
    text, b = given_
    (mm,) = assemble(text, config).instructions
    columns = data.draw(st.integers(0, config.loader_threads), "columns") or None
    rows = data.draw(st.integers(0, 5), "rows") or None if columns else None
    found = explain(mm, config, b, columns, rows)
    program = placed(mm, config, b)
    if columns:
        program = f"setmm {columns}{f', {rows}' if rows else ''}\n{program}"
    run = MatrixUnit(config).run(program, {"B": b})
    assert [told(e) for e in found.errors] == [told(e) for e in run.errors]
    assert found.counts == run.counts
    assert sum(each["touches"] for each in found.lines.values()) == run.counts.l1_touches
    assert all(0 <= each["first_byte"] < each["last_byte"] for each in found.lines.values())
    assert ("refused" in str(found)) == any(e.kind in NOTHING for e in run.errors)
    if "refused" not in str(found):
        assert f"{run.counts.macs:,} multiplication" in str(found)
        assert f"touched {run.counts.l1_touches:,} time" in str(found) or not run.counts.l1_touches
        outside = sum(e.kind == "register_out_of_range" for e in run.errors)
        assert (f"   {plural(outside, 'column')} out of range" in str(found)) == (outside > 0)


NOTHING = {"unknown_segment", "group_too_large", "operand_out_of_range", "type_mismatch"}


@settings(max_examples=tries(15))
@given(
    st.lists(multiplies(), min_size=2, max_size=3),
    configs,
    st.lists(st.integers(-2, 9), min_size=3, max_size=3),
    st.booleans(),
)
def test_an_explanation_at_a_place_is_what_comes_next(given_, config, numbers, absent):
    b, texts = given_[0][1], [text for text, _ in given_]
    first, second, third = numbers
    lines = [f"segment ur4, $B\ntid r0\ncmp.ge p1, r0, {first}\nrem r1, r0, 7\ncmp.lt p0, r1, {second}"]
    lines += [f"rem r{n}, r{n % 2}, {3 + n % 11}\nadd r{n}, r{n}, {third}" for n in range(8, REGISTERS)]
    lines += ["ld r2, ur4:rf8:0, 3"] if len(b.shape) < 3 else []
    lines += ["ptdel ur4, 0"] if absent else []
    memory = Memory()
    memory.add("B", b, page=(1,) * (b.ndim - 1) + (-(-64 // b.dtype.itemsize),))
    debugger = Debugger("\n".join([*lines, *texts]), memory, config)
    debugger.command(f"until {len(debugger.program) - len(texts)}")
    for _ in texts:
        pe = debugger.pe
        before, where = deepcopy(pe), debugger.program.instructions[pe.pc]
        found = explain(where, at=pe)
        assert pe == before, "explaining changes nothing"
        debugger.command("step")
        assert found.errors == tuple(pe.errors[len(before.errors) :])
        for name, n in found.counts.to_dict().items():
            assert pe.counts.to_dict()[name] - before.counts.to_dict()[name] == n, name
        for name, n in found.traffic.to_dict().items():
            assert pe.traffic.to_dict()[name] - before.traffic.to_dict()[name] == n, name
        waits = {k: n - before.clock.queue[k] for k, n in pe.clock.queue.items()}
        assert {k: n for k, n in waits.items() if n and k != "issued"} == _waits(found)
        assert found.time == {**_waits(found), "issue": found.time["issue"], "done": found.time["done"]}
        assert before.clock.issue <= found.time["issue"] < pe.clock.issue <= found.time["done"]


def _waits(found):
    (line,) = (line for line in found.says if line.startswith("time: "))
    parts = line.split("the issue queue waits: ")[1]
    return (
        {}
        if parts == "for nothing"
        else {p.rsplit(" ", 1)[0]: int(p.rsplit(" ", 1)[1].replace(",", "")) for p in parts.split(", ")}
    )


OTHERS = {name: reading.choices for name, reading in READINGS.items() if len(reading.choices) > 1}


@settings(max_examples=tries(20))
@given(multiplies(), configs, st.integers(1, 20))
def test_readings_that_are_not_listed_decide_nothing(given_, config, on):
    text, b = given_
    b = (np.arange(b.size) % 120).reshape(b.shape).astype(b.dtype)
    (mm,) = assemble(text, config).instructions
    program = f"tid r45\ncmp.lt p1, r45, {on}\n{placed(mm, config, b)}".replace("cmp.eq p1, r0, r0", "nop")
    plain = MatrixUnit(config).run(program, {"B": b})
    listed = relevant_readings(mm, config, plain.state.segments[1], bool(plain.errors))
    for name, choices in OTHERS.items():
        if name in listed or name == "slice_order":
            continue
        for choice in choices:
            other = MatrixUnit(replace(config, **{name: choice})).run(program, {"B": b})
            assert (other.registers == plain.registers).all(), name
            assert (other.counts, other.cycles, other.errors) == (plain.counts, plain.cycles, plain.errors), name


def test_the_lines_are_those_of_a_profile():
    a, b = np.ones((16, 24), np.int8), np.ones((24, 40), np.int8)
    config = MatrixUnitConfig(threads=16, l1_bytes=512)
    made = matmul(a, b, config, transpose_b=True)
    tensors = {"A": a, "B": b, "C": np.zeros((16, 40), np.int32)}
    debugger, seen = Debugger(made.program, tensors, config), []
    while not debugger.done:
        where = debugger.program.instructions[debugger.pe.pc]
        if where.name == "mm":
            seen.append(explain(where, at=debugger.pe))
        debugger.command("step")
    assert sum(e.counts.l1_misses for e in seen) == made.counts.l1_misses
    assert sum(e.counts.macs for e in seen) == made.counts.macs == 16 * 24 * 40
    heat = profile(made.program, tensors, config).heat("B")
    assert sum(e.counts.l1_touches for e in seen) == heat.totals["touches"]
    home = debugger.pe.chip.storages["B"].home
    assert seen[0].lines["B"]["lines"] == 8
    assert (seen[0].lines["B"]["first_byte"], seen[0].lines["B"]["last_byte"]) == (home, home + 511)
    assert sum(e.lines["B"]["touches"] for e in seen) == heat.totals["touches"]
    assert sum(e.lines["B"]["misses"] for e in seen) == heat.totals["misses"]
    assert f"lines of B: 8 lines of 64 bytes within bytes {home:,} to {home + 511:,} of the store" in str(seen[0])


def text_of(text, **how):
    config = MatrixUnitConfig(**{k: v for k, v in how.items() if k != "segment"})
    return " ".join(str(explain(assemble(text, config).instructions[0], config, how.get("segment"))).split())


def test_the_window_ends_at_every_own_source():
    text = text_of("mm8 r291, ur4:rf290:0x00, r256")
    assert "columns: 256; none takes part" in text
    assert "256 columns out of range, skipped and recorded: 0 to 255" in text
    assert "r291 is one of the instruction's own source registers" in text
    assert "0 multiplications" in text
    one = text_of("mm8 r291, ur4:rf290:0x00, r256", segment=np.zeros(9, np.int8))
    assert "products of 221 of them in r291 to r511" in one


def test_refusals_are_the_machines():
    assert "operand_out_of_range" in text_of("mm8 r0, ur4:rf290:0x00, r511")
    assert "take r511 to r512, r290 to r291; the last register is r511" in text_of("mm8 r0, ur4:rf290:0, r511")
    large = text_of("mm8.ka8.kb8 r0, ur4:rf290:0x00, r256", threads=32)
    assert "refused, nothing is done: group_too_large" in large
    assert "ka 8 x kb 8 threads to a row, 32 threads to compute" in large
    assert "math" not in large
    assert "t1, on a segment of s8 with 1 dim" in text_of("mm8.t1 r0, ur4:rf9:0, r6", segment=np.zeros(9, np.int8))
    debugger = Debugger("mm8 r0, ur4:rf290:0x00, r256")
    said = str(explain(debugger.program.instructions[0], at=debugger.pe))
    assert "ur4 holds 0, which is no segment's handle" in said


def test_columns_out_of_range_take_no_steps():
    text = text_of("mm8 r250, ur4:rf290:0x00, r256")
    assert "250 columns out of range, skipped and recorded: 6 to 255" in text
    assert "products may lie in r250 to r255, up to its own source r256" in text
    assert f"math: 6 steps of 1 cycle, {6 * 256 * 8:,} multiplications; 6 columns loaded" in text


def test_an_absent_type_is_the_segments():
    bare = "mm r0, ur4:rf290:0x00, r256"
    assert "floats of 16 bits: TYPE is absent, so the elements are the segment's, f16" in text_of(
        bare, segment=np.zeros((9, 9), np.float16)
    )
    assert "integers of 8 bits (unsigned A, unsigned B)" in text_of(bare, segment=np.zeros((9, 9), np.uint8))
    assert "the segment's, assumed s8" in text_of(bare)
    assert "(unsigned A, signed B)" in text_of("mm.ua r0, ur4:rf290:0, r256", segment=np.zeros((9, 9), np.int16))
    assert "type_mismatch" in text_of("mm.ua r0, ur4:rf290:0, r256", segment=np.zeros((9, 9), np.float32))


def test_numbers_of_a_merged_instruction():
    config = MatrixUnitConfig(threads=64)
    (mm,) = assemble("mm8.ka2.kb2 r0, ur4:rf290:0x00, r256", config).instructions
    text = str(explain(mm, config))
    assert "4 threads serve a row (ka 2 share its columns, kb 2 its k): 16 rows of 64 threads" in text
    made = matmul(np.ones((16, 8), np.int8), np.ones((8, 64), np.int8), config=config, ka=2, kb=2)
    assert made.counts.instructions == 1
    assert explain(mm, config).counts.macs == made.counts.macs
    assert f"math: {made.counts.steps} steps of 1 cycle, {made.counts.macs:,} multiplications" in text
    assert f"{made.counts.broadcast_elements:,} elements of B cross the bus" in text


def test_only_readings_that_matter_are_listed():
    text = " ".join(text_of("mm8 r0, ur4:rf290:0x00, r256").split("\n"))
    for name in (
        "ka_split",
        "kb_acc",
        "kb_mode",
        "group_order",
        "pred_scope",
        "float_order",
        "retention",
        "slice_order",
    ):
        assert name not in text
    assert "float_order" in text_of("mmf32 r0, ur4:rf290:0x00, r256")
    assert "retention" in text_of("mm8.t1 r0, ur4:rf290:0x00, r256")


def test_a_load_where_the_machine_stands():
    debugger = Debugger(
        "segment ur1, $A\ntid r1\nmov r0, 0\n@p1, ld r2, ur1:rf0:0, 2\nld r2, ur1:rf0:0, 2",
        {"A": np.arange(64).reshape(16, 4).astype(np.int32)},
        MatrixUnitConfig(threads=16),
    )
    debugger.command("step 3")
    guarded = str(explain(debugger.program.instructions[3], at=debugger.pe))
    assert "only where predicate p1 is true; that is 0 of 16 threads now" in guarded
    debugger.command("step")
    home = debugger.pe.chip.storages["A"].home
    said = str(explain(debugger.program.instructions[4], at=debugger.pe))
    assert (
        f"now: loads 128 bytes of A, 16 requests for 16 lines, bytes {home:,} to {home + 1023:,} of the store" in said
    )
    assert "time: issues at cycle" in said


def test_what_cannot_be_staged_is_an_error():
    (mm,) = assemble("mm8 r0, ur4:rf290:0x00, r256").instructions
    for how in (
        {"columns": 257},
        {"columns": 0},
        {"rows": 300},
        {"columns": 1.5},
        {"segment": np.zeros((2, 2), complex)},
    ):
        with pytest.raises(UsageError):
            explain(mm, **how)
    big = MatrixUnitConfig(threads=65536, registers=300, kb_mode="chunk")
    with pytest.raises(UsageError, match="columns of"):
        explain(assemble("mm8.kb60000 r0, ur4:rf290:0x00, r256", big).instructions[0], big)


@pytest.mark.parametrize(
    "text", ["tid r0", "mmf32.t1 r0, ur4:rf8:4, r6", "ld r20, ur1:rf10:0, 2", "@!p1, mm.r0,ur4:rf290:0x00,r256"]
)
def test_every_kind_is_explained(text):
    for each in assemble(text).instructions:
        assert str(explain(each)).splitlines()[0] == str(each)


def test_every_example_of_the_table_is_explained_here_and_anywhere():
    """Anywhere all of them; where a machine stands (nothing changes) by day one in three."""
    explained, staged = 0, 0
    for number, spec in enumerate(INSTRUCTIONS.values()):
        try:
            program = assemble(spec.example)
        except TilewrightError:
            program = assemble(f"{spec.example}\nx:\nloop:\nagain:\ndone:\nend:\nhalt")
        explained += sum(len(explain(each).says) > 0 for each in program.instructions)
        if number % 3 and not by_night():
            continue
        debugger = Debugger(program, {"B": np.zeros((4, 4), np.int8)}, MatrixUnitConfig(threads=16))
        debugger.pe.uniform[3:6] = [1, 1, 1]
        before = deepcopy(debugger.pe)
        for each in program.instructions:
            staged += "time: " in str(explain(each, at=debugger.pe))
        assert debugger.pe == before
        assert debugger.pe.chip == before.chip
    assert explained > 30
    assert staged > (30 if by_night() else 10)
