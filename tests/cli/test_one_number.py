"""One number for one question: every face says the same step, bytes moved and peak of one program on one chip."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.conftest import completed
from tests.conftest import VECTORS
from tilewright.explore import programs
from tilewright.explore.worker import Question
from tilewright.hlo import MovementReport, estimate, lifetimes, load, optimize, report
from tilewright.machine import run
from tilewright.render import bytes_text, seconds_text

CASES = {
    "StableHLO": (VECTORS / "hlo_tpu/v5e_reshape_zoo.stablehlo.mlir", "tpu-7x"),
    "a dump": (VECTORS / "hlo_tpu/v5e_reshape_zoo.after.hlo", "tpu-v5e"),
}
Answers = dict[str, list[tuple[str, object]]]


def printed(*words):
    done = completed(*words, COLUMNS="200", NO_COLOR="1")
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def asked(*words):
    return json.loads(printed(*words, "--json"))


def in_numbers(path, chip, done) -> Answers:
    """What the faces that give numbers say: microseconds of the device and of the call, bytes moved, bytes of peak."""
    program = load(path)
    found, step, whole = report(program, chip), estimate(program, chip), asked("report", path, "--target", chip)
    again, timed = MovementReport.from_json(whole), asked("time", path, "--target", chip, "--target", chip)
    ran = done.to_json()
    said: Answers = {
        "step": [
            ("estimate", step.device_seconds * 1e6),
            ("report", found.time.device_us),
            ("report read back", again.time.device_us),
            ("report --json", whole["time"]["device_us"]),
            ("time --json", timed["device_seconds"] * 1e6),
            *((f"time beside {n}", each["device_seconds"] * 1e6) for n, each in enumerate(timed["beside"])),
            ("run", ran["step"]["device_seconds"] * 1e6),
        ],
        "call": [
            ("estimate", step.call_seconds * 1e6),
            ("both", (step.seconds - step.device_seconds) * 1e6),
            ("report", found.time.call_us),
            ("report, both", found.time.step_us - found.time.device_us),
            ("time --json", timed["call_seconds"] * 1e6),
            ("run", ran["step"]["call_seconds"] * 1e6),
        ],
        "moved": [
            ("report", found.moved_bytes),
            ("report --json", whole["totals"]["moved_bytes"]),
            ("run", ran["moved"]["before"]),
        ],
        "peak": [
            ("lifetimes", lifetimes(program, chip).peak),
            ("report", found.peak.padded_bytes),
            ("report --json", whole["totals"]["peak_bytes"]),
            ("run", ran["memory"]["need"]),
        ],
        "bytes through HBM": [
            ("estimate", step.bytes),
            ("time --json", timed["bytes"]),
            ("run", ran["step"]["bytes"]),
        ],
    }
    if program.kind == "stablehlo":
        said["moved"] += [
            ("optimize", optimize(program, chip).moved_bytes[0]),
            ("optimize --json", asked("optimize", path, "--target", chip)["moved_bytes"]["before"]),
        ]
    else:
        diff = asked("diff", path, path, "--target", chip)
        for side in ("before", "after"):
            said["step"].append((f"diff, {side}", diff["time"]["device_seconds"][side] * 1e6))
            said["peak"].append((f"diff, {side}", diff["time"]["peak_bytes"][side]))
    return said


def in_words(path, chip, tmp_path, done) -> dict[str, str]:
    """The texts of the faces that people read."""
    page = tmp_path / "page.html"
    pages = {}
    for command in ("report", "time"):
        printed(command, path, "--target", chip, "-o", page)
        pages[f"{command} -o"] = page.read_text()
    figures = programs.program(Question({"target": chip}, str(path)))["figures"]
    return {
        **pages,
        "report": printed("report", path, "--target", chip),
        "time": printed("time", path, "--target", chip),
        "explorer": json.dumps(figures, ensure_ascii=False),
        "run": done.to_page().html(),
    }


@pytest.mark.parametrize("case", CASES)
def test_every_face_says_the_same(case, tmp_path):
    path, chip = CASES[case]
    done = run(str(path), chip)
    said = in_numbers(path, chip, done)
    for question, answers in said.items():
        first = answers[0][1]
        assert first > 0
        assert [(face, answer) for face, answer in answers if answer != pytest.approx(first, rel=1e-9)] == [], question
    step, moved, peak = (
        seconds_text(said["step"][0][1] / 1e6),
        bytes_text(said["moved"][0][1]),
        bytes_text(said["peak"][0][1]),
    )
    words = in_words(path, chip, tmp_path, done)
    texts = {
        "report": (f"modelled step on {chip}: {step}", f"{moved} moved by", f"peak of main memory {peak}"),
        "report -o": (step, moved, peak),
        "time": (f"{step} a step",),
        "time -o": (f"{step} a step on {chip}",),
        "explorer": (step, moved, peak),
        "run": (f"A step takes {step}", moved, f"{peak} asked for at once"),
    }
    for face, wanted in texts.items():
        text = re.sub(r"\s+", " ", words[face])
        assert [each for each in wanted if each not in text] == [], face


def test_a_relu_behind_a_product_does_not_double_a_step():
    shape = "tensor<4096x4096xbf16>"
    product = f"  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({shape}, {shape}) -> {shape}\n"
    relu = f"  %1 = stablehlo.maximum %0, %c : {shape}\n"
    head = f"func.func @main(%a: {shape}, %b: {shape}, %c: {shape}) -> {shape} {{\n"
    one = estimate(load(f"{head}{product}  return %0 : {shape}\n}}"), "tpu-v6e")
    two = estimate(load(f"{head}{product}{relu}  return %1 : {shape}\n}}"), "tpu-v6e")
    assert one.call_seconds == two.call_seconds > 0
    assert one.device_seconds < two.device_seconds < 1.5 * one.device_seconds
    assert one.seconds == one.device_seconds + one.call_seconds
