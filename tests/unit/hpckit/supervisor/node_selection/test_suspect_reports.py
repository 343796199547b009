"""What a supervisor records for other runs, in a real folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpckit.events.event_log import Event, EventLog, read_events
from hpckit.rundir.directory import RunDir
from hpckit.slurm.allocation import Allocation
from hpckit.supervisor.node_selection import suspect_reports as module
from hpckit.supervisor.node_selection.suspect_reports import SuspectReporter
from hpckit.supervisor.supervised_run import SupervisedRun
from hpckit.suspects.suspect_folder import read_view
from tests.unit.hpckit.specs_and_processes import make_spec


class Job:
    """A job of two nodes."""

    def __init__(self, folder: Path, **suspects: object) -> None:
        changes = {f"cluster.slurm.suspects.{key}": value for key, value in suspects.items()}
        self.run, self.spec = RunDir(folder), make_spec(changes, "slurm")
        self.log = EventLog(self.run.events)
        self.log.emit_kind("run_started", job="7")

    def found(self, *hosts: str) -> None:
        for host in hosts:
            self.log.emit_kind("node_unhealthy", host=host, problems=["bad"])

    def report(self) -> list[str]:
        """Let a supervisor record what was found, and end; the names on the list then."""
        job = Allocation("7", ("n1", "n2"))
        with SuspectReporter(SupervisedRun(self.run, 1, self.spec, job, self.log)) as reporter:
            reporter.report()
        assert self.spec.cluster.slurm is not None
        return [one.node for one in read_view(self.spec.cluster.slurm.suspects).suspects]

    def told(self, kind: str) -> list[Event]:
        return [event for event in read_events(self.run.events) if event.kind == kind]


@pytest.fixture(autouse=True)
def _in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "c")
    monkeypatch.setattr(module, "END_S", 60.0)  # a busy machine may be slow


def test_a_bad_node_is_recorded_once(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.found("n2")
    assert job.report() == ["n2"]
    assert job.report() == ["n2"]
    (event,) = job.told("suspect_reported")
    assert (event["host"], event["problem"]) == ("n2", "bad")
    assert Path(event["path"]).is_file()
    assert abs(event["expires"] - job.told("node_unhealthy")[0].time - 24 * 3600) < 1
    job.found("n2")
    job.report()
    assert len(job.told("suspect_reported")) == 2, "it was seen again"


def test_what_all_nodes_of_a_job_have_is_not_recorded(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.found("n1", "n2")
    assert job.report() == []
    assert job.told("suspect_reported") == []


def test_nothing_is_recorded_without_a_list(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.spec = make_spec({"cluster.slurm.suspects": None}, "slurm")
    job.found("n2")
    assert job.report() == []
    assert job.told("suspect_reported") == []


def test_a_folder_or_a_hook_that_fails_is_a_degradation(tmp_path: Path) -> None:
    hook = [sys.executable, "-c", "import sys; sys.exit('no ticket system')"]
    job = Job(tmp_path, hook=hook)
    job.found("n2")
    assert job.report() == ["n2"]
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    job.spec = make_spec({"cluster.slurm.suspects.folder": str(shared)}, "slurm")
    assert job.report() == []
    failed, refused = (event["what"] for event in job.told("degraded"))
    assert failed == "cluster.slurm.suspects.hook failed for n2: exit status 1: no ticket system"
    assert refused.startswith("bad nodes are not recorded in the suspect list: ")
