"""What `hpckit doctor` makes of a site: texts of Slurm, facts of a machine, a place for objects."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

from checkpointing.storage.posix.posix_storage import PosixStorage
from hpckit.cli.main import app
from hpckit.doctor import checkpoint_store, machine, node_probe
from hpckit.doctor.finding import Finding, Level, worst
from hpckit.doctor.folder_visibility import FolderIdentity, identify_folder, judge_places
from hpckit.doctor.node_probe import srun_words
from hpckit.doctor.scratch_disks import ScratchDisk
from hpckit.doctor.site_examination import judge_queue
from hpckit.doctor.slurm_settings import findings
from hpckit.doctor.submit_limits import judge_limits, parse_limits
from hpckit.slurm.cluster_config import grace_of, parse_config, parse_qos, parse_records
from hpckit.slurm.squeue import parse_queue
from hpckit.submit.compose import compose_spec
from tests.unit.hpckit.specs_and_processes import CHECKOUT

CONFIG = """Configuration data as of 2026-11-22T23:00:00
AuthInfo                = cred_expire=30
KillWait                = 30 sec
PreemptMode             = REQUEUE
PreemptParameters       = send_user_signal
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
        ((), "22.05.8", "", "slurm", Level.WARN, "unknown"),
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
        ((), "preempt/partition_prio", "preempt/qos", "preemption", Level.NOTE, "is unknown"),
        ((), "PreemptMode=REQUEUE", "PreemptMode=CANCEL", "preemption", Level.OK, "has 120 s"),
        (
            (),
            "PreemptMode=REQUEUE",
            "PreemptMode=GANG,SUSPEND",
            "preemption",
            Level.WARN,
            "is stopped",
        ),
        (
            (),
            "KillWait",
            "SelectType=select/linear\nKillWait",
            "GPUs of a job",
            Level.FAIL,
            "=gres",
        ),
        ((), "KillWait", "GresTypes=(null)\nKillWait", "GPUs of a job", Level.FAIL, "gpus=none"),
        (
            ("data.cache=/tmp/shards",),
            *("KillWait", "JobContainerType=job_container/tmpfs\nKillWait"),
            *("folders", Level.WARN, "data.cache=/tmp/shards: each job has"),
        ),
        (
            ("root=/dev/shm/runs",),
            *("KillWait", "NamespaceType=namespace/tmpfs\nKillWait"),
            *("folders", Level.FAIL, "root=/dev/shm/runs: each job has"),
        ),
        ((), "= send_user_signal", "= youngest_first", "preempt signal", Level.NOTE, "not sent"),
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


def test_requests_for_gpus_that_slurm_takes_are_no_news() -> None:
    for select in ("select/cons_tres", "select/cray_aries,cons_tres"):
        told = said(old="KillWait", new=f"GresTypes=gpu,shard\nSelectType={select}\nKillWait")
        assert "GPUs of a job" not in told
    linear = "SelectType=select/linear\nKillWait"
    assert "GPUs of a job" not in said("cluster.slurm.gpus=gres", old="KillWait", new=linear)
    assert "GPUs of a job" not in said("cluster.device=cpu", old="KillWait", new=linear)


ASSOCIATIONS = "lab||normal|1|\nlab|big|normal|9|\nart||long||40\n"
QOS = "normal||||\nlong|3||\nfew|1|2|\n"


@pytest.mark.parametrize(
    ("account", "chosen", "partition", "least"),
    [
        ("lab", (), "gpu", "1 job in the queue (MaxSubmitJobs of the account lab)"),
        ("lab", ("few",), "big", "1 job in the queue (MaxSubmitJobsPU of the QOS few)"),
        ("art", (), "gpu", "3 jobs in the queue (MaxSubmitJobsPU of the QOS long)"),
        (None, ("normal",), "gpu", None),
        ("none", ("normal",), "gpu", None),
    ],
)
def test_the_least_limit_of_submitted_jobs_counts(
    account: str | None, chosen: tuple[str, ...], partition: str | None, least: str | None
) -> None:
    limits = parse_limits(ASSOCIATIONS, QOS, account, chosen, partition)
    found = list(judge_limits(limits, "chain"))
    assert ([] if least is None else [least in one.what for one in found]) == [True] * len(found)
    assert bool(found) is (least is not None)
    warned = [one.level for one in found if one.do]
    assert warned == ([Level.WARN] if least and least.startswith("1 ") else [])
    assert all(one.level is Level.OK for one in judge_limits(limits, "requeue"))


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
    scratch=(ScratchDisk("/local", 900 << 30),),
    containers=(),
    cuda="13.0",
    driver_cuda="13.1",
    nccl="2.28.3",
)


def judged(facts: machine.MachineFacts, *, wants_gpus: bool = True) -> dict[str, Finding]:
    return {one.subject: one for one in machine.judge(facts, wants_gpus)}


def test_a_machine_that_is_well_has_nothing_to_change() -> None:
    found = judged(GOOD)
    assert {one.level for one in found.values()} == {Level.OK}
    assert found["GPUs"].what == "2 x H100"
    assert found["disks"].what.startswith("900 GiB in /local")
    assert found["CUDA"].what == "torch for CUDA 13.0, a driver for up to 13.1, NCCL 2.28.3"


@pytest.mark.parametrize(
    ("facts", "subject", "level"),
    [
        (replace(GOOD, torch=None), "software", Level.FAIL),
        (replace(GOOD, torch="2.6.0"), "software", Level.FAIL),
        (replace(GOOD, torch="2.13.0+cpu"), "software", Level.FAIL),
        (replace(GOOD, gpus=()), "GPUs", Level.NOTE),
        (replace(GOOD, driver_cuda="12.8"), "CUDA", Level.FAIL),
        (replace(GOOD, driver_cuda=None), "CUDA", Level.NOTE),
        (replace(GOOD, nccl=None), "CUDA", Level.NOTE),
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
    (one,) = checkpoint_store.findings(str(tmp_path / "not" / "there"))
    assert one.level is Level.OK
    assert "MiB/s written" in one.what
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (one,) = checkpoint_store.findings(str(tmp_path / "file" / "store"))
    assert one.level is Level.FAIL
    assert one.do


def test_objects_that_can_be_made_twice_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PosixStorage, "create", lambda *_: True)
    (one,) = checkpoint_store.findings(str(tmp_path))
    assert (one.level, "create the same object" in one.what) == (Level.FAIL, True)


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
    facts = replace(checkpoint_store.StoreFacts(100.0, 100.0, 0.1, True, True, 0.1), **change)  # type: ignore[arg-type]
    assert [one.level for one in checkpoint_store.judge("s3://b", facts)] == levels


def test_a_node_is_asked_as_the_job_will_be() -> None:
    named = ("cluster.slurm.partition=gpu", "cluster.slurm.account=me")
    words = srun_words(compose_spec(["cluster=slurm", *named]))
    assert words[0] == "srun"
    assert {"--partition=gpu", "--account=me", "--nodes=1"} <= set(words)
    assert words[-2:] == ["-m", "hpckit.doctor.machine"]


def test_a_node_is_asked_by_the_request_of_a_run() -> None:
    said = (
        *("cluster.slurm.gpus=gres", "cluster.slurm.gpu_type=h100", "launch.nproc_per_node=4"),
        *("cluster.slurm.memory=64G", "cluster.slurm.exclusive=true", "train.global_batch=32"),
        "launch.nodes=8",
        *("cluster.slurm.setup=[module load it]", "+cluster.slurm.options.licenses=fs"),
        "cluster.slurm.time_limit='12:00:00'",
    )
    words = srun_words(compose_spec(["cluster=slurm", *said]), "n7")
    assert {"--gres=gpu:h100:4", "--mem=64G", "--exclusive", "--licenses=fs"} <= {*words}
    assert {"--nodelist=n7", "--time=5", "--nodes=1", "--ntasks=1"} <= {*words}
    assert any(word.startswith("--immediate=") for word in words)
    assert any(word.endswith('\nmodule load it\nexec "$@"') for word in words)
    of_run = ("--nodes=8", "--signal", "--dependency", "--output", "--no-requeue", "--time=12")
    assert not [word for word in words if word.startswith(of_run)]


def test_a_qos_decides_where_the_site_says_so() -> None:
    config = parse_config(CONFIG.replace("preempt/partition_prio", "preempt/qos"))
    (partition, _) = parse_records(PARTITIONS)
    for row, seconds in (
        ("long|00:05:00|requeue\n", 300),
        ("long|00:00:00|cluster\n", 30),
        ("", None),
    ):
        grace = grace_of(partition, config, parse_qos(row))
        assert grace is not None
        assert grace.seconds == seconds
    assert grace_of(partition, config, parse_qos("long|00:05:00|OFF\n")) is None


def test_a_node_is_to_see_the_folders_of_a_run(tmp_path: Path) -> None:
    run, other = tmp_path / "runs" / "more", tmp_path / "other"
    here = identify_folder(str(run))
    assert (here.above, here.is_writable) == (str(tmp_path), True)
    other.mkdir()
    shared, own = {"root": str(run)}, {"data.cache": "/local/cache"}
    cache = replace(here, folder="/local/cache", above="/local")

    def levels(there: FolderIdentity, cache: FolderIdentity = cache) -> list[Level]:
        return [one.level for one in judge_places(shared, own, [here], [there, cache])]

    assert levels(here) == [Level.OK, Level.OK]
    assert levels(replace(identify_folder(str(other)), folder=str(run)))[0] is Level.FAIL
    assert levels(replace(here, inode=here.inode + 1))[0] is Level.FAIL
    assert levels(replace(here, is_writable=False))[0] is Level.FAIL
    assert levels(here, replace(cache, is_writable=False))[1] is Level.FAIL


def test_the_cuda_of_a_driver_is_read() -> None:
    line = "| NVIDIA-SMI 570.1   Driver Version: 570.1   CUDA Version: 12.8     |"
    assert machine.cuda_of_driver(["", line]) == "12.8"
    assert machine.cuda_of_driver([]) is None


def test_where_there_are_no_nodes_none_is_asked() -> None:
    done = CliRunner().invoke(app, ["doctor", "--node"])
    assert done.exit_code == 2
    assert "--node: local has no nodes to inspect: add cluster=slurm" in done.output


def test_the_version_is_told() -> None:
    done = CliRunner().invoke(app, ["--version"])
    code = CHECKOUT / "hpckit"
    what = "Preemption-tolerant PyTorch training on Slurm"
    assert (done.exit_code, done.output) == (0, f"hpckit 0.1.0: {what}; from {code}\n")


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ({}, None, ""),
        ({"python": "3.13.1"}, Level.FAIL, "a job runs Python 3.13.1 (/usr/bin/python3), and this"),
        ({"python": "3.12.9"}, None, ""),
        ({"missing": ("module",)}, Level.FAIL, "module in cluster.slurm.setup: no such command"),
        ({"environment": "/conda"}, Level.WARN, "the set-up lines activate /conda, but a job runs"),
        ({"environment": "/conda", "executable": "/conda/bin/python"}, None, ""),
        ({"environment": "/usr"}, None, ""),
    ],
)
def test_set_up_lines_are_judged_by_what_they_did_on_a_node(
    change: dict[str, object], level: Level | None, words: str
) -> None:
    here = replace(GOOD, python="3.12.3", executable="/usr/bin/python3")
    found = list(machine.judge_setup(replace(here, **change), here))  # type: ignore[arg-type]
    assert [one.level for one in found] == ([] if level is None else [level])
    assert all(words in one.what and one.do for one in found)


def test_a_queued_job_of_a_run_that_cannot_start_is_told_with_what_to_do() -> None:
    line = "{}|PENDING|N/A|N/A|1:00|1|low||(null)|{}|name|{}|\n"
    waiting = (("5", "JobHeldUser", "hpckit:/r/a"), ("6", "Priority", "hpckit:/r/b"))
    others = (("7", "JobHeldUser", "my own"), ("8", "PartitionDown", "hpckit:/r/c"))
    mark = "@1"
    records = "".join(
        f"{mark}#" + line.format(*one).replace("|", f"{mark}.") for one in (*waiting, *others)
    )
    first, second = judge_queue(parse_queue(records, mark))
    assert first.what.startswith("job 5 of /r/a cannot start: JobHeldUser: its owner has put it")
    assert (first.level, first.do) == (Level.WARN, "scontrol release 5")
    assert second.what.startswith("job 8 of /r/c cannot start: PartitionDown")


def test_a_job_that_nobody_answers_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not killed: srun would leave its job in the queue."""
    monkeypatch.setattr(node_probe, "_NODE_S", 3.0)
    monkeypatch.setattr(node_probe, "_QUICK_S", 0.0)
    program = f"trap 'touch {tmp_path}/withdrawn; exit 1' INT; while :; do sleep 0.05; done"
    with pytest.raises(node_probe.ProbeError, match="no answer within 3 s"):
        node_probe._job_output(["bash", "-c", program], ())
    assert (tmp_path / "withdrawn").exists()


def test_the_worst_of_all() -> None:
    assert worst([]) is Level.OK
    assert worst([Finding(Level.FAIL, "", ""), Finding(Level.NOTE, "", "")]) is Level.FAIL
