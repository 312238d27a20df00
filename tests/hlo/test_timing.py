"""The time model, held to measurements of real chips at the project's bars, and to programs that nobody can price."""

from __future__ import annotations

import csv
import gzip
import sys

import numpy as np
import pytest

from tests.conftest import ROOT
from tilewright.errors import UnsupportedError
from tilewright.hlo import estimate, load

DATA = ROOT / "benchmarks" / "data" / "tpu_measured"
sys.path.insert(0, str(ROOT / "benchmarks"))
import measured_times  # noqa: E402

BARS = {
    "reshape": 0.15,
    "transpose": 0.05,
    "broadcast": 0.12,
    "concatenate": 0.095,
    "reduce": 0.12,
    "exponential": 0.05,
    "gemm": 0.12,
    "batched_gemm": 0.12,
}
KINDS = [(chip, kind) for chip in ("tpu-v4", "tpu-v6e") for kind in BARS if (DATA / f"{chip}_{kind}.csv").exists()]


@pytest.mark.parametrize(("chip", "kind"), KINDS)
def test_single_operations_meet_their_bars(chip, kind):
    rows = measured_times.measured(chip, kind)
    misses = [abs(estimate(load(row.text), chip).seconds * 1e6 / row.microseconds - 1) for row in rows[::3]]
    assert np.mean(misses) < BARS[kind]


@pytest.mark.parametrize("chip", ["tpu-v4", "tpu-v6e"])
def test_a_whole_model_from_its_dumps(chip):
    misses = []
    with open(DATA / "gpt2_measured.csv") as file:
        for row in csv.DictReader(file):
            dump = DATA / "gpt2" / f"{chip}_gpt2_s{row['seq']}_b{row['batch']}.hlo.gz"
            if row["chip"] == chip and dump.exists():
                step = estimate(load(gzip.decompress(dump.read_bytes()).decode()), chip)
                assert step.priced == 1
                misses.append(abs(step.seconds * 1e3 / float(row["device_ms"]) - 1))
    assert np.mean(misses) < 0.12


def test_what_cannot_be_priced_says_so():
    text = """HloModule m
ENTRY e {
  a = f32[8,128]{1,0} parameter(0)
  b = f32[8,128]{1,0} custom-call(a), custom_call_target="nobody_knows"
  ROOT c = f32[8,128]{1,0} add(a, b)
}"""
    step = estimate(load(text), "tpu-v6e")
    assert 0 < step.priced < 1
    assert "nobody_knows" in next(row.unpriced for row in step.rows if row.unpriced)
    assert any("lower bound" in note for note in step.notes)
    with pytest.raises(UnsupportedError, match="no time constants"):
        estimate(load(text), "simt")


def test_a_chip_that_was_not_measured_is_not_called_calibrated():
    text = measured_times.measured("tpu-v6e", "gemm")[0].text
    step = estimate(load(text), "tpu-v5e")
    assert not step.rows[0].calibrated
    assert any("not calibrated" in note for note in step.notes)
