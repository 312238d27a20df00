"""numba compiles our kernels in less time.

Most of it is Python: the same operator of the same types is looked for again at every use, flags are compared field by
field, lives of variables are computed after every pass. What is here leaves out work whose result is known or that
nobody reads; the code that comes out is the same. All of it is written for one version of numba (:data:`_WRITTEN_FOR`):
another one compiles as it likes. And where others may compile functions of their own, in a notebook or a program that
imports this package, only what touches ours alone is changed.
"""

from __future__ import annotations

import gc
import inspect
import operator
import os
import threading
from types import BuiltinFunctionType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from tilewright.llvm_text import is_ours, numbas, write_less

_WRITTEN_FOR = (0, 68)


_process = {"ours": False}


def own_process() -> None:
    """This process is a command of ours: all that numba compiles in it may be compiled by shorter ways.

    Before the first kernel's file is imported; later it changes nothing.
    """
    _process["ours"] = True
    # Types that do not fit are errors, a hundred for each kernel, which nobody sees; in colours they take longer.
    os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")


def quicken() -> None:
    """Let numba, in this process, compile quicker."""
    import numba

    if numba.version_info.short != _WRITTEN_FOR:
        return
    _compile_inner_ones_once()
    if not _process["ours"]:
        return
    _compare_flags_at_once()
    _find_operators_once()
    _look_again_only_for_something_new()
    _read_signatures_once()
    _run_passes_only()
    _settle_lives_when_asked()
    _list_variables_flatly()
    _leave_passes_without_work()
    write_less()


# -- functions that only kernels call -----------------------------------------------------------------------------

_compiling = threading.local()  # of each thread: the dispatchers under way, one inside the other


def _compile_inner_ones_once() -> None:
    """What only kernels call is optimised and made machine code in its callers alone, and linked into them once.

    numba does both for every function, and again for all that is linked into each of its callers: two thirds of LLVM's
    time. A function without a way in from Python that is not kept by itself needs neither.
    """
    from llvmlite import binding

    modules = numbas("core.caching", "core.cgutils", "core.codegen", "core.dispatcher", "core.typed_passes")
    caching, cgutils, codegen, dispatcher, typed_passes = modules
    library: Any = codegen.JITCodeLibrary
    dispatchers, lowering = dispatcher.Dispatcher, typed_passes.BaseNativeLowering
    compile_one, lower, finalize = dispatchers.compile, lowering.run_pass, library.finalize

    class Whole(library):  # type: ignore[misc]
        """Code that Python calls, or a callback. What is optimised as a whole needs it no sooner."""

        def _optimize_functions(self, module: Any) -> None:
            module.data_layout = self._codegen._data_layout

    class Codegen:
        """That of the process, but for functions' environments, which only machine code has."""

        def __init__(self, codegen: Any) -> None:
            self._codegen = codegen

        def __getattr__(self, name: str) -> Any:
            return getattr(self._codegen, name)

        def set_env(self, name: str, environment: object) -> None:
            pass

    class Linked(library):  # type: ignore[misc]
        """Code that goes into its callers as it is, without what it calls: they get that, too."""

        @property
        def codegen(self) -> Any:
            return Codegen(self._codegen)

        def add_ir_module(self, ir_module: Any) -> None:
            module = binding.parse_assembly(cgutils.normalize_ir_text(str(ir_module)))
            module.name = ir_module.name
            module.data_layout = self._codegen._data_layout
            self._final_module.link_in(module)

        def finalize(self) -> None:
            self._raise_if_finalized()
            for called in self._linking_libraries:
                self._reload_init.update(called._reload_init)
            self._finalize_dynamic_globals()
            self._finalized = True

        def _get_module_for_linking(self) -> Any:
            self._ensure_finalized()
            for function in self._final_module.functions:
                if not function.is_declaration and function.linkage == binding.Linkage.external:
                    function.linkage = "linkonce_odr"
            return self._final_module

        def get_pointer_to_function(self, name: str) -> int:
            self._ensure_finalized()
            return 0

    def callers_first(called: Any, order: dict[Any, None]) -> None:
        """Whatever the libraries call, each behind all that call it, to ``order`` back to front."""
        for each in reversed(called):
            if each not in order:
                if isinstance(each, Linked):
                    callers_first(each._linking_libraries, order)
                order[each] = None

    def finalize_all(self: Any) -> None:
        # A definition that nobody has asked for is not linked.
        order: dict[Any, None] = {}
        callers_first(self._linking_libraries, order)
        self._linking_libraries = [*reversed(order)]
        finalize(self)

    def compile_noted(self: Any, signature: Any) -> Any:
        under_way = _compiling.__dict__.setdefault("dispatchers", [])
        collected = not under_way and gc.isenabled()
        if collected:
            gc.disable()
        under_way.append(self)
        try:
            return compile_one(self, signature)
        finally:
            under_way.pop()
            if collected:
                gc.enable()

    def lower_linked(self: Any, state: Any) -> Any:
        under_way = _compiling.__dict__.get("dispatchers") or [None]
        this, first = under_way[-1], under_way[0]
        called = this is not None and this.py_func is state.func_id.func and is_ours(first.py_func)
        if state.library is None and (called or is_ours(state.func_id.func)):
            inner = called and state.flags.no_cpython_wrapper and isinstance(this._cache, caching.NullCache)
            kind = Linked if inner else Whole
            state.library = kind(state.targetctx.codegen(), state.func_id.func_qualname)
            if not inner:
                state.library.enable_object_caching()
        return lower(self, state)

    dispatchers.compile, lowering.run_pass, library.finalize = compile_noted, lower_linked, finalize_all


# -- types --------------------------------------------------------------------------------------------------------


def _compare_flags_at_once() -> None:
    """Flags of functions are keys of numba's tables; it compares them default by default."""
    config = numbas("core.targetconfig")[0].TargetConfig

    def is_equal(self: Any, other: Any) -> Any:
        if not isinstance(other, config):
            return NotImplemented
        same = self is other or (type(self) is type(other) and self._values == other._values)
        return same or self.values() == other.values()

    def digest(self: Any) -> int:
        return hash(type(self).__name__)  # numba's own has no more: of a dict it takes the names

    config.__eq__, config.__hash__ = is_equal, digest


def _find_operators_once() -> None:
    """What a function of numba's gives for arguments of some types is looked for once, not at every use.

    Each operator has ten templates, which are tried one by one, and the other nine answer by an exception.
    """
    modules = numbas("core.lowering", "core.types", "core.types.misc", "core.typing.context", "core.typing.templates")
    lowering, types, misc, context, templates = modules
    functions, contexts, overload = types.BaseFunction, context.BaseContext, templates._OverloadFunctionTemplate
    resolve, resolve_value = functions.get_call_type, contexts.resolve_value_type
    plain = types.Number, types.Boolean, types.Literal, types.Array, types.BaseTuple, types.Record, types.NumberClass
    names = "add sub mul floordiv mod lshift rshift and_ or_ xor eq ne lt le gt ge"
    in_place = "iadd isub imul ifloordiv imod ilshift irshift iand ior ixor"
    of_integers = {getattr(operator, name) for name in f"{names} {in_place}".split()}  # whatever their values
    kept: dict[tuple[int, ...], Any] = {}

    def by_overload(template: Any, signature: Any) -> bool:
        return overload in template.__mro__ and signature.args in template._compiled_overloads

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws or type(self) is not types.Function:
            return resolve(self, context, args, kws)
        if self.typing_key in of_integers:
            bare = tuple(each.literal_type if type(each) is types.IntegerLiteral else each for each in args)
            args = bare if all(isinstance(each, types.Integer) for each in bare) else args
        key = (id(context), self._code, *[each._code for each in args])  # a type's number is not given again
        signature = kept.get(key)
        if signature is None:
            signature = resolve(self, context, args, kws)
            # What is compiled for a use depends on flags, too.
            if all(isinstance(each, plain) for each in args) and not any(
                by_overload(template, signature) for template in self.templates
            ):
                kept[key] = signature
        return signature

    def resolve_value_type(self: Any, value: Any) -> Any:
        known = self._lookup_global(value) if type(value) is BuiltinFunctionType else None
        return resolve_value(self, value) if known is None else known

    def is_literal(value: Any) -> bool:
        return type(value) in types.Literal.ctor_map or isinstance(value, types.Literal)

    def maybe_literal(value: Any) -> Any:
        return types.literal(value) if is_literal(value) else None

    def literal_or_omitted(value: Any) -> Any:
        return types.literal(value) if is_literal(value) else types.Omitted(value)

    functions.get_call_type, contexts.resolve_value_type = get_call_type, resolve_value_type
    for module in (types, misc):
        module.maybe_literal = maybe_literal
    lowering._lit_or_omitted = literal_or_omitted


def _look_again_only_for_something_new() -> None:
    """numba looks through all its registries, importing thirty modules, whenever it does not find something at once."""
    contexts = numbas("core.base")[0].BaseContext
    refresh = contexts.refresh
    seen: dict[int, int] = {}

    def registered(self: Any) -> int:
        of_code = "functions", "getattrs", "setattrs", "casts", "constants"
        number = sum(len(getattr(registry, name)) for registry in self._registries for name in of_code)
        of_types = "functions", "attributes", "globals"
        registries = self.typing_context._registries
        return number + sum(len(getattr(registry, name)) for registry in registries for name in of_types)

    def refresh_if_new(self: Any) -> None:
        if seen.get(id(self)) != registered(self):
            refresh(self)
            seen[id(self)] = registered(self)

    contexts.refresh = refresh_if_new


def _read_signatures_once() -> None:
    """numba asks :mod:`inspect` again at every use whether an implementation takes this or that."""
    base, templates = numbas("core.base", "core.typing.templates")
    has_loc = base._has_loc
    known: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    class Inspect:
        def __getattr__(self, name: str) -> Any:
            return getattr(inspect, name)

        def signature(self, function: Any) -> Any:
            if type(function) is not FunctionType:
                return inspect.signature(function)
            if function not in known:
                known[function] = inspect.signature(function)
            return known[function]

    def takes_loc(function: Any) -> bool:
        if type(function) is not FunctionType or {"__wrapped__", "__signature__"} & vars(function).keys():
            return bool(has_loc(function))
        code = function.__code__
        return "loc" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    base._has_loc, templates.inspect = takes_loc, Inspect()


# -- passes -------------------------------------------------------------------------------------------------------


def _run_passes_only() -> None:
    """A pass runs without telling any timer, and without a look whether it has done what only a wrong one does."""
    compiler_lock, compiler_machinery = numbas("core.compiler_lock", "core.compiler_machinery")
    lock = compiler_lock.global_compiler_lock._lock

    def run_pass(self: Any, index: int, this: Any, state: Any) -> None:
        with lock:
            this.analysis = self._analysis
            this.run_initialization(state)
            this.run_pass(state)
            this.run_finalizer(state)

    compiler_machinery.PassManager._runPass = run_pass


def _settle_lives_when_asked() -> None:
    """Of the lives of variables, which numba computes after every pass, only generators need all."""
    postproc, transforms = numbas("core.postproc", "core.transforms")
    processor = postproc.PostProcessor
    run = processor.run

    def run_lazily(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        function = self.func_ir
        if function.is_generator:
            run(self, emit_dels, extend_lifetimes)
            return
        function.blocks = transforms.canonicalize_cfg(function.blocks)
        function.variable_lifetime = postproc.VariableLifetime(function.blocks)
        function.generator_info = None
        if emit_dels:
            self._insert_var_dels(extend_lifetimes=extend_lifetimes)

    processor.run = run_lazily


def _list_variables_flatly() -> None:
    """The variables of a statement, without a list for each of its fields."""
    [ir] = numbas("core.ir")
    variable, leaves = ir.Var, frozenset((str, int, bool, type(None), ir.Loc))

    def collect(values: Any, found: list[Any]) -> None:
        for value in values:
            kind = type(value)
            if kind is variable:
                found.append(value)
            elif kind in leaves:
                pass
            elif kind is dict:
                collect(value.values(), found)
            elif kind is list or kind is tuple:
                collect(value, found)
            elif isinstance(value, ir.Inst):
                found += value.list_vars()
            elif isinstance(value, variable):
                found.append(value)
            elif isinstance(value, dict):
                collect(value.values(), found)
            elif isinstance(value, list | tuple):
                collect(value, found)

    def list_variables(self: Any, value: Any) -> list[Any]:
        found: list[Any] = []
        collect((value,), found)
        return found

    ir.Inst._rec_list_vars = list_variables


def _leave_passes_without_work() -> None:
    """Two passes over functions of ours that have no closures, and no arithmetic of whole arrays."""
    modules = numbas("core.ir", "core.ir_utils", "core.typed_passes", "core.types", "core.untyped_passes")
    ir, ir_utils, typed_passes, types, untyped_passes = modules
    closures, rewrites = untyped_passes.InlineClosureLikes, typed_passes.NopythonRewrites
    inline, rewrite = closures.run_pass, rewrites.run_pass

    def expressions(state: Any) -> Any:
        for block in state.func_ir.blocks.values():
            for assignment in block.find_insts(ir.Assign):
                if isinstance(assignment.value, ir.Expr):
                    yield assignment.target.name, assignment.value

    def inline_closures(self: Any, state: Any) -> bool:
        lists = "make_function", "build_list"
        if is_ours(state.func_id.func) and not any(each.op in lists for _, each in expressions(state)):
            ir_utils.fixup_var_define_in_scope(state.func_ir.blocks)
            return True
        return bool(inline(self, state))

    def rewrite_arrays(self: Any, state: Any) -> bool:
        if is_ours(state.func_id.func) and not any(
            isinstance(state.typemap[name], types.Array) and each.op in ("unary", "binop", "inplace_binop", "call")
            for name, each in expressions(state)
        ):
            return True
        return bool(rewrite(self, state))

    closures.run_pass, rewrites.run_pass = inline_closures, rewrite_arrays
