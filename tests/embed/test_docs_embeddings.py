"""docs/embeddings.md is true: its Python runs and prints what the page shows."""

from __future__ import annotations

import doctest
import re

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "embeddings.md"


def test_python_examples():
    text = re.sub(r"^```.*$", "", PAGE.read_text(), flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    assert len(test.examples) > 15
    runner = doctest.DocTestRunner()
    runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
