"""The one door to MLIR and to JAX's private parts: parse, print, verify, serialise.

Everything here that is not public in JAX is probed once; where a release has moved it, the error says which name is
missing. Modules are always parsed from text: changing a module that JAX still holds would poison its caches.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from typing import Any

from tilewright.errors import ParseError, UnsupportedError, UsageError
from tilewright.extras import need

_NEEDED = (
    ("jax", ()),  # first: it keeps jaxlib from logging its devices to stderr
    ("jax._src.export._export", ("_module_to_bytecode",)),
)
_BINARY = {
    "jaxlib.mlir.ir": ("Module", "Context", "DialectRegistry", "Operation", "InsertionPoint", "MLIRError"),
    "jaxlib.mlir.dialects.stablehlo": ("deserialize_portable_artifact", "register_dialect"),
    "jaxlib.mlir._mlir_libs._jax_mlir_ext": ("register_dialects",),
    "jaxlib._hlo": ("HloModule", "HloPrintOptions", "hlo_module_from_text"),
}
_DIALECTS = {"sdy": "register_dialect", "mpmd": "register_dialect", "mhlo": "register_mhlo_dialect"}
_DIALECTS |= {"chlo": "register_dialect", "stablehlo": "register_dialect"}


def binary_parts() -> dict[str, Any]:
    """What reads bytecode and protos: jaxlib alone, which starts in half the time jax takes."""
    return probed("reading binary programs", tuple(_BINARY.items()))


@cache
def probed(purpose: str, needed: tuple[tuple[str, tuple[str, ...]], ...]) -> dict[str, Any]:
    """The modules of ``needed``, or an UnsupportedError that says what this JAX lacks."""
    from importlib import import_module

    need("jax", "jaxlib", what=purpose)
    modules = {}
    for name, members in needed:
        try:
            modules[name] = import_module(name)
        except ImportError as error:
            problem = f"{purpose} needs JAX, and {name} cannot be imported: {error}"
            raise UnsupportedError(problem, how="jax 0.10.2 to 0.12 work") from None
        for member in members:
            if not hasattr(modules[name], member):
                import jax

                raise UnsupportedError(f"JAX {jax.__version__} has no {name}.{member}", how="jax 0.10.2 to 0.12 work")
    return modules


class _LazyModule:
    """``jaxlib.mlir.ir``, imported when first used; its members are kept."""

    def __getattr__(self, name: str) -> Any:
        value = self.__dict__[name] = getattr(binary_parts()["jaxlib.mlir.ir"], name)
        return value


ir: Any = _LazyModule()


_PLACE = re.compile(r'"-":(\d+):(\d+): (.*)')


_DEEPEST = 2000
"""MLIR's parser calls itself for every bracket, and its stack ends at some ten thousand."""


def parse_module(text: str) -> Any:
    """A new module from StableHLO text. Raises ParseError with line and column."""
    if (at := _too_deep(text)) >= 0:
        raise ParseError(f"not StableHLO: brackets nested deeper than {_DEEPEST}", text=text, column=at)
    with context():
        try:
            return ir.Module.parse(text)
        except ir.MLIRError as error:
            message = str(error)
    if place := _PLACE.search(message):
        line, column, reason = int(place[1]), int(place[2]), place[3]
        starts = [0, *(m.end() for m in re.finditer("\n", text))]
        at = starts[min(line, len(starts)) - 1] + column - 1
        raise ParseError(f"not StableHLO: {reason}", text=text, column=at)
    raise UsageError(f"not a StableHLO module: {message.splitlines()[-1] if message else 'no reason given'}")


def _too_deep(text: str) -> int:
    """Where brackets are nested too deeply, -1 if nowhere: for each kind, what opens since the fewest were open.

    Text in quotes and arrows count too, which makes it more than it is; only then the text is read without them.
    """
    if all(_depth_exceeded(text, pair) < 0 for pair in _BRACKETS):
        return -1
    bare = _UNBRACKETED.sub(lambda found: " " * len(found[0]), text)
    return max(_depth_exceeded(bare, pair) for pair in _BRACKETS)


_BRACKETS = ("()", "[]", "<>", "{}")
_UNBRACKETED = re.compile(r'"(?:[^"\\]|\\.)*+"|->|>=|//[^\n]*+')
_PIECE = 1 << 20


def _depth_exceeded(text: str, pair: str) -> int:
    if text.count(pair[0]) <= _DEEPEST:
        return -1
    import numpy as np

    depth = least = 0
    for start in range(0, len(text), _PIECE):
        raw = np.frombuffer(text[start : start + _PIECE].encode("latin-1", "replace"), np.uint8)  # one byte for each
        marks = np.flatnonzero((raw == ord(pair[0])) | (raw == ord(pair[1])))
        depths = depth + np.cumsum(np.where(raw[marks] == ord(pair[0]), 1, -1))
        fewest = np.minimum(np.minimum.accumulate(depths), least)
        deep = depths - fewest > _DEEPEST
        if deep.any():
            return start + int(marks[deep.argmax()])
        depth, least = (int(each[-1]) for each in (depths, fewest)) if len(marks) else (depth, least)
    return -1


def inside(root: Any) -> list[Any]:
    """Every operation inside ``root``, collected before anything changes."""
    found: list[Any] = []

    def look(operation: Any) -> Any:
        found.append(operation)
        return ir.WalkResult.ADVANCE

    root.walk(look)
    return found[:-1]


def custom_calls(module: Any) -> set[str]:
    """The names of all that a module calls outside of its language, wherever in it."""
    calls = [op.attributes for op in inside(module.operation) if op.name.endswith("custom_call")]
    return {str(said["call_target_name"]).strip('"') if "call_target_name" in said else "" for said in calls}


def print_module(module: Any, locations: bool = False) -> str:
    """The module's text, with source positions if asked for."""
    return str(module.operation.get_asm(enable_debug_info=locations))


def verify_module(module: Any) -> None:
    """Raise UnsupportedError if MLIR's verifier finds the module ill-formed (a rewrite's fault, never the user's)."""
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        raise UnsupportedError(f"the rewritten module does not verify: {error}".replace("\n", " ")) from None


def module_bytes(module: Any) -> bytes:
    """The module as the portable artifact that ``jax.export`` carries."""
    with context():
        raw: bytes = probed("rewriting programs", _NEEDED)["jax._src.export._export"]._module_to_bytecode(module)
    return raw


def operations_module(handles: list[Any], inputs: list[Any], outputs: list[Any]) -> str:
    """The text of a module whose main is clones of these operations, in this order: ``inputs`` to ``outputs``."""
    mlir_context = context() if not handles else handles[0].context
    with mlir_context, ir.Location.unknown(mlir_context):
        types = ", ".join(f"%{k}: {value.type}" for k, value in enumerate(inputs, 10))
        around = handles[0] if handles else None
        while around is not None and around.name != "builtin.module":
            around = around.parent
        beside = around.regions[0].blocks[0].operations if around else ()
        made_of = {str(each.attributes["decomposition"]) for each in handles if each.name == "stablehlo.composite"}
        symbols = [view.operation for view in beside if "sym_name" in view.operation.attributes]
        named = [op for op in symbols if op.name == "sdy.mesh" or f"@{op.attributes['sym_name'].value}" in made_of]
        module = ir.Module.parse("\n".join([*map(str, named), f"func.func public @main({types}) {{ return }}"]))
        *_, main = module.body.operations
        body = main.regions[0].blocks[0]
        place, end = dict(zip(inputs, body.arguments)), body.operations[0]
        with ir.InsertionPoint(end):
            for handle in handles:
                clone = handle.clone()
                _use_arguments(clone, place)
                place |= {old: new for old, new in zip(handle.results, clone.results) if old not in place}
            ir.Operation.create("func.return", [], [place[value] for value in outputs])
        end.operation.erase()
        kinds = [value.type for value in inputs], [value.type for value in outputs]
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*kinds))
        return print_module(module)


def _use_arguments(operation: Any, place: dict[Any, Any]) -> None:
    """Replace what an operation and its bodies take from outside."""
    for each in (operation, *inside(operation)):
        for index, value in enumerate(each.operands):
            if value in place:
                each.operands[index] = place[value]


def kept_arguments(lowered: Any, count: int) -> tuple[int, ...]:
    """Which of ``count`` flat arguments of a lowered function its module takes; all where JAX does not say."""
    inner = getattr(lowered, "_lowering", None)
    kept = getattr(inner, "compile_args", {}).get("kept_var_idx")
    return tuple(sorted(kept)) if kept is not None else tuple(range(count))


@cache
def context() -> Any:
    """The MLIR context of all modules, with the dialects that JAX emits; of jaxlib alone, and without threads."""
    from importlib import import_module

    parts = binary_parts()
    plain, registry = parts["jaxlib.mlir.ir"].Context(), parts["jaxlib.mlir.ir"].DialectRegistry()
    parts["jaxlib.mlir._mlir_libs._jax_mlir_ext"].register_dialects(registry)
    plain.enable_multithreading(False)
    plain.append_dialect_registry(registry)
    plain.load_all_available_dialects()
    for name, register in _DIALECTS.items():
        with suppress(ImportError):  # dialects come and go with releases
            getattr(import_module(f"jaxlib.mlir.dialects.{name}"), register)(plain)
    plain.allow_unregistered_dialects = True
    return plain


def bytecode_text(raw: bytes) -> str:
    """The text of MLIR bytecode or of a portable artifact. Damaged bytes may end the process."""
    parts = binary_parts()
    with context() as here:
        if b"StableHLO_v" in raw[:32]:
            module = parts["jaxlib.mlir.dialects.stablehlo"].deserialize_portable_artifact(here, raw)
        else:
            module = parts["jaxlib.mlir.ir"].Module.parse(raw)
        return str(module.operation.get_asm(enable_debug_info=True))


def kernel_text(raw: bytes) -> str:
    """The text of a Pallas kernel's bytecode in MLIR's generic form. Damaged bytes may end the process."""
    from importlib import import_module

    import_module("jaxlib.mlir._mlir_libs._tpu_ext").register_dialect(context())
    with context():
        module = binary_parts()["jaxlib.mlir.ir"].Module.parse(raw)
        return str(module.operation.get_asm(print_generic_op_form=True))


def proto_text(raw: bytes) -> str:
    """The HLO text of a serialized HloModuleProto. Damaged bytes may end the process."""
    parts = binary_parts()["jaxlib._hlo"]
    module = parts.HloModule.from_serialized_hlo_module_proto(raw)
    return str(module.to_string(parts.HloPrintOptions()))


def run_passes(module: Any, passes: str) -> None:
    """Run MLIR's own passes (``symbol-dce``: remove private functions that nothing names) on a module, in place."""
    from importlib import import_module

    with module.context:
        import_module("jaxlib.mlir.passmanager").PassManager.parse(f"builtin.module({passes})").run(module.operation)


def chlo_to_stablehlo(module: Any) -> None:
    """Replace what of CHLO stands in a module by the StableHLO that it means: grouped products become masked ones."""
    binary_parts()["jaxlib.mlir.dialects.stablehlo"].register_stablehlo_passes()
    run_passes(module, "func.func(chlo-legalize-to-stablehlo)")


def interpreted(raw: bytes) -> bytes:
    """The results of a StableHLO text's main for arrays, both pickled, by StableHLO's interpreter: their bytes.

    What of CHLO stands in it becomes StableHLO first. Operations that the interpreter lacks end the process.
    """
    import pickle

    import numpy as np

    parts = binary_parts()
    mlir, (text, arrays) = parts["jaxlib.mlir.ir"], pickle.loads(raw)  # of our own process, which made it
    with context():
        module = mlir.Module.parse(text)
        main = next(f for f in module.body.operations if mlir.StringAttr(f.attributes["sym_name"]).value == "main")
        types = mlir.FunctionType(mlir.TypeAttr(main.attributes["function_type"]).value).inputs
        given = [
            mlir.DenseElementsAttr.get(np.ascontiguousarray(array), type=kind.element_type, shape=list(kind.shape))
            for array, kind in zip(arrays, map(mlir.RankedTensorType, types), strict=True)
        ]
        chlo_to_stablehlo(module)
        results = parts["jaxlib.mlir.dialects.stablehlo"].eval_module(module, given)
        return b"".join(np.array(result).tobytes() for result in results)
