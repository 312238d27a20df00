"""The page and drawing kit: self-contained HTML, SVG, charts, terminal tables, formatted numbers, and the way out.

Of what is not listed here (pieces of a page, markup, changes, rarer charts) each file is entered by its own name, as
``tilewright.render.page``.
"""

from tilewright.render.compare import Comparison
from tilewright.render.delivery import Output, Result, deliver
from tilewright.render.drawing import Bar, Drawing, bar_chart
from tilewright.render.formats import bytes_text, count_text, percent_text, ratio_text, seconds_text
from tilewright.render.markup import Html
from tilewright.render.page import Card, Page, Step, badge, cards, steps
from tilewright.render.tables import Column, Field, Table, explorer, glance, print_table, table

__all__ = [
    "Bar",
    "Card",
    "Column",
    "Comparison",
    "Drawing",
    "Field",
    "Html",
    "Output",
    "Page",
    "Result",
    "Step",
    "Table",
    "badge",
    "bar_chart",
    "bytes_text",
    "cards",
    "count_text",
    "deliver",
    "explorer",
    "glance",
    "percent_text",
    "print_table",
    "ratio_text",
    "seconds_text",
    "steps",
    "table",
]
