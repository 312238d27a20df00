"""docs/time.md's tables of whole functions are those of the stored results, and these are what the model says today."""

from __future__ import annotations

import gzip
import sys
import tomllib

import pytest

from tests.conftest import ROOT, VECTORS
from tilewright.hlo import estimate, load

sys.path.insert(0, str(ROOT / "benchmarks"))
import time_rows

SAMPLE = sorted((VECTORS / "time_rows").glob("*.mlir.gz"))
BARS = {
    ("source", False): (13.5, 8.0),
    ("dump", False): (13.0, 7.0),
    ("source", True): (15.0, 8.8),
    ("dump", True): (11.5, 7.0),
}
"""Mean and median error to stay below, of rows not fitted: of all, and of those compiled as what was timed."""


@pytest.fixture(scope="module")
def results():
    return time_rows.stored()


def test_the_page_has_the_tables_of_the_results(results):
    page = (ROOT / "docs/time.md").read_text()
    assert time_rows.section(results) in page
    assert page.count(time_rows.BEGIN) == 1


@pytest.mark.parametrize("chip", time_rows.CHIPS)
def test_the_pictures_are_those_of_the_results(results, chip):
    drawn = time_rows.drawing(chip, results)
    assert (ROOT / f"docs/pictures/time-{chip}.svg").read_text(encoding="utf-8") == drawn
    shown = [each for each in time_rows.held(results, "source") if each.chip == chip]
    assert drawn.count("<circle") == len(shown) > 10


@pytest.mark.parametrize("path", SAMPLE, ids=lambda path: path.name.removesuffix(".mlir.gz"))
def test_the_results_are_what_the_model_says(results, path):
    name = path.name.removesuffix(".mlir.gz")
    (stored,) = [each for each in results if each.name == name and each.side == "source"]
    said = 1e3 * estimate(load(gzip.decompress(path.read_bytes()).decode()), stored.chip).device_seconds
    assert said == pytest.approx(stored.modelled, rel=1e-3)


@pytest.mark.parametrize(("side", "alike"), BARS)
def test_rows_that_were_not_fitted_stay_below_their_bars(results, side, alike):
    held = [each for each in time_rows.held(results, side) if each.alike or not alike]
    mean, median, _ = map(float, time_rows.figures(held).split(" | "))
    assert len(held) > 150
    most = BARS[side, alike]
    assert mean < most[0]
    assert median < most[1]


def test_every_function_far_off_has_a_reason(results):
    for kernels in (False, True):
        worst = time_rows.worst(results, kernels)
        assert len(worst) == time_rows.WORST
        assert all(time_rows.why(each) for each in worst)


def test_the_errors_that_rows_are_told_are_those_of_the_results(results):
    for path, section, error, of in time_rows.seen_errors(results):
        told = tomllib.loads(path.read_text()).get("time", {}).get(section)
        if path.stem == "tpu-v5e":  # of which one operation alone was timed
            assert told is None
        else:
            assert (told["error"], told["fitted_on"].partition("; ")[2]) == (error, of)
