"""`tilewright diff` of two runs and of two embedding plans."""

import json

import pytest

from tilewright.cli.programs.report import layers

PLAN = {
    "kind": "embedding_plan",
    "topology": {"chips": 4},
    "batch": 4096,
    "batches_over": 0.0,
    "stacks": [{"buffer_bytes_per_device": 4096, "imbalance": 1.8, "limits": {"max_ids_per_partition": 80}}],
    "tables": [{"name": "C1", "padded_bytes": 1024}, {"name": "C2", "padded_bytes": 2048}],
    "hbm_per_chip": {"total_bytes": 10_000, "tables_bytes": 5000, "slots_bytes": 5000},
    "feeding": {"step_bytes_per_chip": 100},
    "step_per_chip": {"waited": 1e-6},
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


# Programs on targets.


def run_on(target="simt", model="mlp", **changed):
    """A report of a program on a matrix unit of two layers."""
    held = [{"name": "dot_1: f32[8,8]", "bytes": 256, "first": 0, "last": 1, "place": "L2 bytes 0 on"}]
    memory = {"capacity": 4096, "need": 512, "sentence": "everything fits", "misfits": [], "largest": held}
    memory |= {"steps": ["dot_1", "add_2"], "live": [512, 256]}
    checks = [{"what": "layers, against XLA", "ok": True, "said": "equal"}]
    side = {"kind": "program_run", "target": target, "model": model, "bottleneck": "waits", "memory": memory}
    side |= {"moved": {"before": 100, "after": 0}, "verification": checks, "step": {"seconds": 1e-9}}
    machine = {"cycles": 1000, "bytes": levels(64), "energy_pj": 5.0, "math_utilisation": 0.5, "fallback_share": 0.0}
    side |= {"machine": machine | {"layers": [layer("dot_1", 900, 64, 1024), layer("add_2", 100, 0, 8)]}}
    return side | changed


def levels(dram):
    return {"l1": {"a": 8, "b": 8}, "l2": {"a": 4, "b": 4}, "dram": {"a": dram, "b": 0}}


def layer(name, cycles, dram, operations):
    return {"name": name, "cycles": cycles, "bytes": levels(dram), "operations": operations}


def modelled(target, *rows, **changed):
    """A report of a program on a TPU; rows of (operation, name, line, seconds)."""
    listed = [
        {"op": op, "name": name, "source": f"/a/model.py:{line}", "seconds": took, "bytes": 64, "flops": 0}
        for op, name, line, took in rows
    ]
    step = {"seconds": sum(row[3] for row in rows), "call_seconds": 0.0, "bytes": 64, "rows": listed}
    checks = [{"what": f"rewritten for {target}, against the original", "ok": True, "said": "equal"}]
    own = {"rewrites": {target: 1}, "step": step, "verification": checks}
    side = run_on(target, **(own | changed))
    del side["machine"]
    return side


def test_two_runs_of_a_program(run, tmp_path):
    """The product is faster, another layer came before the sum, the product's result left L2, and a check failed."""
    machine = run_on()["machine"] | {"cycles": 700, "bytes": levels(128)}
    machine["layers"] = [layer("dot_1", 500, 128, 1024), layer("copy_2", 50, 0, 0), layer("add_3", 160, 0, 8)]
    held = [{"name": "dot_1: f32[8,8]", "place": "device memory"}]
    checks = [{"what": "layers, against XLA", "ok": False, "said": "add_3 differs"}]
    memory = run_on()["memory"] | {"need": 640, "steps": ["dot_1", "copy_2", "add_3"], "live": [640, 256, 256]}
    memory |= {"largest": held, "misfits": [{"name": "dot_1: f32[8,8]", "why": "no gap"}]}
    before = written(tmp_path, "a.json", run_on())
    after = written(tmp_path, "b.json", run_on(), machine=machine, memory=memory, verification=checks)
    code, out, err = run("diff", before, after)
    assert (code, err) == (0, "")
    assert "1 better, 4 worse" in out
    assert "a step, cycles 1,000 700 -300 (-30.0 %) better" in " ".join(out.split())
    assert "add_2 now add_3" in out
    assert "place: dot_1: f32[8,8]\n  before: L2 bytes 0 on\n  after:  device memory" in out
    assert "after:  FAILED: add_3 differs" in out
    value = json.loads(run("diff", before, after, "--json")[1])
    assert value["kind"] == "program_run_diff"
    assert value["rows"][:2] == [
        {"of": "cycles", "name": "dot_1", "before": 900, "after": 500, "verdict": "better"},
        {"of": "cycles", "name": "add_2 now add_3", "before": 100, "after": 160, "verdict": "worse"},
    ]
    assert {(row["of"], row["before"], row["after"]) for row in value["rows"] if row["name"] == "copy_2"} == {
        ("cycles", None, 50), ("bytes", None, 0), ("memory", None, 256)
    }  # fmt: skip
    assert [each["of"] for each in value["said"]] == [
        "check: layers, against XLA", "no room: dot_1: f32[8,8]", "place: dot_1: f32[8,8]"
    ]  # fmt: skip
    run("diff", before, after, "-o", str(tmp_path / "diff.html"))
    page = (tmp_path / "diff.html").read_text()
    assert page.index("What to look at") < page.index("Every quantity") < page.index("Memory, checks, places")
    assert "more is different (--top 7 shows all)" in run("diff", before, after, "--top", "1")[1]


def test_two_chips_and_two_programs_are_compared_with_a_note(run, tmp_path):
    before = written(tmp_path, "a.json", modelled("tpu-v5e", ("dot", "%3", 7, 2e-6), ("add", "%4", 8, 1e-6)))
    after = written(tmp_path, "b.json", modelled("tpu-v6e", ("dot", "%9", 7, 1e-6), ("add", "%3", 8, 1e-6)))
    _, out, err = run("diff", before, after)
    assert err == "note: two chips, tpu-v5e and tpu-v6e: what differs may be theirs, not the program's\n"
    assert "time dot %3, model.py:7 now dot %9, model.py:7 2.00 µs 1.00 µs -1.00 µs (-50.0 %)" in " ".join(out.split())
    assert "check" not in out.partition("checks that failed")[2]
    other = written(tmp_path, "c.json", modelled("tpu-v5e", ("exp", "%3", 2, 1e-6), model="other"))
    err = run("diff", before, other)[2]
    assert "two programs, mlp and other: totals are of different work; layers are paired by what they compute" in err


@pytest.mark.parametrize("swapped", [False, True])
def test_cycles_and_seconds_are_refused(run, tmp_path, swapped):
    files = [written(tmp_path, "a.json", run_on()), written(tmp_path, "b.json", modelled("tpu-v5e"))]
    code, out, err = run("diff", *(files[::-1] if swapped else files))
    assert (code, out) == (2, "")
    assert "simt counts cycles of layers and pages of L2" in err
    assert "tpu-v5e models seconds of operations and HBM" in err
    assert "run both programs on one target" in err


def test_half_a_report_is_refused(run, tmp_path):
    whole, half = written(tmp_path, "a.json", run_on()), written(tmp_path, "b.json", run_on(), machine={"layers": [{}]})
    code, _, err = run("diff", whole, half)
    assert code == 2
    assert "one of the two is no whole report of a run" in err


def test_layers_pair_by_work_then_by_name():
    """Half the batch: every amount is another, and names say which layer is which."""
    machine = run_on()["machine"]
    half = {**machine, "layers": [layer("dot_1", 450, 64, 512), layer("add_2", 50, 0, 4)]}
    rows = layers(run_on(), run_on(machine=half))
    assert [(of, change.name, change.before, change.after) for of, change in rows] == [
        ("cycles", "dot_1", 900, 450), ("cycles", "add_2", 100, 50)
    ]  # fmt: skip
