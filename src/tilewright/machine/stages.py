"""Stages of a run: the dense step studied and proved, the model judged, its products counted; how long each takes."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Any

import jax
import numpy as np

from tilewright import hlo
from tilewright.errors import CheckFailed
from tilewright.isa import Counts, MatrixUnitConfig, conv2d, expected_conv2d_counts, expected_counts, matmul
from tilewright.machine.model import Model, auc
from tilewright.trace import Recorder, Slice, Track

Watch = Callable[[str, int, int], None]
"""Called with (stage, steps done, steps in all); the total is 0 where it is not known."""


class Stages:
    """Measures stages and the phases inside them, in nanoseconds since the run began.

    ``seconds`` maps a stage to its wall time, ``recorder`` holds one slice per stage and phase of training.
    """

    def __init__(self, watch: Watch | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.recorder = Recorder()
        self.watch = watch or (lambda stage, done, total: None)
        self._begin = time.perf_counter_ns()

    def now(self) -> int:
        """Nanoseconds since the run began."""
        return time.perf_counter_ns() - self._begin

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.watch(name, 0, 0)
        start = self.now()
        yield
        end = self.now()
        self.seconds[name] = (end - start) / 1e9
        self.recorder.emit(Slice(Track("run", "stages"), name, start, end - start))


def peak_bytes() -> int:
    """The largest resident size of this process so far (Linux counts KiB, macOS bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


# The dense step as a program: what it moves under a target's layouts, what the gate rewrites, and the proof.

REWRITING_TARGET = "vector8x128"
"""The platform of the patent, whose compiler rewrites nothing: training runs the program rewritten for it."""


ALLOWED = 2e-5
"""What float32 sums in another order may differ by, as a share of an output's largest value."""


@dataclass(frozen=True)
class Movement:
    """The dense step under the layouts of one target, its modelled time, and the gate's verdicts per target."""

    report: hlo.MovementReport
    optimized: dict[str, hlo.Optimized]
    time: hlo.StepTime

    @cached_property
    def rewritten(self) -> Callable[..., Any]:
        """The step as rewritten for :data:`REWRITING_TARGET`, compiled on first use."""
        step: Callable[..., Any] = jax.jit(self.optimized[REWRITING_TARGET].callable())
        return step


@dataclass(frozen=True)
class Proof:
    """How far the rewritten step is from the original, over several inputs.

    ``max_difference`` is the largest absolute difference of any output; ``worst_share`` the largest difference as a
    share of its output's largest value, which ``allowed`` bounds (float32 sums taken in another order).
    ``error_before`` and ``error_after`` are the shares by which the two miss ``reference`` on the first input.
    """

    inputs: int
    outputs: int
    max_difference: float
    worst_share: float
    allowed: float
    error_before: float | None
    error_after: float | None
    reference: str


def study(step: Callable[..., Any], arguments: Sequence[Any], target: str) -> Movement:
    """Trace ``step(*arguments)``, report its movement on ``target``; ask the gates of it and of the rewriting one."""
    program = hlo.from_jax(step, *arguments)
    optimized = {name: hlo.optimize(program, name) for name in dict.fromkeys((target, REWRITING_TARGET))}
    return Movement(hlo.report(program, target), optimized, hlo.estimate(program, target))


def prove(step: Callable[..., Any], movement: Movement, inputs: Sequence[Sequence[Any]]) -> Proof:
    """Run the step and the very program that will train on every input, and on the first beside float64.

    Raises :class:`CheckFailed` where an output differs by more than rounding, or the error against float64 has grown.
    """
    worst, largest, outputs = compare(step, movement.rewritten, inputs)
    optimized = movement.optimized[REWRITING_TARGET]
    leaves = jax.tree_util.tree_leaves(inputs[0])
    kept = range(len(leaves)) if optimized.original.signature is None else optimized.original.signature.kept
    # As compiled whole, which is how it will train; verify's operation by operation costs a compilation for each.
    exact = hlo.verify(optimized.original, optimized.program, [leaves[i] for i in kept], eager=False)
    if not exact.ok:
        raise CheckFailed(f"the rewritten step is not the original: {exact.reason}", where=REWRITING_TARGET)
    return Proof(len(inputs), outputs, largest, worst, ALLOWED, exact.error_before, exact.error_after, exact.reference)


def compare(
    original: Callable[..., Any], rewritten: Callable[..., Any], inputs: Sequence[Sequence[Any]]
) -> tuple[float, float, int]:
    """(largest difference as a share of its output, largest one, outputs); CheckFailed beyond :data:`ALLOWED`."""
    worst, largest, outputs = 0.0, 0.0, 0
    straight = jax.jit(original)
    for number, arguments in enumerate(inputs):
        pairs = [jax.tree_util.tree_flatten_with_path(f(*arguments))[0] for f in (straight, rewritten)]
        outputs = len(pairs[0])
        for (path, expected), (_, actual) in zip(*pairs, strict=True):
            difference, size = largest_difference(actual, expected)
            share = difference / max(size, 1e-30)
            if not share <= ALLOWED:
                place = f"input {number}, output {jax.tree_util.keystr(path)}"
                what = f"the rewritten step differs from the original by {share:.1e} of its size"
                raise CheckFailed(what, where=place)
            worst, largest = max(worst, share), max(largest, difference)
    return worst, largest, outputs


def largest_difference(value: Any, wanted: Any) -> tuple[float, float]:
    """(largest difference, largest finite value wanted); infinite where only one is finite. NaN equals NaN."""
    one, other = np.asarray(value, np.float64), np.asarray(wanted, np.float64)
    apart = ~((one == other) | (np.isnan(one) & np.isnan(other)))
    size = float(np.abs(other[np.isfinite(other)]).max(initial=0.0))
    if not np.isfinite(one[apart]).all() or not np.isfinite(other[apart]).all():
        return float("inf"), size
    return float(np.abs(one[apart] - other[apart]).max(initial=0.0)), size


DenseStep = Callable[[Any, Any, Any, Any], tuple[tuple[Any, Any], tuple[Any, Any]]]


@dataclass(frozen=True)
class TrainingState:
    params: Any
    optimizer_state: Any
    embeddings: Any


@dataclass(frozen=True)
class Judgement:
    """Mean loss and AUC over the evaluation rows."""

    loss: float
    auc: float


def dense_step(model: Model) -> DenseStep:
    """(params, numeric, vectors, labels) -> ((loss, logits), (gradients of params, gradients of vectors))."""
    step: DenseStep = jax.value_and_grad(model.loss, argnums=(0, 2), has_aux=True)
    return step


def judged(loss: Callable[..., Any], params: Any, parts: Iterable[tuple[Mapping[str, Any], Any, Any]]) -> Judgement:
    """Loss and AUC over batches of (vectors, numeric, labels)."""
    forward = jax.jit(loss)
    losses, scores, labels = [], [], []
    for vectors, numeric, clicked in parts:
        value, logits = forward(params, numeric, dict(vectors), clicked)
        losses.append(float(value))
        scores.append(np.asarray(logits))
        labels.append(np.asarray(clicked))
    return Judgement(float(np.mean(losses)), auc(np.concatenate(labels), np.concatenate(scores)))


# The products of a JAX function, with their operands: what the matrix unit is given to do, and what it makes of them.


_TYPES = {f"{kind}{bits}": bits for kind in ("int", "uint") for bits in (8, 16, 32)}
_TYPES |= {"float32": 32, "float16": 16, "bfloat16": 16}
"""Types that the unit multiplies, and their bits."""
_MOST_OF_A_BATCH = 8
"""Products of a batch that are run: all of them are of one shape, and so cost the same."""


@dataclass(frozen=True)
class Product:
    """One product: ``a`` [.., M, K], ``b`` [.., K, N] and XLA's own ``value`` [.., M, N], perhaps of a batch.

    ``window``: of a convolution, the options of :func:`tilewright.isa.conv2d`; ``a`` then has images [n, h, w, c],
    ``b`` weights [kh, kw, c / groups, out].
    """

    name: str
    a: np.ndarray[Any, Any]
    b: np.ndarray[Any, Any]
    value: np.ndarray[Any, Any]
    window: tuple[tuple[str, Any], ...] | None = None

    @property
    def macs(self) -> int:
        if self.window is not None:
            return int(self.value.size * prod(self.b.shape[:3]))
        return int(self.value.size * self.a.shape[-1])


@dataclass(frozen=True)
class LeftOut:
    """A product that the unit is not given: what, why, and how many multiply-adds it has."""

    name: str
    why: str
    macs: int


@dataclass(frozen=True)
class Products:
    """``taken``: in program order, with operands and values; ``left``: the others."""

    taken: tuple[Product, ...]
    left: tuple[LeftOut, ...]


def find_products(fn: Callable[..., Any], *arguments: Any) -> Products:
    """Every product that ``fn(*arguments)`` computes, with its operands and XLA's value (one compilation)."""
    program = hlo.from_jax(fn, *arguments)
    block = hlo.operations_of(program)
    nodes = block.operations[:-1]
    left = tuple(_left_out(nodes))
    taken = [node for node in nodes if node.name in _PRODUCTS and not _refusal(node)]
    wanted = list(dict.fromkeys(value for node in taken for value in (*node.operands, node.result)))
    flat = zip(program.signature.flat(arguments, {}), block.arguments, strict=True)
    given = [np.asarray(array, hlo.array_dtype(value)) for array, value in flat]
    values = dict(zip(wanted, hlo.XlaValues().of(nodes, block.arguments, wanted, given) if wanted else ()))
    return Products(tuple(_product(node, values) for node in taken), left)


_PRODUCTS = ("dot_general", "convolution")
_INSIDE = {"while": "a loop", "case": "a branch", "if": "a branch"}


def _left_out(nodes: Iterable[hlo.Node], why: str = "", times: int = 1) -> Iterator[LeftOut]:
    """The products among operations that run ``times`` times, and in their bodies, that the unit cannot take.

    ``why``: the reason that holds for all of them; "" where each has its own.
    """
    for node in nodes:
        if node.name in _PRODUCTS and (reason := why or _refusal(node)):
            yield LeftOut(_name(node), reason, times * node.terms * prod(node.result.sizes))
        for body in node.blocks:
            inside = why or f"inside {_INSIDE.get(node.name, node.name)}"
            yield from _left_out(body.operations, inside, times * (1 if node.trips is None else node.trips))


def _name(node: hlo.Node) -> str:
    a, b = (f"{hlo.array_dtype(value).name}[{','.join(map(str, value.sizes))}]" for value in node.operands)
    return f"{a} @ {b}" if node.name == "dot_general" else f"conv {a} by {b}"


def _refusal(node: hlo.Node) -> str:
    """Why a product is not for the unit; "" where it is."""
    dtypes = [hlo.array_dtype(operand).name for operand in node.operands]
    if any(name not in _TYPES for name in dtypes):
        return f"elements of {' and '.join(dict.fromkeys(dtypes))}"
    integers = all("int" in name for name in dtypes)
    if dtypes[0] != dtypes[1] and not (integers and _TYPES[dtypes[0]] == _TYPES[dtypes[1]]):
        return f"elements of {' and '.join(dtypes)}"
    out = hlo.array_dtype(node.result).name
    if out != "int32" if integers else out not in _TYPES:
        return f"sums of {out}"
    if node.name == "dot_general":
        return ""
    own = node.attributes
    if len(own["strides"]) != 2:
        return f"a convolution of {len(own['strides'])} dims"
    if any(hole != 1 for hole in own["lhs_dilation"]):
        return "a convolution with holes in its input"
    if own["batch_groups"] != 1 or any(side < 0 for pair in own["padding"] for side in pair):
        return "a convolution with groups of images, or that crops them"
    return ""


def _product(node: hlo.Node, values: dict[hlo.Value, np.ndarray[Any, Any]]) -> Product:
    """A product with operands and value as the unit has them: of a dot_general [.., M, K], [.., K, N], [.., M, N]."""
    own, (a, b), value = node.attributes, (values[operand] for operand in node.operands), values[node.result]
    window = None
    if node.name == "dot_general":
        (a, b), batch = node.sides(a, b), slice(None) if own["lhs_batch"] else 0
        a, b, value = (side[batch] for side in (a, b.transpose(0, 2, 1), value.reshape(*a.shape[:2], b.shape[1])))
    else:
        orders = zip(own["numbers"], ("b01f", "01io", "b01f"), (a, b, value))
        a, b, value = (side.transpose([numbers.index(dim) for dim in order]) for numbers, order, side in orders)
        how = {"stride": own["strides"], "padding": own["padding"], "dilation": own["rhs_dilation"]}
        window = (*how.items(), ("groups", own["groups"]))
    of = "" if a.dtype == np.float32 else f"{a.dtype.name} "
    shapes = [f"[{','.join(map(str, side.shape))}]" for side in (a, b)]
    return Product(f"{of}{shapes[0]} {'@' if window is None else 'by'} {shapes[1]}", a, b, value, window)


# The dense layers' products of one step on the matrix unit, instruction by instruction, held against XLA.

_BOUNDS = ("l1_misses", "l2_misses", "dram_bytes")
"""Counters whose closed form holds for caches that never evict: a lower bound of a run."""


@dataclass(frozen=True)
class MatrixRun:
    """One product: the machine's counts beside the closed forms, and how far its values are from XLA's.

    ``error`` is the largest difference in units of the float32 rounding of a dot product of this depth,
    K * 2^-24 * (|a| @ |b|), and of XLA's own value where that is narrower; a value below 1 is what two orders of
    summation may differ by. Integers are equal (0) or not (infinity). Of a batch the first ``ran`` are run, and
    everything is counted for all of them.
    """

    name: str
    counts: Counts
    expected: Counts
    cycles: int
    error: float
    ran: int = 1

    @property
    def above_minimum(self) -> tuple[str, ...]:
        """The cache counters above the closed form of caches that never evict."""
        return tuple(name for name in _BOUNDS if getattr(self.counts, name) > getattr(self.expected, name))

    @property
    def counts_equal(self) -> bool:
        """Every counter equals its closed form; cache misses are at least theirs (see :attr:`above_minimum`)."""
        for field in fields(Counts):
            counted, formula = getattr(self.counts, field.name), getattr(self.expected, field.name)
            if counted < formula or (counted > formula and field.name not in _BOUNDS):
                return False
        return True

    @property
    def values_equal(self) -> bool:
        return self.error <= 1.0


def run_product(product: Product, config: MatrixUnitConfig) -> MatrixRun:
    """Run ``product`` on the machine and compare values and counts."""
    if product.window is not None:
        return _run_convolution(product, dict(product.window), config)
    sides = [side if side.ndim == 3 else side[None] for side in (product.a, product.b, product.value)]
    a, b, value = (np.ascontiguousarray(side[:_MOST_OF_A_BATCH]) for side in sides)
    batch, (m, k), n = len(sides[0]), a.shape[1:], b.shape[2]
    runs = [matmul(left, right, config=config) for left, right in zip(a, b, strict=True)]
    expected = expected_counts(m, n, k, config=config, element_bytes=a.itemsize)
    times = [run.counts for run in runs] + [runs[0].counts] * (batch - len(runs)) if runs else []
    cycles = sum(run.cycles for run in runs) * batch // max(1, len(runs))
    made = np.stack([run.value for run in runs]) if runs else value
    sizes = np.abs(_wide(a)) @ np.abs(_wide(b))
    error = _error(made, value, sizes, k)
    together = Counts.together([expected] * batch)
    return MatrixRun(product.name, Counts.together(times), together, cycles, error, len(runs))


def _run_convolution(product: Product, how: dict[str, Any], config: MatrixUnitConfig) -> MatrixRun:
    x, w = np.ascontiguousarray(product.a), np.ascontiguousarray(product.b)
    result = conv2d(x, w, config=config, **how)
    expected = expected_conv2d_counts(x.shape, w.shape, config=config, element_bytes=x.itemsize, **how)
    sizes = conv2d(np.abs(_wide(x)).astype(np.float32), np.abs(_wide(w)).astype(np.float32), **how).value
    error = _error(result.value, product.value, sizes, prod(w.shape[:3]))
    return MatrixRun(product.name, result.counts, expected, result.cycles, error)


def _wide(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(np.float64)


_ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def _error(made: np.ndarray[Any, Any], value: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any], depth: int) -> float:
    """How far the machine's value is from XLA's; ``sizes``: the product of the absolute values."""
    if not value.size:
        return 0.0
    if value.dtype.kind in "iu":
        return 0.0 if np.array_equal(made, value) else float("inf")
    exact = _wide(value)
    allowed = depth * 2.0**-24 * sizes + _ROUNDING.get(value.dtype.name, 0.0) * np.abs(exact)
    return float((np.abs(_wide(made) - exact) / np.maximum(allowed, np.finfo(np.float32).tiny)).max())
