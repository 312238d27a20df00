"""The process in which programs from texts run: their custom calls are known ones, and its memory is bounded."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tilewright.child import Tell, bound, most_memory, serve
from tilewright.errors import TilewrightError, UnsupportedError
from tilewright.hlo.execute import check_custom_calls
from tilewright.hlo.program import Program
from tilewright.hlo.proving.reference import XlaValues
from tilewright.hlo.proving.verify import verify_here

_Answer = tuple[Any, Sequence[bytes]]


def main() -> None:
    bound(most_memory())
    values = XlaValues()

    def answer(question: bytes, tell: Tell) -> bytes:
        name, given = pickle.loads(question)  # of our own parent, which made it
        try:
            value, parts = _verify(given, tell) if name == "verify" else _run(values, given)
        except TilewrightError as error:
            value, parts = _error(error), ()
        except MemoryError:
            how = f"it may take {most_memory() >> 30} GiB; TILEWRIGHT_CHILD_GIB=N allows N"
            value, parts = _error(UnsupportedError("running this program needs more memory", how=how)), ()
        except Exception as error:  # XLA's and JAX's own: they have no family
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            value, parts = _error(UnsupportedError(f"this program cannot be run here: {reason}")), ()
        return b"\n".join([json.dumps(value).encode(), b"".join(parts)])

    serve(answer)


def _error(error: TilewrightError) -> dict[str, str]:
    kind = next(each.__name__ for each in type(error).__mro__ if each.__module__ == TilewrightError.__module__)
    return {"error": error.what, "kind": kind, "where": error.where, "how": error.how}


def _verify(given: Mapping[str, Any], tell: Tell) -> _Answer:
    for text in given["texts"]:
        check_custom_calls(text)
    before, after = (Program("stablehlo", "", text, ()) for text in given["texts"])
    advance: Callable[[int, int, str], None] = lambda *note: tell(json.dumps(note).encode())  # noqa: E731
    found = verify_here(before, after, **given["options"], advance=advance)
    return {"value": asdict(found)}, ()


def _run(values: XlaValues, given: Mapping[str, Any]) -> _Answer:
    check_custom_calls(given["text"])
    made = values.run_text(given["text"], given["inputs"], given["outputs"], given["arrays"])
    return {"value": None}, [np.ascontiguousarray(array).tobytes() for array in made]
