"""One table, two faces."""

import io

import pytest
from rich.console import Console

from tilewright.render import Column, Step, badge, steps, table
from tilewright.render.tables import change_cell, change_text, print_table

COLUMNS = [Column("layout", "code"), Column("moved", "bytes", "bytes moved"), Column("share", "percent")]
ROWS = [("bf16[4,8]{1,0:T(2,4)[x]}", 4096, 0.25), ("<f32>", None, 0.75)]


def printed(width: int, terminal: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, no_color=True, _environ={})
    print_table(COLUMNS, ROWS, title="movement", console=console)
    return out.getvalue()


def test_terminal_table_takes_no_markup_and_aligns_right():
    lines = printed(80).splitlines()
    assert lines[0].strip() == "movement"
    assert "bf16[4,8]{1,0:T(2,4)[x]}" in lines[2]
    assert lines[2].rstrip().endswith("25.0 %")
    assert len(lines[1].rstrip()) == len(lines[2].rstrip()) == len(lines[3].rstrip())


def test_a_pipe_sees_whole_values():
    assert "bf16[4,8]{1,0:T(2,4)[x]}" in printed(20)


def test_html_sorts_by_value_and_escapes():
    html = table(COLUMNS, ROWS)
    assert 'data-sort="4096.0"' in html
    assert 'data-sort=""' in html
    assert "&lt;f32&gt;" in html
    assert "data-filter" not in html


def test_markup_cells_are_kept():
    assert '<span class="badge good">ok</span>' in table([Column("x")], [(badge("ok", "good"),)])


def test_rows_must_fit_and_none_is_said():
    with pytest.raises(ValueError):
        table(COLUMNS, [(1, 2)])
    assert "nothing moved" in table(COLUMNS, [], empty="nothing moved")


def test_a_change_has_a_sign_a_share_and_a_colour():
    assert change_text(1000, 1100, "count") == "+100 (+10.0 %)"
    assert change_text(0.0, 2.0, "seconds") == "+2.00 s"
    assert 'class="change good"' in change_cell(2, 1, "bytes")
    assert 'class="change bad"' in change_cell(2, 1, "number", better="more")
    assert 'class="change"' in change_cell(2, 1, "count", better="neither")
    row = table([Column("n"), Column("change", "bytes")], [("a", change_cell(4, 2, "bytes"))])
    assert 'data-sort="-2.0"' in row
    assert change_cell(None, 2, "bytes").key is None


def test_steps_are_numbered_with_their_commands():
    made = steps([Step("Write <it>.", "tilewright x -o y", "because", "2 s", "good"), Step("Then.")])
    assert made.count("<li>") == 2
    assert "Write &lt;it&gt;." in made
    assert '<pre class="command" tabindex="0"><code>tilewright x -o y</code></pre>' in made
    assert steps([]) == ""
