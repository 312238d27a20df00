"""What the processes of one training agree on, through the store that jax.distributed keeps."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jax
from jax.experimental import multihost_utils

from tilewright.embed.host.batch import Agree, Agreement
from tilewright.errors import CheckFailed, UsageError

_NAMES = itertools.count()
_KEPT = 8
"""Rounds after which nobody reads a process's word any more."""


def agree_over_processes(timeout_s: float = 300) -> Agree:
    """An ``agree`` for ``preprocess`` over all processes of ``jax.distributed``, which is set up before.

    Every process makes it, and calls it for the same batches in the same order. It may be called from any thread, and
    uses no device. Raises :class:`CheckFailed` where a process does not answer for ``timeout_s`` seconds.

    >>> jax.distributed.initialize("localhost:1234", 2, process_id)  # doctest: +SKIP
    >>> agree = agree_over_processes()  # doctest: +SKIP
    >>> host = preprocess(batch, stacking, limits, sources=range(4, 8), agree=agree)  # doctest: +SKIP
    """
    client: Any = getattr(multihost_utils, "distributed").global_state.client  # noqa: B009 - jax exports no way to it
    if client is None:
        how = "call jax.distributed.initialize first"
        raise UsageError("no processes to agree with", where="agree_over_processes", how=how)
    me, count, name, rounds = jax.process_index(), jax.process_count(), next(_NAMES), itertools.count()

    def key(number: int, process: int) -> str:
        return f"tilewright/agree/{name}/{number}/{process}"

    def agree(proposal: Agreement) -> Agreement:
        number = next(rounds)
        client.key_value_set(key(number, me), json.dumps([proposal.split_bits, proposal.max_ids]))
        parts = [_read(client, key(number, process), process, timeout_s) for process in range(count)]
        if number >= _KEPT:
            client.key_value_delete(key(number - _KEPT, me))
        return Agreement.join(parts)

    return agree


def _read(client: Any, key: str, process: int, timeout_s: float) -> Agreement:
    try:
        bits, lengths = json.loads(client.blocking_key_value_get(key, int(timeout_s * 1000)))
    except jax.errors.JaxRuntimeError as error:
        how = "see what ended it; finished checkpoints are as they were"
        raise CheckFailed(f"process {process} does not answer", where="agree", how=how) from error
    return Agreement(bits, tuple(lengths))
