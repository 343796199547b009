"""`hpckit bench profile` and `precision` with real runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.integration.run.runs import REPO


def bench(*words: str) -> dict[str, Any]:
    words = (*words, "launch.threads_per_worker=1")  # as fork servers that share their imports
    command = [str(Path(sys.executable).with_name("hpckit")), "bench", *words, "--json"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_profile_has_operations_and_layers(tmp_path: Path, shards: Path) -> None:
    words = ["model=gpt_nano", f"root={tmp_path}/runs", f"data.shards={shards}", "--no-compile"]
    found = bench("profile", *words, "--steps", "1", "train.global_batch=2", "train.micro_batch=2")
    (run,) = found["runs"]
    assert (run["compiled"], run["device"]) == (False, "cpu")
    assert run["operations"][0]["cpu_s"] > 0
    assert {"compute", "memory"} >= {run["step"]["bound"]}
    assert {"blocks.0", "blocks.1"} <= {layer["name"] for layer in run["layers"]}
    assert Path(found["page"]).read_text().count("<svg") >= 3
    assert json.loads(Path(found["numbers"]).read_text())["runs"] == found["runs"]


def test_precisions_are_trained_and_timed(tmp_path: Path) -> None:
    words = [f"root={tmp_path}/runs", "--precisions", "bf16", "--epochs", "2", "--most-batch", "2"]
    found = bench("precision", *words, "--epoch-samples", "64")
    (run,) = found["runs"]
    assert (run["precision"], len(run["epochs"])) == ("bf16", 2)
    assert run["epochs"][-1]["accuracy"] is not None
    assert run["best_batch"] in (1, 2)
    assert found["failures"] == found["batches"]["failures"] == {}
    assert Path(found["page"]).read_text().count("<svg") >= 4
