"""What `hpckit init` writes for sites that differ, and what `hpckit doctor` tells of them."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hpckit.config.spec import RunSpec
from hpckit.doctor.finding import Finding
from hpckit.doctor.site_examination import examine
from hpckit.init.site_choice import SiteRequest, Value
from hpckit.init.site_description import describe
from hpckit.slurm.sbatch_answers import explain_refusal
from hpckit.slurm.squeue import parse_queue
from hpckit.submit.compose import compose_spec
from slurm.devcluster.cluster import Cluster
from slurm.devcluster.options import ClusterOptions
from tests.cluster import guard
from tests.cluster.conftest import need, options
from tests.cluster.slurm import Slurm, wait_for

_ALL = "Nodes=ALL Default=YES State=UP"


@dataclass(frozen=True)
class SiteKind:
    """A site: settings of its slurm.conf, and what is right for it."""

    settings: tuple[str, ...]
    keys: dict[str, Value]
    """What init writes."""
    finding: tuple[str, str, str]
    """What doctor tells of cluster=slurm: subject, level and a part of the text."""
    gpus: int = 4


SITES = {
    "without preemption": SiteKind(
        ("PreemptType=preempt/none", "PreemptMode=OFF", f"PartitionName=all {_ALL} MaxTime=60"),
        {"partition": "all", "grace_s": 60, "time_limit": "01:00:00", "account": None},
        ("preemption", "ok", "jobs of all are not preempted"),
    ),
    "preempted jobs are suspended": SiteKind(
        ("PreemptMode=SUSPEND,GANG", f"PartitionName=s {_ALL} PreemptMode=SUSPEND GraceTime=60"),
        {"partition": "s", "grace_s": 60},
        ("preemption", "warn", "use a partition whose PreemptMode is REQUEUE or CANCEL"),
    ),
    "whole nodes": SiteKind(
        (f"PartitionName=whole {_ALL} OverSubscribe=EXCLUSIVE",),
        {"partition": "whole", "exclusive": True, "gpus": "gpus-per-node"},
        ("partition", "ok", "whole: 1 node"),
    ),
    "select/linear": SiteKind(
        ("SelectType=select/linear", "SelectTypeParameters=CR_Memory"),
        {"partition": "low", "gpus": "gres", "grace_s": 1},
        ("GPUs of a job", "fail", "set cluster.slurm.gpus=gres"),
    ),
    "without GPUs, and small arrays": SiteKind(
        ("GresTypes=license", "MaxArraySize=3"),
        {"gpus": "none", "cpus_per_node": 8},
        ("GPUs of a job", "fail", "set cluster.slurm.gpus=none"),
        gpus=0,
    ),
}


@contextmanager
def at(folder: Path, chosen: ClusterOptions, patch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster that this process itself finds by its environment."""
    with guard.cluster(folder, chosen) as cluster, patch.context() as changed:
        for name, value in cluster.variables.items():
            changed.setenv(name, value)
        yield cluster


def told(spec: RunSpec, root: Path, asks_node: bool = False) -> list[Finding]:
    found = examine(spec, root, asks_node)
    return [finding for part, finding in found if part in ("slurm", "node")]


@pytest.mark.parametrize("kind", SITES)
def test_a_site_is_described_as_it_is(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("ports")
    site = SITES[kind]
    chosen = replace(options("ports", nodes=1), gpus=site.gpus)
    chosen = replace(chosen, settings=(*chosen.settings, *site.settings))
    with at(tmp_path / "c", chosen, monkeypatch) as cluster:
        described = describe("here", SiteRequest(), asks_node=False)
        assert described is not None
        found = {key.name: key.value for key in described.site.keys}
        assert {name: found[name] for name in site.keys} == site.keys
        subject, level, text = site.finding
        findings = told(compose_spec(["cluster=slurm", f"root={tmp_path}"]), tmp_path)
        (finding,) = [one for one in findings if one.subject == subject]
        assert finding.level == level
        assert text in f"{finding.what} {finding.do}"
        if "MaxArraySize=3" in site.settings:
            words = ("sh", "-c", "! sbatch --array=0-5 --wrap true 2>&1")
            refusal = explain_refusal(Slurm(cluster).run(*words))
            assert refusal is not None
            assert "MaxArraySize" in refusal.advice


def test_every_state_that_squeue_selects_by_is_known(ports: Slurm) -> None:
    said = ports.run("sh", "-c", "! squeue --states=nonsense 2>&1")
    (line,) = [line for line in said.splitlines() if "Valid job states" in line]
    states = [state.strip().upper() for state in line.rpartition(":")[2].split(",")]
    assert "PREEMPTED" in states
    lines = "".join(f"{n}|{state}{'|' * 9}\n" for n, state in enumerate(states, 1))
    jobs = parse_queue(lines)
    assert [job.state for job in jobs] == states
    assert [job.state for job in jobs if job.is_unknown] == []


def test_a_limit_of_one_job_is_told_before_the_successor_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("ports", accounting=True)
    chosen = replace(options("ports", nodes=1), accounting=True)
    with at(tmp_path / "c", chosen, monkeypatch) as cluster:
        slurm, me = Slurm(cluster), getpass.getuser()
        add = ("sacctmgr", "--immediate", "add")
        slurm.run(*add, "account", "lab")
        slurm.run(*add, "user", me, "account=lab", "maxsubmitjobs=1")
        words = ["cluster=slurm", "cluster.slurm.account=lab", f"root={tmp_path}"]

        def limit(*more: str) -> Finding | None:
            findings = told(compose_spec([*words, *more]), tmp_path)
            return next((one for one in findings if one.subject == "job limit"), None)

        wait_for(lambda: limit() is not None, "the limit")
        finding, requeued = limit(), limit("launch.continuation=requeue")
        assert finding is not None
        assert (finding.level, finding.do.split(",")[0]) == ("warn", "launch.continuation=requeue")
        assert "1 job in the queue (MaxSubmitJobs of the account lab)" in finding.what
        assert requeued is not None
        assert requeued.level == "ok"
        described = describe("here", SiteRequest(), asks_node=False)
        assert described is not None
        (account,) = [key for key in described.site.keys if key.name == "account"]
        assert account.how == "found"
        assert "lab" in f"{account.value} {account.why}"


def test_a_folder_that_each_node_has_of_its_own_is_no_place_for_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("namespaces")
    home = tmp_path / "home"
    home.mkdir()
    chosen = replace(options("namespaces", nodes=1), private=(str(home),))
    with at(tmp_path / "c", chosen, monkeypatch):
        words = ["cluster=slurm", "cluster.device=cpu", "cluster.slurm.gpus=none", f"root={home}"]
        (finding,) = [
            one for one in told(compose_spec(words), home, asks_node=True) if one.level == "fail"
        ]
        assert finding.subject == "folders"
        assert finding.do == "set root to a folder that all nodes share"
