"""A movement report as a page: figures, where the bytes go, every operation, the tensors by padding, the peaks."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from datetime import date
from functools import cache, lru_cache
from importlib.resources import files
from itertools import islice, permutations
from operator import attrgetter
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.reporting import lines
from tilewright.hlo.reporting.types import MovementRow, Peak, ReportData, Suggestion
from tilewright.layout import TensorLayout, parse
from tilewright.render import (
    Card,
    Field,
    Html,
    Page,
    Step,
    badge,
    bytes_text,
    cards,
    count_text,
    explorer,
    percent_text,
    seconds_text,
    steps,
    table,
)
from tilewright.render.formats import counted, place_text, ratio_text
from tilewright.render.markup import Scripted, element, escape, join
from tilewright.render.page import advised, carried, details, note
from tilewright.render.tables import cells, glance, glance_table

# What the page needs to draw layouts itself: each one as the digits of its offset, each pair's matching.

_MOST_LAYOUTS = 4000
_EXACT = 1 << 53  # offsets in bits that a script's numbers hold exactly
_SAME_ELEMENTS = frozenset({"copy", "copy-start", "reshape", "convert", "bitcast-convert"})


@cache
def drawing_module() -> str:
    """The ES module that draws the two layouts of an opened row."""
    return files("tilewright.hlo.reporting").joinpath("assets", "layouts.js").read_text(encoding="utf-8")


def first_layout(row: MovementRow) -> str:
    """The layout of the row's operand, of the first where it has several."""
    text = row.from_layout
    if not text.startswith("("):
        return text
    end = text.find("}, ")
    return text[1 : end + 1] if end > 0 else text[1:-1]


def digit_forms(texts: Iterable[str]) -> dict[str, list[object]]:
    """Layout text -> shape, element bits, memory space, order, first tile, base, digits (dim, weight, div, mod, ...).

    What has no such form, or offsets that no script holds exactly, is left out.

    >>> digit_forms(["f32[3,5]{1,0:T(2,2)}"])["f32[3,5]{1,0:T(2,2)}"]
    [[3, 5], 32, 0, [1, 0], [2, 2], 0, [1, 1, 1, 2, 0, 2, 1, 2, 1, 4, 2, 0, 0, 12, 2, 0]]
    """
    forms = ((text, _digit_form(text)) for text in dict.fromkeys(texts))
    return dict(islice(((text, form) for text, form in forms if form is not None), _MOST_LAYOUTS))


def _digit_form(text: str) -> list[object] | None:
    try:
        layout = parse(text)
        if not isinstance(layout, TensorLayout) or not 0 < layout.size_bytes * 8 < _EXACT or not layout.num_elements:
            return None
        line = layout.digits["offset"] if layout.digits else None
    except TilewrightError:
        return None
    if line is None or any(digit.shift for digit in line.digits):
        return None
    digits = [number for digit in line.digits for number in digit[:4]]
    tile = [0 if size < 0 else size for size in (layout.tiles[0] if layout.tiles else ())]
    shape, order = list(layout.shape), list(layout.minor_to_major)
    return [shape, layout.element_bits, layout.memory_space, order, tile, line.base, digits]


def matching(row: MovementRow) -> str:
    """Which element of the operand is which of the result.

    ``place`` (a bitcast: the one at the same place), ``index`` (the same number in row-major order), the dims of a
    transpose as ``1,0``, or "" where the row does not say: slices, joins, repetitions, fusions.
    """
    if row.bitcast:
        return "place"
    name = plain_opcode(row.op)
    if name in _SAME_ELEMENTS:
        return "index"
    return _permutation(first_layout(row), row.to_layout) if name == "transpose" else ""


@lru_cache(maxsize=4096)
def _permutation(before: str, after: str) -> str:
    """The dims of a transpose, where sizes leave one way only (it is not the one that changes nothing)."""
    try:
        a, b = parse(before), parse(after)
    except TilewrightError:
        return ""
    if not isinstance(a, TensorLayout) or not isinstance(b, TensorLayout) or a.rank > 6:
        return ""
    same = tuple(range(a.rank))
    ways = [way for way in permutations(same) if way != same and tuple(a.shape[dim] for dim in way) == b.shape]
    kept = {tuple(dim for dim in way if a.shape[dim] > 1) for way in ways}
    return ",".join(map(str, ways[0])) if len(kept) == 1 else ""


# The page, its parts for other pages, and what a notebook shows.


def to_html(report: ReportData) -> str:
    """One self-contained page: summary, movement, padding, peak."""
    target = report.target or "none named"
    layouts = "predicted" if report.predicted else "its own, before optimisation" if report.unoptimized else "its own"
    facts = [("program", report.kind), ("target", target), ("layouts", layouts)]
    if report.source:
        facts = [("input", place_text(report.source)), *facts]
    facts.append(("written", date.today().isoformat()))
    if report.profile is not None:
        facts.append(("profile", place_text(report.profile.source)))
    step_us = report.measured_us or (report.time.device_us if report.time is not None else 0.0)
    step = f"{seconds_text(step_us / 1e6)} a step; " if step_us else ""
    page = Page(f"Data movement: {report.program}", step + lines.totals(report), facts=facts, wide=True)
    page.section("changes", "What to do", *_todo(report))
    page.section("summary", "Summary", cards(figures(report)), *map(note, report.notes))
    by = "time" if report.profile is not None or report.time is not None else "bytes moved"
    page.section("movement", f"Operations by {by}", _movement(report))
    some, nothing = report.alike.wasteful(), "no tensor has padding"
    tensors = explorer(lines.TENSOR_FIELDS, some, key=attrgetter("name"), sort="wasted", prefix="tensor", empty=nothing)
    page.section("padding", "Tensors by wasted bytes", tensors)
    if report.peak is not None:
        page.section("peak", "What lives at the peak", *(_peak(peak) for peak in report.peaks))
    plain = report.to_json()
    page.data("report", {name: value for name, value in plain.items() if name not in ("rows", "tensors", "peaks")})
    return page.html()


def to_block(report: ReportData) -> Html:
    """The report as one block for a page of another room: figures, notes and the operations."""
    movement = _movement(report)
    whole = join([cards(figures(report)), *map(note, report.notes), movement], "\n")
    return Scripted(whole, drawing_module()) if isinstance(movement, Scripted) else whole


_MOST_CHANGES = 3
_MOST_AT_A_GLANCE = 10


def _todo(report: ReportData) -> list[Html]:
    """The changes that pay, or that none was found, and the commands that lead on."""
    said = [_changes(report)] if report.suggestions else []
    if report.time is not None:
        said += [element("h3", "What the step waits for"), steps(map(advised, report.time.advice))]
    if said:
        return [*said, details("Commands that lead on", steps(_next_steps(report)), open_=True)]
    nothing = "Nothing here can be cut by another layout: what moves is free, fused, or what the program computes."
    moving = report.ranked()
    if moving:
        largest = moving[0]
        line = f", {place_text(largest.source)}" if largest.source else ""
        nothing = (
            "No change of your lines is known that cuts what moves. Look at the largest first: "
            f"{largest.op} {largest.name}{line}, {bytes_text(largest.total_bytes)}."
        )
    return [note(nothing), steps(_next_steps(report))]


def _next_steps(report: ReportData) -> list[Step]:
    file = shlex.quote(report.source or "FILE")
    target = f" --target {report.target}" if report.target else ""
    asked = f"tilewright report {file}{target}"
    items = [Step("What a step takes, what bounds it, and what if the chip were another.",
                  f"tilewright time {file}{target} -o time.html")]  # fmt: skip
    if report.predicted and report.target:
        rewrite = f"tilewright optimize {file}{target} --explain -o faster.mlir --verify"
        items.insert(0, Step("Let the rewrites that pay act, and prove the result.", rewrite))
    again = f"{asked} -o before.json\n{asked} -o after.json\ntilewright diff before.json after.json -o diff.html"
    return [*items, Step("Keep this report, and after the next change see what grew and what shrank.", again)]


def _changes(report: ReportData) -> Html:
    """The changes that pay most, each with what it saves, why, and what to write instead."""
    first, rest = report.suggestions[:_MOST_CHANGES], report.suggestions[_MOST_CHANGES:]
    listed = element("ol", *(_change(report, change) for change in first), class_="steps")
    if not rest:
        return listed
    more = element("ol", *(_change(report, change) for change in rest), class_="steps", start=_MOST_CHANGES + 1)
    return join([listed, details(f"{count_text(len(rest))} more", more)], "\n")


def _change(report: ReportData, change: Suggestion) -> Html:
    step = report.time.device_us if report.time is not None else 0.0
    share = f" ({percent_text(change.saved_us / step)} of the kernels)" if change.saved_us and step else ""
    head = [element("strong", f"{change.saved}{share}"), " "] if change.saved_us or change.saved_bytes else []
    head += [badge(lines.change_number(change), "good" if change.factor else "plain")]
    if change.source:
        head += [" ", element("code", place_text(change.source))]
    parts = [element("p", *head), element("p", f"{change.what or change.op}: {change.how}")]
    if row := next((row for row in report.rows if row.name == change.op and change.concerns(row)), None):
        parts.append(element("p", f"{row.layouts}: {row.reason}", class_="why"))
    return element("li", *parts)


def figures(report: ReportData) -> list[Card]:
    """The report's key figures."""
    size, found = bytes_text(report.padded_bytes), list[Card]()
    found.append(Card("moved", bytes_text(report.moved_bytes), f"by {counted(len(report.ranked()), 'operation')}"))
    among = f"bitcasts among {counted(len(report.rows), 'operation')}"
    found.append(Card("free", count_text(report.bitcasts), among, "good"))
    found.append(Card("padding", bytes_text(report.wasted_bytes), f"in {counted(len(report.wasteful()), 'tensor')}"))
    found.append(Card("memory over data", ratio_text(report.padding_ratio), f"{size} hold the tensors"))
    if report.peak is not None:
        found.append(Card("peak", bytes_text(report.peak.padded_bytes), report.peak.shares))
    if report.time is not None:
        call = f", {seconds_text(report.time.call_us / 1e6)} beside it for the call" if report.time.call_us else ""
        moving = f"{seconds_text(report.modelled_us / 1e6)} of it moves data{call}"
        found.append(Card("modelled step", seconds_text(report.time.device_us / 1e6), moving))
        if report.time.exchange_us:  # on many devices: the step, what is exposed and the peak stand in front
            waited = f"of {seconds_text(report.time.exchange_us / 1e6)} of exchanges between chips"
            found.append(Card("exposed", seconds_text(report.time.exposed_us / 1e6), waited))
            order = ("modelled step", "exposed", "peak")
            found.sort(key=lambda card: order.index(card.label) if card.label in order else len(order))
    if report.profile is not None:
        share = report.profile.rows_us / (report.profile.total_us or 1.0)
        of = f"{percent_text(share)} of the profile's time moves data"
        found.insert(0, Card("measured step", seconds_text(report.measured_us / 1e6), of))
    return found


def _movement(report: ReportData) -> Html:
    """The operations, prefetches folded away below them, and the digits of their layouts for the drawings."""
    if not report.rows:
        return element("p", "nothing moves", class_="empty")
    rows = sorted(report.alike.rows, key=lambda row: -row.total_bytes)
    sort = "time" if report.profile is not None else "modelled" if report.time is not None else "moved"
    fields = (
        *lines.movement_fields(report),
        Field(
            "operand",
            "code",
            of=lambda r: first_layout(r) if r.from_layout.startswith("(") else None,
            shown=False,
            listed=False,
        ),
        Field("matching", "text", "", matching, shown=False, listed=False),
    )

    def listed(transfers: bool, **options: Any) -> Html:
        some = [row for row in rows if (row.category == "transfer") == transfers]
        return explorer(fields, some, key=attrgetter("name"), sort=sort, **options)

    parts = [listed(False, empty="nothing else moves")]
    if report.transfers:
        parts.append(details(lines.transfers_text(report), listed(True, prefix="transfer")))
    texts = (text for row in rows for text in (first_layout(row), row.to_layout))
    return Scripted(join([*parts, carried("layouts", digit_forms(texts))], "\n"), drawing_module())


def _peak(peak: Peak) -> Html:
    space = lines.space_text(peak.memory_space)
    words = f"{bytes_text(peak.padded_bytes)} of {space}, {peak.shares}, during "
    where = element("p", escape(words), element("code", peak.at), " in ", element("code", peak.path))
    rest = bytes_text(peak.padded_bytes - peak.lost_bytes - sum(tensor.padded_bytes for tensor in peak.tensors))
    lost = f", {bytes_text(peak.lost_bytes)} lost between buffers" if peak.lost_bytes else ""
    below = element("p", f"and {rest} in smaller ones{lost}", class_="empty")
    return join([where, table(lines.PEAK_FIELDS, cells(lines.PEAK_FIELDS, peak.tensors)), below], "\n")


def glance_html(report: ReportData) -> str:
    """What a notebook shows: the totals in sentences, what pays most, and the operations that move most."""
    head, *facts = lines.head_lines(report)
    rows = report.ranked()
    changes = glance_table(lines.CHANGE_FIELDS, cells(lines.CHANGE_FIELDS, report.suggestions[:3]))
    known = {field.heading: field for field in lines.movement_fields(report)}
    fields = [known[name] for name in lines.GLANCE]
    most = glance_table(fields, cells(fields, rows[:_MOST_AT_A_GLANCE]), of=len(rows))
    return glance(head, *facts, changes, most)
