"""Any program that assembles runs to its end or stops with an error of ours; nothing in range is lost to a crash."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.errors import ParseError, TilewrightError
from tilewright.isa import MatrixUnit, MatrixUnitConfig, Memory, assemble
from tilewright.isa.language.instructions import INSTRUCTIONS

VECTORS = [spec.name for spec in INSTRUCTIONS.values() if spec.unit == "vector" or spec.name == "ldb"]
THREADS, REGISTERS = 6, 24
numbers = st.one_of(st.integers(-3, 30), st.sampled_from([-(2**31), 2**31 - 1, 2**32 - 1]))
values = ["s32", "u32", "f32", "f16", "bf16", "s4", "u8", "s16", "f8e4m3fn", "f8e5m2"]
CHOICES = {
    "cond": ["eq", "ne", "lt", "ge"],
    "what": ["base", "size"],
    "to": [f"to_{v}" for v in values],
    "from": [f"from_{v}" for v in values],
    "op": ["add", "min", "max", "exp", "log", "rsqrt", "div", "rem", "shru"],
    "type": ["f32", "s32"],
}
kinds = {
    "r": st.integers(0, REGISTERS - 1).map("r{}".format),
    "ur": st.integers(0, 3).map("ur{}".format),
    "p": st.integers(0, 1).map("p{}".format),
    "imm": numbers.map(str),
    "float": st.sampled_from(["1.5", "-0.0", "0f7f800000", "0fffc00001", "1e-45", "3e38"]),
    "address": st.builds(
        "ur{}:rf{}:{}".format, st.sampled_from([1, 1, 1, 2, 2, 3]), st.integers(0, REGISTERS - 1), st.integers(-9, 9)
    ),
    "segment": st.sampled_from(["$A", "$F", "$V", "$nobody"]),
    "label": st.sampled_from(["l0", "l1"]),
}


@st.composite
def instructions(draw):
    spec = INSTRUCTIONS[draw(st.sampled_from([*INSTRUCTIONS, *["mm"] * 16, *["ld", "st"] * 4, *VECTORS]))]
    name = spec.name + (draw(st.sampled_from(["", "", "", "8", "f32"])) if spec.name == "mm" else "")
    for suffix in spec.suffixes:
        if suffix.default is None:
            name += "." + draw(st.sampled_from(CHOICES[suffix.key]))
        elif suffix.key in ("ka", "kb", "s") and draw(st.booleans()):
            name += f".{suffix.key}{draw(st.sampled_from([1, 2, 3, 7]))}"
        elif suffix.key in ("t", "y") and draw(st.booleans()):
            name += f".{suffix.key}1"
        elif suffix.key == "g" and draw(st.booleans()):
            name += f".g{draw(st.sampled_from([1, 2, 3, 7]))}"
        elif suffix.key in ("round", "end") and draw(st.booleans()):
            name += {"round": ".rz", "end": ".wrap"}[suffix.key]
    operands = []
    for operand in spec.operands:
        if operand.optional and draw(st.booleans()):
            break
        operands.append(draw(kinds[draw(st.sampled_from(operand.kinds))]))
    guard = draw(st.sampled_from(["", "", "@p0, ", "@!p1, "])) if spec.guard else ""
    return f"{guard}{name} {', '.join(operands)}"


def assembles(line, config):
    try:
        assemble(f"l0:\nl1:\n{line}", config)
    except ParseError:
        return False
    return True


@settings(max_examples=tries(40), suppress_health_check=[HealthCheck.filter_too_much])
@given(
    st.lists(instructions(), min_size=3, max_size=14),
    st.fixed_dictionaries(
        {
            "offset_mode": st.sampled_from(["registers", "linear"]),
            "float_order": st.sampled_from(["chunk", "fma", "exact"]),
            "overflow": st.sampled_from(["wrap", "saturate"]),
            "retention": st.sampled_from(["bypass", "evict", "off"]),
            "loads_through_l1": st.booleans(),
            "l1_bytes": st.sampled_from([64, 256]),
            "l1_ways": st.sampled_from([0, 1]),
            "ka_split": st.sampled_from(["blocked", "interleaved"]),
            "column_numbering": st.sampled_from(["gap", "compact"]),
            "kb_mode": st.sampled_from(["chunk", "split"]),
            "disjoint_sets": st.booleans(),
            "uninitialized": st.sampled_from(["zero", "poison"]),
            "pred_scope": st.sampled_from(["loader", "compute", "both"]),
            "acc_window": st.sampled_from([None, (2, 9)]),
        }
    ),
)
def test_any_program_ends_well_or_with_our_error(lines, readings):
    config = MatrixUnitConfig(
        threads=THREADS,
        registers=REGISTERS,
        predicates=2,
        uniform_registers=4,
        max_instructions=200,
        l2_bytes=512,
        **readings,
    )
    lines = [line for line in lines if assembles(line, config)]
    text = "\n".join(["segment ur1, $A", "segment ur2, $F", "tid r1", "cmp.lt p0, r1, 3", "l0:", *lines, "l1:"])
    program = assemble(text, config)
    memory = Memory({"A": np.arange(35, dtype=np.int8).reshape(5, 7)})
    memory.add("F", np.linspace(-1, 1, 60, dtype=np.float32).reshape(3, 4, 5), page=(1, 2, 16))
    memory.add("V", np.arange(70, dtype=np.uint16), page=(32,), resident=False)
    results = []
    for _ in range(2):
        try:
            results.append(MatrixUnit(config).run(program, memory, trace=True))
        except TilewrightError as error:
            results.append(getattr(error, "result", None))
    first, second = results
    assert (first is None) == (second is None)
    if first is not None:
        assert (first.registers == second.registers).all()
        assert (first.cycles, first.counts, first.errors) == (second.cycles, second.counts, second.errors)
        assert first.state == second.state
        assert first.math_cycles + sum(first.stalls.values()) == first.cycles == sum(first.queue.values())
        assert first.counts.l1_misses <= first.counts.l1_touches
        for name in ("A", "F", "V"):
            assert first.tensor(name).tobytes() == second.tensor(name).tobytes()
