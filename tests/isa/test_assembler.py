"""The assembler: the source's examples, canonical text, errors by line and column, any text at all."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.errors import ParseError, UsageError
from tilewright.isa import MatrixUnitConfig, Program, assemble
from tilewright.isa.execute.run import HANDLERS
from tilewright.isa.language.instructions import CONDITIONS, INSTRUCTIONS, TYPES

CANONICAL = {
    "@p1,mm.r0,ur4:rf290:0x00,r256": "@p1, mm.ka1.kb1.t0 r0, ur4:rf290:0x00, r256",
    "@p1,mm8.sa.ub.r0,ur4:rf290:0x00,r256": "@p1, mm8.ka1.kb1.t0.sa.ub r0, ur4:rf290:0x00, r256",
    "@p1,mm8.ka2.sa.sb.r0,ur4:rf290:0x00,r256": "@p1, mm8.ka2.kb1.t0.sa.sb r0, ur4:rf290:0x00, r256",
    "@p1,mm8.kb2.sa.sb.r0,ur4:rf290:0x00,r256": "@p1, mm8.ka1.kb2.t0.sa.sb r0, ur4:rf290:0x00, r256",
    "@p1,mm8.ka1.t1.sa.sb r0,ur4:rf290:0x00,r256": "@p1, mm8.ka1.kb1.t1.sa.sb r0, ur4:rf290:0x00, r256",
    "mm16.r3.ua.t1.kb4.ka2.ub, ur0:rf7:300, r9": "mm16.ka2.kb4.t1.ua.ub r3, ur0:rf7:0x12c, r9",
    "@!p0 mm.ub r0, ur4 : rf1 : -0X4, r2": "@!p0, mm.ka1.kb1.t0.ub r0, ur4:rf1:-0x04, r2",
    "mmbf16 r0, ur4:rf1:0, r2": "mmbf16.ka1.kb1.t0 r0, ur4:rf1:0x00, r2",
    "  st.s3.t1 r0,ur5:rf298:0,r285 # products": "st.t1.s3 r0, ur5:rf298:0x00, r285",
    "ld.t0 r0, ur5:rf298:0x0": "ld r0, ur5:rf298:0x00",
    "mov r1, 0x10 // sixteen": "mov r1, 16",
}


@pytest.mark.parametrize("text", CANONICAL)
def test_canonical_text(text):
    program = assemble(text)
    assert str(program).strip() == CANONICAL[text]
    assert assemble(str(program)) == program
    assert program == assemble(CANONICAL[text])


def test_programs_are_known_by_what_they_say():
    """Also in another process, where the hash of a text is another."""
    one, other = (
        assemble("again: add ur1, ur1, 1\nbr.lt ur1, 8, again"),
        assemble("again:\nadd ur1, ur1, 1\nbr.lt ur1, 8, again"),
    )
    assert {one: "known"}[other] == "known"
    assert hash(one.instructions[0]) == hash(other.instructions[0])
    state = pickle.loads(pickle.dumps(one)).__dict__
    assert "_hash" in one.__dict__
    assert "_hash" not in state
    assert "_hash" not in state["instructions"][0].__dict__


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_every_row_of_the_table_assembles_and_runs(name):
    spec = INSTRUCTIONS[name]
    program = assemble(f"{spec.example}\nagain:")
    assert program.instructions[0].name == name
    assert assemble(str(program)) == program
    assert name in HANDLERS


def test_no_instruction_without_a_row():
    assert set(HANDLERS) == set(INSTRUCTIONS)


def test_defaults_are_what_is_not_written():
    assert assemble("mm8 r0, ur4:rf1:0, r2") == assemble("mm8.sb.sa.t0.kb1.ka1 r0, ur4:rf1:0, r2")
    assert assemble("mm r0, ur4:rf1:0, r2") != assemble("mm.sa r0, ur4:rf1:0, r2")


def test_labels_and_listing():
    program = assemble("a: b:\n  br.lt ur1, 3, a\n\njump end # over\nhalt\nend:")
    assert program.labels == (("a", 0), ("b", 0), ("end", 3))
    assert str(program) == "a:\nb:\n    br.lt ur1, 3, a\n    jump end\n    halt\nend:"
    assert program.listing().splitlines()[2] == "0000      br.lt ur1, 3, a"
    assert assemble(str(program)) == program


@pytest.mark.parametrize(
    ("text", "line", "column", "reason"),
    [
        ("mm8.ka0 r0, ur4:rf1:0, r2", 1, 4, "must be 1 or more"),
        ("mm8.kb0 r0, ur4:rf1:0, r2", 1, 4, "must be 1 or more"),
        ("mm8.ka1.ka2 r0, ur4:rf1:0, r2", 1, 8, "second of its kind"),
        ("mm8.t0.t1 r0, ur4:rf1:0, r2", 1, 7, "second of its kind"),
        ("mm8.sa.ua r0, ur4:rf1:0, r2", 1, 7, "second of its kind"),
        ("mm8.t2 r0, ur4:rf1:0, r2", 1, 4, "unknown suffix .t2 of mm; known: .kaX, .kbX, .tX"),
        ("a: br.lz ur0, 1, a", 1, 6, "unknown suffix .lz of br; known: .eq, .ne, "),
        ("cmp p1, r1, r2", 1, 4, "where it ends in u; one of .eq, .ne, "),
        ("mov r1, 99999999999999999999", 1, 9, "99999999999999999999 is not within"),
        ("ld r1, ur1:rf0:0x7fffffffffffffff", 1, 16, "0x7fffffffffffffff is not within"),
        ("mm9 r0, ur4:rf1:0, r2", 1, 3, "unknown TYPE '9'"),
        ("mmf16.ub r0, ur4:rf1:0, r2", 1, 6, "TYPE f16 has no sign"),
        ("halt\n  mm8 r512, ur4:rf1:0, r2", 2, 7, "no register r512"),
        ("mm8 r0, ur64:rf1:0, r2", 1, 9, "no register ur64"),
        ("mm8 r0, ur4:rf512:0, r2", 1, 13, "no register r512"),
        ("mm8.r600, ur4:rf1:0, r2", 1, 5, "no register r600"),
        ("mm8.r0.r1, ur4:rf1:0, r2", 1, 7, "second product register"),
        ("@p8 mm8 r0, ur4:rf1:0, r2", 1, 2, "no register p8"),
        ("@q1 mm8 r0, ur4:rf1:0, r2", 1, 1, "expected a guard"),
        ("mm8 r0, ur4:rf1:0x1ffffffff, r2", 1, 17, "not within"),
        ("mm8 r0, r1, r2", 1, 9, "expected an address"),
        ("mm8 r0 ur4:rf1:0, r2", 1, 8, "expected a comma"),
        ("mm8 r0, ur4:rf1:0, r2, r3", 1, 22, "something follows"),
        ("mm8 r0, ur4:rf1:0", 1, 18, "expected a comma and a register"),
        ("mov r1, 1\n\tfrob r1", 2, 2, "no instruction 'frob'"),
        ("mov ur1, r1", 1, 10, "per-thread value"),
        ("@p1 add ur1, ur1, 1", 1, 1, "per-thread destination"),
        ("@p1 halt", 1, 1, "halt takes no guard"),
        ("sel ur1, p1, 2, 3", 1, 10, "per-thread value"),
        ("fadd r1, r2, 3", 1, 14, "a float such as 1.5"),
        ("fadd r1, r2, 1e39", 1, 14, "not within float32"),
        ("mov r1, 0f123", 1, 9, "expected"),
        ("cvt.to_f32 r1, r2", 1, 11, "needs a suffix"),
        ("loop r1, a", 1, 6, "expected a uniform register"),
        ("jump there", 1, 6, "no label 'there'"),
        ("a: halt\na: halt", 2, 1, "stands twice"),
        ("cmp p1, r1, 2", 1, 4, "needs a suffix"),
        ("mov r1, 4294967296", 1, 9, "not within"),
        ("mov r1, 0x", 1, 9, "expected"),
        ("7", 1, 1, "expected an instruction"),
    ],
)
def test_errors_name_line_column_and_reason(text, line, column, reason):
    with pytest.raises(ParseError) as caught:
        assemble(text)
    assert (caught.value.line, caught.value.line_column + 1) == (line, column)
    assert reason in str(caught.value)


def test_the_nearest_name_is_offered():
    with pytest.raises(ParseError, match=r"did you mean .*dmain"):
        assemble("dmian ur4")


def test_register_limits_follow_the_configuration():
    small = MatrixUnitConfig(registers=16, predicates=1, uniform_registers=2)
    assemble("@p0, mov r15, ur1", small)
    for text in ("mov r16, 0", "mov ur2, 0", "@p1 mov r0, 0"):
        with pytest.raises(ParseError, match="no register"):
            assemble(text, small)


def test_only_text_assembles():
    with pytest.raises(UsageError, match="takes text"):
        assemble(b"halt")


PIECES = ["vf.add", "vf.div.y1", "vi.shru", "vi.maxu.y1", "vcmp.ltu", "vfcmp.ge"]
SPANS = ["vfun.exp", "vcvt.to_f8e5m2.from_bf16", "vcvt.to_s4.from_s32.rz.wrap", "vred.max.s32", "vthr.add.f32.g4"]
registers = st.integers(0, 511).map("r{}".format)
mm_texts = st.builds(
    lambda guard, type_, suffixes, c, address, a: f"{guard}mm{type_}{''.join(suffixes)} {c}, {address}, {a}",
    st.sampled_from(["", "@p1, ", "@!p7,", "@p0 "]),
    st.sampled_from(["", *TYPES]),
    st.tuples(
        *(st.sampled_from(("", *choices)) for choices in ((".t0", ".t1"), (".ka3", ".ka12"), (".kb1", ".kb2")))
    ).flatmap(st.permutations),
    registers,
    st.builds("ur{}:rf{}:{}".format, st.integers(0, 63), st.integers(0, 511), st.integers(-(2**31), 2**31 - 1)),
    registers,
)
others = st.one_of(
    st.builds("add {}, {}, {}".format, registers, registers, st.integers(-(2**31), 2**32 - 1)),
    st.builds("cmp.{} p3, {}, ur9".format, st.sampled_from(CONDITIONS), registers),
    st.builds("l{}: br.ne ur1, {}, l0".format, st.integers(1, 10**6), st.integers(0, 9)),
    st.just("   # nothing"),
    st.builds("@!p3, {} {}, {}, {}, {}".format, st.sampled_from(PIECES), *[registers] * 3, st.integers(0, 999)),
    st.builds("vquant.to_s8.from_{}.y1 {}, {}, {}, ur3, 8".format, st.sampled_from(["s32", "f32"]), *[registers] * 3),
    st.builds("{} {}, {}, ur7".format, st.sampled_from(SPANS), registers, registers),
)


@settings(max_examples=tries(30))
@given(st.lists(st.one_of(mm_texts, others), max_size=6, unique=True))
def test_programs_round_trip(lines):
    try:
        program = assemble("l0:\n" + "\n".join(lines))
    except ParseError as error:
        assert "stands twice" in str(error)
        return
    assert assemble(str(program)) == program
    assert str(assemble(str(program))) == str(program)


MATRIX = ["mm8", "mm", ".ka1", ".r0", ".", "@p1", "@!", "ur4:rf290:0x00", "ur4:", "r256", "ur1", "p1", "$B", "label:"]
OTHER = [
    "label",
    "br.lt",
    "cmp.eq",
    "vf.add",
    "vquant.to_s8.from_s32",
    "vthr",
    "ldb",
    "ld",
    "st.s2",
    "setmm",
    "halt",
    ",",
    " ",
    "\n",
    "#",
    "0x",
    "-1",
    "9" * 14,
    "\t",
    "\r\n",
]
words = st.sampled_from([*MATRIX, *OTHER])


@settings(max_examples=tries(40))
@given(
    st.one_of(
        st.text(max_size=60), st.lists(words, max_size=14).map(" ".join), st.lists(words, max_size=14).map("".join)
    )
)
@example("mm8.ka99999999999999999999 r0")
@example("mov r1, ²")
@example("mm8\x00")
@example("a:b:c:" * 2000)
def test_any_text_is_a_program_or_a_parse_error(text):
    try:
        program = assemble(text)
    except ParseError as error:
        assert 0 <= error.column <= len(text)
        return
    assert isinstance(program, Program)
    assert assemble(str(program)) == program
