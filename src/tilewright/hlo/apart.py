"""Programs from texts run in a process of their own: whatever they do to XLA, this process goes on.

Only the answers of that process are read here, and those are JSON and plain arrays, checked before they are used. It
runs on the CPU. A program of the user's own JAX function does not go this way: it may call what only this process has.
"""

from __future__ import annotations

import atexit
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.child import Child
from tilewright.errors import CheckFailed, UnsupportedError, UsageError
from tilewright.extras import need
from tilewright.hlo.jaxlib_child import read_arrays

SECONDS = 300.0
"""What a step may take: a trial of a proof, or one program that is run."""
Array = np.ndarray[Any, Any]
_ERRORS = {kind.__name__: kind for kind in (CheckFailed, UnsupportedError, UsageError)}
CHILD = Child("tilewright.hlo.proving.verify", {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"})
atexit.register(CHILD.close)


def ask(
    question: str, values: Mapping[str, Any], seconds: float, advance: Callable[[int, int, str], None] | None = None
) -> tuple[Any, bytes]:
    """What that process answers: a plain value, and the bytes of arrays.

    Raises what it raised; ChildDied where it died, ChildLate where ``seconds`` were over.
    """
    need("jax", "jaxlib", what="running programs")

    def hear(note: bytes) -> None:
        done, total, what = json.loads(note)
        if advance is not None:
            advance(int(done), int(total), str(what))

    answer = CHILD.ask(pickle.dumps((question, dict(values))), seconds, hear)  # it is the answer that is not trusted
    head, _, raw = answer.partition(b"\n")
    value = json.loads(head)
    if "error" in value:
        kind = _ERRORS.get(value["kind"], UnsupportedError)
        raise kind(str(value["error"]), where=str(value["where"]), how=str(value["how"]))
    return value["value"], raw


def run_apart(
    text: str,
    inputs: Sequence[tuple[Sequence[int], np.dtype[Any]]],
    outputs: Sequence[tuple[Sequence[int], np.dtype[Any]]],
    arrays: Sequence[Array],
) -> list[Array]:
    """The results of a module's main, which takes and gives arrays of these shapes and element types."""
    given = {"text": text, "inputs": list(inputs), "outputs": list(outputs), "arrays": [np.asarray(a) for a in arrays]}
    return read_arrays(ask("run", given, SECONDS)[1], outputs)
