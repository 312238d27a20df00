"""A movement report as a page: figures, where the bytes go, every operation, the tensors by padding, the peaks."""

from __future__ import annotations

from datetime import date

from tilewright.hlo.reporting._report_fields import PEAK_FIELDS, TENSOR_FIELDS, movement_fields, row_key
from tilewright.hlo.reporting._report_json import to_json
from tilewright.hlo.reporting._report_layouts import digit_forms, drawing_module, first_layout
from tilewright.hlo.reporting._report_text import space_text, totals
from tilewright.hlo.reporting._report_types import MovementReport, Peak
from tilewright.render import (
    Card,
    Html,
    Page,
    Scripted,
    bytes_text,
    cards,
    carried,
    cells,
    count_text,
    element,
    escape,
    explorer,
    join,
    note,
    percent_text,
    place_text,
    ratio_text,
    seconds_text,
    table,
)

__all__ = ["report_html", "to_html"]


def to_html(report: MovementReport) -> str:
    """One self-contained page: summary, movement, padding, peak."""
    target = report.target or "none named"
    layouts = "predicted" if report.predicted else "its own, before optimisation" if report.unoptimized else "its own"
    facts = [("program", report.kind), ("target", target), ("layouts", layouts)]
    if report.source:
        facts = [("input", place_text(report.source)), *facts]
    facts.append(("written", date.today().isoformat()))
    if report.profile is not None:
        facts.append(("profile", place_text(report.profile.source)))
    page = Page(f"Data movement: {report.program}", totals(report), facts=facts, wide=True)
    page.section("summary", "Summary", cards(_figures(report)), *map(note, report.notes))
    page.section("movement", "Operations by bytes moved", _movement(report))
    page.section("padding", "Tensors by wasted bytes", _padding(report))
    if report.peak is not None:
        page.section("peak", "What lives at the peak", *(_peak(peak) for peak in report.peaks))
    plain = to_json(report)
    page.data("report", {name: value for name, value in plain.items() if name not in ("rows", "tensors", "peaks")})
    return page.html()


def report_html(report: MovementReport) -> Html:
    """The report as one block for a page of another room: figures, notes and the operations."""
    movement = _movement(report)
    whole = join([cards(_figures(report)), *map(note, report.notes), movement], "\n")
    return Scripted(whole, drawing_module()) if isinstance(movement, Scripted) else whole


def _figures(report: MovementReport) -> list[Card]:
    ratio = report.padded_bytes / report.logical_bytes if report.logical_bytes else 1.0
    figures = [
        Card("moved", bytes_text(report.moved_bytes), f"by {count_text(len(report.ranked()))} operations"),
        Card("free", count_text(report.bitcasts), f"bitcasts among {count_text(len(report.rows))} operations", "good"),
        Card("padding", bytes_text(report.wasted_bytes), f"in {count_text(len(report.wasteful()))} tensors"),
        Card("memory over data", ratio_text(ratio), f"{bytes_text(report.padded_bytes)} hold the tensors"),
    ]
    if report.peak is not None:
        figures.append(Card("peak", bytes_text(report.peak.padded_bytes), f"{_share(report.peak)} of it padding"))
    if report.profile is not None:
        time, share = report.profile.rows_us, report.profile.rows_us / (report.profile.total_us or 1.0)
        figures.append(Card("measured", seconds_text(time / 1e6), f"{percent_text(share)} of the profile's time"))
    return figures


def _share(peak: Peak) -> str:
    return percent_text(1 - peak.logical_bytes / peak.padded_bytes) if peak.padded_bytes else percent_text(0)


def _movement(report: MovementReport) -> Html:
    """The operations, and the digits of their layouts for the drawings."""
    if not report.rows:
        return element("p", "nothing moves", class_="empty")
    rows = sorted(report.rows, key=lambda row: -row.total_bytes)
    sort = "time" if report.profile is not None else "moved"
    grid = explorer(movement_fields(report), rows, key=row_key, sort=sort)
    texts = (text for row in rows for text in (first_layout(row), row.to_layout))
    return Scripted(join([grid, carried("layouts", digit_forms(texts))], "\n"), drawing_module())


def _padding(report: MovementReport) -> Html:
    tensors = report.wasteful()
    return explorer(TENSOR_FIELDS, tensors, key=row_key, sort="wasted", prefix="tensor", empty="no tensor has padding")


def _peak(peak: Peak) -> Html:
    space = space_text(peak.memory_space)
    words = f"{bytes_text(peak.padded_bytes)} of {space}, {_share(peak)} of it padding, during "
    where = element("p", escape(words), element("code", peak.at), " in ", element("code", peak.path))
    return join([where, table(PEAK_FIELDS, cells(PEAK_FIELDS, peak.tensors))], "\n")
