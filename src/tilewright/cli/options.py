"""How a command is declared: its signature says its options, and what several commands read alike out of a text."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import wraps
from operator import itemgetter
from typing import Annotated, Any, cast, get_args, get_type_hints

import typer
from typer.models import ArgumentInfo

from tilewright.errors import UsageError
from tilewright.render.delivery import Output

Json = Annotated[Output, "--json"]
"""Where the result of a command goes that writes no file."""


_HELD = {".html": "a page", ".json": "all numbers", ".svg": "a picture", ".pftrace": "a timeline for Perfetto"}
"""What files hold of which a command says nothing else."""


class Files:
    """The files that a command writes with ``-o``: each a suffix and, behind it, what such a file holds.

    ``stdout``: whether ``-`` may stand for a file; None where it stands for no file. ``needed``: ``-o`` must be given.
    """

    def __init__(self, *forms: str, stdout: bool | None = True, needed: bool = False) -> None:
        words = {suffix: held for suffix, _, held in (form.partition(" ") for form in forms)}
        self.suffixes, self.stdout, self.needed = tuple(words), stdout, needed
        shown = (f"FILE{suffix} ({held or _HELD[suffix]})" for suffix, held in words.items())
        self.help = f"Write {', '.join(shown)}{'' if stdout is False else '; - is stdout'}."

    def output(self, values: dict[str, Any]) -> Output:
        """Where a result goes, of the values of ``-o`` and ``--json``."""
        path = values.get("out") if self.suffixes else None
        path = None if path == "-" and self.stdout is None else path
        return Output(path, values["as_json"], *self.suffixes, stdout=bool(self.stdout))


def parsed(command: Callable[..., object]) -> Callable[..., object]:
    """The command with the signature that the option parser reads.

    * ``chips: Annotated[int, "How many."] = 1`` is ``--chips``, its text the help; of a bool there is no ``--no-``.
    * ``out: Annotated[str, "-o", "--out FILE", "Where to."]``: names and what stands for the value may precede it.
    * A parameter whose type is a dataclass stands for that class's fields, which are options written likewise.
    * ``to: Annotated[Output, Files(".csv a row each")]`` is two options, ``-o`` (``--out``, ``--output``) and
      ``--json``; without suffixes ``--json`` alone.
    """
    options: dict[str, inspect.Parameter] = {}
    call = _reader(command, options)

    @wraps(command)
    def called(**values: Any) -> object:
        return call(values)

    called.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]
    called.__annotations__ = {option.name: option.annotation for option in options.values()}
    return called


def _reader(made: Callable[..., Any], options: dict[str, inspect.Parameter]) -> Callable[[dict[str, Any]], Any]:
    """What calls ``made`` with the values of its options, which are added to ``options``."""
    readers: dict[str, Callable[[dict[str, Any]], Any]] = {}

    def add(name: str, kind: Any, default: Any) -> None:
        options[name] = inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_with_help(name, kind)
        )

    for name, hint in get_type_hints(made, include_extras=True).items():
        kind, *words = get_args(hint) or (hint,)
        if is_dataclass(kind):
            readers[name] = _reader(cast(Any, kind), options)
        elif kind is Output:
            files = words[0] if isinstance(words[0], Files) else Files()
            if files.suffixes:
                names = (str | None, "-o", "--out", "--output FILE", files.help)
                add("out", Annotated[names], inspect.Parameter.empty if files.needed else None)
            add("as_json", Annotated[bool, "--json", "Print JSON."], False)
            readers[name] = files.output
        elif name != "return":
            add(name, hint, inspect.signature(made).parameters[name].default)
            readers[name] = itemgetter(name)
    return lambda values: made(**{name: read(values) for name, read in readers.items()})


def _with_help(name: str, annotation: Any) -> Any:
    kind, *texts = get_args(annotation) or (annotation,)
    several = str(kind).startswith("list")
    if texts and isinstance(argument := texts[0], ArgumentInfo):  # in capitals, as usage lines and errors have it
        shown = argument.metavar or name.upper()
        return Annotated[kind, typer.Argument(metavar=shown, help=argument.help)]
    if not texts or not all(isinstance(text, str) for text in texts):
        return annotation
    *given, text = texts
    text += " Repeat it for more." * several
    names, _, values = zip(*(word.partition(" ") for word in given)) if given else ((), (), ())
    if kind is bool and not names:
        names = (f"--{name.replace('_', '-')}",)
    return Annotated[kind, typer.Option(*names, metavar="".join(values) or None, help=text)]


# What options say in one way: NAME=VALUE, values to go through, numbers between commas.


def assigned(text: str, option: str, like: str) -> tuple[str, str]:
    """The two sides of ``NAME=VALUE``. UsageError, which shows an example, for a text that is none."""
    name, _, value = (part.strip() for part in text.partition("="))
    if not name or not value:
        raise UsageError(f"{text!r} is not NAME=VALUE", where=option, how=f"write {like}")
    return name, value


def numbered(texts: Sequence[str], option: str, like: str) -> dict[str, float]:
    """The numbers of texts such as ``NAME=2e12``. UsageError for what is none."""
    found: dict[str, float] = {}
    for text in texts:
        name, value = assigned(text, option, like)
        try:
            found[name] = float(value)
        except ValueError:
            raise UsageError(f"{value!r} is no number", where=f"{option} {name}", how=f"write {like}") from None
    return found


def swept(texts: Sequence[str], option: str, like: str) -> dict[str, list[str]]:
    """The values that each name takes, of texts such as ``NAME=1,8,32``. UsageError for a name without, or twice."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, values = assigned(text, option, like)
        if name in found or not (some := [value.strip() for value in values.split(",") if value.strip()]):
            raise UsageError(f"{text!r}", where=option, how=f"each name once, with its values, as {like}")
        found[name] = some
    return found


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """Numbers between commas, in parentheses or not, as explanations print them."""
    inside = re.sub(r"^\s*[(\[](.*)[)\]]\s*$", r"\1", text).removesuffix(",")
    try:
        return tuple(int(part) for part in inside.split(",")) if inside.strip() else ()
    except ValueError:
        raise UsageError(f"{text!r} is not a list of whole numbers such as 2,3", where=option) from None


def this_command(*more: str, without: Sequence[str] = ()) -> str:
    """The command that is running, without where its result goes and ``without`` these options, and with ``more``.

    Pages show it as what to do next.
    """
    dropped, words, kept = ("-o", "--out", "--output", *without), iter(sys.argv[1:]), list[str]()
    for word in words:
        if word in dropped:
            next(words, None)
        elif word != "--json" and word.partition("=")[0] not in dropped:
            kept.append(word)
    return shlex.join(["tilewright", *kept, *more])
