"""One table, two faces."""

import io

import pytest
from rich.console import Console

from tilewright.render import Column, badge, print_table, table

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
