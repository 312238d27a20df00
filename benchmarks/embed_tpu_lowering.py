"""Lower a lookup and an update for TPU, with jax-tpu-embedding's primitives: what XLA would get, without a TPU.

    python benchmarks/embed_tpu_lowering.py        in an environment with jax-tpu-embedding (Python 3.12: 0.2.0)

For every optimizer that the primitives have, plain and with mini-batches: prints the calls of the lowered programs and
fails where one is missing. Nothing is run.
"""

from __future__ import annotations

import re
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec


def main():
    from tilewright.embed import (
        F2A,
        FTRL,
        SGD,
        Adagrad,
        AdagradMomentum,
        Adam,
        Clipped,
        Feature,
        LaProp,
        Limits,
        Table,
        Topology,
        from_tables,
        lookup,
        preprocess,
        stack,
        update,
    )
    from tilewright.embed.device import tpu

    tpu.primitives_here = lambda: True
    kinds = (SGD(0.1), Adagrad(0.1), AdagradMomentum(0.1), Adam(0.1), FTRL(0.1), LaProp(0.1), F2A(0.1))
    mesh = Mesh(np.array(jax.devices()[:1]), ("sc",))
    for kind in (*kinds, Clipped(SGD(0.1), -1.0, 1.0)):
        tables = Table("a", 64, 12, optimizer=kind), Table("b", 32, 16, optimizer=kind)
        plan = stack([Feature("x", tables[0]), Feature("y", tables[1]), Feature("z", tables[0])], Topology(1, 4))
        state = from_tables(plan, {t.name: np.ones((t.vocab, t.width)) for t in tables})
        ids = {f.name: np.arange(32).reshape(16, 2) % f.table.vocab for f in plan.features}
        for limits in (None, {name: Limits(16, 16) for name in plan.stacks}):
            host = preprocess(ids, plan, limits)
            grads = {f.name: np.ones((16, f.table.width), np.float32) for f in plan.features}
            spread = partial(jax.tree.map, lambda x: PartitionSpec("sc") if np.ndim(x) else PartitionSpec())
            run = partial(jax.shard_map, mesh=mesh, check_vma=False)
            looked = run(
                partial(lookup, axis="sc"), in_specs=(spread(state), spread(host)), out_specs=PartitionSpec("sc")
            )
            specs = (spread(state), spread(host), spread(grads))
            changed = run(partial(update, axis="sc"), in_specs=specs, out_specs=spread(state))
            calls = []
            for function, arguments in ((looked, (state, host)), (changed, (state, host, grads))):
                text = jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",)).as_text()
                found = re.findall(r"custom_call @(SparseDense\w+)|call_target_name = \"(SparseDense\w+)\"", text)
                assert found, f"no call for {kind}"
                calls += ["".join(name) for name in found]
            print(f"{type(kind).__name__:16}{'mini-batches' if limits else 'plain':14}{', '.join(calls)}")


if __name__ == "__main__":
    main()
