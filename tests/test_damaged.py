"""Some of what `tests/nightly/texts.py` damages by the ten thousand, where no other test does: a value or our error."""

from __future__ import annotations

from random import Random

import pytest

from tests.conftest import tries
from tests.nightly.texts import bundles, settings
from tilewright.errors import TilewrightError

COUNTS = {settings: tries(200), bundles: tries(28)}


@pytest.mark.parametrize("kind", COUNTS, ids=lambda kind: kind.__name__)
def test_what_is_damaged_is_read_or_refused(kind):
    attack, refused = kind(), 0
    for number in range(COUNTS[kind]):
        try:
            attack(Random(f"quick {number}"))()
        except TilewrightError as error:
            assert str(error)
            refused += 1
    assert 0 < refused < COUNTS[kind]
