"""Options that several commands have, together in a dataclass: a command takes it as one keyword."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def with_groups(command: Callable[..., object]) -> Callable[..., object]:
    """The command as the option parser reads it: instead of a keyword whose type is a dataclass, that class's fields.

    A field is an option as a parameter is: ``chips: Annotated[int, Option(help="How many.")] = 1``.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    options: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        own, types = [parameter], hints
        if name in groups:
            own = list(inspect.signature(groups[name]).parameters.values())
            types = get_type_hints(groups[name], include_extras=True)
        options += [o.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=types[o.name]) for o in own]

    @wraps(command)
    def parsed(**values: Any) -> object:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        return command(**values)

    parsed.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    parsed.__annotations__ = {option.name: option.annotation for option in options}
    return parsed
