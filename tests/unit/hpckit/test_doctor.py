"""What `hpckit doctor` makes of a site: texts of Slurm, facts of a machine, a place for objects."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from checkpointing.storage.posix import PosixStorage
from hpckit.doctor import machine, store
from hpckit.doctor.asking import srun_words
from hpckit.doctor.finding import Finding, Level, worst
from hpckit.doctor.reading import parse_config, parse_records
from hpckit.doctor.slurm import findings
from hpckit.launch.compose import compose_spec

CONFIG = """Configuration data as of 2026-11-22T23:00:00
AuthInfo                = cred_expire=30
KillWait                = 30 sec
PreemptMode             = REQUEUE
PreemptType             = preempt/partition_prio
ProctrackType           = proctrack/cgroup
SlurmdTimeout           = 300 sec
SLURM_VERSION           = 22.05.8
Slurmctld(primary) at head is UP
"""
PARTITIONS = """PartitionName=low AllowGroups=ALL Default=YES GraceTime=120 MaxTime=1-00:00:00 \
PreemptMode=REQUEUE State=UP TotalNodes=4
PartitionName=high Default=NO GraceTime=0 MaxTime=UNLIMITED PreemptMode=OFF State=DRAIN TotalNodes=2
""".replace("\\\n", "")


def said(*overrides: str, old: str = "", new: str = "") -> dict[str, Finding]:
    """By subject, where `old` is `new` in what Slurm tells."""
    spec = compose_spec(["cluster=slurm", *overrides])
    config = parse_config(CONFIG.replace(old, new) if old else CONFIG)
    partitions = parse_records(PARTITIONS.replace(old, new) if old else PARTITIONS)
    return {one.subject: one for one in findings(config, partitions, spec)}


def test_a_site_that_is_well_has_nothing_to_change() -> None:
    found = said()
    assert {one.level for one in found.values()} == {Level.OK}
    assert found["slurm"].what == "22.05.8"
    assert found["partition"].what == "low: 4 nodes"
    assert found["preemption"].what == "a preempted job of low has 120 s (GraceTime)"
    assert all(one.do == "" for one in found.values())


@pytest.mark.parametrize(
    ("overrides", "old", "new", "subject", "level", "text"),
    [
        ((), "22.05.8", "20.02.7", "slurm", Level.FAIL, "20.11 or newer"),
        ((), "22.05.8", "", "slurm", Level.WARN, "not known"),
        ((), "proctrack/cgroup", "proctrack/linuxproc", "processes", Level.WARN, "linuxproc"),
        (
            (),
            "SlurmdTimeout           = 300",
            "SlurmdTimeout = 900",
            "lost nodes",
            Level.NOTE,
            "900 s",
        ),
        ((), "GraceTime=120", "GraceTime=30", "preemption", Level.WARN, "cluster.grace_s=25"),
        ((), "GraceTime=120", "GraceTime=0", "preemption", Level.WARN, "KillWait, without"),
        ((), "preempt/partition_prio", "preempt/none", "preemption", Level.OK, "not preempted"),
        (("launch.continuation=requeue",), "", "", "requeue", Level.OK, "for 31 s"),
        (("launch.continuation=requeue",), "cred_expire=30", "", "requeue", Level.NOTE, "121 s"),
        (("cluster.slurm.partition=gpu",), "", "", "partition", Level.FAIL, "one of low, high"),
        (("cluster.slurm.partition=high",), "", "", "partition", Level.WARN, "high is DRAIN"),
        ((), "Default=YES", "Default=NO", "partition", Level.FAIL, "no default partition"),
        (
            ("cluster.slurm.time_limit='2-00:00:00'",),
            *("", "", "time limit", Level.FAIL),
            'cluster.slurm.time_limit="1-00:00:00"',
        ),
    ],
)
def test_what_slurm_tells_leads_to_what_to_do(
    overrides: tuple[str, ...], old: str, new: str, subject: str, level: Level, text: str
) -> None:
    found = said(*overrides, old=old, new=new)[subject]
    assert found.level is level
    assert text in f"{found.what} {found.do}"


@pytest.mark.parametrize("limit", ["24:00:00", "1-00:00:00", "00:30:00"])
def test_a_time_limit_within_the_partitions_is_no_news(limit: str) -> None:
    assert "time limit" not in said(f"cluster.slurm.time_limit='{limit}'")


GOOD = machine.MachineFacts(
    host="n1",
    python="3.11.2",
    torch="2.13.0+cu130",
    gpus=("H100", "H100"),
    shared_bytes=64 << 30,
    memory_bytes=512 << 30,
    files=65536,
    interfaces=("ib0",),
    is_synchronised=True,
    has_py_spy=True,
    scratch=(),
    containers=(),
)


def judged(facts: machine.MachineFacts, *, wants_gpus: bool = True) -> dict[str, Finding]:
    return {one.subject: one for one in machine.judge(facts, wants_gpus)}


def test_a_machine_that_is_well_has_nothing_to_change() -> None:
    found = judged(GOOD)
    assert {one.level for one in found.values()} == {Level.OK}
    assert found["GPUs"].what == "2 x H100"


@pytest.mark.parametrize(
    ("facts", "subject", "level"),
    [
        (replace(GOOD, torch=None), "software", Level.FAIL),
        (replace(GOOD, torch="2.13.0+cpu"), "software", Level.FAIL),
        (replace(GOOD, gpus=()), "GPUs", Level.NOTE),
        (replace(GOOD, shared_bytes=64 << 20), "memory", Level.WARN),
        (replace(GOOD, files=1024), "files", Level.WARN),
        (replace(GOOD, interfaces=()), "network", Level.NOTE),
        (replace(GOOD, is_synchronised=False), "clock", Level.WARN),
        (replace(GOOD, has_py_spy=False), "py-spy", Level.NOTE),
    ],
)
def test_what_a_machine_lacks_is_told(
    facts: machine.MachineFacts, subject: str, level: Level
) -> None:
    found = judged(facts)[subject]
    assert found.level is level
    assert found.what
    cpu_alone = judged(replace(facts, torch="2.13.0+cpu"), wants_gpus=False)
    assert cpu_alone["software"].level is Level.OK


def test_what_a_machine_says_comes_back_from_another() -> None:
    facts = machine.ask()
    assert facts.files > 0
    told = TypeAdapter(machine.MachineFacts).validate_python(asdict(facts))
    assert told == facts


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    (one,) = store.findings(str(tmp_path / "not" / "there"))
    assert one.level is Level.OK
    assert "MiB/s in" in one.what
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (one,) = store.findings(str(tmp_path / "file" / "store"))
    assert one.level is Level.FAIL
    assert one.do


def test_objects_that_can_be_made_twice_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PosixStorage, "create", lambda *_: True)
    (one,) = store.findings(str(tmp_path))
    assert (one.level, "both win" in one.what) == (Level.FAIL, True)


@pytest.mark.parametrize(
    ("change", "levels"),
    [
        ({}, [Level.OK]),
        ({"is_listed": False}, [Level.FAIL]),
        ({"create_s": 4.0}, [Level.OK, Level.NOTE]),
        ({"skew_s": -90.0}, [Level.OK, Level.WARN]),
    ],
)
def test_what_was_measured_is_judged(change: dict[str, float], levels: list[Level]) -> None:
    facts = replace(store.StoreFacts(100.0, 100.0, 0.1, True, True, 0.1), **change)  # type: ignore[arg-type]
    assert [one.level for one in store.judge("s3://b", facts)] == levels


def test_a_node_is_asked_as_the_job_will_be() -> None:
    named = ("cluster.slurm.partition=gpu", "cluster.slurm.account=me")
    words = srun_words(compose_spec(["cluster=slurm", *named]))
    assert words[0] == "srun"
    assert {"--partition=gpu", "--account=me", "--nodes=1"} <= set(words)
    assert words[-2:] == ["-m", "hpckit.doctor.machine"]


def test_the_worst_of_all() -> None:
    assert worst([]) is Level.OK
    assert worst([Finding(Level.FAIL, "", ""), Finding(Level.NOTE, "", "")]) is Level.FAIL
