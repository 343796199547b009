"""`hpckit bench collectives` with a real run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_the_figures_of_a_run_are_printed(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("hpckit")), "bench", "collectives"]
    words = ["launch.nproc_per_node=2", "--sizes", "4KiB", "--seconds", "0.001"]
    done = subprocess.run(
        [*command, *words, "--operations", "all_reduce", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (reduced,) = found["collectives"]
    assert (reduced["operation"], reduced["ranks"], reduced["wrong_ranks"]) == ("all_reduce", 2, [])
    (pair,) = found["exchanges"]
    assert pair["seconds"] > 0
    assert found["findings"] == []
