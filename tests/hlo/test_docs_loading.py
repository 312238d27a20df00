"""The commands of docs/loading.md print what the page says they print."""

import os
import subprocess

from tests.hlo.test_docs_report import commands, place  # noqa: F401  the fixture


def test_commands_of_the_page(place, root):  # noqa: F811
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "COLUMNS": "100", "NO_COLOR": "1"}
    ran = 0
    for command, expected in commands((root / "docs" / "loading.md").read_text()):
        done = subprocess.run(["bash", "-c", command], cwd=place, env=environment, capture_output=True, timeout=300)
        errors = [line for line in done.stderr.decode().splitlines() if not line.startswith("note:")]
        printed = done.stdout.decode() + "".join(f"{line}\n" for line in errors)
        assert printed.strip() == expected.strip(), command
        ran += 1
    assert ran == 15
