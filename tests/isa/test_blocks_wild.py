"""Stretches in one call, of programs at every edge: as one instruction after another, and within their memory."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tests.isa.test_blocks import both, same
from tests.isa.wild import wild
from tilewright.isa import MatrixUnit, MatrixUnitError
from tilewright.isa.chip.state import same_state


def test_wild_loops_leave_the_machine_as_single_instructions_do():
    ran = 0

    @settings(max_examples=tries(15))
    @given(st.integers(0, 2**32))
    @example(780025640)  # a store, then a load: what a store wrote is not the load's
    @example(1135)  # a load that reads a run in some threads only: lines come in the order of threads
    @example(230)  # a load of registers that there are not
    def check(seed):
        nonlocal ran
        config, memory, text = wild(seed)

        def work():
            try:
                return MatrixUnit(config).run(text, memory)
            except MatrixUnitError as error:
                return error.result

        one, other, executed = both(work)
        ran += executed
        same(one, other)
        compared = [f.name for f in fields(one.state) if f.compare]
        assert [n for n in compared if not same_state(getattr(one.state, n), getattr(other.state, n))] == []

    check()
    assert ran > 1000


@pytest.mark.nightly
def test_wild_loops_stay_within_the_arrays_they_were_given():
    """By day the test above runs such loops, without guards around their arrays."""
    script = Path(__file__).with_name("checked_memory.py")
    done = subprocess.run(
        [sys.executable, str(script), "1", str(tries(6))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 50  # tensor multiplies that a kernel ran
