"""The notebooks in examples/ run from top to bottom, and what is recorded in them is what they print today."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tilewright import embed, hlo, isa, layout

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = ("tour", "embeddings", "matmul")
AGAIN = "./run jupyter nbconvert --to notebook --inplace --execute examples/NAME.ipynb"


def texts(cell):
    """What a cell printed and showed: the richest form of each, as a notebook shows it."""
    kinds = ("text/html", "image/svg+xml", "text/plain")
    shown = [
        output.get("text") or next(output["data"][kind] for kind in kinds if kind in output["data"])
        for output in cell.outputs
    ]
    return "".join(shown)


@pytest.mark.nightly
def test_the_notebooks_run_and_show_what_they_record():
    """All in one kernel, which starts once and forgets between them.

    By day: the pages of docs that do the same, test_docs, and the docstrings of what they call, test_examples.
    """
    recorded = [(name, cell) for name in NAMES for cell in nbformat.read(EXAMPLES / f"{name}.ipynb", 4).cells]
    book = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": ""}})
    for k, (name, cell) in enumerate(recorded):
        if k and name != recorded[k - 1][0]:
            book.cells.append(nbformat.v4.new_code_cell("%reset -f"))
        book.cells.append(nbformat.v4.new_code_cell(cell.source) if cell.cell_type == "code" else cell)
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    ran = [cell for cell in book.cells if cell.source != "%reset -f"]
    for (name, old), new in zip(recorded, ran, strict=True):
        if old.cell_type == "code":
            assert texts(new) == texts(old), f"{AGAIN.replace('NAME', name)}: {old.source}"


def test_notebooks_are_small():
    for name in NAMES:
        assert (EXAMPLES / f"{name}.ipynb").stat().st_size < 256 * 1024


def test_results_show_themselves_in_a_notebook():
    pair = layout.parse("(f32[3,5]{1,0:T(2,2)}, (s32[], f32[?]))")._repr_html_()
    assert "3 arrays, 100 B in memory" in pair
    assert '<td style="text-align:left">1,1</td>' in pair
    pair = layout.parse("f32[9,9]{1,0:T(8,128)}"), layout.parse("f32[9,9]{0,1:T(8,128)}")
    assert "not a bitcast" in layout.relayout(*pair)._repr_html_()
    moved = layout.compare(layout.parse("f32[999,999]{1,0:T(8,128)}"), layout.parse("f32[999,999]{0,1:T(8,128)}"))
    bundle = moved._repr_mimebundle_()
    assert "not a bitcast" in bundle["text/plain"]
    assert len(bundle["image/svg+xml"]) < 60_000
    text = "HloModule m\nENTRY e {\n p = f32[4,2]{1,0} parameter(0)\n ROOT c = f32[4,2]{0,1} copy(p)\n}"
    assert "the order of the elements changes" in hlo.report(hlo.load(text))._repr_html_()
    run = isa.MatrixUnit(isa.MatrixUnitConfig(threads=4)).run("mov r0, 1\nhalt", {})
    assert "2 instructions" in run._repr_html_()
    table = embed.Table("<i>", vocab=64, width=8)
    plan = embed.plan([{"f": [[1], [2]]}], [embed.Feature("f", table)], embed.Topology(1, 2))
    assert "1 batch, 2 samples, 1 table in 1 stack" in plan._repr_html_()
    assert "<i>" not in plan._repr_html_()
