"""The public names of a package, listed once: by the imports for type checkers in its ``__init__.py``."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from typing import Any


def public_names(package: str, file: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a package, whose names ``if TYPE_CHECKING:`` imports in ``file``.

    A name's module is imported when the name is asked for, so that nobody waits for what they do not use.
    """
    with open(file, encoding="utf-8") as source:
        block = next(part for part in ast.parse(source.read()).body if isinstance(part, ast.If))
    imports = [part for part in block.body if isinstance(part, ast.ImportFrom)]
    places = {alias.asname or alias.name: (str(part.module), alias.name) for part in imports for alias in part.names}

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, own = places[name]
        return import_module(f"{package}.{own}") if module == package else getattr(import_module(module), own)

    names = sorted(places)
    return names, load, lambda: names
