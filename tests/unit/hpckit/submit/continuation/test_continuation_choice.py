"""How a run continues on a site, by what Slurm documents."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpckit.config.spec_parser import SpecError
from hpckit.rundir.directory import RunDir
from hpckit.slurm.cluster_config import parse_config, parse_records
from hpckit.slurm.scontrol import shows_expedite
from hpckit.submit.batch_script import of_run, script
from hpckit.submit.continuation import continuation_facts as module
from hpckit.submit.continuation.continuation_choice import (
    ContinuationFacts,
    choose_continuation,
    is_expedite_refused,
    parse_version,
)
from hpckit.submit.continuation.continuation_facts import facts_of, hold_s, with_continuation
from tests.unit.hpckit.specs_and_processes import make_spec

NEW = ContinuationFacts((25, 11), (25, 11), True, "off")
OLD = ContinuationFacts((22, 5), (22, 5), False, "requeue")
CONFIG = """Configuration data as of 2026-11-20T10:00:00
AccountingStorageEnforce = associations,limits,qos
AuthInfo                = cred_expire=30
JobRequeue              = 0
PreemptMode             = GANG,REQUEUE
PreemptType             = preempt/partition_prio
SchedulerParameters     = bf_interval=30,requeue_delay=7
SLURM_VERSION           = 25.11.2
SlurmctldParameters     = enable_configless,enable_expedited_requeue
"""
PARTITIONS = """PartitionName=low Default=YES PreemptMode=REQUEUE State=UP
PartitionName=high Default=NO PreemptMode=OFF State=UP
PartitionName=spot Default=NO PreemptMode=CANCEL State=UP
"""


@pytest.mark.parametrize(
    ("facts", "how", "reason"),
    [
        (NEW, "expedite", "Slurm 25.11 has enable_expedited_requeue"),
        (replace(NEW, version=(26, 5)), "expedite", "26.05"),
        (replace(NEW, client=None), "expedite", ""),
        (replace(NEW, preempt_mode="requeue"), "expedite", ""),
        (replace(NEW, preempt_mode="cancel"), "chain", "PreemptMode=CANCEL"),
        (replace(NEW, preempt_mode="suspend"), "chain", "PreemptMode=SUSPEND"),
        (replace(NEW, preempt_mode=None), "chain", "the QOS decides"),
        (replace(NEW, is_expedite_enabled=False), "chain", "do not have enable_expedited_requeue"),
        (replace(NEW, client=(25, 5)), "chain", "sbatch 25.05 on this machine"),
        (replace(NEW, version=(25, 5)), "chain", "Slurm 25.05 has no expedited requeue"),
        (replace(NEW, most_jobs=1), "expedite", ""),
        (replace(NEW, is_elastic=True), "chain", "continues when it loses a node"),
        (OLD, "chain", "a successor starts when the job has ended"),
        (replace(OLD, most_jobs=1), "requeue", "only 1 job in the queue"),
        (replace(OLD, most_jobs=2), "chain", ""),
        (ContinuationFacts(), "chain", "the version of Slurm is unknown"),
    ],
)
def test_what_auto_picks(facts: ContinuationFacts, how: str, reason: str) -> None:
    choice = choose_continuation(facts)
    assert choice.how == how
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("facts", "is_refused"),
    [
        (NEW, False),
        (replace(NEW, preempt_mode="cancel"), False),
        (replace(NEW, is_expedite_enabled=False), True),
        (replace(NEW, client=(25, 5)), True),
        (OLD, True),
        (ContinuationFacts(), False),
    ],
)
def test_where_sbatch_refuses_an_expedited_requeue(
    facts: ContinuationFacts, is_refused: bool
) -> None:
    assert is_expedite_refused(facts) == is_refused


@pytest.mark.parametrize(
    ("text", "version"),
    [
        *[("slurm 25.11.2", (25, 11)), ("slurm-wlm 22.05.8", (22, 5))],
        *[("26.11.0-0rc1", (26, 11)), ("", None), ("unknown", None)],
    ],
)
def test_a_version(text: str, version: tuple[int, int] | None) -> None:
    assert parse_version(text) == version


def facts(partition: str | None = None, *, config: str = CONFIG, **more: object) -> object:
    slurm = make_spec({"cluster.slurm.partition": partition}, "slurm").cluster.slurm
    assert slurm is not None
    return facts_of(parse_config(config), parse_records(PARTITIONS), slurm, **more)  # type: ignore[arg-type]


def test_facts_in_the_documented_output() -> None:
    found = facts(client="slurm 25.11.0", limits="\n4\n100\n")
    assert found == ContinuationFacts((25, 11), (25, 11), True, "requeue", 4, 8)


@pytest.mark.parametrize(
    ("partition", "old", "new", "mode"),
    [
        (None, "", "", "requeue"),
        ("high", "", "", "off"),
        ("spot", "", "", "cancel"),
        ("low,spot", "", "", "cancel"),
        ("low", "preempt/partition_prio", "preempt/none", "off"),
        ("low", "preempt/partition_prio", "preempt/qos", None),
    ],
)
def test_what_a_preemption_does(
    partition: str | None, old: str, new: str, mode: str | None
) -> None:
    found = facts(partition, config=CONFIG.replace(old, new))
    assert isinstance(found, ContinuationFacts)
    assert found.preempt_mode == mode


def test_the_mode_of_a_qos() -> None:
    config = CONFIG.replace("preempt/partition_prio", "preempt/qos")
    for qos, mode in (({"GraceTime": "0"}, "requeue"), ({"PreemptMode": "cancel"}, "cancel")):
        found = facts(config=config, qos=qos)
        assert isinstance(found, ContinuationFacts)
        assert found.preempt_mode == mode


@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        ({}, 121),
        ({"AuthInfo": "cred_expire=30"}, 31),
        ({"AuthInfo": "cred_expire=30", "SchedulerParameters": "defer,requeue_delay=5"}, 6),
    ],
)
def test_how_long_a_requeued_job_is_held(config: dict[str, str], seconds: int) -> None:
    assert hold_s(config) == seconds


def test_auto_becomes_what_is_picked_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_facts", lambda slurm: OLD)
    spec, notes = with_continuation(make_spec({"launch.continuation": "auto"}, "slurm"))
    assert spec.launch.continuation == "chain"
    assert notes == [
        "launch.continuation=auto picks chain: Slurm 22.05 has no expedited requeue, which came "
        "with 25.11; a successor starts when the job has ended"
    ]
    with pytest.raises(SpecError, match=r"continuation=expedite: Slurm 22\.05 has no expedited"):
        with_continuation(make_spec({"launch.continuation": "expedite"}, "slurm"))


def test_other_values_ask_nothing_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_facts", None)
    for how in ("chain", "requeue", "none"):
        spec = make_spec({"launch.continuation": how}, "slurm")
        assert with_continuation(spec) == (spec, [])
    here = make_spec({"launch.continuation": "auto"})
    assert with_continuation(here) == (here, [])


def test_a_slurm_that_does_not_answer_leaves_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise subprocess.TimeoutExpired("scontrol", 1)

    monkeypatch.setattr(module, "query", fail)
    module._output.cache_clear()
    spec, (note,) = with_continuation(make_spec({"launch.continuation": "auto"}, "slurm"))
    module._output.cache_clear()
    assert spec.launch.continuation == "chain"
    assert "the version of Slurm is unknown" in note


def test_a_job_that_has_expedited_requeues() -> None:
    text = "JobId=5 JobName=a ExpeditedRequeue=Yes UserId=u(1) GroupId=g(1) Requeue=1 Restarts=0"
    assert not shows_expedite(text), "it is the job's name"
    assert shows_expedite(f"{text.replace('ExpeditedRequeue=Yes ', '')} ExpeditedRequeue=Yes")
    assert not shows_expedite("JobId=5 JobName=a UserId=u(1) Requeue=1 Restarts=0")


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("chain", "#SBATCH --no-requeue"),
        ("none", "#SBATCH --no-requeue"),
        ("requeue", "#SBATCH --requeue"),
        ("expedite", "#SBATCH --requeue=expedite"),
    ],
)
def test_the_option_of_the_batch_script(how: str, line: str, tmp_path: Path) -> None:
    spec = make_spec({"launch.continuation": how}, "slurm")
    lines = script(spec, of_run(RunDir(tmp_path / "t"), 1)).splitlines()
    assert [one for one in lines if "requeue" in one] == [line]
