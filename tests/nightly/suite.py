"""The suite as no day has time for it: many examples of every property, then in random order beside other work.

    ./run python -m tests.nightly.suite [--runs 3] [--loops 4] [--seed N]

First every test, those marked nightly too, with 160 times as many examples as by day; then whole runs of the day's
suite, each in a random order, beside busy loops; then commands that are told to end at random moments. The seed of the
order is printed: `./run pytest --shuffle SEED` runs the tests in it again.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys

from tests.conftest import ROOT


def passed(*words: str) -> bool:
    """Whether a program of this environment ends well; it prints as it likes."""
    print(f"\nnightly: {' '.join(words)}", flush=True)
    return subprocess.run([sys.executable, *words], cwd=ROOT, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="whole runs in random order")
    parser.add_argument("--loops", type=int, default=4, help="busy loops beside them")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--no-examples", action="store_true", help="without the hours of many examples")
    given = parser.parse_args()
    failed = 0
    if not given.no_examples:
        failed += not passed("-m", "pytest", "--hypothesis-profile", "nightly")
    # A loop ends with this process, however that ends: loops of a killed night would slow all that runs after it.
    code = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    loops = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(given.loops)]
    try:
        for k in range(given.runs):
            failed += not passed("-m", "pytest", "--shuffle", str(given.seed + k))
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    failed += not passed("tests/cli/interrupted.py", "10", str(given.seed))
    print(f"nightly: the suite, seed {given.seed}: {failed} of {2 + given.runs - given.no_examples} runs failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
