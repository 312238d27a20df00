"""numba writes less LLVM text for our kernels.

It writes for a struct that may change and a function that may fail, and LLVM finds out that neither happens: half of
the text goes again in its first passes. Written for the version of numba that :mod:`tilewright.compiling` names, and
asked for by that alone.
"""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import Any

_PACKAGE = __name__.partition(".")[0]


def numbas(*modules: str) -> list[Any]:
    """Modules of numba's, by their names in it."""
    return [import_module(f"numba.{module}") for module in modules]


def is_ours(function: Any) -> bool:
    """Whether a Python function is this package's."""
    return str(function.__module__).startswith(f"{_PACKAGE}.")


def write_less() -> None:
    """Let numba, in this process, write less."""
    _count_references_where_there_are_some()
    _keep_numbers_out_of_memory()
    _index_one_element()
    _read_structs_as_values()
    _count_loops_plainly()
    _trust_what_never_raises()


def _count_references_where_there_are_some() -> None:
    """A number needs no code that lets go of it, and without debug information nobody asks for its size."""
    from llvmlite import ir

    modules = numbas("core.cgutils", "core.debuginfo", "core.lowering", "core.runtime.context")
    cgutils, debuginfo, lowering, nrt = modules
    lower, numbers = lowering.Lower, (ir.IntType, ir.FloatType, ir.DoubleType)
    count_up, count_down, store, drop, allocate = (
        lower.incref,
        lower.decref,
        lower.storevar,
        lower.delvar,
        lower.alloca_lltype,
    )
    counted: dict[int, bool] = {}

    def is_counted(self: Any, kind: Any) -> bool:
        known = counted.get(kind._code)
        if known is None:
            known = counted[kind._code] = bool(self.context.data_model_manager[kind].contains_nrt_meminfo())
        return known

    def is_plain(self: Any) -> bool:
        return type(self.debuginfo) is debuginfo.DummyDIBuilder

    def incref(self: Any, kind: Any, value: Any) -> None:
        if is_counted(self, kind):
            count_up(self, kind, value)

    def decref(self: Any, kind: Any, value: Any) -> None:
        if is_counted(self, kind):
            count_down(self, kind, value)

    def storevar(self: Any, value: Any, name: str, argidx: Any = None) -> None:
        kind = self.typeof(name)
        if not is_plain(self) or (argidx is None and is_counted(self, kind)):
            store(self, value, name, argidx)
            return
        self._alloca_var(name, kind)
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            place = self.getvar(name)
            assert value.type == place.type.pointee, (value.type, place.type, name)
            self.builder.store(value, place)

    def delvar(self: Any, name: str) -> None:
        if not is_plain(self) or is_counted(self, self.typeof(name)):
            drop(self, name)
        elif name not in self._blk_local_varmap:
            self._singly_assigned_vars.discard(name)
            self._alloca_var(name, self.typeof(name))

    def alloca_lltype(self: Any, name: str, kind: Any, datamodel: Any = None) -> Any:
        if not is_plain(self):
            return allocate(self, name, kind, datamodel)
        if isinstance(kind, numbers):  # it is written before it is read: SSA has seen to it
            with self.builder.goto_entry_block():
                return self.builder.alloca(kind, name=name)
        return cgutils.alloca_once(self.builder, kind, name=name, zfill=False)

    def get_meminfos(self: Any, builder: Any, kind: Any, value: Any) -> list[Any]:
        model = self._context.data_model_manager[kind]
        own = [(kind, model.get_nrt_meminfo(builder, value))] if model.has_nrt_meminfo() else []
        for member, get in model.traverse(builder):
            if self._context.data_model_manager[member].contains_nrt_meminfo():  # or every number of a shape is fetched
                own += self.get_meminfos(builder, member, get(value))
        return own

    nrt.NRTContext.get_meminfos = get_meminfos
    lower.incref, lower.decref, lower.storevar = incref, decref, storevar
    lower.delvar, lower.alloca_lltype = delvar, alloca_lltype


def _keep_numbers_out_of_memory() -> None:
    """What is not counted and written once, before all that read it, is a value in all blocks, not only in its own."""
    analysis, ir, lowering = numbas("core.analysis", "core.ir", "core.lowering")
    lower = lowering.Lower
    find = lower._find_singly_assigned_variable

    def find_values(self: Any) -> None:
        blocks = self.func_ir.blocks
        if self.func_ir.func_id.is_generator or self.flags.debuginfo:
            find(self)
            return
        number = Counter(write.target.name for block in blocks.values() for write in block.find_insts(ir.Assign))
        used = analysis.compute_use_defs(blocks)
        of_block = {name: label for label, names in used.defmap.items() for name in names if number[name] == 1}
        above = analysis.compute_cfg_from_blocks(blocks).dominators()
        manager = self.context.data_model_manager
        for label, names in used.usemap.items():
            for name in names & of_block.keys():
                early = of_block[name] < label and of_block[name] in above[label]
                if not early or manager[self.typeof(name)].contains_nrt_meminfo():
                    del of_block[name]
        self._singly_assigned_vars, self._blk_local_varmap = set(of_block), {}

    lower._find_singly_assigned_variable = find_values


def _read_structs_as_values() -> None:
    """A struct of which only fields are asked needs no memory: an array's at every element."""
    from llvmlite.ir import IRBuilder, instructions

    arrayobj, base, cgutils, types = numbas("np.arrayobj", "core.base", "core.cgutils", "core.types")
    make_array, contexts, extract = arrayobj.make_array, base.BaseContext, IRBuilder.extract_value
    known: dict[Any, Any] = {}

    def pair_first(self: Any, builder: Any, value: Any, kind: Any) -> Any:
        return builder.extract_value(value, 0)

    def pair_second(self: Any, builder: Any, value: Any, kind: Any) -> Any:
        return builder.extract_value(value, 1)

    def of_value(kind: Any) -> Any:
        within: Any = make_array(kind)

        class Values(within):  # type: ignore[misc]
            """It goes to memory, where it was made, as soon as its address is asked for."""

            def __init__(self, context: Any, builder: Any, value: Any = None, ref: Any = None) -> None:
                self._whole = None
                if value is None or ref is not None:
                    super().__init__(context, builder, value, ref)
                    return
                self._context, self._builder, self._whole = context, builder, value
                self._datamodel = context.data_model_manager[self._fe_type]
                self._be_type = self._get_be_type(self._datamodel)
                block = builder.basic_block
                self._made = block, block.instructions[builder._anchor - 1] if builder._anchor else None

            def _make_refs(self, ref: Any) -> Any:  # numba looks for a way from an array to an array first
                place = cgutils.alloca_once(self._builder, self._be_type, zfill=True) if ref is None else ref
                return place, place

            def __getattr__(self, field: str) -> Any:
                if field not in ("_value", "_outer_ref"):
                    return super().__getattr__(field)
                builder, (block, last) = self._builder, self._made
                with builder.goto_entry_block():
                    place = builder.alloca(self._be_type)
                back, anchor = builder.basic_block, builder._anchor
                if last is None:
                    builder.position_at_start(block)
                else:
                    builder.position_after(last)
                moved = back is block and builder._anchor <= anchor
                builder.store(self._whole, place)
                builder.position_at_end(back)
                builder._anchor = anchor + moved
                self._value = self._outer_ref = place
                return place

            def __getitem__(self, index: int) -> Any:
                if "_value" in self.__dict__:
                    return super().__getitem__(index)
                return self._builder.extract_value(self._whole, index)

            def _getvalue(self) -> Any:
                return super()._getvalue() if "_value" in self.__dict__ else self._whole

            @property
            def shape(self) -> Any:
                return self[self._datamodel.get_field_position("shape")]

        return Values

    def make_array_of_value(kind: Any) -> Any:
        if not isinstance(kind, types.Array):
            return make_array(kind)
        if kind not in known:
            known[kind] = of_value(kind)
        return known[kind]

    def extract_value(self: Any, whole: Any, place: Any, name: str = "") -> Any:
        part = whole
        while type(part) is instructions.InsertValue and len(part.indices) == 1:
            if part.indices[0] == place:
                return part.operands[1]
            part = part.operands[0]
        return extract(self, whole, place, name)

    IRBuilder.extract_value = extract_value
    contexts.pair_first, contexts.pair_second = pair_first, pair_second
    arrayobj.make_array = make_array_of_value


def _count_loops_plainly() -> None:
    """A range of known steps needs no look at their sign, and its iterator no memory but for where it stands."""
    from llvmlite import ir

    imputils, types, _ = numbas("core.imputils", "core.types", "cpython.rangeobj")
    word = ir.IntType(32)
    ranges = types.range_state32_type, types.range_state64_type, types.unsigned_range_state64_type

    def struct(context: Any, builder: Any, kind: Any, *fields: Any) -> Any:
        whole = ir.Constant(context.get_value_type(kind), ir.Undefined)
        for place, field in enumerate(fields):
            whole = builder.insert_value(whole, field, place)
        return whole

    def make(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = context.get_value_type(signature.return_type.dtype)
        first, step = [number(0)] * (len(args) == 1), [number(1)] * (len(args) < 3)
        return struct(context, builder, signature.return_type, *first, *args, *step)

    def iterating(iterate: Any) -> Any:
        def iterate_forwards(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            [whole] = args
            last = whole.operands[1] if isinstance(whole, ir.instructions.InsertValue) else None
            if not isinstance(last, ir.Constant) or last.constant < 1:
                return iterate(context, builder, signature, args)
            start, stop = (builder.extract_value(whole, place) for place in range(2))
            with builder.goto_entry_block():
                number, left = builder.alloca(start.type), builder.alloca(start.type)
            count = builder.sub(stop, start)
            if last.constant > 1:
                count = builder.sdiv(builder.add(count, last.type(last.constant - 1)), last)
            builder.store(start, number)
            builder.store(count, left)
            return struct(context, builder, signature.return_type, number, stop, last, left)

        return iterate_forwards

    def step(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        """The pair stands in memory: kernels ran up to half longer where LLVM sees the end before it turns the loop."""
        at, by, more = (builder.extract_value(args[0], place) for place in (0, 2, 3))
        with builder.goto_entry_block():
            pair = builder.alloca(context.get_value_type(signature.return_type))
        first, second = (builder.gep(pair, [word(0), word(place)], inbounds=True) for place in range(2))
        left = builder.load(more)
        valid = builder.icmp_signed(">", left, left.type(0))
        builder.store(valid, second)
        with builder.if_then(valid):
            number = builder.load(at)
            builder.store(number, first)
            builder.store(builder.add(number, by), at)
            builder.store(builder.sub(left, left.type(1), flags=["nsw"]), more)
        return builder.load(pair)

    functions = imputils.builtin_registry.functions
    for at, (code, function, kinds) in enumerate(functions):
        if function is range:
            functions[at] = make, function, kinds
        elif function == "getiter" and kinds[0] in ranges:
            functions[at] = iterating(code), function, kinds
        elif function == "iternext" and isinstance(kinds[0], types.RangeIteratorType):
            functions[at] = step, function, kinds


def _trust_what_never_raises() -> None:
    """Who calls a function without a way out but its end asks for its result only."""
    base, callconv, lowering, types = numbas("core.base", "core.callconv", "core.lowering", "core.types")
    conventions, lowerers, general = callconv.CPUCallConv, lowering.BaseLower, base.user_function
    leave, lower = conventions._return_errcode_raw, lowerers.lower
    raising: set[str] = set()
    calm: set[str] = set()

    def leave_noted(self: Any, builder: Any, code: Any) -> None:
        if code is not callconv.RETCODE_OK:
            raising.add(builder.function.name)
        leave(self, builder, code)

    def lower_noted(self: Any) -> None:
        lower(self)
        if self.generator_info is None and self.function.name not in raising:
            calm.add(self.function.name)

    def user_function(called: Any, libraries: Any = ()) -> Any:
        call = general(called, libraries)

        def call_calmly(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            if called.mangled_name not in calm or isinstance(called.restype, types.Optional):
                return call(context, builder, signature, args)
            callee, convention = context.declare_function(builder.module, called), context.call_conv
            given = convention._get_arg_packer(called.argtypes).as_arguments(builder, args)
            to, nothing = (kind for kind in callee.function_type.args[:2])
            with builder.goto_entry_block():
                result = builder.alloca(to.pointee)
            builder.call(callee, [result, nothing(None), *given])
            return context.get_returned_value(builder, called.restype, builder.load(result))

        call_calmly.signature, call_calmly.libs = call.signature, call.libs  # type: ignore[attr-defined]
        return call_calmly

    conventions._return_errcode_raw, lowerers.lower, base.user_function = leave_noted, lower_noted, user_function


def _index_one_element() -> None:
    """One element of a C-contiguous array needs its shape at most once, and none of its strides."""
    arrayobj, slicing, types = numbas("np.arrayobj", "cpython.slicing", "core.types")
    index = arrayobj.basic_indexing

    def fixed(context: Any, builder: Any, kind: Any, value: Any, size: Any) -> Any:
        if not kind.signed:
            return context.cast(builder, value, kind, types.uintp)
        number = context.cast(builder, value, kind, types.intp)
        counted_from_the_front = isinstance(kind, types.IntegerLiteral) and kind.literal_value >= 0
        return number if counted_from_the_front else slicing.fix_index(builder, number, size())

    def basic_indexing(
        context: Any, builder: Any, kind: Any, array: Any, kinds: Any, indices: Any, boundscheck: Any = None
    ) -> Any:
        one = len(kinds) == kind.ndim and all(isinstance(each, types.Integer) for each in kinds)
        if boundscheck or not one or not kinds or kind.layout != "C":
            return index(context, builder, kind, array, kinds, indices, boundscheck)
        shape: list[Any] = []

        def size(axis: int) -> Any:
            if not shape:
                shape.append(array.shape)
            return builder.extract_value(shape[0], axis)

        place = fixed(context, builder, kinds[0], indices[0], lambda: size(0))
        for axis in range(1, kind.ndim):
            number = fixed(context, builder, kinds[axis], indices[axis], lambda axis=axis: size(axis))
            place = builder.add(builder.mul(place, size(axis)), number)
        return builder.gep(array.data, [place]), [], []

    arrayobj.basic_indexing = basic_indexing
