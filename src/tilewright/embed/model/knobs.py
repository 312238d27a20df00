"""Every knob of Google's SparseCore guide, under its own name, and the flags of LIBTPU_INIT_ARGS they travel as."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tilewright.embed.model.tables import count
from tilewright.errors import UsageError, check_known, true_or_false

ASSERT_LEVELS = ("none", "bounds")


def _flag(name: str, default: Any) -> Any:
    return field(default=default, metadata={"flag": name})


@dataclass(frozen=True)
class SparseCoreConfig:
    """The guide's knobs with the guide's defaults. Those with a flag (see :meth:`flags`) reach the compiler as such.

    ==============================================  ==================================================================
    ``disable_table_stacking``                      leave every table alone
    ``max_ids_per_chip_per_sample``                 bound on one sample's ids on one chip, summed over all tables
    ``max_ids_per_table``                           table -> bound on its ids of a batch, summed over all partitions
    ``max_unique_ids_per_table``                    the same for the partitions' distinct ids
    ``allow_id_dropping``                           drop (and count) ids above a limit instead of failing
    ``initialize_tables_on_host``                   make tables on the host and copy them
    ``enable_fast_table_initialization``            make tables on the device
    ``maximum_parallel_iterations``                 batches fetched ahead into HBM
    ``disable_full_embedding_pipelining``           do not overlap SparseCores and TensorCore
    ``num_serialized_tables_to_optimize_hbm``       tables processed one after the other to save HBM stack
    ``max_ids_file``, ``estimate_max_ids``          the compiler's limits file; let the compiler estimate limits
    ``enable_id_bound_check``, ``detect_nan``       checks of ids and of numbers
    ``assert_level``                                ``bounds``: check every memory access
    ``buffer_contents_sanitizer_config``            which cores' buffers are checked, "" = none
    ``verify_launch_id_across_cores``               the other half of the buffer check
    ==============================================  ==================================================================

    >>> SparseCoreConfig(detect_nan=True).flags()
    ('--xla_sc_detect_nan=true',)
    """

    disable_table_stacking: bool = False
    max_ids_per_chip_per_sample: int = 64
    max_ids_per_table: Mapping[str, int] | None = field(default=None, hash=False)
    max_unique_ids_per_table: Mapping[str, int] | None = field(default=None, hash=False)
    allow_id_dropping: bool = False
    initialize_tables_on_host: bool = True
    enable_fast_table_initialization: bool = False
    maximum_parallel_iterations: int = 2
    disable_full_embedding_pipelining: bool = _flag("tf_xla_disable_full_embedding_pipelining", False)
    num_serialized_tables_to_optimize_hbm: int = _flag("xla_sc_num_serialized_tables_to_optimize_hbm", 0)
    max_ids_file: str = _flag("xla_sparse_core_max_ids_file", "")
    estimate_max_ids: bool = _flag("xla_sparse_core_estimate_max_ids", False)
    enable_id_bound_check: bool = _flag("xla_sparse_core_enable_id_bound_check", False)
    detect_nan: bool = _flag("xla_sc_detect_nan", False)
    assert_level: str = _flag("xla_sc_assert_level", "none")
    buffer_contents_sanitizer_config: str = _flag("xla_tpu_buffer_contents_sanitizer_config", "")
    verify_launch_id_across_cores: bool = _flag("xla_tpu_verify_launch_id_across_cores", False)

    def __post_init__(self) -> None:
        for knob in fields(self):
            object.__setattr__(self, knob.name, _checked(knob.name, knob.default, getattr(self, knob.name)))
        check_known(self.assert_level, ASSERT_LEVELS, f"assert_level = {self.assert_level!r}", where="sparsecore")
        whole = self.max_ids_per_table or {}
        for name, most in (self.max_unique_ids_per_table or {}).items():
            if most > whole.get(name, most):
                problem = f"max_unique_ids_per_table {most} is above max_ids_per_table {whole[name]}"
                raise UsageError(problem, where=f"table {name!r}", how="no table has more distinct ids than ids")

    def flags(self) -> tuple[str, ...]:
        """What differs from the defaults, as words of LIBTPU_INIT_ARGS."""
        values = [(knob, getattr(self, knob.name)) for knob in _flags().values()]
        texts = (
            (k, str(value).lower() if isinstance(value, bool) else str(value))
            for k, value in values
            if value != k.default
        )
        return tuple(f"--{k.metadata['flag']}={shlex.quote(text)}" for k, text in texts)

    def with_flags(self, text: str) -> tuple[SparseCoreConfig, tuple[str, ...]]:
        """This configuration with the flags of an existing LIBTPU_INIT_ARGS on top, and the words that are no knob.

        Raises :class:`UsageError` for quotes left open or a value of a wrong type.

        >>> config, rest = SparseCoreConfig().with_flags("--xla_sc_detect_nan=true --xla_tpu_foo=1")
        >>> config.detect_nan, rest
        (True, ('--xla_tpu_foo=1',))
        """
        knobs = _flags()
        values: dict[str, Any] = {}
        rest = []
        for name, value, word in parse_flags(text):
            if name in knobs:
                values[knobs[name].name] = _value(value, knobs[name].default, word)
            else:
                rest.append(word)
        return replace(self, **values), tuple(rest)

    def init_args(self, rest: Sequence[str] = (), limits_file: str = "") -> str:
        """The value of LIBTPU_INIT_ARGS: flags that are no knob as they were, then those that differ from the defaults.

        >>> SparseCoreConfig(detect_nan=True).init_args(["--xla_tpu_other=1"], "limits.json")
        '--xla_tpu_other=1 --xla_sc_detect_nan=true --xla_sparse_core_max_ids_file=limits.json'
        """
        named = replace(self, max_ids_file=limits_file or self.max_ids_file)
        return " ".join([*map(_quoted, rest), *sorted(named.flags())])

    def paste_text(self, rest: Sequence[str], limits: Mapping[str, Any], limits_file: str = "limits.json") -> str:
        """What to paste into a shell where a plan is used: an export of LIBTPU_INIT_ARGS, and a here-document that
        writes ``limits``, a limits file's content."""
        export = f"export LIBTPU_INIT_ARGS={shlex.quote(self.init_args(rest, limits_file))}"
        return f"{export}\ncat > {shlex.quote(limits_file)} <<'END'\n{json.dumps(limits, indent=2)}\nEND"


def _flags() -> dict[str, Any]:
    """Flag -> the knob (a field) that travels as it."""
    return {knob.metadata["flag"]: knob for knob in fields(SparseCoreConfig) if "flag" in knob.metadata}


def parse_flags(text: str) -> list[tuple[str, str | None, str]]:
    """(name, value or None, the word itself) of every flag; ``--a b`` is taken as ``--a=b`` where b is no flag."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"flags that cannot be split: {error}", where="LIBTPU_INIT_ARGS") from None
    flags: list[tuple[str, str | None, str]] = []
    for word in words:
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            flags.append((name, value if equals else None, word))
        elif flags and flags[-1][1] is None:
            name, _, whole = flags[-1]
            flags[-1] = (name, word, f"{whole}={word}")
        else:
            how = "flags are words of the form --name=value"
            raise UsageError(f"{word!r} is not a flag", where="LIBTPU_INIT_ARGS", how=how)
    return flags


def _value(text: str | None, default: Any, word: str) -> Any:
    if isinstance(default, bool):
        known = dict.fromkeys(("true", "1", "yes", "t"), True) | dict.fromkeys(("false", "0", "no", "f"), False)
        if (lower := "true" if text is None else text.lower()) not in known:
            raise UsageError(f"{word}: {text!r} is not true or false", where="LIBTPU_INIT_ARGS")
        return known[lower]
    if isinstance(default, int):
        if text is None or not text.isdecimal():
            raise UsageError(f"{word}: not a whole number", where="LIBTPU_INIT_ARGS")
        return int(text)
    return text or ""


def _checked(name: str, default: Any, value: Any) -> Any:
    if isinstance(default, bool):
        return true_or_false(value, name, "sparsecore")
    if isinstance(default, int):
        return count(value, name, "sparsecore", least=1 if name == "max_ids_per_chip_per_sample" else 0)
    if isinstance(default, str):
        if not isinstance(value, str):
            raise UsageError(f"{name} = {value!r} is not a text", where="sparsecore")
        return value
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} = {value!r} is not a table of names and numbers", where="sparsecore")
    return {str(k): count(v, f"{name}[{k!r}]", "sparsecore") for k, v in value.items()}


def _quoted(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{name}={shlex.quote(value)}" if equals else word
