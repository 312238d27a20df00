"""The matrix unit's pages are true: pictures are drawn anew, tables are the code's, the example runs in its order."""

import importlib.util
import re

from tests.conftest import ROOT
from tilewright.isa import MatrixUnitConfig
from tilewright.isa.language.config import READINGS
from tilewright.isa.language.instructions import INSTRUCTIONS
from tilewright.isa.study.reference import reference


def script(name, folder="docs"):
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_drawn_from_the_defaults():
    draw = script("draw_matrix_unit")
    assert draw.PICTURE.read_text() == draw.drawing(), "run: ./run python docs/draw_matrix_unit.py"
    assert "![The machine" in (ROOT / "docs" / "matrix_unit.md").read_text()


def test_the_five_steps_run_in_their_order(capsys):
    machine = script("five_steps", "examples").main()
    printed = capsys.readouterr().out
    steps = [line for line in printed.splitlines() if re.match(r"\d\. ", line)]
    assert [step[0] for step in steps] == list("12345")
    assert [command.unit.split()[0] for command in machine.commands if command.unit != "host"] == [
        *["page"] * 3,
        *["DMA"] * 5,
        *["PE"] * 8,
        *["DMA"] * 2,
    ]
    states = {"1": "A page 0: absent", "2": "A page 0: loading", "4": "C page 0: loaded, L2 at byte 128, stored to"}
    for number, part in zip("1234", re.split(r"\n?\d\. ", printed)[1:], strict=False):
        assert states.get(number, "") in part
    assert not machine.chip.storages["C"].table.in_l2.any()
    assert "[112 114 116 118 120 122 124 126]]" in printed


def test_the_reference_is_the_tables():
    assert (ROOT / "docs" / "instructions.md").read_text() == reference() + "\n"


def test_every_question_is_listed_with_the_fields_that_answer_it():
    page = (ROOT / "docs" / "matrix_unit.md").read_text()
    head = "| paragraphs | question | answer by default | field | ours |\n|---|---|---|---|---|\n"
    table = page.partition(head)[2].partition("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    assert len(rows) == 24 + 19
    ours = " ".join(answer for _, _, answer, _, mark in rows if mark == "yes")
    assert all(f"`{name}`" in ours for name in ("setmm", "ptmap", "dmain", "segdef"))
    assert all(INSTRUCTIONS[name].ours for name in ("setmm", "ptmap", "dmain", "segdef"))
    named = {name for *_, fields, _ in rows for name in re.findall(r"`(\w+)`", fields)}
    assert set(READINGS) <= named
    assert all(hasattr(MatrixUnitConfig(), name) for name in named)
