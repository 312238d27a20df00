"""docs/matrix_unit.md is true: its Python runs, its commands print what it shows, its reference is the tables'."""

import doctest
import re
import sys

from tests.conftest import ROOT
from tilewright.cli import main
from tilewright.isa import reference

PAGE = ROOT / "docs" / "matrix_unit.md"


def test_python_examples():
    text = re.sub(r"^```.*$", "", PAGE.read_text(), flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(text, {}, "matrix_unit.md", str(PAGE), 0)
    assert len(test.examples) > 20
    runner = doctest.DocTestRunner()
    runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_commands_print_what_the_page_shows(monkeypatch, capsys):
    blocks = re.findall(r"```console\n\$ \./run tilewright ([^\n]*)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    monkeypatch.chdir(ROOT)
    for command, shown in blocks:
        monkeypatch.setattr(sys, "argv", ["tilewright", *command.split()])
        try:
            main()
        except SystemExit as stop:
            assert not stop.code
        assert capsys.readouterr().out == shown, command


def test_the_reference_is_the_tables():
    assert (ROOT / "docs" / "instructions.md").read_text() == reference() + "\n"
