"""Fixtures of this room's tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def every_instruction(monkeypatch):
    """Products that were run before are run again, instruction by instruction."""
    monkeypatch.setattr("tilewright.isa.multiply.kept.MOST", 0)
