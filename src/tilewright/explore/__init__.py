"""The explorer: a local page on which layouts, programs, machine programs and embedding plans can be walked through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.explore.server import Explorer, serve

__all__ = ["Explorer", "serve"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tilewright.explore import server  # starlette comes with it

    return getattr(server, name)
