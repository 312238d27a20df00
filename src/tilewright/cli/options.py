"""Options as commands write them: a help text behind the type, or a dataclass of those that several commands have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_args, get_type_hints

from typer import Option


def parsed(command: Callable[..., object]) -> Callable[..., object]:
    """The command with the signature that the option parser reads.

    * ``chips: Annotated[int, "How many."] = 1`` is ``--chips``, its text the help; of a bool there is no ``--no-``.
    * ``out: Annotated[str, "-o", "--out FILE", "Where to."]``: names and what stands for the value may precede it.
    * A parameter whose type is a dataclass stands for that class's fields, which are options written likewise.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    options: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        own, types = [parameter], hints
        if name in groups:
            own = list(inspect.signature(groups[name]).parameters.values())
            types = get_type_hints(groups[name], include_extras=True)
        kind = inspect.Parameter.KEYWORD_ONLY
        options += [o.replace(kind=kind, annotation=_with_help(o.name, types[o.name])) for o in own]

    @wraps(command)
    def called(**values: Any) -> object:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        return command(**values)

    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    called.__annotations__ = {option.name: option.annotation for option in options}
    return called


def _with_help(name: str, annotation: Any) -> Any:
    kind, *texts = get_args(annotation) or (annotation,)
    if not texts or not all(isinstance(text, str) for text in texts):
        return annotation
    *given, text = texts
    names, _, values = zip(*(word.partition(" ") for word in given)) if given else ((), (), ())
    if kind is bool and not names:
        names = (f"--{name.replace('_', '-')}",)
    return Annotated[kind, Option(*names, metavar="".join(values) or None, help=text)]
