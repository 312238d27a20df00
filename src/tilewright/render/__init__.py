"""The page and drawing kit: self-contained HTML, SVG, charts, terminal tables, formatted numbers."""

from tilewright.render.charts import Bar, Curve, bar_chart, line_chart
from tilewright.render.drawing import Drawing, text_width
from tilewright.render.explorers import Field, cells, explorer
from tilewright.render.formats import (
    Kind,
    bytes_text,
    count_text,
    format_value,
    percent_text,
    place_text,
    ratio_text,
    seconds_text,
)
from tilewright.render.markup import Html, Scripted, element, escape, join
from tilewright.render.page import (
    Card,
    Page,
    Tone,
    badge,
    cards,
    carried,
    code_block,
    details,
    listing,
    note,
    paragraph,
    side_by_side,
)
from tilewright.render.tables import Column, print_table, table

__all__ = [
    "Bar",
    "Card",
    "Column",
    "Curve",
    "Drawing",
    "Field",
    "Html",
    "Kind",
    "Page",
    "Scripted",
    "Tone",
    "badge",
    "bar_chart",
    "bytes_text",
    "cards",
    "carried",
    "cells",
    "code_block",
    "count_text",
    "details",
    "element",
    "escape",
    "explorer",
    "format_value",
    "join",
    "line_chart",
    "listing",
    "note",
    "paragraph",
    "percent_text",
    "place_text",
    "print_table",
    "ratio_text",
    "seconds_text",
    "side_by_side",
    "table",
    "text_width",
]
