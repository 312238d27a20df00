"""Ray Data beside one process on the same log, one worker killed on the way, an error in a worker. Run by a test."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

from tests.embed.test_pods import FEATURES, TOPOLOGY, logs_of, made_batch
from tilewright.embed import LogBatches, MadeBatches, plan_pod, read_log
from tilewright.errors import UsageError


def killed_once(folder):
    """A maker of batches in whose first worker to come to batch 11 the process ends at once."""

    def make(number):
        if number == 11 and os.getpid() != parent:
            try:
                os.close(os.open(folder / "killed", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os._exit(1)
        return made_batch(number)

    parent = os.getpid()
    return make


def wrong(number):
    return {**made_batch(number), "user": np.full((32, 1), 999 if number == 7 else 1)}


def main():
    import ray

    folder, found = Path(sys.argv[1]), {}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    logs = LogBatches([read_log(path, FEATURES, 32) for path in logs_of(folder)])
    for name, source in (("logs", logs), ("killed", MadeBatches(20, killed_once(folder)))):
        one, two = (plan_pod(source, FEATURES, TOPOLOGY, 32, engine=engine, workers=2) for engine in ("local", "ray"))
        found[name] = one.to_json() == two.to_json() and one.limits_json() == two.limits_json()
        found[f"{name}_batches"] = two.confidence.batches
    found["died"] = (folder / "killed").exists()
    try:
        plan_pod(MadeBatches(20, wrong), FEATURES, TOPOLOGY, 32, engine="ray", workers=2)
    except UsageError as error:
        found["error"] = str(error)
    ray.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
