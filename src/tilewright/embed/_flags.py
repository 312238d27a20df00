"""What to paste where a plan is used: LIBTPU_INIT_ARGS and the limits, under the guide's names."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.embed._knobs import SparseCoreConfig

__all__ = ["init_args", "paste_text"]


def init_args(knobs: SparseCoreConfig, rest: Sequence[str] = (), limits_file: str = "") -> str:
    """The value of LIBTPU_INIT_ARGS: flags that are no knob as they were, then those that differ from the defaults.

    >>> init_args(SparseCoreConfig(detect_nan=True), ["--xla_tpu_other=1"], "limits.json")
    '--xla_tpu_other=1 --xla_sc_detect_nan=true --xla_sparse_core_max_ids_file=limits.json'
    """
    named = replace(knobs, max_ids_file=limits_file or knobs.max_ids_file)
    return " ".join([*map(_quoted, rest), *sorted(named.flags())])


def _quoted(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{name}={shlex.quote(value)}" if equals else word


def paste_text(
    knobs: SparseCoreConfig, rest: Sequence[str], limits: Mapping[str, Any], limits_file: str = "limits.json"
) -> str:
    """Both, ready for a shell: an export, and a here-document that writes ``limits``, a limits file's content."""
    body = json.dumps(limits, indent=2)
    export = f"export LIBTPU_INIT_ARGS={shlex.quote(init_args(knobs, rest, limits_file))}"
    return f"{export}\ncat > {shlex.quote(limits_file)} <<'END'\n{body}\nEND"
