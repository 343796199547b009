"""What Slurm is told of nodes that the next job is not to get; Slurm is played by programs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpckit.events.event_log import Event, EventLog, read_events
from hpckit.rundir.directory import RunDir
from hpckit.submit.exclusion.partition_nodes import parse_nodes
from hpckit.supervisor.node_selection import exclude_list as module
from hpckit.supervisor.node_selection.exclude_list import ExcludeList
from hpckit.suspects.suspect_folder import open_folder
from hpckit.suspects.suspect_record import RecordKind, SuspectRecord
from tests.unit.hpckit.specs_and_processes import make_spec

SINFO = "echo 'n1 idle'; echo 'n2 mixed'; echo 'n3 allocated'; echo 'n4 down*'"


SCONTROL = """case "$*" in
*"show job"*) cat {folder}/job ;;
"show hostnames "*) echo "$3" | tr , '\\n' ;;
*) echo "$@" >> {folder}/asked ;;
esac"""


class Parts:
    def __init__(self, folder: Path) -> None:
        self.run, self.bin = RunDir(folder), folder / "bin"
        self.bin.mkdir()
        self.log = EventLog(self.run.events)
        self.log.emit_kind("run_started", job="1")
        self.put("sinfo", SINFO)
        self.put("sbatch", "exit 0")
        self.put("scontrol", SCONTROL.format(folder=folder))
        self.given()

    def given(self, excluded: str = "(null)") -> None:
        """The job excludes these nodes."""
        (self.run.path / "job").write_text(f"JobId=7 ExcNodeList={excluded}\n")

    def put(self, name: str, script: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / name).chmod(0o755)

    def found(self, *hosts: str) -> None:
        for host in hosts:
            self.log.emit_kind("node_unhealthy", host=host, problems=["bad"])

    def exclusion(self, nodes: int, *by_config: str) -> ExcludeList:
        batch = {"train.global_batch": 24, "train.micro_batch": 1}
        changes = {"launch.nodes": nodes, "cluster.slurm.exclude": list(by_config)}
        return ExcludeList(self.run, make_spec(batch | changes, "slurm"), self.log)

    def asked(self) -> list[str]:
        path = self.run.path / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def told(self, kind: str) -> list[Event]:
        return [event for event in read_events(self.run.events) if event.kind == kind]


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parts]:
    found = Parts(tmp_path)
    monkeypatch.setenv("PATH", f"{found.bin}:{os.environ['PATH']}")
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    yield found
    found.log.close()


def test_without_a_bad_node_nothing_is_asked_of_slurm(parts: Parts) -> None:
    parts.put("sinfo", "exit 1")
    parts.exclusion(2).keep_from("7", 1.0)
    assert parts.asked() == []
    assert parts.exclusion(2).hosts() == ()


def test_the_next_job_is_kept_from_it_and_from_those_of_the_config(parts: Parts) -> None:
    parts.found("n2")
    parts.exclusion(1, "n3").keep_from("7", 1.0)
    assert parts.asked() == ["update JobId=7 ExcNodeList=n3,n2"]
    assert [(e["job"], e["hosts"]) for e in parts.told("nodes_excluded")] == [("7", ["n2"])]


@pytest.mark.parametrize(("nodes", "by_config"), [(2, ("n3",)), (3, ())])
def test_not_if_too_few_would_be_left(parts: Parts, nodes: int, by_config: tuple[str, ...]) -> None:
    parts.found("n2")
    parts.exclusion(nodes, *by_config).keep_from("7", 1.0)
    assert parts.asked() == []
    assert "too few nodes would be left without n2" in parts.told("degraded")[0]["what"]


def test_none_of_them_where_slurm_never_told_its_nodes(parts: Parts) -> None:
    """Or the job might be left without any, and wait for ever."""
    parts.put("sinfo", "exit 1")
    parts.found("n1", "n2")
    assert parts.exclusion(8).hosts() == ()
    (what,) = [event["what"] for event in parts.told("degraded")]
    assert what == "the next job may get n1, n2 again: the nodes of the partition are unknown"


def test_where_slurm_does_not_tell_its_nodes_they_are_those_of_before(parts: Parts) -> None:
    exclusion = parts.exclusion(2)
    assert exclusion.hosts() == ()
    parts.put("sinfo", "exit 1")
    parts.found("n1", "n2")
    assert len(exclusion.hosts()) == 1, "there are three, and two are needed"


@pytest.mark.parametrize("script", ["echo 'Job is no longer pending' >&2; exit 1", "exit 1"])
def test_a_refusal_is_tried_again_and_told(parts: Parts, script: str) -> None:
    parts.found("n2")
    shown = '[ "$1" = --oneliner ] && exit 0'
    parts.put("scontrol", f"{shown}; echo x >> {parts.run.path}/asked; {script}")
    begun_s = time.monotonic()
    parts.exclusion(1).keep_from("7", 0.2)
    assert time.monotonic() - begun_s >= 0.2
    assert len(parts.asked()) > 1
    (what,) = [event["what"] for event in parts.told("degraded")]
    assert what.startswith("job 7 may get n2 again: ")


def test_states_in_which_a_node_takes_jobs() -> None:
    states = ["idle", "mixed-", "allocated+", "completing", "planned", "idle~", "reserved"]
    away = ["down", "down*", "unknown*"]
    gone = ["drained", "draining*", "fail", "failing", "maint"]
    lines = [f"n{i} {state}" for i, state in enumerate([*states, *away, *gone])]
    names = [line.split()[0] for line in lines]
    found = parse_nodes("\n".join(lines))
    assert found.usable == set(names[: len(states)])
    assert found.away == set(names[len(states) : -len(gone)])


def test_who_they_are_is_known_before_slurm_ends_this_job(parts: Parts) -> None:
    parts.found("n2")

    def requeue() -> bool:
        parts.put("sinfo", "kill $$")
        return True

    parts.exclusion(3).keep_from("7", 1.0, requeue)
    assert parts.asked() == [], "there would be too few"
    parts.exclusion(3).keep_from("7", 1.0, lambda: False)
    parts.put("sinfo", SINFO)
    parts.exclusion(2).keep_from("7", 1.0, requeue)
    assert parts.asked() == ["update JobId=7 ExcNodeList=n2"]


REFUSED = "sbatch: error: allocation failure: Requested node configuration is not available"
# Plays a Slurm in which the job can do without n3, but not without any other node as well
PICKY = f"""grep -q 'exclude=.*n[124]' && echo '{REFUSED}' >&2 && exit 1
exit 0"""


def test_not_if_slurm_cannot_place_the_job_without_it(parts: Parts) -> None:
    """Its constraints leave fewer nodes than the partition has."""
    parts.put("sbatch", PICKY)
    parts.found("n2", "n3")
    assert parts.exclusion(1).hosts() == ("n3",)
    (what,) = [event["what"] for event in parts.told("degraded")]
    assert what.startswith("too few nodes would be left without n2: not excluded (Slurm on a job ")
    assert what.endswith("Requested node configuration is not available)")


@pytest.mark.parametrize(
    "script", ["echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1", "kill $$"]
)
def test_not_if_slurm_does_not_say_that_it_can_place_the_job(parts: Parts, script: str) -> None:
    parts.put("sbatch", script)
    parts.found("n2")
    assert parts.exclusion(1).hosts() == ()
    assert "too few nodes would be left without n2" in parts.told("degraded")[0]["what"]


def test_a_job_that_needs_a_node_again_gets_it_back(parts: Parts) -> None:
    parts.found("n2")
    exclusion = parts.exclusion(1, "n3")
    hosts = exclusion.hosts()
    exclusion.record("7", hosts)
    exclusion.review("7")
    assert parts.asked() == [], "it can be placed"
    parts.put("sbatch", PICKY)
    exclusion.review("7")
    assert parts.asked() == ["update JobId=7 ExcNodeList=n3"]
    (event,) = parts.told("exclusion_withdrawn")
    assert (event["job"], event["hosts"]) == ("7", ["n2"])
    assert "Requested node configuration is not available" in event["reason"]
    exclusion.review("7")
    exclusion.keep_from("7", 1.0)
    assert len(parts.asked()) == 1, "it has been given back"


def test_the_job_of_a_person_is_asked_about_as_that_person_submitted_it(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = "JobId=5 Partition=gpu NumNodes=2 Features=big TresPerNode=gres:gpu:4 Reservation=(null)"
    parts.put("scontrol", f"echo '{job}'")
    parts.put("sbatch", f'echo "$@" > {parts.run.path}/asked')
    parts.found("n2")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    changes = {"launch.nodes": 1, "launch.continuation": "requeue"}
    assert ExcludeList(parts.run, make_spec(changes, "slurm"), parts.log).hosts() == ("n2",)
    words = "--test-only --partition=gpu --constraint=big --nodes=2 --gres=gpu:4 --exclude=n2"
    assert parts.asked() == [words]


@pytest.mark.parametrize(
    ("given", "bad", "update"),
    [
        ("n3", ["n2"], ["update JobId=7 ExcNodeList=n3,n2"]),
        ("n2,n3", ["n2"], ["update JobId=7 ExcNodeList=n2,n3"]),
        ("n1", [], []),
    ],
)
def test_the_nodes_that_a_person_has_excluded_stay_excluded(
    parts: Parts, given: str, bad: list[str], update: list[str]
) -> None:
    parts.given(given)
    parts.found(*bad)
    exclusion = parts.exclusion(1)
    exclusion.keep_from("7", 1.0)
    assert parts.asked() == update
    parts.given(",".join(update[0].rpartition("=")[2].split(",")) if update else given)
    exclusion.keep_from("7", 1.0)
    assert parts.asked() == update * 2, "ours are not taken for the person's"


def test_a_list_that_cannot_be_read_is_not_overwritten(parts: Parts) -> None:
    parts.put(
        "scontrol", f'case "$*" in *"show job"*) exit 1 ;; esac; echo x >> {parts.run.path}/asked'
    )
    parts.found("n2")
    parts.exclusion(1).keep_from("7", 1.0)
    assert parts.asked() == []
    (what,) = [event["what"] for event in parts.told("degraded")]
    assert what == "job 7 may get n2 again: Slurm does not say which nodes it excludes already"


def listed(parts: Parts, monkeypatch: pytest.MonkeyPatch, *records: SuspectRecord) -> None:
    """These records are on the suspect list of the cluster."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "c")
    spec = make_spec({}, "slurm").cluster.slurm
    assert spec is not None
    assert spec.suspects is not None
    folder = open_folder(spec.suspects)
    for record in records:
        folder.write(record)


def record(node: str, kind: RecordKind, ago_s: float) -> SuspectRecord:
    now = time.time()
    return SuspectRecord(node, kind, now - ago_s, now + 3600, "bad", True, run="/runs/other")


def test_the_suspects_of_other_runs_are_excluded_too(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed(parts, monkeypatch, record("n1", "report", 60), record("elsewhere", "report", 60))
    parts.found("n2")
    parts.exclusion(1).keep_from("7", 1.0)
    assert parts.asked() == ["update JobId=7 ExcNodeList=n1,n2"]


def test_a_cleared_node_is_used_again(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    listed(parts, monkeypatch, record("n1", "report", 60), record("n1", "clear", 30))
    parts.found("n2")
    assert parts.exclusion(1).hosts() == ("n2",)
    listed(parts, monkeypatch, record("n2", "clear", -1))
    assert parts.exclusion(1).hosts() == ()
