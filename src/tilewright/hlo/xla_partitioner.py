"""XLA's own partitioner, as jaxlib's CPU backend has it: run in a copy of jaxlib's process, ended before code is made.

jaxlib has no entry for the partitioner alone: a module is compiled for as many virtual devices as it is for, with the
dumps of passes written out, and the process that compiles is ended as soon as the module behind the partitioner is
there. All that comes later (CPU code that nobody runs) is not done.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tilewright.hlo import ir

_BEHIND = ("sub-byte-size-setter", "batched_gather_scatter_normalizer", "algsimp")
"""Passes that come later: that there is a dump of one says that the partitioner's is whole."""
_PASSES = "|".join(("spmd-partitioning", *_BEHIND))
_FOUND = ("*.after_spmd-partitioning.*", "*.before_spmd-partitioning.*")
"""Where the partitioner changes nothing, there is only what stood before it."""
_LATER = (*(f"*.before_{name}.*" for name in _BEHIND), "*after_optimizations*", "*.ll")
_LOG = 1 << 20
_POLL = 0.004
_PARTS: dict[str, tuple[str, ...]] = {
    "jaxlib._jax": ("CompileOptions", "DeviceAssignment", "DeviceList", "get_tfrt_cpu_client", "mlir"),
    "jaxlib.mlir.passmanager": ("PassManager",),
}
_PREFIX = re.compile(r"^[IWEF]\d{4} [\d:.]+\s+\d+ [\w.]+:\d+\] ", re.M)


def parts() -> dict[str, Any]:
    """What of jaxlib partitions programs."""
    return ir.probed("partitioning programs", tuple(_PARTS.items()))


def partitioned(raw: bytes) -> bytes:
    """Of ``devices``, a line break and StableHLO text: HLO text of one device, a zero byte, what was logged.

    Runs in a process of its own, which this one ends. Raises ValueError with XLA's reason.
    """
    head, _, text = raw.partition(b"\n")
    with tempfile.TemporaryDirectory(prefix="tilewright-partition-") as name:
        folder = Path(name)
        child = os.fork()
        if not child:
            _compile_main(text, int(head), folder)
        try:
            answer = _awaited(child, folder)
        finally:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        log = _read(folder / "log")[:_LOG]
        if answer:
            return answer + b"\0" + log
        reason = _read(folder / "refused").decode(errors="replace").strip() or _why(log)
        raise ValueError(reason or "XLA's partitioner ends the process")


def _awaited(child: int, folder: Path) -> bytes:
    """The module behind the partitioner, b"" where the process ended without it."""
    alive, dumps = True, folder / "dumps"
    while alive:
        alive = os.waitpid(child, os.WNOHANG)[0] == 0
        if not alive or any(later for pattern in _LATER for later in dumps.glob(pattern)):
            break
        time.sleep(_POLL)
    found = [sorted(dumps.glob(pattern)) for pattern in _FOUND]
    return next((_read(files[-1]) for files in found if files), b"")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _why(log: bytes) -> str:
    """The line of a log that says why a process ended itself, else its last."""
    lines = [line for line in log.decode(errors="replace").splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith("F") and _PREFIX.match(line)]
    return _PREFIX.sub("", (fatal or lines)[-1])[:300] if lines else ""


def _compile_main(text: bytes, devices: int, folder: Path) -> None:
    """The process that compiles: it logs into a file, and writes why XLA refused into another."""
    try:
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 2)
        os.dup2(log, 1)
        _compile(text, devices, str(folder / "dumps"))
    except BaseException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        (folder / "refused").write_text(lines[0] if lines else type(error).__name__)
    finally:
        os._exit(0)


def _compile(text: bytes, devices: int, dumps: str) -> None:
    os.environ["XLA_FLAGS"] = " ".join(
        (
            f"--xla_force_host_platform_device_count={devices}",
            f"--xla_dump_to={dumps}",
            f"--xla_dump_hlo_pass_re={_PASSES}",
            "--xla_dump_hlo_as_text",
        )
    )
    xla = parts()["jaxlib._jax"]
    client = xla.get_tfrt_cpu_client()
    client.compile_and_load(text, xla.DeviceList(tuple(client.devices())), options(text, range(devices)))


def options(text: bytes, ids: Sequence[int]) -> Any:
    """How StableHLO text is compiled for the devices with these ids, in the order of its mesh."""
    import numpy as np

    xla = parts()["jaxlib._jax"]
    found = xla.CompileOptions()
    found.num_replicas, found.num_partitions = 1, len(ids)
    build = found.executable_build_options
    build.num_replicas, build.num_partitions = 1, len(ids)
    build.use_spmd_partitioning = True
    build.use_shardy_partitioner = b"sdy." in text
    build.device_assignment = xla.DeviceAssignment.create(np.array(ids).reshape(1, len(ids)))
    for name, several in _freedoms(text).items():
        setattr(build, f"allow_spmd_sharding_propagation_to_{name}", several)
    return found


_MAIN = re.compile(rb"func\.func (?:public )?@main\((.*?)\) -> (.*?)\{\s*(?:loc\([^\n]*\)\s*)?\n", re.S)


def _freedoms(text: bytes) -> dict[str, list[bool]]:
    """Which arguments and results say no sharding: those the partitioner may choose, as JAX lets it."""
    main = _MAIN.search(text)
    if main is None:
        return {}
    results = main[2].split(b"tensor<")[1:]
    arguments = main[1].split(b"tensor<")[1:]
    free = {"parameters": arguments, "output": results}
    return {name: [b"sharding" not in part for part in parts] for name, parts in free.items()}


_SHARDY = (
    "sdy-propagation-pipeline,"
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true},sdy-reshard-to-collectives)"
)


def by_shardy(raw: bytes) -> bytes:
    """StableHLO text without calls, as Shardy's own passes cut it; a zero byte; whole arrays still, and the exchanges.

    Some programs end the process.
    """
    module = ir.parse_module(raw.decode())
    ir.chlo_to_stablehlo(module)
    ir.run_passes(module, _SHARDY)
    whole = ir.print_module(module, locations=True)
    ir.run_passes(module, "sdy-convert-global-to-local,cse")
    return f"{ir.print_module(module, locations=True)}\0{whole}".encode()


def stablehlo(raw: bytes) -> bytes:
    """HLO text as StableHLO text, with its locations, in the way JAX would have written it.

    What is written twice or called by nobody stands there once, no copy only carries a sharding, and a custom call has
    several results rather than a tuple.
    """
    binary, ours = ir.binary_parts(), parts()
    mlir = binary["jaxlib.mlir.ir"]
    stable, passes = ours["jaxlib._jax"].mlir, ours["jaxlib.mlir.passmanager"].PassManager
    proto = binary["jaxlib._hlo"].hlo_module_from_text(raw.decode()).as_serialized_hlo_module_proto()
    with ir.context():
        module = mlir.Module.parse(stable.hlo_to_stablehlo(proto))
        passes.parse("builtin.module(symbol-privatize{exclude=main},symbol-dce,cse)").run(module.operation)
        if _tidied(module.operation, mlir):
            passes.parse("builtin.module(cse)").run(module.operation)
        return str(module.operation.get_asm(enable_debug_info=True)).encode()


_NAMES = re.compile(r"%[\w#]+")
_EXCHANGES = frozenset(f"stablehlo.{name}" for name in ("all_gather", "all_reduce", "all_to_all", "reduce_scatter"))


def _tidied(module: Any, mlir: Any) -> int:
    """Replace what XLA's form has and JAX's has not; how many operations.

    MLIR leaves an exchange alone that an earlier one of its block has made already, as it might have an effect.
    """
    made: dict[Any, Any] = {}
    again: list[tuple[Any, Any]] = []
    copies: list[Any] = []
    calls: list[Any] = []

    def look(operation: Any) -> Any:
        if operation.name in _EXCHANGES:
            text = _NAMES.sub("%", operation.get_asm(print_generic_op_form=True))
            first = made.setdefault((operation.block, tuple(operation.operands), text), operation)
            if first is not operation:
                again.append((operation, first))
        elif operation.name == "mhlo.copy":
            copies.append(operation)
        elif operation.name == "stablehlo.custom_call" and len(operation.results) == 1:
            calls.append(operation)
        return mlir.WalkResult.ADVANCE

    module.walk(look)
    for operation, values in (*((o, first.results) for o, first in again), *((o, o.operands) for o in copies)):
        for old, new in zip(operation.results, values):
            old.replace_all_uses_with(new)
        operation.erase()
    return len(again) + len(copies) + sum(_flattened(call, mlir) for call in calls)


def _flattened(call: Any, mlir: Any) -> bool:
    """Give a custom call its tuple's elements as results, where nothing but elements is taken of the tuple."""
    if not str(call.results[0].type).startswith("tuple<"):
        return False
    tuple_type = mlir.TupleType(call.results[0].type)
    users = [use.owner.operation for use in call.results[0].uses]
    if any(user.name != "stablehlo.get_tuple_element" for user in users):
        return False
    types = [tuple_type.get_type(k) for k in range(tuple_type.num_types)]
    attributes = {key: call.attributes[key] for key in call.attributes if key != "xla_shape"}
    with mlir.InsertionPoint(call), call.location:
        new = mlir.Operation.create(call.name, types, list(call.operands), attributes)
    for user in users:
        user.results[0].replace_all_uses_with(new.results[mlir.IntegerAttr(user.attributes["index"]).value])
        user.erase()
    call.erase()
    return True
