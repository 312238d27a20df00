"""The process that compiles for a TPU that need not be here: one job on stdin, one answer on stdout, both JSON.

libtpu can abort, hang and talk, and takes a lock for as long as its process lives; so it gets a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    """Compile the job's StableHLO texts for its topology; what libraries print goes to stderr."""
    job = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    json.dump(_answer(job), answer)
    answer.close()
    sys.stderr.flush()
    os._exit(0)  # without libtpu's tear-down, which may abort after all is done


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    from importlib.metadata import version

    from jax.experimental import topologies

    topology = topologies.get_topology_desc(platform="tpu", topology_name=job["topology"])
    device: Any = topology.devices[0]
    compiled = [_compile(text, device) for text in job["programs"]]
    return {"compiled": compiled, "libtpu": version("libtpu"), "jax": version("jax"), "chip": device.device_kind}


def _compile(text: str, device: Any) -> dict[str, Any]:
    import jax
    from jax.sharding import SingleDeviceSharding

    from tilewright.hlo.execute import flat_callable
    from tilewright.hlo.proving.verify import main_types

    inputs, outputs = main_types(text)
    with jax.enable_x64(True):
        call = flat_callable(text, inputs, outputs, platform="tpu")
        compiled = jax.jit(call, in_shardings=SingleDeviceSharding(device)).lower(*inputs).compile()
    memory = compiled.memory_analysis()
    return {"text": compiled.as_text(), "temp_bytes": getattr(memory, "temp_size_in_bytes", 0)}
