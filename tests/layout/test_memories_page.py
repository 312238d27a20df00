"""docs/layout_memories.md shows what Python prints today."""

from __future__ import annotations

import doctest
import re
import shlex

from tests.conftest import ROOT
from tilewright.targets import target, target_names

PAGE = ROOT / "docs" / "layout_memories.md"


def test_the_pages_session():
    text = PAGE.read_text().replace("```", "\n")
    session = doctest.DocTestParser().get_doctest(text, {}, "layout_memories.md", str(PAGE), 0)
    assert len(session.examples) > 40
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(session)
    assert runner.failures == 0


def test_the_table_of_chips_is_the_targets():
    rows = re.findall(
        r"^\| `([a-z0-9`, ]+)` \| (\d+) \| (\d+) \| (\d+) KiB \| (\d+) \| (\d+|-) \|$", PAGE.read_text(), re.M
    )
    shown = {name: tuple(int(v) if v != "-" else 0 for v in row[1:]) for row in rows for name in row[0].split("`, `")}
    chips = {name: target(name).lanes for name in target_names() if target(name).lanes}
    assert shown == {
        name: (c.npu_num, c.eu_bytes, c.local_bytes // 1024, c.banks, c.ic_parallel) for name, c in chips.items()
    }


def test_the_grammars_example(capsys):
    from tilewright.cli import app

    ((command, shown),) = re.findall(
        r"\$ \./run tilewright (.*)\n((?:(?!```).*\n)*)```", (ROOT / "docs" / "layout_grammar.md").read_text()
    )
    app(args=shlex.split(command), standalone_mode=False)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == shown.splitlines()
