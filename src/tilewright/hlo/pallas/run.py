"""A Pallas kernel run block by block, every access held to its window, and what is wrong with it.

Each step of the grid gets copies of its blocks, as the chip has them: an output's block holds nothing at first, and
nothing again when it comes back. What no one wrote, and what lies beyond an array's edge, is filled with numbers that
mean nothing; a kernel whose results change with them uses them. Copies that a kernel starts itself are followed until
they are waited for (``refs.py``). Values are JAX's own, operation by operation, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError, UnsupportedError
from tilewright.hlo.pallas.check import lowering_for, refused
from tilewright.hlo.pallas.refs import Array, Copy, Part, Ref, Transfers, Window, filled, in_hbm, part_of
from tilewright.hlo.program import Source
from tilewright.hlo.reading.python_source import python_call
from tilewright.hlo.reading.sources import users_line
from tilewright.render.formats import count_text, counted, place_text
from tilewright.targets import target

_MOST_STEPS = 1 << 14
_MOST_ELEMENTS = 1 << 26
_MOST_TRIPS = 1 << 20
_MOST_SAID = 16
_TRACED_FOR = "tpu-v6e"
"""Kernels ask while they are traced which chip they are for; what they compute is the same on all."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a kernel: ``text`` says where, ``line`` at which line of the program ("" where none is known).

    ===================  ========================================================================================
    unwritten output     numbers of a result that no step wrote
    unwritten read       results that depend on memory that no one filled
    padding              results that depend on what lies beyond an array's edge
    race                 parallel steps or cores that write the same place, or read what another one wrote
    revisited output     a block of a result that is begun anew after it went out: what it held is lost
    out of window        an index beyond a block; ``out of array``: a block beyond its array
    copy out of bounds   a copy from or to a place beyond a memory
    read under a copy    memory that a copy under way writes; ``write under a copy``: the same, or what one reads
    copies overlap       two copies under way into the same place
    left under a copy    a block or scratch that goes while a copy from or to it is under way
    never waited for     a copy, or a semaphore that still counts when the kernel or its scope ends
    waits for ever       a semaphore that nothing will count so far
    not brought in       a read or write of memory in HBM, which only copies reach
    ===================  ========================================================================================
    """

    kind: str
    text: str
    line: str = ""


@dataclass(frozen=True)
class KernelRun:
    """Results of a function with kernels in it, and the faults of the kernels; () where none was found.

    ``interpreted``: the same results by Pallas' interpreter, () where ``uncompared`` says why there are none.
    ``difference``: the largest between both, relative to the largest number of each result. ``notes``: what is no fault
    and perhaps not meant: blocks of an array that no step looks at.
    """

    name: str
    results: tuple[Array, ...]
    interpreted: tuple[Array, ...]
    faults: tuple[Fault, ...]
    steps: int
    uncompared: str = ""
    notes: tuple[str, ...] = ()

    @property
    def difference(self) -> float:
        """The largest difference to the interpreter's results, as a share of the largest of each."""
        return max((_apart(a, b) for a, b in zip(self.results, self.interpreted)), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """Plain values; of the results their sizes and types."""
        return {
            "name": self.name,
            "steps": self.steps,
            "difference": None if self.uncompared else self.difference,
            "faults": [vars(fault) for fault in self.faults],
            "notes": list(self.notes),
            "results": [{"shape": list(one.shape), "dtype": str(one.dtype)} for one in self.results],
        }

    def lines(self) -> Iterator[str]:
        """What the terminal shows."""
        faults = counted(len(self.faults), "fault") if self.faults else "no faults"
        yield f"{self.name}: {counted(self.steps, 'step')} run block by block: {faults}"
        if self.uncompared:
            yield f"  not compared with Pallas' interpreter: {self.uncompared}"
        else:
            yield f"  largest difference to Pallas' interpreter: {self.difference:.1e}"
        for fault in self.faults:
            yield f"  {fault.kind}{f' at {fault.line}' if fault.line else ''}: {fault.text}"
        yield from (f"  - {text}" for text in self.notes)


def run_kernels(fn: Callable[..., Any] | str, *args: Any, seed: int = 0) -> KernelRun:
    """Run a function of arrays; its kernels block by block, all else by JAX.

    ``fn`` may be a text that names ``model.py:function``, whose ``args`` are texts such as ``f32[8,128]``; its arrays
    hold random numbers from ``seed``, integers from 0 to 3.

    Raises :class:`UnsupportedError` for kernels with operations that are not followed: copies to other chips,
    SparseCore kernels, operations without a meaning on the CPU; and for longer grids than a simulation can pass.

    >>> import jax, jax.numpy as jnp
    >>> from jax.experimental import pallas as pl
    >>> def forgets(x_ref, o_ref):
    ...     @pl.when(pl.program_id(0) == 0)
    ...     def _(): o_ref[...] = x_ref[...] * 2
    >>> block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    >>> x = jnp.ones((16, 128), jnp.float32)
    >>> call = pl.pallas_call(forgets, grid=(2,), in_specs=[block], out_specs=block, out_shape=x)
    >>> [fault.kind for fault in run_kernels(call, x).faults]
    ['unwritten output']
    """
    import jax

    if isinstance(fn, str):
        function, shapes, named = python_call(fn, args)
        return run_kernels(lambda *arrays: function(*arrays, **named), *_random_arrays(shapes, seed))
    flat, tree = jax.tree.flatten(args)
    with lowering_for(target(_TRACED_FOR)):
        try:
            closed = jax.make_jaxpr(lambda *leaves: fn(*jax.tree.unflatten(tree, leaves)))(*flat)
        except TilewrightError:
            raise
        except Exception as error:  # JAX has many ways to say no
            (problem,) = refused(error).problems
            raise UnsupportedError(problem.text, where=problem.line, how=problem.suggestion) from error
        base = _Program(0, 0)
        results = base.evaluate(closed.jaxpr, closed.consts, flat)
        interpreted, uncompared = _interpreted(base, closed, flat)
    faults = [*base.faults.values(), *_meaningless(base, results, closed, flat)]
    arrays = tuple(np.asarray(one) for one in results), tuple(np.asarray(one) for one in interpreted)
    name = ", ".join(dict.fromkeys(base.names)) or "no kernel"
    return KernelRun(name, *arrays, tuple(faults), base.steps, uncompared, tuple(base.notes))


def _meaningless(base: _Program, results: Sequence[Any], closed: Any, flat: Sequence[Any]) -> Iterator[Fault]:
    """Results that change with numbers that mean nothing, and where those were read."""
    for kind, fills in (("unwritten read", (1, 0)), ("padding", (0, 1))):
        with lowering_for(target(_TRACED_FOR)):
            other = _Program(*fills).evaluate(closed.jaxpr, closed.consts, flat)
        for number, (one, two) in enumerate(zip(results, other)):
            same = np.equal(one, two) | (np.not_equal(one, one) & np.not_equal(two, two))
            if count := int(np.count_nonzero(~same)):
                where = "what no one wrote" if kind == "unwritten read" else "what lies beyond an array's edge"
                reads = base.unfilled.get(kind, {})
                read = f"; read: {', '.join(reads.values())}" if reads else ""
                text = f"{count_text(count)} numbers of result {number} depend on {where}{read}"
                yield Fault(kind, text, next(iter(reads), ""))


def _interpreted(base: _Program, closed: Any, flat: Sequence[Any]) -> tuple[list[Any], str]:
    """The results by Pallas' interpreter, or why there are none."""
    from jax.experimental.pallas import tpu as pltpu

    if base.on_cores and base.faults:
        return [], "it waits for ever where a faulty kernel would"
    reset: Callable[[], None] = pltpu.reset_tpu_interpret_mode_state
    how = pltpu.InterpretParams() if base.on_cores else True
    try:
        return _Program(0, 0, interpret=how).evaluate(closed.jaxpr, closed.consts, flat), ""
    except Exception as error:  # it raises what its parts raise
        reset()
        return [], f"it fails: {(str(error).splitlines() or [type(error).__name__])[0][:160]}"


def _random_arrays(shapes: Sequence[Any], seed: int) -> list[Any]:
    import jax

    random = np.random.default_rng(seed)

    def made(one: Any) -> Any:
        if not hasattr(one, "dtype"):
            return one
        whole = np.issubdtype(one.dtype, np.integer) or one.dtype == bool
        numbers = random.integers(0, 4, one.shape) if whole else random.normal(size=one.shape)
        return np.asarray(numbers).astype(one.dtype)

    return list(jax.tree.map(made, list(shapes)))


def _apart(one: np.ndarray[Any, Any], two: np.ndarray[Any, Any]) -> float:
    a, b = one.astype(np.float64), two.astype(np.float64)
    both = np.isfinite(a) & np.isfinite(b)
    gap = np.abs(np.where(both, a - b, 0.0)).max(initial=0.0) / max(1e-30, np.abs(b[both]).max(initial=0.0), 1e-6)
    return float("inf") if not np.array_equal(np.isfinite(a), np.isfinite(b)) else float(gap)


@dataclass
class _Program:
    """One evaluation; ``unwritten``, ``padding``: which of the two meaningless numbers such memory holds."""

    unwritten: int
    padding: int
    interpret: Any = None  # True, or parameters of the interpreter of TPUs: kernels are left to it
    steps: int = 0
    faults: dict[tuple[str, str, str], Fault] = field(default_factory=dict)
    unfilled: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    ids: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()  # dims of the grid that a vmap added: the body does not see them
    axes: Mapping[str, int] = field(default_factory=dict)  # of a mesh of cores
    lane: int = 0  # the parallel step, or the core
    on_cores: bool = False  # whether one is a ``pl.kernel``: the interpreter of TPUs alone knows those
    eqn: Any = None  # what is evaluated, and the jaxpr that it stands in
    around: Any = None

    def __post_init__(self) -> None:
        self.transfers = Transfers(self.fault)

    def fault(self, kind: str, text: str, line: str | None = None) -> None:
        """Note it once for each line, with the first step where it happens."""
        line = self.line if line is None else line
        key = kind, line, "" if line else text
        if len(self.faults) < _MOST_SAID and key not in self.faults:
            step = f" in step {self.ids}" if self.ids and line else ""
            self.faults[key] = Fault(kind, text + step, line)

    @property
    def line(self) -> str:
        """The line of the user's program that is evaluated; "" where none is known."""
        traceback = self.eqn.source_info.traceback if self.eqn is not None else None
        stack = [Source(frame.file_name, frame.line_num) for frame in traceback.frames] if traceback else []
        source = users_line(stack)
        return place_text(str(source)) if source else ""

    def evaluate(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """The results of a jaxpr; references among its arguments are memory."""
        values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args)))
        for eqn in jaxpr.eqns:
            given = [value.val if hasattr(value, "val") else values[value] for value in eqn.invars]
            self.eqn, self.around = eqn, jaxpr
            values.update(zip(eqn.outvars, self._operation(eqn, given)))
        return [value.val if hasattr(value, "val") else values[value] for value in jaxpr.outvars]

    def _operation(self, eqn: Any, given: list[Any]) -> Sequence[Any]:
        name, params = eqn.primitive.name, eqn.params
        inner: Any = next((params[key] for key in ("jaxpr", "call_jaxpr", "call") if key in params), None)
        if self.interpret and name == "core_map":
            raise UnsupportedError("core_map is given to the interpreter while it is traced")
        if self.interpret and name in ("pallas_call", "mpmd_map"):
            return list(eqn.primitive.bind(*given, **{**params, "interpret": self.interpret}))
        if name in _FOLLOWED:
            return _FOLLOWED[name](self, eqn, given)
        if name == "cond":
            branch = params["branches"][min(max(int(given[0]), 0), len(params["branches"]) - 1)]
            return self.evaluate(branch.jaxpr, branch.consts, given[1:])
        if name == "axis_index" and params["axis_name"] in self.axes:
            return [np.int32(self.axes[params["axis_name"]])]
        if name in ("delay", "debug_print", "debug_callback"):
            return []
        if hasattr(inner, "consts") and not name.startswith("reduce"):
            return self.evaluate(inner.jaxpr, inner.consts, given)
        if name == "shard_map" and params["mesh"].size > 1:
            several = "a shard_map over several devices is not followed"
            raise UnsupportedError(several, how="run the function of a shard")
        if name in ("checkpoint", "shard_map"):
            return self.evaluate(inner, (), given)
        if any(isinstance(value, Ref) for value in given) or name == "get_barrier_semaphore":
            raise UnsupportedError(f"{name} is not followed by the simulation", how="tilewright kernel check prices it")
        try:
            try:
                made = eqn.primitive.bind(*given, **params)
            except NotImplementedError:
                made = _compiled(eqn.primitive, tuple(params.items()))(*given)
        except (NotImplementedError, ValueError) as error:
            raise UnsupportedError(f"{name} has no meaning on the CPU: {str(error).splitlines()[0]}") from None
        return made if eqn.primitive.multiple_results else [made]

    def _step(self, eqn: Any, given: list[Any]) -> Sequence[Any]:
        """``program_id`` and ``num_programs``."""
        of = self.ids if eqn.primitive.name == "program_id" else self.grid
        return [np.int32([size for d, size in enumerate(of) if d not in self.hidden][eqn.params["axis"]])]

    def _scan(self, eqn: Any, given: list[Any]) -> Sequence[Any]:
        import jax.numpy as jnp

        params, body = eqn.params, eqn.params["jaxpr"]
        if "ft_in" in params:  # later than JAX 0.10: the three kinds of arguments as trees, a jaxpr without constants
            kept, carried, _ = map(len, params["ft_in"].unpack())
        else:
            kept, carried = params["num_consts"], params["num_carry"]
        inner, own = getattr(body, "jaxpr", body), getattr(body, "consts", ())
        consts, carry, xs = given[:kept], given[kept : kept + carried], given[kept + carried :]
        rows: list[list[Any]] = []
        order = range(params["length"])
        for k in reversed(order) if params["reverse"] else order:
            made = self.evaluate(inner, own, [*consts, *carry, *(x[k] for x in xs)])
            carry, rows = list(made[:carried]), [*rows, list(made[carried:])]
        rows = rows[::-1] if params["reverse"] else rows
        return [*carry, *(jnp.stack(column) for column in zip(*rows))]

    def _while(self, eqn: Any, given: list[Any]) -> Sequence[Any]:
        params = eqn.params
        tests, bodies = params["cond_nconsts"], params["body_nconsts"]
        carry, test, body = given[tests + bodies :], params["cond_jaxpr"], params["body_jaxpr"]
        trips = 0
        while bool(self.evaluate(test.jaxpr, test.consts, [*given[:tests], *carry])[0]):
            if (trips := trips + 1) > _MOST_TRIPS:
                raise UnsupportedError(f"a loop of more than {count_text(_MOST_TRIPS)} trips", how="a smaller case")
            carry = self.evaluate(body.jaxpr, body.consts, [*given[tests : tests + bodies], *carry])
        return carry

    # Memory.

    def new(self, name: str, aval: Any) -> Ref:
        """Memory that holds nothing yet; semaphores count nothing."""
        shape, dtype = tuple(getattr(aval, "shape", ())), getattr(aval, "dtype", np.float32)
        if _counts(aval):
            return Ref(name, np.zeros(shape, np.int64), np.ones(shape, bool))
        values, writer = filled(shape, dtype, self.unwritten), np.full(shape, -1)
        return Ref(name, values, np.zeros(shape, bool), writer, in_hbm(aval))

    def _part(self, ref: Any, transforms: Sequence[Any], kind: str = "out of window") -> Part:
        return part_of(ref, transforms, lambda text: self.fault(kind, text))

    def _access(self, eqn: Any, given: list[Any]) -> Sequence[Any]:
        """A read, a write, or both, of a part of a reference; it must lie inside."""
        import jax

        name, value, mask, other = eqn.primitive.name, None, None, None
        if name == "masked_swap":
            ref, transforms, value, mask = jax.tree.unflatten(eqn.params["args_tree"], given)
        elif name == "masked_load":
            ref, transforms, mask, other = jax.tree.unflatten(eqn.params["args_tree"], given)
        else:
            ref, value = given[0], given[1] if name != "get" else None
            transforms = jax.tree.unflatten(eqn.params["tree"], given[1 if name == "get" else 2 :])
        part = self._part(ref, transforms)
        if ref.far:
            self.fault("not brought in", f"{ref.name} lies in HBM: copy a part of it into VMEM, and use that")
        self.transfers.touched(part, write=value is not None)
        if value is None or name == "addupdate":
            self.transfers.race(part, self.lane, "read")
            if not part.of(ref.written).all():
                kind = "padding" if ref.edge else "unwritten read"
                self.unfilled.setdefault(kind, {}).setdefault(self.line, f"{ref.name} at {self.line}")
        old = np.array(part.numbers)
        if value is None:
            fill = filled(old.shape, old.dtype, self.unwritten) if other is None else np.asarray(other)
            return [old if mask is None else np.where(np.asarray(mask), old, fill)]
        new = old + np.asarray(value) if name == "addupdate" else np.asarray(value)
        part.put(ref.values, new if mask is None else np.where(np.asarray(mask), new, old))
        part.put(ref.written, True if mask is None else part.of(ref.written) | np.asarray(mask))
        if ref.writer is not None:
            part.put(ref.writer, self.lane)
        return [] if name == "addupdate" else [old]

    # Copies and semaphores.

    def _copy(self, eqn: Any, given: list[Any]) -> Sequence[Any]:
        """``dma_start`` and ``dma_wait``."""
        import jax

        *ends, _, device = jax.tree.unflatten(eqn.params["tree"], given)
        if device is not None:
            raise UnsupportedError(f"the copy to another chip at {self.line} is not followed: one chip is simulated")
        source, dest, semaphore = (
            self._part(getattr(end, "ref", end), getattr(end, "transforms", ()), "copy out of bounds") for end in ends
        )
        cell = self.transfers.cell(semaphore)
        if eqn.primitive.name == "dma_start":
            self.transfers.start(Copy(source, dest, self.line, self.lane), cell, add=eqn.params["add"])
        else:
            self.transfers.wait(cell, dest.numbers.nbytes, "bytes", self.lane)
        return []

    def _signal(self, eqn: Any, given: list[Any]) -> Sequence[Any]:
        """``semaphore_signal``, ``semaphore_wait`` and ``semaphore_read``."""
        import jax

        ref, transforms, *rest = jax.tree.unflatten(eqn.params["args_tree"], given)
        cell = self.transfers.cell(self._part(ref, transforms))
        if eqn.primitive.name == "semaphore_read":
            return [np.int32(cell.count)]
        if eqn.primitive.name == "semaphore_wait":
            self.transfers.wait(cell, int(rest[0]), "signals", self.lane, taken=bool(rest[1]))
        elif any(one is not None for one in rest[1:]):
            raise UnsupportedError(f"the signal to another chip or core at {self.line} is not followed")
        else:
            cell.count += int(rest[0])
        return []

    def _scope(self, eqn: Any, given: list[Any]) -> Sequence[Any]:
        inner = eqn.params["jaxpr"]
        refs = [self.new(name, v.aval) for name, v in zip(_names(inner, "scope"), inner.invars)]
        made = self.evaluate(inner, given, refs)
        self.eqn = eqn
        self.transfers.leave(refs, "the end of its scope")
        return made

    # Kernels.

    def _kernel(self, eqn: Any, given: list[Any]) -> Sequence[Any]:
        mapping, name = eqn.params["grid_mapping"], _name(eqn, eqn.params["jaxpr"])
        lengths = iter(given[: mapping.num_dynamic_grid_bounds])
        grid = tuple(size if isinstance(size, int) else int(next(lengths)) for size in mapping.grid)
        steps = prod(grid)
        self._counted(name, steps, given)
        given = given[mapping.num_dynamic_grid_bounds :]
        tables, arrays = given[: mapping.num_index_operands], given[mapping.num_index_operands :]
        blocks, first = mapping.block_mappings, mapping.num_inputs
        if any(_counts(block.array_aval) for block in blocks):
            how = "one kernel that waits for what it starts"
            raise UnsupportedError(f"semaphores that go from kernel to kernel ({name}) are not followed", how=how)
        names = iter(_names(eqn.params["jaxpr"], "argument"))
        refs = [Ref.whole(next(names), table) for table in tables]
        inputs = [Ref.whole(next(names), array) for array in arrays]
        outs = [self.new(next(names), block.array_aval) for block in blocks[first:]]
        scratch = [self.new(next(names), aval) for aval in mapping.scratch_avals]
        for taken, made in dict(eqn.params["input_output_aliases"]).items():
            outs[made] = inputs[taken - mapping.num_dynamic_grid_bounds - mapping.num_index_operands]
        semantics = getattr(eqn.params.get("compiler_params"), "dimension_semantics", None) or ()
        parallel = [d for d, word in enumerate(semantics) if "parallel" in str(word).lower()]
        windows = [Window(ref, block, False, False) for ref, block in zip(inputs, blocks)]
        windows += [Window(ref, block, True, ref in inputs) for ref, block in zip(outs, blocks[first:])]
        outer = self.ids, self.grid, self.hidden
        self.grid, self.hidden = grid, tuple(mapping.vmapped_dims)
        owners: dict[tuple[int, Any], int] = {}
        used = self._used(eqn)
        for ids in np.ndindex(*grid):
            self.ids, self.eqn = tuple(int(k) for k in ids), None
            self.lane = 0
            for d in parallel:
                self.lane = self.lane * grid[d] + self.ids[d]
            held = [window.at(self, refs) for window in windows]
            for number, window in enumerate(windows[first:]):
                if number not in used or window.whole:
                    continue
                if owners.setdefault((number, window.index), self.lane) != self.lane:
                    self.fault("race", f"block {window.index} of output {number} is written by several parallel steps")
            self.evaluate(eqn.params["jaxpr"], (), [*refs, *held, *scratch])
        self.eqn, self.ids = None, ()
        for window in windows:
            window.back(self)
        for window in windows[:first]:
            if unread := window.unread(tables):
                self.notes[f"{count_text(unread)} blocks of {window.array.name} of {name} are in no step"] = None
        self._ended(used, outs, [*inputs, *outs, *scratch])
        self.ids, self.grid, self.hidden = outer
        return [ref.values for ref in outs]

    def _cores(self, eqn: Any, given: list[Any]) -> Sequence[Any]:
        """``pl.kernel``: a body on every core of a mesh, one after the other; what they share lies in HBM."""
        params, name = eqn.params, _name(eqn, eqn.params["jaxprs"][0])
        self.on_cores = True
        names, used = iter(_names(params["jaxprs"][0], "argument")), self._used(eqn)
        inputs = [Ref.whole(next(names), array) for array in given]
        outs = [self.new(next(names), aval) for aval in params["out_avals"]]
        for taken, made in dict(params["input_output_aliases"]).items():
            outs[made] = inputs[taken]
        for jaxpr, mesh in zip(params["jaxprs"], params["meshes"]):
            self._on_mesh(name, jaxpr, mesh, [*inputs, *outs], given)
        self._ended(used, outs, [*inputs, *outs])
        return [ref.values for ref in outs]

    def _core_map(self, eqn: Any, given: list[Any]) -> Sequence[Any]:
        self._on_mesh("core_map", eqn.params["jaxpr"], eqn.params["mesh"], given, [ref.values for ref in given])
        return []

    def _on_mesh(self, name: str, jaxpr: Any, mesh: Any, refs: Sequence[Ref], arrays: Sequence[Any]) -> None:
        if type(mesh).__name__ != "TensorCoreMesh":
            sparse = f"{name} runs on SparseCores, whose kernels are not run"
            raise UnsupportedError(sparse, how="tilewright kernel time")
        sizes, vars_ = dict(mesh.shape), (*jaxpr.constvars, *jaxpr.invars)
        self._counted(name, prod(sizes.values()), arrays)
        for ref, var in zip(refs, vars_):
            if in_hbm(var.aval):
                ref.shared()
        for core, place in enumerate(np.ndindex(*sizes.values())):
            self.axes, self.lane = dict(zip(sizes, map(int, place))), core
            named = zip(_names(jaxpr, "argument")[len(refs) :], vars_[len(refs) :])
            scratch = [self.new(name, var.aval) for name, var in named]
            values = [*refs, *scratch]
            self.evaluate(jaxpr, values[: len(jaxpr.constvars)], values[len(jaxpr.constvars) :])
            self.eqn = None
            self.transfers.leave(scratch, f"the end of {name}")
        self.axes, self.lane = {}, 0

    def _state(self, eqn: Any, given: list[Any]) -> Sequence[Any]:
        """``pl.run_state``: arrays that are references while its body runs."""
        inner = eqn.params["jaxpr"]
        refs = [Ref.whole(name, array) for name, array in zip(_names(inner, "argument"), given)]
        self.evaluate(inner, (), refs)
        return [ref.values for ref in refs]

    def _counted(self, name: str, steps: int, arrays: Sequence[Any]) -> None:
        if steps > _MOST_STEPS or sum(np.size(value) for value in arrays) > _MOST_ELEMENTS:
            raise UnsupportedError(f"{count_text(steps)} steps are more than a simulation passes", how="a smaller case")
        self.names.append(name)
        self.steps += steps

    def _used(self, eqn: Any) -> list[int]:
        """Which results of a kernel the program goes on with; others are scratch, whoever writes them last."""
        read = {id(var) for one in self.around.eqns for var in one.invars} | set(map(id, self.around.outvars))
        return [number for number, var in enumerate(eqn.outvars) if id(var) in read]

    def _ended(self, used: Sequence[int], outs: Sequence[Ref], refs: Sequence[Ref]) -> None:
        """A kernel is over: nothing is under way, every semaphore counts nothing, every result is written."""
        name = self.names[-1]
        self.transfers.leave(refs, f"the end of {name}")
        for number in used:
            if missing := int(np.count_nonzero(~outs[number].written)):
                self.fault("unwritten output", f"{count_text(missing)} numbers of output {number} of {name}", "")


_FOLLOWED: dict[str, Callable[[_Program, Any, list[Any]], Sequence[Any]]] = {
    "pallas_call": _Program._kernel,
    "mpmd_map": _Program._cores,
    "core_map": _Program._core_map,
    "run_state": _Program._state,
    "run_scoped": _Program._scope,
    "scan": _Program._scan,
    "while": _Program._while,
    **dict.fromkeys(("program_id", "num_programs"), _Program._step),
    **dict.fromkeys(("get", "swap", "addupdate", "masked_load", "masked_swap"), _Program._access),
    **dict.fromkeys(("dma_start", "dma_wait"), _Program._copy),
    **dict.fromkeys(("semaphore_signal", "semaphore_wait", "semaphore_read"), _Program._signal),
}
"""Operations that are followed here; all others are JAX's."""


@lru_cache(maxsize=256)
def _compiled(primitive: Any, params: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    """An operation that only a compiled function may hold."""
    import jax

    return jax.jit(lambda *values: primitive.bind(*values, **dict(params)))


def _counts(aval: Any) -> bool:
    """Whether these are semaphores."""
    import jax
    from jax import numpy as jnp

    return bool(jnp.issubdtype(getattr(aval, "dtype", np.float32), jax.dtypes.extended))


def _name(eqn: Any, jaxpr: Any) -> str:
    return str(eqn.params.get("name") or jaxpr.debug_info.func_name or "kernel")


def _names(jaxpr: Any, default: str) -> list[str]:
    """What the program calls the references that a jaxpr gets."""
    known = jaxpr.debug_info.arg_names or ()
    variables = (*jaxpr.constvars, *jaxpr.invars) if len(known) != len(jaxpr.invars) else jaxpr.invars
    return [known[k] if k < len(known) and known[k] else f"{default} {k}" for k in range(len(variables))]
