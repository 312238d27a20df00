"""Kill -9 in mid-save and at random points; restore on other chips; every further step as in the unbroken run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.conftest import ROOT, by_night, tries
from tests.embed.carry_through import killed


def process(name, folder, *chips):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={chips[0]}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.embed.carry_through", name, str(folder), *map(str, chips)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)


def test_a_training_killed_in_mid_save_goes_on_elsewhere(tmp_path):
    done = process("whole", tmp_path, 8 if by_night() else 4)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [path.name for path in (tmp_path / "steps").iterdir() if path.name.isdecimal()] == ["10"]
    onto = (4, 3) if by_night() else (3,)
    done = process("rest", tmp_path, *onto)
    for chips in onto:
        assert f"50 further steps on {chips} are those" in done.stdout, done.stderr


@pytest.mark.nightly
def test_no_announced_step_is_lost(tmp_path, monkeypatch):
    """By day test_checkpoint.test_killed_in_mid_save kills what saves, and the test above a training."""
    monkeypatch.chdir(ROOT)
    killed(tmp_path, tries(1))
