"""Real jobs' dumps beside the checkout: read as XLA reads them, timed and reported; a few by day, all in a night."""

import json
import subprocess
import sys

import pytest

from tests.conftest import ORIGINALS, ROOT, within
from tests.hlo.test_hlo_reader import plain
from tilewright.hlo import load, report
from tilewright.hlo.timing.estimate import estimate

BY_DAY = ("llama3.1-8b.v6e-32", "attention.tpu-v5e-4x4", "mlp.tpu-v6e", "train_dp.tpu-v5p", "v5e_patent")
FOLDERS = ("jobs/dumps/*hlo*", "mesh/dumps/*", "hlo_tpu/*")
FILES = sorted(file for pattern in FOLDERS for file in ORIGINALS.glob(pattern))
DUMPS = [
    pytest.param(file, id=file.name, marks=() if file.name.startswith(BY_DAY) else pytest.mark.nightly)
    for file in FILES
]
TARGETS = {"7x": "tpu-7x", "v5e": "tpu-v5e", "v5p": "tpu-v5p", "v6e": "tpu-v6e"}
SHORT = {"Cos": "Cosine", "Sin": "Sine", "Exp": "Exponential"}


def target_of(file):
    return next(target for word, target in TARGETS.items() if word in file.name)


@pytest.mark.originals
@pytest.mark.parametrize("file", DUMPS)
def test_every_dump_is_read_timed_and_reported(file):
    """``pytest -s`` shows what share of each has a time."""
    with within(10):
        program = load(file)
        step = estimate(program, target_of(file))
    with within(20 if program.kind == "stablehlo" else 10):
        found = report(program, target_of(file))
    assert not program.notes
    assert not any("does not say its dims" in row.unpriced for row in step.rows)
    assert found.peaks
    shares = (
        f"{100 * step.priced_flops:.1f} % of the flops and {100 * step.priced_bytes:.1f} % of the bytes have a time"
    )
    print(f"{file.name}: {1e3 * step.seconds:.2f} ms, {step.flops:.3e} flops, {shares}")


def xla_name(opcode):
    return "".join(word.capitalize() for word in opcode.split("-"))


def wrapped(ours, theirs):
    """``slice-start`` is short for an async-start of a computation that slices."""
    return theirs.startswith("Async") and ours.endswith(theirs.removeprefix("Async"))


@pytest.mark.originals
@pytest.mark.parametrize("file", [dump for dump in DUMPS if "stablehlo" not in dump.id])
def test_computations_instructions_and_opcodes_are_those_of_xla(file, tmp_path):
    script = ROOT / "tests" / "hlo" / "xla_reprint.py"
    subprocess.run([sys.executable, str(script), str(tmp_path), str(file)], check=True, timeout=600)
    program = load(file)
    if (tmp_path / "0.refused").exists():  # elements of tuples where they are used: from jaxlib 0.11 on
        assert "#" in (tmp_path / "0.refused").read_text()
        pytest.skip("this jaxlib is older than the text")
    theirs = json.loads((tmp_path / "0.json").read_text())
    names = [computation.name for computation in program.computations]
    assert set(names) == {name for name in theirs if name in names or not name.startswith("async_wrapped")}
    for computation in program.computations:
        found = {op.name.replace("#", "_"): op for op in computation.operations}
        assert found.keys() == theirs[computation.name].keys()
        for name, (opcode, operands) in theirs[computation.name].items():
            ours = xla_name(found[name].opcode)
            assert ours == SHORT.get(opcode, opcode) or wrapped(ours, opcode)
            assert [operand.replace("#", "_") for operand in found[name].operands] == operands
    if "#" not in program.text:  # shapes, layouts, sources: from the other print
        assert plain(program) == plain(load(tmp_path / "0.hlo"))
