"""The public names and signatures that others build on: extended at will, never renamed."""

from __future__ import annotations

import inspect

import numpy as np

import tilewright
from tilewright import embed, hlo, isa, layout, machine


def has(value, *names):
    missing = [name for name in names if not hasattr(value, name)]
    assert not missing, f"{value!r} lacks {missing}"


def takes(function, *names):
    parameters = inspect.signature(function).parameters
    missing = [name for name in names if name not in parameters]
    assert not missing, f"{function!r} does not take {missing}"


def test_layout():
    array = layout.parse("bf16[4,8]{1,0:T(2,4)(2,1)}")
    has(array, "dtype", "shape", "rank", "axes", "offset", "address", "offsets", "addresses", "index", "digits")
    has(array, "physical_shape", "size_bytes", "data_bytes", "padding_ratio", "injective", "pack", "unpack")
    has(array, "explain", "to_svg", "_repr_mimebundle_")
    has(layout.parse("(f32[2], s32[])"), "elements")
    takes(layout.is_bitcast, "a", "b", "permutation")
    move = layout.relayout(array, array)
    has(move, "bitcast", "bytes_read", "bytes_written", "apply")
    takes(layout.lanes, "shape", "dtype", "chip", "lanes", "eu_bytes", "start", "mode")
    has(layout.lanes((1, 2, 3, 4), "f16", chip="bm1684x"), "strides")
    takes(layout.paged, "shape", "dtype", "page", "line", "order", "start")
    takes(layout.mod_sharded, "vocab", "width", "shards", "rotation", "row_offset")
    assert layout.lanes((1, 2, 3, 4), "f16", "bm1684x").axes == ("npu", "offset")
    assert layout.paged((4, 4), "s8").axes == ("page", "offset")
    assert layout.mod_sharded(8, 8, 2).axes == ("shard", "row", "column")
    has(layout, "preset", "predict", "compare_svg", "ruler_svg", "plan_svg")


def test_hlo():
    takes(hlo.report, "program", "target")
    takes(hlo.optimize, "program", "target", "allow_reassociation")
    fields = "op name source from_layout to_layout logical_bytes padded_bytes moved_bytes bitcast reason"
    assert set(fields.split()) <= set(hlo.MovementRow.__annotations__)
    has(hlo.MovementReport, "to_json", "to_html")
    assert {"program", "rewrites", "refusals", "moved_before", "moved_after"} <= set(hlo.Optimized.__annotations__)
    has(hlo.Optimized, "text")
    has(hlo, "load", "from_jax")
    takes(hlo.explain_allocation, "text")
    assert {"message", "shapes", "fixes", "advice", "unread"} <= set(hlo.AllocationReport.__annotations__)


def test_optimize_is_the_same_function():
    import jax.numpy as jnp

    fast = tilewright.optimize(lambda x: x.reshape(8, 3, 4, 8).sum((1, 3)) * 2, target="vector8x128")
    x = np.arange(8 * 3 * 32, dtype=np.float32).reshape(8, 3, 32)
    assert np.array_equal(fast(jnp.asarray(x)), x.reshape(8, 3, 4, 8).sum((1, 3)) * 2)
    assert fast.explain(x)


def test_isa():
    program = isa.assemble("halt")
    assert str(isa.assemble(str(program))) == str(program)
    takes(isa.MatrixUnit(isa.MatrixUnitConfig()).run, "program", "memory")
    assert {"registers", "errors", "counts", "cycles", "trace"} <= set(isa.RunResult.__annotations__)
    assert isa.MatrixUnitConfig().threads == 256
    takes(isa.matmul, "a", "b", "config", "ka", "kb", "transpose_b", "order", "columns")
    takes(isa.expected_counts, "m", "n", "k", "config", "element_bytes", "ka", "kb", "transpose_b", "order", "columns")
    done = isa.matmul(np.ones((2, 8), np.int8), np.ones((8, 2), np.int8))
    has(done, "value", "counts", "cycles", "errors")
    names = (
        "instructions macs column_loads broadcast_elements steps a_register_reads a_bytes_loaded accumulator_reads "
        "accumulator_writes kb_transfers l1_touches l1_misses l2_misses dram_bytes"
    )
    has(done.counts, *names.split())
    assert {"pc", "instruction", "kind", "column", "register"} <= set(isa.ErrorRecord.__annotations__)


def test_embed():
    table = embed.Table("t", 100, 12, combiner="sum", optimizer=embed.SGD(0.1))
    topology = embed.Topology(chips=1, sparsecores_per_chip=4)
    embed.Adagrad(0.1, initial_accumulator=0.1)
    stacking = embed.stack([embed.Feature("f", table)], topology, table_stacking=True, batch_size=None)
    has(stacking.tables["t"], "stack", "rotation", "row_offset")
    limits = embed.Limits(max_ids_per_partition=64, max_unique_ids_per_partition=32)
    takes(embed.preprocess, "batch", "stacking", "limits", "overflow", "bad_ids", "sources", "agree")
    batch = {"f": np.arange(8).reshape(8, 1)}
    host = embed.preprocess(batch, stacking, {"t": limits}, overflow="error", bad_ids="error")
    has(host, "row_pointers", "embedding_ids", "sample_ids", "gains", "num_minibatches", "partition", "stats")
    has(host.stats["t"], "max_ids_per_partition", "max_unique_ids_per_partition", "required_buffer_size", "dropped_ids")
    takes(embed.plan, "batches", "features", "topology", "quantile")
    takes(embed.memory, "target", "sparsecores", "width", "limits", "op")
    verdict = embed.memory("tpu-v5p", 16, 64, limits, op="forward")
    has(verdict, "compiles", "reason", "logical_replica_count", "guide_bytes", "stack_bytes", "largest_limits")


def test_lookup_and_update():
    import jax

    table = embed.Table("t", 20, 8, optimizer=embed.SGD(1.0))
    stacking = embed.stack([embed.Feature("f", table)], embed.Topology(1, 2))
    state = embed.init(stacking, jax.random.key(0))
    host = embed.preprocess({"f": [[1], [2], [1], [3]]}, stacking)
    before = np.asarray(embed.tables(state)["t"])
    assert np.allclose(embed.lookup(state, host)["f"], before[[1, 2, 1, 3]])
    after = np.asarray(embed.tables(embed.update(state, host, {"f": np.ones((4, 8), np.float32)}))["t"])
    assert np.allclose(after[1], before[1] - 2)
    assert np.array_equal(after[4:], before[4:])
    again = embed.from_tables(stacking, {"t": before})
    assert np.array_equal(embed.tables(again)["t"], before)


def test_machine():
    takes(machine.run, "model", "target", "chips", "steps")
    has(machine, "RunReport")
