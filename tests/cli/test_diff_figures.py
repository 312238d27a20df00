"""`tilewright diff` of two runs and of two embedding plans."""

import json

PLAN = {
    "kind": "embedding_plan",
    "topology": {"chips": 4},
    "batch": 4096,
    "batches_over": 0.0,
    "stacks": [{"buffer_bytes_per_device": 4096, "imbalance": 1.8, "limits": {"max_ids_per_partition": 80}}],
    "tables": [{"name": "C1", "padded_bytes": 1024}, {"name": "C2", "padded_bytes": 2048}],
    "hbm_per_chip": {"total_bytes": 10_000, "tables_bytes": 5000, "slots_bytes": 5000},
    "feeding": {"step_bytes_per_chip": 100, "step_seconds_at_least": 1e-6},
}
RUN = {
    "kind": "run",
    "steps": 10,
    "auc_after": 0.7,
    "loss_after": 0.5,
    "modelled_step": {"dense_seconds": 2e-4, "sparse_seconds": 1e-6},
    "moved": {"tpu-v5p": {"moved_after": 100}},
    "stages": {"plan": 1.0},
    "plan": PLAN,
}


def written(folder, name, value, **changed):
    path = folder / name
    path.write_text(json.dumps({**value, **changed}))
    return str(path)


def test_two_plans(run, tmp_path):
    tables = [{"name": "C1", "padded_bytes": 512}, {"name": "C2", "padded_bytes": 2048}]
    heap = {"total_bytes": 12_000, "tables_bytes": 5000, "slots_bytes": 5000}
    before = written(tmp_path, "a.json", PLAN)
    after = written(tmp_path, "b.json", PLAN, tables=tables, hbm_per_chip=heap, topology={"chips": 8})
    out = run("diff", before, after)[1]
    assert "0 better, 1 worse" in out
    assert "+1.95 KiB (+20.0 %)" in out
    value = json.loads(run("diff", before, after, "--json")[1])
    assert value["kind"] == "embedding_plan_diff"
    assert {"name": "chips", "before": 4, "after": 8, "verdict": "neither"} in value["changes"]
    assert value["rows"] == [{"of": "table", "name": "C1", "before": 1024, "after": 512, "verdict": "better"}]


def test_two_runs_as_a_page(run, tmp_path):
    before = written(tmp_path, "a.json", RUN)
    after = written(tmp_path, "b.json", RUN, auc_after=0.75, modelled_step={"dense_seconds": 3e-4})
    run("diff", before, after, "-o", str(tmp_path / "diff.html"))
    page = (tmp_path / "diff.html").read_text()
    assert page.index("What to look at") < page.index("Every quantity")
    assert '<span class="badge bad">+100 µs (+50.0 %)</span> a step, modelled' in page
    assert '<span class="badge good">+0.05 (+7.1 %)</span> AUC after training' in page


def test_a_run_and_a_plan_are_refused(run, tmp_path):
    code, _, err = run("diff", written(tmp_path, "a.json", RUN), written(tmp_path, "b.json", PLAN))
    assert code == 2
    assert "the one is a run, the other is not" in err
