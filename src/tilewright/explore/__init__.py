"""The explorer: a local page on which layouts, programs, machine programs and embedding plans can be walked through."""

from typing import TYPE_CHECKING

from tilewright.exports import public_names

if TYPE_CHECKING:
    from tilewright.explore.server import Explorer, serve  # starlette comes with it

__all__, __getattr__, __dir__ = public_names(__name__, __file__)
