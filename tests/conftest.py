"""Fixtures every test may use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
VECTORS = ROOT / "tests" / "data"
SHARED = ROOT.parent / "shared"

# Kernels compile on a first call and machines are shared, so a test's time says nothing about its truth.
settings.register_profile("tilewright", deadline=None)
settings.load_profile("tilewright")


@pytest.fixture(scope="session")
def vectors() -> Any:
    """vectors(name) -> the parsed tests/data/NAME.json."""
    return lambda name: json.loads((VECTORS / f"{name}.json").read_text())


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of public test programs and data beside the checkout; the test is skipped where it is absent."""
    if not (SHARED / "data").is_dir():
        pytest.skip("needs ../shared/data, which is not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT
