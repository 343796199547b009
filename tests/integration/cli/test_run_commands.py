"""`hpckit status`, `logs`, `why`, `drill` and `cancel` on a run of this machine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from hpckit.cli.main import app
from hpckit.config.spec_parser import read_spec
from hpckit.events.event_log import read_events
from hpckit.rundir.directory import RunDir
from hpckit.system.child_processes import strays
from tests.integration.cli.run_commands import HPCKIT, Typed
from tests.integration.run.runs import (
    ALONE,
    PACED,
    command,
    complete,
    end_leftovers,
    eventually,
    kill,
)


@pytest.fixture(scope="module")
def typed(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    """A long run on two nodes, under way."""
    root = tmp_path_factory.mktemp("commands")
    words = command(root, shards, PACED, "train.steps=100000")
    try:
        detach(words)
        typed = Typed(RunDir(next(root.glob("t-*"))), {})
        assert typed.json("status")["state"] in ("starting", "running")
        typed.wait_until(state="running")
        yield typed
    finally:
        end_leftovers(root)


def detach(words: list[str]) -> None:
    """Start something that goes on by itself, and keeps no pipe open."""
    subprocess.run([*words, "--detach"], check=True, capture_output=True)


def test_status_and_logs_of_a_run_under_way(typed: Typed) -> None:
    found = typed.json("status")
    assert (found["cluster"], found["nodes"], found["ranks"], found["jobs"]) == ("local", 2, 2, [])
    assert found["problem"] is None
    manual = CliRunner().invoke(app, ["status", "--help"])
    assert [key for key in found if key not in manual.stdout] == []
    root = typed.run.path.parent
    told = subprocess.run([HPCKIT, "status", f"--root={root}"], capture_output=True, text=True)
    assert typed.run.name in told.stdout
    assert "running" in told.stdout
    listed = CliRunner().invoke(app, ["status", f"--root={root}", "--json"])
    assert [run["run"] for run in json.loads(listed.stdout)["runs"]] == [typed.run.name]
    assert "supervisor process" in typed.text("status")
    assert "running, at step" in typed.text("why")
    assert "rank 1 of 2" in typed.text("logs", "--rank=1", "-n0")
    assert typed.json("logs", "--node=1")["file"] == str(typed.run.agent_log(1))
    assert "with nodes 0, 1 and ranks 0, 1" in typed.refusal("logs", "--rank=7")
    assert "neither a rank nor torchrun has recorded an error" in typed.refusal(
        "logs", "--first-error"
    )


def test_drills_are_come_through(typed: Typed) -> None:
    assert "give --yes" in typed.refusal("drill", "worker")
    assert "2 is not one of this generation: 0, 1" in typed.refusal(
        "drill", "worker", "--rank=2", "--yes"
    )
    assert "a drill is preempt" in typed.refusal("drill", "fire", "--yes")
    assert typed.json("status")["interruptions"] == {}
    pid = typed.json("drill", "worker", "--yes", "--rank=1")["done"].split()[-1]
    eventually(lambda: has_ended(int(pid)) or None)
    typed.wait_until(state="running", interruptions={"worker lost": 1})
    typed.text("drill", "node", "--yes")
    typed.wait_until(state="running", generation=2)
    typed.text("drill", "preempt", "--yes")
    found = typed.wait_until(state="running", generation=3)
    assert found["interruptions"] == {"infra": 1, "preempted": 1, "worker lost": 1}
    assert "preemption (once)" in typed.text("why")


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_cancel_with_and_without_a_save_and_a_death(typed: Typed) -> None:
    assert "every rank saved and exited" in typed.text("cancel", "--save")
    found = typed.json("status")
    assert (found["state"], found["verdict"]["kind"]) == ("ended", "stopped")
    assert found["saved_step"] == found["step"]
    assert typed.json("cancel")["cancelled"] is False
    assert "a drill requires a run that is training" in typed.refusal("drill", "node", "--yes")
    detach([HPCKIT, "resume", str(typed.run.path)])
    typed.wait_until(state="running", generation=4)
    after = typed.json("cancel")
    assert after["cancelled"]
    assert "without a last save" in after["verdict"]["reason"]
    eventually(lambda: strays(typed.run.path) == [] or None)
    assert "hpckit resume continues from the checkpoint" in typed.text("why")
    refused = typed.refusal("resume", "optim.lr=0.5", "hang.step_s=500")
    assert "optim.lr (0.0006 -> 0.5): would make it another run" in refused
    assert refused.endswith("optim.lr=0.5 hang.step_s=500")
    assert typed.run.submission_numbers() == [1]
    resumed = typed.json("resume", "hang.step_s=500", "elastic=shrink")
    assert (resumed["resumed"], resumed["submission"]) == (True, 2)
    begun = typed.wait_until(state="running", generation=5)
    assert begun["step"] >= begun["saved_step"] > 0, "from where it was"
    spec = read_spec(typed.run.path / "spec.yaml")
    assert (spec.hang.step_s, spec.elastic.min_nodes) == (500, 1)
    assert [e["submission"] for e in read_events(typed.run.events) if e.kind == "run_started"] == [
        *(1, 1, 2)
    ]
    kill(begun["owner"]["pid"])
    typed.wait_until(state="dead")
    assert "ended without a verdict" in typed.text("why")
    assert typed.json("report")["interruptions"][-1]["end"] == "killed"


def test_the_first_error_is_told_with_its_place(tmp_path: Path, shards: Path) -> None:
    words = command(tmp_path, shards, *ALONE, "entry=tests.cluster.failing:main")
    try:
        assert subprocess.run(words, capture_output=True).returncode == 70
        typed = Typed(RunDir(next(tmp_path.glob("t-*"))), {})
        found = typed.json("why")
        assert found["verdict"]["kind"] == "permanent"
        assert found["where"] == "tests/cluster/failing.py:9, in main"
        assert found["commands"] == [f"hpckit logs {typed.run.path} --first-error"]
        error = typed.json("logs", "--first-error")
        assert (error["type"], error["generation"], error["where"]) == (
            "ImportError",
            1,
            found["where"],
        )
        assert "ImportError: no module named nowhere" in typed.text("logs", "--first-error")
        status, out, err = typed.type("logs", "-f")
        assert (status, "permanent" in err) == (0, True)
        assert "generation 1: permanent" in out
        assert "there is no run " in typed_elsewhere(tmp_path)
    finally:
        end_leftovers(tmp_path)


def typed_elsewhere(folder: Path) -> str:
    """What is said of a path that is no run."""
    lost = Typed(RunDir(folder / "supervisor.log"), {})
    return lost.refusal("why")


ENDS_EARLY = """
import os, sys

if "hpckit.trainer.torchrun.spawned_workers" in sys.orig_argv:
    print("programs: error: unrecognized arguments: --signals-to-handle=SIGINT", flush=True)
    os._exit(2)
"""
"""What a torchrun says that does not know its arguments."""
FAILS_EARLY = """
import os, sys, traceback

if "hpckit.trainer.worker" in sys.orig_argv:
    try:
        raise ImportError("libcudnn.so.9: cannot open shared object file")
    except ImportError:
        traceback.print_exc()
        os._exit(1)
"""
"""A worker whose libraries are missing: it ends before hpckit's own code is imported."""


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            ENDS_EARLY,
            "torchrun: ArgumentError: unrecognized arguments: --signals-to-handle=SIGINT",
        ),
        (
            FAILS_EARLY,
            "torchrun: ImportError: libcudnn.so.9: cannot open shared object file",
        ),
    ],
    ids=["torchrun", "worker"],
)
def test_what_fails_before_the_first_step_is_told_with_its_log_and_not_tried_for_ever(
    tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    root = tmp_path / "runs"
    words = command(root, shards, *ALONE, "launch.preload=false", "retry.max_restarts=1")
    status, output = complete(root, words)
    assert status == 70, output
    typed = Typed(RunDir(next(root.glob("t-*"))), {})
    log = typed.run.node_logs(2, 0) / "torchrun.log"
    found = typed.json("why")
    assert found["verdict"]["kind"] == "permanent"
    assert f"{says} ({log}) (twice before the first step" in found["verdict"]["reason"]
    assert says.partition(": ")[2] in " ".join(output.split())
    assert found["commands"] == [f"hpckit logs {typed.run.path} --first-error"]
    assert typed.run.generation_numbers() == [1, 2]
    error = typed.json("logs", "--first-error")
    assert (error["rank"], error["generation"], error["file"]) == (None, 2, str(log))
    _, shown, notes = typed.type("logs", "--first-error")
    assert says.rpartition(": ")[2] in shown
    assert "==> generation 2, torchrun" in notes
    assert f"==> read from {log} <==" in notes
