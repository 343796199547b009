"""The commands read the run directories that released versions wrote.

Each file holds the run directory of the project of `hpckit init`, whose processes were killed at
step 10 of 16, with checkpoints of steps 4 and 8. Packs of the store and the code of hpckit are left
out. `@PROJECT@` stands for the project's folder.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from hpckit.config.spec_parser import read_spec
from hpckit.rundir.directory import RunDir
from tests.integration.cli.run_commands import Typed

RUNS = sorted(Path(__file__).parent.glob("run-*.json"))
RUN = "first-fd59c3fa"


@pytest.fixture(params=RUNS, ids=lambda path: path.stem)
def released(request: pytest.FixtureRequest, tmp_path: Path) -> Typed:
    held = json.loads(request.param.read_text("utf-8"))
    root = tmp_path / "runs" / RUN
    for name, content in held["files"].items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content.replace("@PROJECT@", str(tmp_path)), "utf-8")
        else:
            path.write_bytes(base64.b64decode(content["base64"]))
    for name, target in held["links"].items():
        (root / name).symlink_to(target)
    return Typed(RunDir(root), {})


def test_there_is_a_run_of_each_release() -> None:
    assert [path.name for path in RUNS] == ["run-0.1.0.json"]


def test_its_spec_is_read(released: Typed) -> None:
    spec = read_spec(released.run.spec(1))
    assert (spec.name, spec.entry, spec.train.steps) == ("first", "train:main", 16)
    assert (spec.optim.warmup_steps, spec.checkpoint.every_steps) == (1, 4)
    assert spec.data.shards == str(released.run.path.parents[1] / "shards")


def test_its_state_and_its_checkpoints_are_found(released: Typed) -> None:
    state = released.json("status")
    assert (state["state"], state["step"], state["steps"]) == ("dead", 10, 16)
    assert (state["generation"], state["saved_step"], state["interruptions"]) == (1, 8, {})
    why = released.text("why")
    assert "dead, at step 10 of 16" in why
    assert "checkpoint at step 8" in why
    assert "training from step 0 of 16" in released.text("logs", "--rank", "0")


def test_its_report_says_what_happened(released: Typed) -> None:
    report = released.json("report")
    (life,) = report["lives"]
    assert (life["start_step"], life["end_step"], life["end"]) == (0, 10, "killed")
    assert (report["steps_kept"], report["checkpoints"], report["samples"]) == (10, [4, 8], 24)
    _, said, _ = released.type("report")
    assert "10 kept, 0 repeated" in said
    assert "5.483 at step 1, 5.360 at step 10" in said
    assert "2 committed, 2 kept (steps 4, 8)" in said
