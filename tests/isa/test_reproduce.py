"""SCALE-Sim's published cycles from its closed forms; docs/reproduce.md says what the command prints today."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import reproduce

PAGE = (ROOT / "docs" / "reproduce.md").read_text()


def test_the_page_begins_with_its_command_and_has_what_the_forms_give():
    assert PAGE.startswith(reproduce.HEAD)
    assert [line.split("|")[5].strip() for line in list(reproduce.figure_4())[3:-1]] == ["-1"] * 11
    for part in (reproduce.figure_4, reproduce.folded, reproduce.arrays_of_128):
        assert "\n".join(part()) in PAGE


def test_published_cycles_of_an_array_of_128():
    for row in reproduce.rows_of("array_128.csv"):
        m, n, k, cycles = map(int, row.values())
        assert cycles == min(reproduce.paper_cycles(flow, 128, 128, m, n, k) for flow in ("ws", "is"))


def test_the_simulator_prints_the_number_of_its_last_cycle():
    for row in reproduce.rows_of("printed.csv"):
        height, width, m, n, k = (int(row[name]) for name in ("height", "width", "m", "n", "k"))
        assert int(row["cycles"]) == reproduce.simulated_cycles(row["flow"], height, width, m, n, k) - 1
    assert reproduce.simulated_cycles("os", 4, 4, 4, 4, 4) == 10  # the figure's
    assert reproduce.paper_cycles("os", 4, 4, 4, 4, 4) == 14


@pytest.mark.parametrize(("chip", "peak"), [("tpu-v4", 275e12), ("tpu-v6e", 918e12)])
def test_the_machine_has_the_published_peak(chip, peak):
    ghz, machine = reproduce.chip_machine(chip)
    made = 2 * machine.pes * machine.threads * machine.chunk(2) * ghz * 1e9
    assert made == pytest.approx(peak, rel=0.01)


def test_a_row_of_the_machine():
    microseconds, options, limit = reproduce.modelled("tpu-v4", 1, 503, 13)
    assert f"| 1 x 503 x 13 | {options} | {limit} | 2.09 | {microseconds:.2f} |" in PAGE
