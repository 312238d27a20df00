"""A Pallas kernel run block by block, every access held to its window, and what is wrong with it.

Each step of the grid gets copies of its blocks, as the chip has them: an output's block holds nothing at first, and
nothing again when it comes back. What no one wrote, and what lies beyond an array's edge, is filled with numbers that
mean nothing; a kernel whose results change with them uses them. Values are JAX's own, operation by operation, on the
CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo.reading.python_source import python_call
from tilewright.render.formats import count_text

_MOST_STEPS = 1 << 14
_MOST_ELEMENTS = 1 << 26
_FILLS = (7.0, 2.0)
"""What memory holds that no one wrote; a result that depends on it differs between the two."""
_MOST_SAID = 16


@dataclass(frozen=True)
class Fault:
    """``kind``: unwritten output, unwritten read, padding, race, out of window, out of array; ``text``: where."""

    kind: str
    text: str


@dataclass(frozen=True)
class KernelRun:
    """Results of a function with kernels in it, and the faults of the kernels; () where none was found.

    ``interpreted``: the same results by Pallas' interpreter; ``difference``: the largest between both, relative to the
    largest number of each result.
    """

    name: str
    results: tuple[np.ndarray[Any, Any], ...]
    interpreted: tuple[np.ndarray[Any, Any], ...]
    faults: tuple[Fault, ...]
    steps: int

    @property
    def difference(self) -> float:
        """The largest difference to the interpreter's results, as a share of the largest of each."""
        return max((_apart(a, b) for a, b in zip(self.results, self.interpreted)), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """Plain values; of the results their sizes and types."""
        results = [{"shape": list(one.shape), "dtype": str(one.dtype)} for one in self.results]
        faults = [vars(fault) for fault in self.faults]
        return {"name": self.name, "steps": self.steps, "difference": self.difference, "faults": faults} | {
            "results": results
        }

    def lines(self) -> Iterator[str]:
        """What the terminal shows."""
        yield f"{self.name}: {count_text(self.steps)} steps run block by block: {len(self.faults) or 'no'} faults"
        yield f"  largest difference to Pallas' interpreter: {self.difference:.1e}"
        yield from (f"  {fault.kind}: {fault.text}" for fault in self.faults)


def run_kernels(fn: Callable[..., Any] | str, *args: Any, seed: int = 0) -> KernelRun:
    """Run a function of arrays; its kernels block by block, all else by JAX.

    ``fn`` may be a text that names ``model.py:function``, whose ``args`` are texts such as ``f32[8,128]``; its arrays
    hold random numbers from ``seed``, integers from 0 to 3.

    Raises :class:`UnsupportedError` for kernels with operations that are not followed: transfers of their own,
    semaphores, operations without a meaning on the CPU; and for longer grids than a simulation can pass.

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
    closed = jax.make_jaxpr(lambda *leaves: fn(*jax.tree.unflatten(tree, leaves)))(*flat)
    base = _Program(0, 0)
    results = base.evaluate(closed.jaxpr, closed.consts, flat)
    interpreted = _Program(0, 0, interpret=True).evaluate(closed.jaxpr, closed.consts, flat)
    faults = list(base.faults)
    for kind, fills in (("unwritten read", (1, 0)), ("padding", (0, 1))):
        other = _Program(*fills).evaluate(closed.jaxpr, closed.consts, flat)
        for number, (one, two) in enumerate(zip(results, other)):
            if count := int(np.count_nonzero(~_same(np.asarray(one), np.asarray(two)))):
                where = "what no one wrote" if kind == "unwritten read" else "what lies beyond an array's edge"
                faults.append(Fault(kind, f"{count_text(count)} numbers of result {number} depend on {where}"))
    arrays = tuple(np.asarray(one) for one in results), tuple(np.asarray(one) for one in interpreted)
    name = ", ".join(dict.fromkeys(base.names)) or "no kernel"
    return KernelRun(name, *arrays, tuple(dict.fromkeys(faults)), base.steps)


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


def _same(one: np.ndarray[Any, Any], two: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray((one == two) | ((one != one) & (two != two)))


def _apart(one: np.ndarray[Any, Any], two: np.ndarray[Any, Any]) -> float:
    a, b = one.astype(np.float64), two.astype(np.float64)
    both = np.isfinite(a) & np.isfinite(b)
    gap = np.abs(np.where(both, a - b, 0.0)).max(initial=0.0) / max(1e-30, np.abs(b[both]).max(initial=0.0), 1e-6)
    return float("inf") if not np.array_equal(np.isfinite(a), np.isfinite(b)) else float(gap)


@dataclass
class _Ref:
    """Memory that a kernel sees: its numbers, which of them someone wrote, and in which parallel step."""

    name: str
    values: np.ndarray[Any, Any]
    written: np.ndarray[Any, Any] = field(repr=False)
    writer: np.ndarray[Any, Any] | None = None  # of scratch: the parallel step that wrote it last


@dataclass
class _Program:
    """One evaluation; ``fill``: which of the two meaningless numbers unwritten memory and padding hold."""

    unwritten: int
    padding: int
    interpret: bool = False
    steps: int = 0
    faults: dict[Fault, None] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    ids: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    lane: int = 0  # the parallel step

    def fault(self, kind: str, text: str) -> None:
        if len(self.faults) < _MOST_SAID:
            self.faults[Fault(kind, text)] = None

    def evaluate(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """The results of a jaxpr; references among its arguments are memory."""
        values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args)))
        for eqn in jaxpr.eqns:
            given = [value.val if hasattr(value, "val") else values[value] for value in eqn.invars]
            made = self._operation(eqn, given)
            values.update(zip(eqn.outvars, made))
        return [value.val if hasattr(value, "val") else values[value] for value in jaxpr.outvars]

    def _operation(self, eqn: Any, given: list[Any]) -> Sequence[Any]:
        name, params = eqn.primitive.name, eqn.params
        inner = params.get("jaxpr", params.get("call_jaxpr"))
        if name == "pallas_call":
            return self._kernel(eqn, given)
        if name == "program_id":
            return [np.int32(self.ids[params["axis"]])]
        if name == "num_programs":
            return [np.int32(self.grid[params["axis"]])]
        if name in ("get", "swap", "addupdate", "masked_load", "masked_swap"):
            return self._access(name, params, given)
        if name == "cond":
            branch = params["branches"][min(max(int(given[0]), 0), len(params["branches"]) - 1)]
            return self.evaluate(branch.jaxpr, branch.consts, given[1:])
        if name == "scan":
            return self._scan(params, given)
        if name == "while":
            return self._while(params, given)
        if name == "run_scoped":
            refs = [self._new(f"scope {k}", v.aval) for k, v in enumerate(inner.invars)]
            return self.evaluate(inner, given, refs)
        if inner is not None and hasattr(inner, "consts"):
            return self.evaluate(inner.jaxpr, inner.consts, given)
        if any(isinstance(value, _Ref) for value in given):
            raise UnsupportedError(f"{name} is not followed by the simulation", how="tilewright kernel check prices it")
        try:
            made = eqn.primitive.bind(*given, **params)
        except NotImplementedError as error:
            raise UnsupportedError(f"{name} has no meaning on the CPU: {error}") from None
        return made if eqn.primitive.multiple_results else [made]

    def _scan(self, params: Any, given: list[Any]) -> Sequence[Any]:
        import jax.numpy as jnp

        kept, carried = params["num_consts"], params["num_carry"]
        consts, carry, xs = given[:kept], given[kept : kept + carried], given[kept + carried :]
        rows: list[list[Any]] = []
        order = range(params["length"])
        for k in reversed(order) if params["reverse"] else order:
            made = self.evaluate(params["jaxpr"].jaxpr, params["jaxpr"].consts, [*consts, *carry, *(x[k] for x in xs)])
            carry, rows = list(made[:carried]), [*rows, list(made[carried:])]
        rows = rows[::-1] if params["reverse"] else rows
        return [*carry, *(jnp.stack(column) for column in zip(*rows))]

    def _while(self, params: Any, given: list[Any]) -> Sequence[Any]:
        tests, bodies = params["cond_nconsts"], params["body_nconsts"]
        carry, test, body = given[tests + bodies :], params["cond_jaxpr"], params["body_jaxpr"]
        while bool(self.evaluate(test.jaxpr, test.consts, [*given[:tests], *carry])[0]):
            carry = self.evaluate(body.jaxpr, body.consts, [*given[tests : tests + bodies], *carry])
        return carry

    # Memory.

    def _new(self, name: str, aval: Any, *, scratch: bool = True) -> _Ref:
        """Memory that holds nothing yet."""
        shape, dtype = tuple(getattr(aval, "shape", ())), getattr(aval, "dtype", None)
        try:
            values = np.full(shape, _FILLS[self.unwritten]).astype(np.dtype(dtype))
        except TypeError:
            raise UnsupportedError("semaphores are not followed by the simulation") from None
        return _Ref(name, values, np.zeros(shape, bool), np.full(shape, -1) if scratch else None)

    def _access(self, name: str, params: Any, given: list[Any]) -> Sequence[Any]:
        """A read, a write, or both, of a part of a reference; it must lie inside."""
        import jax

        if name.startswith("masked"):
            ref, transforms, *rest = jax.tree.unflatten(params["args_tree"], given)
            if name == "masked_swap":
                value, mask = rest[0], rest[1] if len(rest) > 1 else None
            else:
                value, mask = None, rest[0] if rest else None
            if mask is not None:
                raise UnsupportedError("reads and writes under a mask are not followed by the simulation")
        else:
            ref, value = given[0], given[1] if name != "get" else None
            transforms = jax.tree.unflatten(params["tree"], given[1 if name == "get" else 2 :])
        if len(transforms) > 1 or any(not hasattr(one, "indices") for one in transforms):
            raise UnsupportedError("views of references inside views are not followed by the simulation")
        place = self._place(ref, transforms[0].indices if transforms else ())
        if name in ("get", "masked_load", "addupdate") and ref.writer is not None:
            other = ref.writer[place]
            if np.any((other >= 0) & (other != self.lane)):
                self.fault("race", f"{ref.name} is read in a parallel step and was written in another one")
        old = np.array(ref.values[place])
        if value is not None:
            ref.values[place] = old + np.asarray(value) if name == "addupdate" else np.asarray(value)
            ref.written[place] = True
            if ref.writer is not None:
                ref.writer[place] = self.lane
        return [] if name == "addupdate" else [old]

    def _place(self, ref: _Ref, indices: Sequence[Any]) -> tuple[Any, ...]:
        place: list[Any] = []
        for size, index in zip(ref.values.shape, indices):
            if hasattr(index, "start"):
                start, count, stride = int(index.start), int(index.size), int(index.stride)
                last = start + (count - 1) * stride
                if start < 0 or last >= size:
                    self.fault("out of window", f"{ref.name}: {start} to {last} of {size} in step {self.ids}")
                    start = min(max(start, 0), max(0, size - 1 - (count - 1) * stride))
                place.append(slice(start, start + (count - 1) * stride + 1, stride))
                continue
            at = np.asarray(index)
            if np.any((at < 0) | (at >= size)):
                self.fault("out of window", f"{ref.name}: {at.tolist()} of {size} in step {self.ids}")
            place.append(np.clip(at, 0, size - 1) if at.ndim else int(np.clip(at, 0, size - 1)))
        return tuple(place)

    # Kernels.

    def _kernel(self, eqn: Any, given: list[Any]) -> Sequence[Any]:
        if self.interpret:
            return list(eqn.primitive.bind(*given, **{**eqn.params, "interpret": True}))
        mapping, name = eqn.params["grid_mapping"], str(eqn.params.get("name") or "kernel")
        grid = tuple(mapping.grid)
        if not all(isinstance(size, int) for size in grid) or mapping.vmapped_dims:
            raise UnsupportedError("grids whose length data decides, and kernels under vmap, are not run")
        steps = prod(grid)
        if steps > _MOST_STEPS or sum(np.size(value) for value in given) > _MOST_ELEMENTS:
            raise UnsupportedError(f"{count_text(steps)} steps are more than a simulation passes", how="a smaller case")
        self.names.append(name)
        self.steps += steps
        tables, arrays = given[: mapping.num_index_operands], given[mapping.num_index_operands :]
        refs = [_whole(f"table {k}", table) for k, table in enumerate(tables)]
        blocks, first = mapping.block_mappings, mapping.num_inputs
        inputs = [_whole(f"input {k}", array) for k, array in enumerate(arrays)]
        outs = [self._new(f"output {k}", b.array_aval, scratch=False) for k, b in enumerate(blocks[first:])]
        scratch = [self._new(f"scratch {k}", aval) for k, aval in enumerate(mapping.scratch_avals)]
        semantics = getattr(eqn.params.get("compiler_params"), "dimension_semantics", None) or ()
        parallel = [d for d, word in enumerate(semantics) if "parallel" in str(word).lower()]
        windows = [_Window(self, ref, block) for ref, block in zip((*inputs, *outs), blocks)]
        outer = self.ids, self.grid
        self.grid = grid
        owners: dict[tuple[int, Any], int] = {}
        for ids in np.ndindex(*grid):
            self.ids = tuple(int(k) for k in ids)
            self.lane = 0
            for d in parallel:
                self.lane = self.lane * grid[d] + self.ids[d]
            held = [window.at(self, refs) for window in windows]
            for number, window in enumerate(windows[first:]):
                if owners.setdefault((number, window.index), self.lane) != self.lane:
                    self.fault("race", f"block {window.index} of output {number} is written by several parallel steps")
            self.evaluate(eqn.params["jaxpr"], (), [*refs, *held, *scratch])
        for number, (window, ref) in enumerate(zip(windows[first:], outs)):
            window.back()
            if missing := int(np.count_nonzero(~ref.written)):
                self.fault("unwritten output", f"{count_text(missing)} numbers of output {number} of {name}")
        self.ids, self.grid = outer
        return [ref.values for ref in outs]


def _whole(name: str, value: Any) -> _Ref:
    values = np.array(value)
    return _Ref(name, values, np.ones(values.shape, bool))


class _Window:
    """The block of an array that a step sees, and where it lies."""

    def __init__(self, program: _Program, array: _Ref, mapping: Any) -> None:
        self.array, self.mapping = array, mapping
        self.result = not array.written.all() or array.name.startswith("output")
        self.index: tuple[int, ...] = ()
        self.block: _Ref | None = None
        self.whole = "any" in str(getattr(mapping.transformed_block_aval, "memory_space", "")).lower()
        self.sizes = [_size(one) for one in mapping.block_shape]
        if any(size is None for size in self.sizes):
            raise UnsupportedError("windows that begin at elements instead of blocks are not run")

    def at(self, program: _Program, tables: Sequence[_Ref]) -> _Ref:
        """Its block in the step at hand: kept where the step before had it, else brought in or begun anew."""
        if self.whole:
            return self.array
        closed = self.mapping.index_map_jaxpr
        ids = [np.int32(k) for k in program.ids]
        found = program.evaluate(closed.jaxpr, closed.consts, [*ids, *tables][: len(closed.jaxpr.invars)])
        index = tuple(int(np.asarray(one)) for one in found)
        if self.block is not None and index == self.index:
            return self.block
        self.back()
        self.index = index
        shape = [size or 1 for size in self.sizes]
        starts = [k * size for k, size in zip(index, shape)]
        self.ends = [min(start + size, whole) for start, size, whole in zip(starts, shape, self.array.values.shape)]
        self.starts = starts
        if any(start < 0 or start >= whole for start, whole in zip(starts, self.array.values.shape)):
            program.fault("out of array", f"block {index} of {self.array.name} in step {program.ids}")
            self.starts = [min(max(s, 0), max(0, w - 1)) for s, w in zip(starts, self.array.values.shape)]
            self.ends = [min(s + size, w) for s, size, w in zip(self.starts, shape, self.array.values.shape)]
        block = np.full(shape, _FILLS[program.unwritten if self.result else program.padding]).astype(
            self.array.values.dtype
        )
        written = np.zeros(shape, bool)
        self.inside = tuple(slice(0, end - start) for start, end in zip(self.starts, self.ends))
        if not self.result:
            block[self.inside] = self.array.values[self._part()]
            written[self.inside] = True
        squeezed = tuple(d for d, size in enumerate(self.sizes) if not size)
        self.full = block, written
        self.block = _Ref(self.array.name, block.squeeze(squeezed), written.squeeze(squeezed))
        return self.block

    def _part(self) -> tuple[slice, ...]:
        return tuple(slice(start, end) for start, end in zip(self.starts, self.ends))

    def back(self) -> None:
        """Write a result's block to its array: all of it, as the chip does."""
        if self.block is not None and self.result and not self.whole:
            values, written = self.full
            self.array.values[self._part()] = values[self.inside]
            self.array.written[self._part()] = written[self.inside]


def _size(block: Any) -> int | None:
    """Elements along a dim of a block; 0 for a dim that the kernel does not see, None for other kinds of blocks."""
    kind = type(block).__name__
    if isinstance(block, int):
        return block
    return 0 if kind == "Squeezed" or block is None else block.block_size if kind == "Blocked" else None
