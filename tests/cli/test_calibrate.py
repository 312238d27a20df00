"""`tilewright time --calibrate`: a chip slower than its constants say is found again from a few measured rows."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import completed
from tests.hlo.test_profile import inside, number
from tilewright.hlo import estimate, load, what_if
from tilewright.targets import target

CHIP = "tpu-v6e"
REAL = {"scale.hbm": 1.5, "scale.vector": 0.8, "scale.latency": 1.5}
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
    assert kept["error_after"] < min(0.06, kept["error_before"] / 2)
    assert kept["factors"]["hbm"] > 1.2
    _, said, _ = run("2048_4096.mlir", "-t", CHIP, "--calibration", "mine.json", "--json", folder=measured)
    real = estimate(load((measured / "2048_4096.mlir").read_text()), what_if(target(CHIP), REAL)).device_seconds
    assert json.loads(said)["device_seconds"] == pytest.approx(real, rel=0.1)
    assert any("refitted on your 6 rows of " in note for note in json.loads(said)["notes"])


def took(folder, n, m):
    """What no factor on a unit says: longer the larger it is."""
    us = 1e6 * estimate(load((folder / f"{n}_{m}.mlir").read_text()), CHIP).device_seconds
    return us * 1.1 * us**0.1


@pytest.fixture(scope="module")
def two(measured):
    """What is said of a calibration by two steps of one model, kept in ``two.json``."""
    lines = [f"{n}_{m}.mlir,{took(measured, n, m)}" for n, m in ((512, 512), (4096, 4096))]
    (measured / "two.csv").write_text("\n".join(["program,us", *lines]))
    code, said, _ = run("--calibrate", "two.csv", "-t", CHIP, "-o", "two.json", folder=measured)
    assert code == 0
    return said


def test_what_two_steps_took_besides_is_taken_for_their_neighbours(measured, two):
    assert "2 steps of a model each: what they took besides is taken for its neighbours" in two
    errors = {}
    for models in (True, False):  # with and without what they took besides
        kept = json.loads((measured / "two.json").read_text())
        (measured / "one.json").write_text(json.dumps(kept if models else kept | {"models": []}))
        _, said, _ = run("2048_2048.mlir", "-t", CHIP, "--calibration", "one.json", "--json", folder=measured)
        plain = json.loads(said)
        assert sum(row["seconds"] for row in plain["rows"]) == pytest.approx(plain["device_seconds"], rel=0.01)
        assert any("so measured steps of this model were" in note for note in plain["notes"]) == models
        errors[models] = abs(1e6 * plain["device_seconds"] / took(measured, 2048, 2048) - 1)
    assert errors[True] < 0.04
    assert errors[True] < errors[False]


def test_another_model_gets_nothing_of_it(measured, two):
    other = PROGRAM.format(n=512, m=512).replace("tanh", "sqrt").replace("exponential", "cosine")
    (measured / "other.mlir").write_text(other)
    _, said, _ = run("other.mlir", "-t", CHIP, "--calibration", "two.json", "--json", folder=measured)
    assert not any("so measured steps" in note for note in json.loads(said)["notes"])


def test_a_profile_is_measured_rows_too(tmp_path):
    """An XSpace as a TPU's profiler writes it, of kernels as a chip of slower memory takes them."""
    lines, names = ["HloModule step, is_scheduled=true", "", "ENTRY %main (p0: f32[8,128]) -> f32[8,128] {"], []
    for k in range(12):
        shape = f"f32[{256 * (k + 1)},2048]{{1,0:T(8,128)}}"
        lines += [f"  %p.{k} = {shape} parameter({k})", f"  %each.{k} = {shape} exponential(%p.{k})"]
        names.append(f"each.{k}")
    lines += ["  ROOT %out = f32[256,2048]{1,0:T(8,128)} copy(%each.0)", "}"]
    (tmp_path / "step.hlo").write_text("\n".join(lines))
    program, real = load("\n".join(lines)), what_if(target(CHIP), {"scale.hbm": 1.4})
    took = {row.name: row.seconds for row in estimate(program, real).rows}
    named = [inside(4, number(1, k), inside(2, number(1, k), inside(2, f"%{name} = f32[]"), inside(4, name)))
             for k, name in enumerate(names, 1)]  # fmt: skip
    events = [inside(4, number(1, k), number(2, 5), number(3, round(1e12 * took[name])))
              for k, name in enumerate(names, 1)]  # fmt: skip
    line = inside(3, inside(2, "XLA Ops"), *events)
    profile = inside(1, number(1, 1), inside(2, "/device:TPU:0"), line, *named)
    (tmp_path / "step.xplane.pb").write_bytes(profile)
    place = [str(tmp_path / name) for name in ("step.hlo", "step.xplane.pb", "mine.json")]
    done = completed("time", place[0], "--calibrate", place[1], "-t", CHIP, "-o", place[2], COLUMNS="120")
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "mine.json").read_text())
    assert (kept["rows"], kept["held_back"]) == (8, 4)
    assert kept["error_before"] > 0.2
    assert kept["error_after"] < 0.02
    assert kept["factors"]["hbm"] == pytest.approx(1.4, rel=0.05)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ("program,us\n512_512.mlir,3\n", "1 measured rows fit no constant"),
        ("program,us\n512_512.mlir,x\n", "no row of a program and its microseconds"),
        ("program,us\n512_512.mlir,-1\n", "-1 us of 512_512.mlir, which is modelled as"),
        ("op,d0\nreduce,3\n", "no row of a program and its microseconds"),
        ("program,us\n,3\n", "no row of a program and its microseconds"),
        ("program,us\n512_512.mlir,3e9\n", "3e+09 us of 512_512.mlir, which is modelled as"),
        ("program,us\nnothing.mlir,3\n", "3 us of nothing.mlir, which is modelled as 0 us"),
    ],
)
def test_what_are_no_rows_is_said(measured, rows, why):
    (measured / "bad.csv").write_text(rows)
    (measured / "nothing.mlir").write_text(
        "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }"
    )
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


def test_a_spreadsheets_file_is_read_and_constants_are_of_one_chip(measured):
    rows = (measured / "rows.csv").read_text()
    (measured / "sheet.csv").write_text("\ufeff" + rows.replace(",", ", ").replace("\n", "\r\n"))
    code, _, said = run("--calibrate", "sheet.csv", "-t", CHIP, "-o", "mine.json", folder=measured)
    assert code == 0, said
    code, _, said = run("--calibrate", "rows.csv", "-t", CHIP, "-t", "tpu-v5e", folder=measured)
    assert code == 2
    assert "constants are of one chip" in said
