"""`hpckit nodes` on a real folder; the check of a node by srun is in tests/cluster."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from typer.testing import CliRunner

from hpckit.cli.main import app
from hpckit.suspects.suspect_folder import open_folder
from hpckit.suspects.suspect_record import SuspectRecord
from tests.unit.hpckit.specs_and_processes import make_spec


def nodes(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["nodes", *words], catch_exceptions=False)
    return done.exit_code, done.output


def listed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(nodes("--json")[1])
    return found


def test_suspects_are_listed_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "C")
    assert nodes()[1].startswith("no node is on the suspect list of cluster c (")
    slurm, now = make_spec({}, "slurm").cluster.slurm, time.time()
    assert slurm is not None
    assert slurm.suspects is not None
    of_a_run = ("/runs/a-1", "7", "node_lost", 2, "me")
    for node in ("n1", "n2"):
        record = SuspectRecord(node, "report", now, now + 60, "lost 2 times", False, *of_a_run)
        open_folder(slurm.suspects).write(record)
    text = nodes()[1]
    assert "n1: lost 2 times\n" in text
    assert "run /runs/a-1, job 7, 2 events node_lost, me\n    unchecked; left out until " in text
    assert "    scontrol update nodename=n1 state=drain 'reason=hpckit: lost 2 times'\n" in text
    assert nodes("clear", "n1", "n3", "--why", "new cable") == (
        *(0, "n1 may be used again\nn3 may be used again (it was on no list)\n"),
    )
    assert [(one["node"], one["verdict"]) for one in listed()["suspects"]] == [("n2", "unchecked")]
    assert listed()["suspects"][0]["reports"][0]["run"] == "/runs/a-1"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("clear", "cluster=slurm"), "name at least one node"),
        (("clear", "n[1-3]"), "'n[1-3]' cannot be the name of a node; write each name in full"),
        (("cluster=local",), "cluster.slurm.suspects is null"),
        (("cluster.slurm.suspects=null",), "cluster.slurm.suspects is null"),
        (("cluster.slurm.suspects.group=ml",), "set cluster.slurm.suspects.folder"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], problem: str) -> None:
    status, text = nodes(*words)
    assert status == 2
    assert problem in text
