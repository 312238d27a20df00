"""What `embed plan --flags` prints is what a shell takes and what is read back."""

from __future__ import annotations

import shlex
import subprocess

from tests.embed.test_plan import TOPOLOGY
from tilewright.embed import Limits, SparseCoreConfig, read_limits
from tilewright.embed.model.tables import limits_json

SANITIZER = "cores_to_sanitize: [TC, SC_SCS, SC_TILE], sanitizer_mode: LOCAL_ONLY"


def test_a_shell_takes_it_and_it_is_read_back(tmp_path):
    knobs = SparseCoreConfig(detect_nan=True, buffer_contents_sanitizer_config=SANITIZER)
    limits = {"a_b": Limits(12, 7)}
    text = knobs.paste_text(["--xla_tpu_other=1 2", "--xla_flag"], limits_json(limits))
    done = subprocess.run(
        ["sh", "-c", text + '\nprintf %s "$LIBTPU_INIT_ARGS"'], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    back, rest = SparseCoreConfig().with_flags(done.stdout)
    assert rest == ("--xla_tpu_other=1 2", "--xla_flag")
    assert back == SparseCoreConfig(
        detect_nan=True, buffer_contents_sanitizer_config=SANITIZER, max_ids_file="limits.json"
    )
    assert read_limits(tmp_path / "limits.json", TOPOLOGY) == limits
    assert shlex.split(done.stdout)


def test_defaults_print_only_the_limits_file():
    assert SparseCoreConfig().init_args((), "x.json") == "--xla_sparse_core_max_ids_file=x.json"
    assert SparseCoreConfig().init_args() == ""
    assert SparseCoreConfig(max_ids_file="mine.json").init_args() == "--xla_sparse_core_max_ids_file=mine.json"
