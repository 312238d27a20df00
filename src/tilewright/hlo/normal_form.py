"""What XLA does by itself: the form a program reaches whatever anybody rewrites, so that gains are claimed beyond it.

A version is a pipeline of its own, apart from the rewrites that ``optimize`` tries: a new rewrite joins it only when a
compiler was seen to do the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tilewright.hlo.graphs.graph import Block, walk
from tilewright.hlo.rewrites.canonicalize import Canonicalize
from tilewright.hlo.rewrites.common_subexpressions import CommonSubexpressions
from tilewright.hlo.rewrites.dead_code import DeadCode
from tilewright.hlo.rewrites.pipeline import fixpoint
from tilewright.hlo.rewrites.reduce_of_reshape import ReduceOfReshape
from tilewright.hlo.rewrites.reduce_of_transpose import ReduceOfTranspose
from tilewright.hlo.rewrites.reduces_of_reshapes import ReducesOfReshapes
from tilewright.hlo.rewrites.reshape_of_branch import ReshapeOfBranch
from tilewright.hlo.rewrites.reshape_of_broadcast import ReshapeOfBroadcast
from tilewright.hlo.rewrites.reshape_of_dynamic_slice import ReshapeOfDynamicSlice
from tilewright.hlo.rewrites.reshape_of_elementwise import ReshapeOfElementwise
from tilewright.hlo.rewrites.reshape_of_loop import ReshapeOfLoop
from tilewright.hlo.rewrites.transpose_of_elementwise import TransposeOfElementwise
from tilewright.hlo.rewriting.base import Rewrite

#: Version -> what XLA:TPU does by itself. 1: libtpu 0.0.42, seen on 24 programs (docs/report.md).
NORMAL_FORMS: dict[int, tuple[Rewrite, ...]] = {
    1: (
        Canonicalize(),
        TransposeOfElementwise(),
        ReduceOfTranspose(allow_products=True),
        ReduceOfReshape(allow_products=True),
        ReducesOfReshapes(allow_products=True),
        ReshapeOfElementwise(),
        ReshapeOfBroadcast(),
        ReshapeOfDynamicSlice(),
        ReshapeOfBranch(),
        ReshapeOfLoop(),
        CommonSubexpressions(),
        DeadCode(),
    ),
}
NEWEST = max(NORMAL_FORMS)
_ROUNDS = 16


def normal_form(bodies: Iterable[Block], version: int = NEWEST) -> Counter[str]:
    """Bring function bodies (or regions taken out of one) into the form, in place; how often each rewrite fired.

    Calls should have been inlined (:class:`Inline`), as XLA does.
    """
    steps, counts = NORMAL_FORMS[version], Counter[str]()
    everything = list(bodies)
    for _ in range(_ROUNDS):
        changes = sum((fixpoint(block, steps) for body in everything for block in walk(body)), Counter[str]())
        counts += changes
        if not changes:
            break
    return counts
