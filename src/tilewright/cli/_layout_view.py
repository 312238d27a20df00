"""What the commands that make a layout have in common: an element, a place, a picture, or the facts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_type_hints

from tilewright.cli._layout_draw import Colour, Draw, Ruler, Unit, check_picture, draw_layout
from tilewright.cli._layout_show import Index, Json, Out, answer

if TYPE_CHECKING:
    from tilewright.layout import IndexMap

__all__ = ["viewed"]

Made = tuple["IndexMap", tuple[int, ...] | None]


def viewed(make: Callable[..., Made]) -> Callable[..., None]:
    """A command out of a function that makes a layout (and the place that is asked about): the options of a view added.

    The option parser reads a signature, so the command is given the one that ``make`` and :func:`_view` have together.
    """
    own = set(inspect.signature(make).parameters)

    def command(**options: Any) -> None:
        layout, place = make(**{name: value for name, value in options.items() if name in own})
        _view(layout, place, **{name: value for name, value in options.items() if name not in own})

    _, _, *shared = inspect.signature(_view).parameters.values()
    hints = get_type_hints(make, globals() | make.__globals__ | {"IndexMap": Any}, include_extras=True)
    hints |= get_type_hints(_view, globals() | {"IndexMap": Any}, include_extras=True)
    both = [*inspect.signature(make).parameters.values(), *shared]
    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[each.name]) for each in both]
    command.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in named}
    command.__name__, command.__doc__ = make.__name__, make.__doc__
    return command


def _view(
    layout: IndexMap,
    place: tuple[int, ...] | None,
    index: Index = None,
    draw: Draw = False,
    out: Out = None,
    colour: Colour = "auto",
    ruler: Ruler = False,
    unit: Unit = "auto",
    as_json: Json = False,
) -> None:
    """Answer a question, draw, or print the facts."""
    check_picture(out, as_json)
    asked = unit if ruler or unit != "auto" else None
    if out is not None:
        draw_layout(layout, out, colour, asked, as_json=False)
    if index is not None or place is not None:
        answer(layout, index, place, as_json)
    elif out is None and (draw or asked):
        draw_layout(layout, None, colour, asked, as_json)
    elif out is None or as_json:
        answer(layout, None, None, as_json)
