"""Thousands of mutated programs: a value or a TilewrightError, never another exception, a crash, or a hang."""

import io
import random
import re
import signal
import time
from contextlib import contextmanager

import pytest
from jaxlib import _hlo
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from tests.conftest import ROOT, VECTORS, tries
from tests.hlo.test_hlo_reader import LOOP, TABLES
from tilewright.errors import TilewrightError
from tilewright.hlo import load, report
from tilewright.hlo.ir import context

TEXTS, BINARIES = tries(1_500), tries(400)
ODD = "{}()[]\"'/*,=%#@:<>x?\\\n \0é0179-+."
NUMBERS = ("0", "1", "-1", "9" * 30, "65535", "2147483648", "")
OLD = """\
HloModule old
add { x = f32[] parameter(0)
 y = f32[] parameter(1)
 ROOT z = f32[] add(f32[] x, f32[] y) }
ENTRY %e.1 (p: f32[2,3]) -> f32[3,2] {
  %p = f32[2,3]{1,0} parameter(0), sharding={devices=[2,1]<=[2]}
  %s = ((f32[2,3]{1,0}), f32[2,3]{1,0:T(8,128)S(1)}, u32[]{:S(2)}) copy-start(f32[2,3]{1,0} %p)
  %d = f32[2,3]{1,0:T(8,128)S(1)} copy-done(((f32[2,3]{1,0}), f32[2,3]{1,0:T(8,128)S(1)}, u32[]{:S(2)}) %s)
  %r = f32[6]{0} reshape(f32[2,3]{1,0} %p), metadata={op_type="Reshape" op_name="x" source_file="a.py" source_line=3}
  %c = f32[] constant(0), backend_config="{\\"a\\":[1]}"
  %t = f32[] reduce(f32[6]{0} %r, f32[] %c), dimensions={0}, to_apply=add
  ROOT %l = f32[3,2]{1,0} transpose(f32[2,3]{1,0} %p), dimensions={1,0}, frontend_attributes={k={x,y}}
}
"""
BLOCK = re.compile(r"^(?:ENTRY )?%?([\w.\-]+)[^\n]*\{\n(?:[^}\n][^\n]*\n)*\}[^\n]*\n", re.M)
CALLEE = re.compile(r"(?:calls|to_apply|condition|body)=%?([\w.\-]+)")


def small_programs(text, most=6000):
    """Whole programs of at most ``most`` characters cut out of a big dump: each computation with what it calls."""
    blocks = {match[1]: match[0] for match in BLOCK.finditer(text)}
    head = "HloModule cut\n\n" + "".join(re.findall(r"^(?:File|Function|Stack)\w+\n(?:\d.*\n)*", text, re.M))[:1500]
    head = head[: head.rindex("\n") + 1]
    for name in blocks:
        needed = [name]
        for each in needed:
            needed += {c for c in CALLEE.findall(blocks[each]) if c in blocks and c not in needed}
        cut = head + "".join(blocks[each] for each in reversed(needed))
        if len(cut) < most:
            yield cut


@pytest.fixture(scope="module")
def programs():
    """Small texts of every kind, and cuts of the dumps."""
    texts = [
        LOOP,
        TABLES % (0, 1),
        OLD,
        *(p.read_text() for p in sorted((ROOT / "tests" / "filecheck").glob("*.mlir"))),
    ]
    texts.append((ROOT / "examples" / "group_norm.mlir").read_text())
    for path in sorted(VECTORS.glob("hlo_*/*")):
        text = path.read_text()
        texts += [text] if len(text) < 12_000 else list(small_programs(text))[::5] if "HloModule" in text[:99] else []
    for text in texts:
        load(text)
    return texts


def mutated(rng, text, other):
    """A few random edits: characters, ranges, lines, numbers, pieces of another program."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((1, 1, 2, 5, 20, 200)))
        kind = rng.randrange(8)
        if kind == 0:
            text = text[:at] + rng.choice(ODD) + text[at + 1 :]
        elif kind == 1:
            text = text[:at] + rng.choice(ODD) * rng.choice((1, 1, 1, 500)) + text[at:]
        elif kind == 2:
            text = text[:at] + text[end:]
        elif kind == 3:
            text = text[:end] + text[at:end] + text[end:]
        elif kind == 4 and rng.random() < 0.2:
            text = text[:at]
        elif kind == 5:
            start = rng.randrange(len(other))
            text = text[:at] + other[start : start + rng.choice((3, 10, 50))] + text[end:]
        elif kind == 6:
            lines = text.split("\n")
            a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[a], lines[b] = lines[b], lines[a]
            text = "\n".join(lines)
        elif numbers := list(re.finditer(r"\d+", text)):
            found = rng.choice(numbers)
            text = text[: found.start()] + rng.choice(NUMBERS) + text[found.end() :]
    return text


def mutated_bytes(rng, raw):
    raw = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(raw))
        kind = rng.randrange(5)
        if kind < 3:
            raw[at] = rng.randrange(256)
        elif kind == 3:
            del raw[at : at + rng.randrange(1, 9)]
        else:
            raw[at:at] = rng.randbytes(rng.randrange(1, 5))
    return bytes(raw)


@contextmanager
def seconds_of_work(limit):
    """TimeoutError in the block after so much processor time of this process: a pause of the machine is no hang."""

    def late(number, frame):
        raise TimeoutError(f"more than {limit} s")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def outcome(source, and_report=False):
    """``kind`` of the program that was read, or the name of the TilewrightError; anything else fails the test."""
    try:
        program = load(source)
        if and_report:
            report(program, "tpu-v5e" if program.kind == "stablehlo" else None)
        return program.kind
    except TilewrightError as error:
        assert str(error)
        return type(error).__name__


def test_mutated_texts(programs):
    rng, seen = random.Random(4), {}
    for number in range(TEXTS):
        text = mutated(rng, rng.choice(programs), rng.choice(programs))
        try:
            with seconds_of_work(5):
                found = outcome(text.encode("utf-8"), and_report=number % 4 == 0)
        except BaseException:
            print(text)
            raise
        seen[found] = seen.get(found, 0) + 1
    assert sum(seen.values()) == TEXTS
    assert min(seen["hlo"], seen["stablehlo"], seen["ParseError"]) > TEXTS / 20, (
        seen
    )  # neither all broken nor all whole


def test_mutated_binaries():
    text = (ROOT / "examples" / "group_norm.mlir").read_text()
    with context():
        stream = io.BytesIO()
        ir.Module.parse(text).operation.write_bytecode(stream)
    version = stablehlo.get_current_version()
    originals = [stream.getvalue(), stablehlo.serialize_portable_artifact_str(text, version)]
    originals += [(VECTORS / "step.jax_export").read_bytes()]
    originals += [_hlo.hlo_module_from_text(each).as_serialized_hlo_module_proto() for each in (LOOP, OLD)]
    assert [outcome(raw) for raw in originals] == ["stablehlo"] * 3 + ["hlo"] * 2
    rng = random.Random(3)
    seen = {outcome(mutated_bytes(rng, rng.choice(originals))) for _ in range(BINARIES)}
    assert {"hlo", "stablehlo", "UsageError"} <= seen


# A text where a pattern of the readers tries again and again what it cannot finish takes quadratic time.
STARTS = [
    "HloModule m, a=",
    "HloModule m\nFileNames\n",
    "HloModule m\nENTRY e (",
    "HloModule m\nENTRY e {\n a = f32[2]{",
]
STARTS += [f"HloModule m\nENTRY e {{\n a = {rest}" for rest in ("", "(", "f32[] add(", "f32[] constant(0), x={")]
STARTS += ["HloModule m\nENTRY e {\n a = f32[] constant(0), x <"]
STARTS += ["module ", "func.func @main(", "func.func @main() {\n", "#loc = loc("]
STARTS += [
    f"func.func @main() {{\n %0 = {rest}" for rest in ("", "stablehlo.constant dense<", "a.b %0, ", '"a.b"() ({')
]
UNITS = [
    *'{}()[]<>"\\/\n ,=%a1#@^:',
    "/*",
    "*/",
    "//",
    "->",
    "x=",
    "%a",
    "a=f32[] ",
    "loc(",
    "callsite(",
    "fused[",
    "tensor<",
]
UNITS += ["\nb = f32[] copy(", "\nc = f32[] d(a#0) <e>", ", f g", "\ne {"]
UNITS += ["</*", '"a', "{(", "x<", "%a:2", "{\n", ", x={", '\\"', "a.b ", "loc(#a) ", "({", "}) "]


def seconds(start, unit, size):
    """Processor time that a text of ``size`` characters takes, and the same with a last line that closes something."""
    took = 0.0
    for end in ("", '"\n}') if '"' in unit else ("",):
        text = (start + unit * (size // len(unit)) + end).encode()
        began = time.process_time()
        with seconds_of_work(20):
            outcome(text)
        took = max(took, time.process_time() - began)
    return took


@pytest.mark.nightly
@pytest.mark.parametrize("start", STARTS)
def test_adversarial_texts_take_linear_time(start):
    """By day the readers see short ones alone, in the test of mutated texts."""
    for unit in UNITS:
        whole = seconds(start, unit, 30_000)  # 0.05 s
        assert whole < 0.125 or whole < 8 * seconds(start, unit, 7_500), unit
