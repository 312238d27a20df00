"""Damages the pastes of the tests a million times: each is read, or refused with an error of our own.

Run in the night: `nice ./run python benchmarks/mutate_pastes.py [COUNT] [SEED]`. Prints how many were read; a foreign
exception ends it with the text that raised it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.layout.test_pastes import check_mutated

_PART = 50_000


def main() -> None:
    """Damage COUNT pastes (a million), beginning with SEED (1)."""
    count, seed = (int(word) for word in [*sys.argv[1:], "1000000", "1"][:2])
    if len(sys.argv) == 2:
        seed = 1
    start, done, read = time.process_time(), 0, 0
    while done < count:
        part = min(_PART, count - done)
        read += check_mutated(part, seed + done)
        done += part
        print(f"{done} damaged pastes, {read} of them read, {time.process_time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
