"""An explained message on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.hlo.allocation.message import Allocation, AllocatorMessage
from tilewright.hlo.allocation.report import AllocationReport
from tilewright.hlo.allocation.size import StatedSize
from tilewright.render import Column, bytes_text, percent_text, print_table

_WIDE = 60


def print_allocation_report(report: AllocationReport, top: int = 10) -> None:
    """What happened, the allocations with their padding, the fixes by bytes saved, and what else helps."""
    from rich.console import Console

    console = Console()
    for line in _head(report):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    _print_allocations(report, top)
    _print_fixes(report, top)
    notes = {"what else helps": report.advice, "not read, or not as stated": report.unread}
    for title, lines in notes.items():
        if lines:
            console.print(f"\n{title}", style="bold", markup=False, highlight=False)
            for line in lines:
                console.print(f"- {line}", markup=False, highlight=False, soft_wrap=True)


def _head(report: AllocationReport) -> Iterator[str]:
    message = report.message
    yield f"{message.code}: {report.meaning}" if message.code else report.meaning
    for name, sizes in ((f"{message.space} in all", message.totals), ("of the program", message.parts)):
        if sizes:
            yield f"  {name}: {', '.join(_part(message, part, size) for part, size in sizes)}"


def _part(message: AllocatorMessage, name: str, size: StatedSize | None) -> str:
    data = message.utilization if name == "HLO temp" else None
    text = f"{name} {'of unknown size' if size is None else size}"
    return text if data is None else f"{text} ({percent_text(data)} of it data)"


def _print_allocations(report: AllocationReport, top: int) -> None:
    allocations = report.message.allocations
    if not allocations:
        return
    columns = (
        Column("#"),
        Column("size", "bytes"),
        Column("data", "bytes"),
        Column("padding", "bytes"),
        Column("factor", "ratio"),
        Column("shape"),
        Column("why"),
        Column("from"),
    )
    rows = []
    for each in allocations[:top]:
        shape = report.shapes.get(each.number)
        size = shape.bytes if shape else each.size.bytes if each.size else None
        figures = (shape.data_bytes, shape.padding, shape.factor) if shape else (None, None, None)
        words = shape.words.rpartition(": ")[0] if shape else ""
        text = shape.shape if shape else each.shape or "–"
        rows.append([str(each.number), size, *figures, text, words or "–", _shortened(each)])
    print()
    print_table(columns, rows, title=f"largest allocations, {bytes_text(report.padding_bytes)} of padding")
    if len(allocations) > top:
        print(f"{len(allocations) - top} more")


def _print_fixes(report: AllocationReport, top: int) -> None:
    if not report.fixes:
        return
    words = [Column(heading) for heading in ("of", "by", "to", "how")]
    columns = (Column("saves", "bytes"), Column("left", "bytes"), *words)
    rows = [
        [fix.saved, fix.bytes_after, _numbers(fix.allocations), fix.kind, fix.after or "nothing", fix.text]
        for fix in report.fixes[:top]
    ]
    print()
    print_table(columns, rows, title="fixes by bytes saved (alternatives where they are of one allocation)")
    if len(report.fixes) > top:
        print(f"{len(report.fixes) - top} more")
    must = report.message.excess
    goal = f"; {bytes_text(must)} must go" if must else ""
    print(f"the best of each saves {bytes_text(report.saved_together)} where all of these live at once{goal}")


def _numbers(numbers: tuple[int, ...]) -> str:
    few = numbers if len(numbers) <= 4 else numbers[:2]
    return ",".join(map(str, few)) + (f" and {len(numbers) - 2} more" if few != numbers else "")


def _shortened(each: Allocation) -> str:
    """The end of a framework's long name, the beginning of anything else."""
    line = " ".join(each.what.split())
    if len(line) <= _WIDE:
        return line or "–"
    return f"…{line[1 - _WIDE :]}" if each.op_name else f"{line[: _WIDE - 1]}…"
