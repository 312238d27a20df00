"""The process that compiles for a TPU that need not be here: a job on stdin, answers on stdout, one a line, all JSON.

libtpu can abort, hang and talk, and takes a lock for as long as its process lives; so it gets a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any


def main() -> None:
    """Compile the job's StableHLO texts for its topology; what libraries print goes to stderr.

    Versions are the first answer, then each text's: a compiled program, or an error.
    """
    job = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for answer in _answers(job):
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    sys.stderr.flush()
    os._exit(0)  # without libtpu's tear-down, which may abort after all is done


def _answers(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from importlib.metadata import version

    from jax.experimental import topologies

    signal.alarm(job["seconds"])  # ends the process, wherever the compiler is
    topology = topologies.get_topology_desc(platform="tpu", topology_name=job["topology"])
    device: Any = topology.devices[0]
    yield {"libtpu": version("libtpu"), "jax": version("jax"), "chip": device.device_kind}
    for text in job["programs"]:
        signal.alarm(job["seconds"])
        try:
            yield _compile(text, device)
        except Exception as error:
            reason = str(error).strip().split("\n")[0][:300]
            yield {"error": f"the TPU compiler failed ({type(error).__name__}: {reason})"}


def _compile(text: str, device: Any) -> dict[str, Any]:
    import jax
    from jax.sharding import SingleDeviceSharding

    from tilewright.hlo.execute import check_custom_calls, flat_callable
    from tilewright.hlo.proving.verify import main_types

    check_custom_calls(text, "tpu")
    inputs, outputs = main_types(text)
    with jax.enable_x64(True):
        call = flat_callable(text, inputs, outputs, platform="tpu")
        compiled = jax.jit(call, in_shardings=SingleDeviceSharding(device)).lower(*inputs).compile()
    memory = compiled.memory_analysis()
    return {"text": compiled.as_text(), "temp_bytes": getattr(memory, "temp_size_in_bytes", 0)}
