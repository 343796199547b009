"""A rank begins to compute wrongly: it is named, its node is left out, and the run ends as if that
had never happened."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpckit.cli.main import app
from hpckit.events.event_log import read_events
from hpckit.events.schema import (
    CheckpointCertified,
    GenerationEnded,
    NodesChosen,
    NodeUnhealthy,
    StepLogged,
    WrongComputation,
)
from hpckit.rundir.directory import RunDir
from tests.integration.run.faulty_training import BATCH, TRAINING, losses_without_fault
from tests.integration.run.runs import complete

STEPS = 24


def test_a_node_that_computes_wrongly_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").write_text(TRAINING)
    (tmp_path / "launch.py").write_text(
        "import sys\nfrom hpckit.submit.launch_command import main\nsys.exit(main())\n"
    )
    words = [
        *("name=t", "entry=mine.train:main", "user_config.wrong_from=9", "train.log_every=1"),
        "user_config.saved_at=4",
        *(f"train.steps={STEPS}", f"train.global_batch={BATCH}", "cluster.device=cpu"),
        *("launch.nodes=3", "elastic=shrink", "elastic.min_nodes=2", f"root={tmp_path / 'runs'}"),
        *("checkpoint.every_steps=4", "checkpoint.certify=8", "launch.threads_per_worker=1"),
    ]
    command = [sys.executable, "launch.py", *words]
    status, output = complete(tmp_path / "runs", command, cwd=tmp_path)
    assert status == 0, output
    run = RunDir(next((tmp_path / "runs").glob("t-*")))
    events = read_events(run.events)

    (wrong,) = (one for one in events if isinstance(one, WrongComputation))
    assert (wrong.ranks, wrong.nodes, wrong.good_step, wrong.step) == ([1], [1], 4, 12), wrong.what
    assert wrong.is_persistent
    assert wrong.is_excluded
    assert "rank 1" in output
    assert [one.node for one in events if isinstance(one, NodeUnhealthy)] == [1]
    assert [one.nodes for one in events if isinstance(one, NodesChosen)] == [[0, 2]]
    ends = [one.verdict for one in events if isinstance(one, GenerationEnded)]
    assert ends == ["infra", "done"]
    skipped = [one["step"] for one in events if one.kind == "checkpoint_skipped"]
    assert set(skipped) <= {8}  # on a busy machine, step 8 may not have been saved
    certified = [one.step for one in events if isinstance(one, CheckpointCertified)]
    assert certified == [4, 8, 16, 24]

    steps = [one for one in events if isinstance(one, StepLogged)]
    found = {one.step: one.loss for one in steps}
    assert [found[step] for step in range(1, STEPS + 1)] == pytest.approx(
        losses_without_fault(STEPS), rel=1e-5
    )
    first = {one.step: one.loss for one in reversed(steps)}
    assert first[12] != pytest.approx(found[12], rel=1e-5)

    listed = CliRunner().invoke(app, ["ckpt", "ls", str(run.path), "--json"])
    kept = {one["step"]: one["marks"] for one in json.loads(listed.stdout)["checkpoints"]}
    assert kept[24] == ["certified"]
    assert kept.get(20, []) == []
