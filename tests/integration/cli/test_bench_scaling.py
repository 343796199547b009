"""`hpckit bench scaling` with real runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.integration.run.runs import REPO


def test_a_model_is_trained_on_each_world(tmp_path: Path, shards: Path) -> None:
    command = [str(Path(sys.executable).with_name("hpckit")), "bench", "scaling"]
    words = [f"root={tmp_path}/runs", f"data.shards={shards}", "train.micro_batch=2"]
    words += ["parallel=pp", "launch.threads_per_worker=1"]
    options = ["--models", "gpt_nano", "--worlds", "1x1,1x2", "--steps", "25", "--json"]
    picture = tmp_path / "scaling.png"
    done = subprocess.run(
        [*command, *words, *options, "-o", str(picture)],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    alone, two = found["points"]
    assert (alone["ranks"], alone["global_batch"], alone["efficiency"]) == (1, 2, 1.0)
    assert (two["ranks"], two["global_batch"]) == (2, 4)
    assert two["tokens_per_s"] > 0
    assert "rank" in found["said"]["gpt_nano"]
    assert picture.stat().st_size > 1000
    (folder,) = (tmp_path / "runs").iterdir()
    assert len(list(folder.glob("*/events.jsonl"))) == 2
    assert not list(folder.glob("*/checkpoints"))
