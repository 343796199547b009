"""`hpckit bench mlperf-checkpoint` with a real run and its services."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_a_small_fraction_of_a_workload_is_saved_and_recovered(tmp_path: Path) -> None:
    store = tmp_path / "store"
    command = [str(Path(sys.executable).with_name("hpckit")), "bench", "mlperf-checkpoint"]
    words = ["launch.nproc_per_node=2", "--scale", "405b", "--fraction", "0.0003", "--times", "2"]
    done = subprocess.run(
        [*command, *words, "--store", str(store), "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["scale"], found["ranks"], found["is_cold"]) == ("405b", 2, True)
    assert all(len(found[name]) == 2 for name in ("stall_s", "save_s", "recover_s"))
    assert min(found["gib_per_s"].values()) > 0
    assert all(a <= b for a, b in zip(found["stall_s"], found["save_s"], strict=True))
    assert not store.exists(), "it is removed at the end"
