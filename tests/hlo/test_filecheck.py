"""tests/filecheck: one small file per rewrite, with the passes to run and the lines to expect, in order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewright.hlo import REWRITES, parse_pipeline, run_pipeline

CASES = sorted((Path(__file__).parent.parent / "filecheck").glob("*.mlir"))


def pattern(line, bound):
    """A CHECK line as a regular expression; %[[NAME:.*]] binds a value's name, %[[NAME]] repeats it."""
    parts = re.split(r"(%\[\[\w+(?::\.\*)?\]\]|\{\{\.\*\}\})", line)
    out = []
    for part in parts:
        if part == "{{.*}}":
            out.append(".*")
        elif part.startswith("%[["):
            name = re.match(r"%\[\[(\w+)", part)[1]
            if ":.*" not in part:
                out.append(re.escape(bound[name]) + r"\b")
            elif f"(?P<{name}>" in "".join(out):
                out.append(f"(?P={name})")
            else:
                out.append(f"(?P<{name}>%\\w+)")
        else:
            out.append(re.escape(part))
    return re.compile("".join(out))


def check(case, output):
    bound, at = {}, 0
    lines = output.splitlines()
    for kind, wanted in re.findall(r"^// (CHECK(?:-NOT)?): (.*)$", case, re.M):
        if kind == "CHECK-NOT":
            end = next((k for k in range(at, len(lines)) if lines[k].startswith("  }")), len(lines))
            assert not any(wanted in line for line in lines[at:end]), f"{wanted!r} is still there:\n{output}"
            continue
        regex = pattern(wanted, bound)
        found = next(((k, m) for k in range(at, len(lines)) if (m := regex.search(lines[k]))), None)
        assert found, f"not found after line {at}: {wanted}\n{output}"
        at, bound = found[0] + 1, {**bound, **found[1].groupdict()}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_filecheck(path):
    case = path.read_text()
    passes = re.search(r"^// PASSES: (.*)$", case, re.M)[1]
    output, _ = run_pipeline(f"module {{\n{case}\n}}", parse_pipeline(passes))
    check(case, output)
    assert run_pipeline(output, parse_pipeline(passes))[0] == output  # nothing is left to do: it is a fixpoint


def test_every_rewrite_has_a_case_of_its_own():
    assert {path.stem.replace("_", "-") for path in CASES} == set(REWRITES)
    for path in CASES:
        steps = parse_pipeline(re.search(r"PASSES: (.*)", path.read_text())[1])
        assert path.stem.replace("_", "-") in {step.name for step in steps}
