"""Chromium without a window, where there is one."""

import shutil
import subprocess

import pytest

QUIET = "--no-first-run --disable-background-networking --disable-component-update --disable-sync --disable-quic"


def document_of(path, folder) -> str:
    """The document that a page has become after its scripts ran; skips where no browser runs."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium here")
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        *QUIET.split(),
        f"--user-data-dir={folder}/profile",
    ]
    command += ["--virtual-time-budget=2000", "--dump-dom", f"file://{path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if not done.stdout:
        pytest.skip(f"chromium does not run here: {done.stderr[-200:]}")
    return done.stdout
