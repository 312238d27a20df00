"""Kill -9 in mid-save and at random points; restore on other chips; every further step as in the unbroken run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.conftest import ROOT, tries
from tests.embed.carry_through import killed


def process(name, folder, *chips):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={chips[0]}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.embed.carry_through", name, str(folder), *map(str, chips)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.nightly
def test_a_training_killed_in_mid_save_goes_on_elsewhere(tmp_path):
    """By day: what saves is killed in test_checkpoint.test_killed_in_mid_save_and_refused_by_the_system, a training
    goes on in test_loop.test_resumed_is_unbroken and, killed, in tests/cli/test_embed_train_cli.py, and other meshes
    restore in test_step.test_what_needs_several_devices.
    """
    done = process("whole", tmp_path, 8)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [path.name for path in (tmp_path / "steps").iterdir() if path.name.isdecimal()] == ["10"]
    done = process("rest", tmp_path, 4, 3)
    for chips in (4, 3):
        assert f"50 further steps on {chips} are those" in done.stdout, done.stderr


@pytest.mark.nightly
def test_no_announced_step_is_lost(tmp_path, monkeypatch):
    """By day test_checkpoint.test_killed_in_mid_save_and_refused_by_the_system kills what saves."""
    monkeypatch.chdir(ROOT)
    killed(tmp_path, tries(1))
