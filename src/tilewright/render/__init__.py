"""The page and drawing kit: self-contained HTML, SVG, charts, terminal tables, formatted numbers, and the way out.

Of what is not listed here (pieces of a page, markup, changes, rarer charts) each file is entered by its own name, as
``tilewright.render.page``.
"""

from typing import TYPE_CHECKING

from tilewright.exports import public_names

if TYPE_CHECKING:
    from tilewright.render.delivery import Output, deliver
    from tilewright.render.drawing import Bar, bar_chart
    from tilewright.render.formats import bytes_text, count_text, percent_text, seconds_text
    from tilewright.render.markup import Html
    from tilewright.render.page import Card, Page, Step, badge, cards, steps
    from tilewright.render.tables import Column, Field, Table, explorer, table

__all__, __getattr__, __dir__ = public_names(__name__, __file__)
