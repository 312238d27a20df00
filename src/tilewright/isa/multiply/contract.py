"""contract: two tensors of any rank, folded to matrices and multiplied by the instruction."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.isa.chip.state import Shown
from tilewright.isa.language.config import MatrixUnitConfig, checked_config
from tilewright.isa.language.counts import Counts, Moved
from tilewright.isa.language.errors import Array, ErrorRecord, array_of
from tilewright.isa.multiply.matmul import KernelResult, element_type, matmul, type_and_signs


@dataclass(eq=False, repr=False)
class ContractResult(Shown):
    """``value``, and what the matrix products it took counted together; ``runs``: each of them, with its program."""

    value: Array
    counts: Counts
    cycles: int
    errors: tuple[ErrorRecord, ...]
    moved: Moved
    runs: tuple[KernelResult, ...]

    @property
    def energy_pj(self) -> float:
        """Energy in pJ, modelled."""
        return sum(run.energy_pj for run in self.runs)

    @property
    def math_utilisation(self) -> float:
        """Products made, of those all threads could make in these cycles."""
        return sum(run.math_utilisation * run.cycles for run in self.runs) / max(1, self.cycles)


def contract(subscripts: str, a: Any, b: Any, config: MatrixUnitConfig | None = None, **how: Any) -> ContractResult:
    """``einsum(subscripts, a, b)`` by the ``mm`` instruction; ``how``: options of :func:`matmul`.

    Dims that are not summed are folded: the first such dim of each tensor stays whole and is the fastest, slices along
    the others are stacked (``slice_order``: the first of them slowest, or the last). Dims summed over are the depth;
    dims in both tensors and the result make a product each. The value does not depend on how it is folded; traffic
    does. Raises :class:`UsageError` for subscripts that do not fit, :class:`UnsupportedError` for a dim summed in one
    tensor alone and for a label twice in one tensor. Source: [126-128].

    >>> a, b = np.ones((2, 3, 4), np.int8), np.ones((4, 5, 2), np.int8)
    >>> contract("mxk,kny->mxny", a, b).value.shape
    (2, 3, 5, 2)
    """
    config = checked_config(config)
    a, b = array_of("A", a), array_of("B", b)
    of_a, of_b, out = _parse(subscripts)
    _, signs = type_and_signs(element_type(a, "A"), element_type(b, "B"))
    sizes = _sizes({"A": (of_a, a), "B": (of_b, b)})
    batch, depth = ("".join(x for x in of_a if x in of_b and (x in out) == kept) for kept in (True, False))
    alone = ("".join(x for x in own if x not in other) for own, other in ((of_a, of_b), (of_b, of_a)))
    step = 1 if config.slice_order == "y-major" else -1  # slowest first: the slices, then the dim that stays whole
    rows, columns = (labels[1:][::step] + labels[:1] for labels in alone)
    left = a.transpose([of_a.index(label) for label in batch + rows + depth])
    right = b.transpose([of_b.index(label) for label in batch + depth + columns])
    m, k, n = (prod(sizes[label] for label in labels) for labels in (rows, depth, columns))
    runs = []
    for index in product(*(range(sizes[label]) for label in batch)):
        runs.append(matmul(left[index].reshape(m, k), right[index].reshape(k, n), config=config, **how))
    stacked = batch + rows + columns
    shape = [sizes[label] for label in stacked]
    value = np.stack([run.value for run in runs]) if runs else np.zeros(shape, np.int32 if signs else np.float32)
    return ContractResult(
        value=value.reshape(shape).transpose([stacked.index(label) for label in out]).copy(),
        counts=Counts.together(run.counts for run in runs),
        cycles=sum(run.cycles for run in runs),
        errors=tuple(error for run in runs for error in run.errors),
        moved=Moved.together(run.moved for run in runs),
        runs=tuple(runs),
    )


def _parse(subscripts: str) -> tuple[str, str, str]:
    """Labels of A, of B and of the result."""
    if not isinstance(subscripts, str):
        raise UsageError(f"subscripts {subscripts!r}", how="two tensors, as in 'mk,kn->mn'")
    plain = "".join(subscripts.split())
    inputs, arrow, out = plain.partition("->")
    a, comma, b = inputs.partition(",")
    if not comma or "," in b or not (a + b + out).isalpha():
        raise UsageError(f"subscripts {subscripts!r}", how="two tensors, as in 'mk,kn->mn'")
    if not arrow:
        out = "".join(sorted(label for label in set(a + b) if (a + b).count(label) == 1))
    for labels in (a, b):
        if len(set(labels)) < len(labels):
            what = f"subscripts {subscripts!r}: a label twice in {labels!r}"
            raise UnsupportedError(what, how="take the diagonal first")
    if len(set(out)) < len(out) or not set(out) <= set(a + b):
        raise UsageError(f"subscripts {subscripts!r}: the result {out!r} has a label twice, or one from nowhere")
    alone = [label for label in a + b if (a + b).count(label) == 1 and label not in out]
    if alone:
        raise UnsupportedError(f"subscripts {subscripts!r}: {alone[0]!r} is summed in one tensor", how="sum it first")
    return a, b, out


def _sizes(tensors: dict[str, tuple[str, Array]]) -> dict[str, int]:
    """The size of every dim; ``tensors``: labels and values by name."""
    sizes: dict[str, int] = {}
    for name, (labels, array) in tensors.items():
        if len(labels) != array.ndim:
            raise UsageError(f"{name} has shape {list(array.shape)}", how=f"{labels!r} says {len(labels)} dims")
        for label, size in zip(labels, array.shape, strict=True):
            if sizes.setdefault(label, size) != size:
                raise UsageError(f"dim {label!r} is {sizes[label]} in A and {size} in B")
    return sizes
