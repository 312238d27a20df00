"""Run a StableHLO program as a JAX function, through ``jax.export``.

The rewritten module takes the place of the serialised one in an ``Exported`` with the same arguments and results; its
``call`` then works under ``jax.jit`` like any JAX function.
"""

from __future__ import annotations

import atexit
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.child import Child
from tilewright.errors import CheckFailed, UnsupportedError, UsageError
from tilewright.extras import need
from tilewright.hlo.ir import chlo_to_stablehlo, custom_calls, kept_arguments, module_bytes, parse_module
from tilewright.hlo.jaxlib_child import read_arrays
from tilewright.hlo.program import Program

# A custom call names code of this process, and its attributes say with what: a text may name only what is known to be
# part of XLA or of its linear algebra. On a TPU nothing is run, so what its compiler knows may be compiled.
_KNOWN_CALLS = frozenset(
    {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "LayoutConstraint", "annotate_device_placement"}
    | {"AllocateBuffer", "TopK", "ApproxTopK", "PartialReduce", "shape_assertion", "xla.sdy.FuncResultSharding"}
    | {"xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape", "mhlo.topk", "mhlo.erf", "mhlo.tan"}
)
_TPU_CALLS = frozenset(
    {"tpu_custom_call", "Qr", "QrDecomposition", "QrDecompositionBlock", "Eigh", "LuDecomposition", "Cholesky"}
    | {"ProductOfElementaryHouseholderReflectors", "CompactWyHelper", "X64Combine", "X64SplitLow", "X64SplitHigh"}
)
_KNOWN_FAMILIES = ("lapack_", "chlo.", "stablehlo.")


def check_custom_calls(text: str, platform: str = "cpu") -> None:
    """UnsupportedError where a program from a text calls code that is not known to be XLA's own."""
    known = _KNOWN_CALLS | _TPU_CALLS if platform == "tpu" else _KNOWN_CALLS
    for name in sorted(custom_calls(parse_module(text))):
        if name not in known and not name.startswith(_KNOWN_FAMILIES):
            raise UnsupportedError(
                f"a custom call to {name[:80]!r}: a program from a text is run only where its calls are known",
                how="give the JAX function it was made from, if it is yours",
            )


def array_struct(shape: Sequence[int], dtype: Any, weak_type: bool = False) -> Any:
    import jax

    struct: Any = jax.ShapeDtypeStruct
    return struct(shape, dtype, weak_type=weak_type)


@dataclass(frozen=True)
class Signature:
    """The arguments and results of a JAX function, kept beside its program so that the program can be run again.

    Trees of arguments ``(args, kwargs)`` and results, with a ``jax.ShapeDtypeStruct`` for every leaf.

    ``kept`` lists the arguments the program takes: JAX drops those the function does not use. ``example``: the
    (args, kwargs) that a file says its function is called with, None where nobody said.
    """

    in_tree: Any
    out_tree: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    kept: tuple[int, ...]
    example: Any = None

    def flat(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """The arrays the program takes, of the function's arguments; UsageError for another structure."""
        import jax

        leaves, tree = jax.tree.flatten((tuple(args), kwargs))
        if tree != self.in_tree:
            raise UsageError(f"the arguments have another structure: {tree}", how=f"it takes {self.in_tree}")
        return [leaves[i] for i in self.kept]

    def result(self, outputs: Sequence[Any]) -> Any:
        """What the function returns, of the program's results."""
        import jax

        return jax.tree.unflatten(self.out_tree, list(outputs))


def signature_of(lowered: Any) -> Signature:
    import jax

    inputs = tuple(array_struct(a.shape, a.dtype) for a in jax.tree.leaves(lowered.in_avals))
    outputs = tuple(array_struct(a.shape, a.dtype) for a in jax.tree.leaves(lowered.out_info))
    return Signature(lowered.in_tree, lowered.out_tree, inputs, outputs, kept_arguments(lowered, len(inputs)))


def with_module(exported: Any, text: str) -> Any:
    """The same ``jax.export.Exported`` with another module, given as StableHLO text.

    Grouped products (``ragged_dot``), which XLA has for TPUs only, are masked products elsewhere. Raises
    UnsupportedError for calls back into Python: they are numbers of objects that only the original function has, and
    XLA follows them without a look.
    """
    module = parse_module(text)
    if "chlo.ragged_dot" in text and "tpu" not in exported.platforms:
        chlo_to_stablehlo(module)
    if calls := sorted(name for name in custom_calls(module) if "callback" in name):
        raise UnsupportedError(f"it calls back into Python ({calls[0]}), which a text cannot")
    return replace(exported, mlir_module_serialized=module_bytes(module))


def flat_callable(
    text: str, inputs: Sequence[Any], outputs: Sequence[Any], platform: str | None = None
) -> Callable[..., Any]:
    """The program as a function of arrays that returns a tuple of arrays; inputs and outputs are ShapeDtypeStructs.

    ``platform`` is JAX's name of what it will run on, the default backend's if None.
    """
    import jax
    import jax.numpy as jnp
    from jax import export

    for struct in (*inputs, *outputs):
        if jnp.issubdtype(struct.dtype, jax.dtypes.extended):
            raise UnsupportedError(
                f"a program with arguments of type {struct.dtype} cannot be run from its text",
                how="pass jax.random.key_data(key) and wrap it inside",
            )
    around = x64_enabled(), jax.sharding.get_abstract_mesh()
    exported = _stand_in(tuple(inputs), tuple(outputs), platform or export.default_export_platform(), around)
    call: Callable[..., Any] = with_module(exported, text).call
    return call


def x64_enabled() -> bool:
    import jax

    config: Any = jax.config
    return bool(config.jax_enable_x64)


@lru_cache(maxsize=256)
def _stand_in(inputs: tuple[Any, ...], outputs: tuple[Any, ...], platform: str, around: object) -> Any:
    """A ``jax.export.Exported`` of these types, whose module another takes the place of.

    ``around``: what else of JAX's state types depend on: whether 64 bits are on, and the mesh of the context.
    Kept, because a program is run before and after its rewrites and in parts that are alike: making one takes as long
    as compiling a small program.
    """
    import jax
    import jax.numpy as jnp
    from jax import export

    def zeros(*arrays: Any) -> tuple[Any, ...]:
        return tuple(jnp.zeros(output.shape, output.dtype) for output in outputs)

    return export.export(jax.jit(zeros, keep_unused=True), platforms=[platform])(*inputs)


def callable_of(program: Program) -> Callable[..., Any]:
    """A jitted function of the arguments of the JAX function ``program`` was made from.

    Raises UnsupportedError for a program from a file. The function raises UsageError for other arguments than those.
    """
    import jax

    signature: Signature | None = program.signature
    if signature is None:
        how = "make it with from_jax(fn, *args), or use verify"
        raise UnsupportedError("this program was not made from a JAX function", how=how)
    inputs = [signature.inputs[i] for i in signature.kept]
    call = flat_callable(program.text, inputs, signature.outputs)

    def run(*args: Any, **kwargs: Any) -> Any:
        kept = signature.flat(args, kwargs)
        for index, value, struct in zip(signature.kept, kept, inputs):
            if jax.numpy.shape(value) != struct.shape:
                raise UsageError(f"array {index} has shape {jax.numpy.shape(value)}, the program takes {struct.shape}")
        return signature.result(call(*map(jax.numpy.asarray, kept, [struct.dtype for struct in inputs])))

    return jax.jit(run)


# Programs from texts run in a process of their own: whatever they do to XLA, this process goes on. Only the answers of
# that process are read here, and those are JSON and plain arrays, checked before they are used. It runs on the CPU. A
# program of the user's own JAX function does not go this way: it may call what only this process has.

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
