"""The third-party files that tests/data stands in for, read where they lie beside the checkout."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import pytest

from tests.conftest import ORIGINALS, ROOT
from tests.embed.test_criteo import VOCABS, same
from tests.hlo.test_hlo_reader import kinds
from tests.layout.test_notation_fuzz import real_shapes
from tilewright.embed import Clicks, read_criteo
from tilewright.hlo import load, report
from tilewright.layout import parse


@pytest.mark.originals
def test_the_originals(tmp_path):
    """HLO agrees with XLA's own print and is reported on, its shapes print back; click rows agree with Python's csv."""
    files = sorted((ORIGINALS / "hlo_public").glob("*.hlo"))
    assert len(files) == 8
    script = ROOT / "tests" / "hlo" / "xla_reprint.py"
    subprocess.run([sys.executable, str(script), str(tmp_path), *map(str, files)], check=True, timeout=600)
    for number, file in enumerate(files):
        program = load(file)
        found = report(program, "tpu-v5e")
        assert len(json.loads(json.dumps(found.to_json(), allow_nan=False))["rows"]) == len(found.rows)
        if any(computation.entry for computation in program.computations):  # XLA rewrites a fragment around an entry
            assert kinds(program) == kinds(load(tmp_path / f"{number}.hlo")), file.name
    shapes = real_shapes(files)
    assert len(shapes) > 300
    assert all(parse(str(parse(text))) == parse(text) for text in shapes)

    log = ORIGINALS / "criteo_sample_200.csv"
    with log.open(newline="") as file:
        rows = list(csv.DictReader(file))
    same(Clicks.join(list(read_criteo(log, VOCABS, batch=64))), rows)
