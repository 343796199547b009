"""A real run has its nodes measured before it begins, does without a slow one, and reports that and
its end by a webhook and by e-mail. It is killed hard, too."""

from __future__ import annotations

import os
import secrets
import sys
import threading
from pathlib import Path

import psutil
import pytest

from hpckit.system.atomic_files import read_json
from tests.integration.run.runs import REPO, Started, eventually, started, throttle
from tests.unit.hpckit.alerts.webhook_server import webhook_server

LIMITS = {"slow_matrix": 0.2, "seconds": 0.5, "valid_hours": 24.0}
LIMITS |= {f"slow_{name}": 0.0 for name in ("memory", "transfer", "link", "disk", "store")}
"""Only products are compared, and with a limit that no process of a busy machine misses."""
MAIL = '#!/bin/sh\ncat >> {folder}/mail\necho "args: $*" >> {folder}/mail\n'
PROGRAM = (
    "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.1)\n"
)


@pytest.fixture
def mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a sendmail that is in PATH gets."""
    program = tmp_path / "bin" / "sendmail"
    program.parent.mkdir()
    program.write_text(MAIL.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return tmp_path / "mail"


def launch(tmp_path: Path, *more: str) -> list[str]:
    keys = [f"health.deep.{name}={value}" for name, value in LIMITS.items()]
    keys += ["launch.nodes=3", "elastic=shrink", "elastic.min_nodes=2", "cluster.device=cpu"]
    keys += ["launch.threads_per_worker=1"]
    keys += ["health=deep", "alerts=webhook", "alerts.email.to=[me@example.org]", "name=t"]
    program = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "may-end")]
    where = [sys.executable, str(REPO / "launch.py"), f"root={tmp_path / 'runs'}"]
    return [*where, *keys, *more, "--", *program]


def killed_supervisor(it: Started) -> None:
    process = psutil.Process(it.wait_for("run_started")["pid"])
    process.kill()
    eventually(lambda: (not process.is_running() or process.status() == "zombie") or None)


def test_a_slow_node_is_left_out_and_people_are_informed(
    tmp_path: Path, mail: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    secret = secrets.token_hex(16)
    with webhook_server(secret) as server:
        monkeypatch.setenv("HPCKIT_WEBHOOK_URL", server.url)
        with started(tmp_path / "runs", launch(tmp_path)) as it:
            slow = it.wait_for("worker_started", rank=1)
            log = it.run.rank_log(1, 1, 1)
            thread = threading.Thread(target=throttle, args=(slow["pid"], log, "measuring memory"))
            thread.start()
            measured = it.wait_for("deep_health")
            thread.join()
            assert measured["is_complete"]
            assert "node 1: rank 1 (cpu): matrix products" in measured["found"][0]
            chosen = it.wait_for("nodes_chosen")
            assert chosen["nodes"] == [0, 2]
            it.wait_for("worker_started", generation=2)
            run = it.run
            killed_supervisor(it)
            it.process.wait()
        (tmp_path / "may-end").touch()
        with started(tmp_path / "runs", launch(tmp_path, "health.deep=null")) as again:
            status, output = again.finish()
            assert status == 0, output
    assert read_json(run.verdict)["kind"] == "done"
    found = [(one["kind"], one["title"].partition(": ")[2]) for one in server.documents]
    assert ("degraded", "a node is left out") in found
    assert ("verdict", "ended without a verdict, and continues") in found
    assert found[-1] == ("done", "done")
    assert "Subject: [hpckit]" in mail.read_text()
    assert "args: -i me@example.org" in mail.read_text()
    for file in run.path.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file
