"""`tilewright time --calibrate`: a chip slower than its constants say is found again from a few measured rows."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import completed
from tilewright.hlo import estimate, load, what_if
from tilewright.targets import target

CHIP = "tpu-v6e"
REAL = {"scale.hbm": 1.4, "scale.vector": 0.8, "scale.latency": 1.5}
SIZES = (512, 2048, 4096)
PROGRAM = """func.func @main(%a: tensor<{n}x1024xbf16>, %b: tensor<1024x{m}xbf16>) -> tensor<{n}x{m}xbf16> {{
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<{n}x1024xbf16>, tensor<1024x{m}xbf16>) -> tensor<{n}x{m}xbf16>
  %1 = stablehlo.tanh %0 : tensor<{n}x{m}xbf16>
  %2 = stablehlo.exponential %1 : tensor<{n}x{m}xbf16>
  return %2 : tensor<{n}x{m}xbf16>
}}
"""


def run(*arguments, folder):
    placed = [folder / word if (folder / word).suffix in (".csv", ".json", ".mlir") else word for word in arguments]
    done = completed("time", *placed, COLUMNS="120", NO_COLOR="1")
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder, lines = tmp_path_factory.mktemp("rows"), ["program,us"]
    real = what_if(target(CHIP), REAL)
    for n in SIZES:
        for m in SIZES:
            text = PROGRAM.format(n=n, m=m)
            (folder / f"{n}_{m}.mlir").write_text(text)
            lines.append(f"{n}_{m}.mlir,{1e6 * estimate(load(text), real).device_seconds:.5f}")
    (folder / "rows.csv").write_text("\n".join(lines))
    return folder


def test_a_chip_is_fitted_and_its_file_is_used(measured):
    code, said, _ = run("--calibrate", "rows.csv", "-t", CHIP, "-o", "mine.json", folder=measured)
    kept = json.loads((measured / "mine.json").read_text())
    assert code == 0
    assert "mean error of 3 rows that were not fitted" in said
    assert (kept["rows"], kept["held_back"]) == (6, 3)
    assert kept["error_before"] > 0.1
    assert kept["error_after"] < 0.06
    assert kept["factors"]["hbm"] > 1.2
    _, said, _ = run("2048_4096.mlir", "-t", CHIP, "--calibration", "mine.json", "--json", folder=measured)
    real = estimate(load((measured / "2048_4096.mlir").read_text()), what_if(target(CHIP), REAL)).device_seconds
    assert json.loads(said)["device_seconds"] == pytest.approx(real, rel=0.1)
    assert any("refitted on your 6 rows of " in note for note in json.loads(said)["notes"])


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ("program,us\n512_512.mlir,3\n", "1 measured rows fit no constant"),
        ("program,us\n512_512.mlir,x\n", "no row of a program and its microseconds"),
        ("program,us\n512_512.mlir,-1\n", "-1 us is no time"),
        ("op,d0\nreduce,3\n", "no row of a program and its microseconds"),
    ],
)
def test_what_are_no_rows_is_said(measured, rows, why):
    (measured / "bad.csv").write_text(rows)
    code, _, said = run("--calibrate", "bad.csv", "-t", CHIP, folder=measured)
    assert code == 2
    assert why in said


def test_another_chips_file_is_refused(measured):
    (measured / "other.json").write_text(json.dumps({"target": "tpu-v4", "factors": dict.fromkeys(
        ("hbm", "matrix", "vector", "vmem", "latency"), 1.0)}))  # fmt: skip
    code, _, said = run("512_512.mlir", "-t", CHIP, "--calibration", "other.json", folder=measured)
    assert code == 2
    assert "it is of tpu-v4, not of tpu-v6e" in said
    code, _, said = run("512_512.mlir", "-t", CHIP, "--calibration", "rows.csv", folder=measured)
    assert code == 2
    assert "no calibration" in said
