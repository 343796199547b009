"""What is decided before a cluster starts, and what its logs tell of a failure."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from slurm.devcluster.daemons import process_records
from slurm.devcluster.daemons.processes import Process
from slurm.devcluster.errors import DevclusterError
from slurm.devcluster.files import logs
from slurm.devcluster.files.configuration import files, slurm_conf, with_settings
from slurm.devcluster.files.folder import ClusterFolder
from slurm.devcluster.options import ClusterOptions
from slurm.devcluster.plan import ClusterPlan, Network, loopback_address, make_plan, user_name

_LINES = ["SlurmdTimeout=10", "NodeName=n1", "PartitionName=low Nodes=ALL"]


def test_a_setting_takes_the_place_of_the_line_with_its_key() -> None:
    assert with_settings(_LINES, ["slurmdTIMEOUT=3"]) == ["slurmdTIMEOUT=3", *_LINES[1:]]
    assert with_settings(_LINES, ["KillWait=1"]) == ["KillWait=1", *_LINES]


def test_nodes_and_partitions_are_added_to_those_there() -> None:
    assert with_settings(_LINES, ["PartitionName=x"]) == [*_LINES, "PartitionName=x"]


@pytest.mark.parametrize("setting", ["KillWait", "=3", "Kill Wait=3", "KillWait=3\nMailProg=/x"])
def test_what_is_no_setting_is_refused(setting: str) -> None:
    with pytest.raises(DevclusterError, match="give Key=Value"):
        ClusterOptions(settings=(setting,))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"nodes": 100}, "nodes=100: give a number from 1 to 99"),
        ({"gpus": 9}, "gpus=9: give a number from 0 to 8"),
        ({"cpus": 0}, "cpus=0: give"),
        ({"tracking": "cgroup"}, "take the namespaces form"),
    ],
)
def test_options_out_of_range_are_refused(wrong: dict[str, int | str], said: str) -> None:
    with pytest.raises(DevclusterError, match=said):
        replace(ClusterOptions(), **wrong)  # type: ignore[arg-type]


def test_choices_reach_slurm_conf() -> None:
    plan = make_plan(ClusterOptions(grace_s=77, cred_expire_s=None, user_signal=False), None, False)
    text = slurm_conf(ClusterFolder(Path("/d")), plan)
    assert "GraceTime=77\n" in text
    assert "AuthInfo=socket=/d/run/munge.sock\n" in text
    assert "preempt_send_user_signal" not in text
    usual = slurm_conf(ClusterFolder(Path("/d")), make_plan(ClusterOptions(), None, False))
    assert "AuthInfo=socket=/d/run/munge.sock,cred_expire=5\n" in usual
    assert "SlurmctldParameters=preempt_send_user_signal\n" in usual


@pytest.mark.parametrize("network", [None, Network(2, "02:00:00:00:00:01")])
def test_a_plan_comes_back_as_it_was_written(network: Network | None, tmp_path: Path) -> None:
    options = ClusterOptions(form="namespaces" if network else "ports", settings=("KillWait=1",))
    plan = make_plan(options, network, True)
    plan.write(tmp_path / "cluster.json")
    assert ClusterPlan.read(tmp_path / "cluster.json") == plan


def test_clusters_of_a_machine_have_nodes_of_different_names() -> None:
    plans = [make_plan(ClusterOptions(nodes=99), Network(number, ""), True) for number in (0, 1, 2)]
    names = {node.name for plan in plans for node in plan.nodes}
    assert len(names) == 3 * 99
    assert plans[0].nodes[0].name == "n1"


def test_a_plan_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"nodes": []}))
    with pytest.raises(DevclusterError, match="does not describe a cluster"):
        ClusterPlan.read(path)


def test_only_accounting_has_a_database() -> None:
    folder = ClusterFolder(Path("/d"))
    assert "slurmdbd.conf" not in files(folder, make_plan(ClusterOptions(), None, False))
    plan = make_plan(ClusterOptions(accounting=True), None, False)
    assert "Pass" not in files(folder, plan)["slurmdbd.conf"]


@pytest.mark.parametrize("name", ["a" * 120, "with blank", "a=b"])
def test_a_folder_that_slurm_or_a_socket_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(DevclusterError, match="name a"):
        ClusterFolder.named(Path("/tmp") / name)


def test_a_user_without_a_name_is_refused() -> None:
    assert user_name(0) == "root"
    with pytest.raises(DevclusterError, match="add it to /etc/passwd"):
        user_name(4_000_000_123)


def test_loopback_is_told_from_other_addresses() -> None:
    assert loopback_address("localhost") == "127.0.0.1"
    assert loopback_address("192.0.2.7") is None


def test_logs_tell_each_error_once(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("[2026-01-01T00:00:00.000] fatal: no room\nall is well\n")
    (tmp_path / "a.out").write_text("slurmctld: fatal: no room\nslurmctld: error: pmix is away\n")
    assert logs.telling(tmp_path) == "  a.log: fatal: no room"


def test_no_process_is_taken_for_another_with_its_pid(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        process = Process.of(child.pid)
        assert process is not None
        earlier = Process(child.pid, process.started - 1)
        assert not earlier.is_alive()
        earlier.kill()
        assert child.poll() is None
        process_records.write(tmp_path / "it.json", earlier)
        assert process_records.read(tmp_path / "it.json") is None
        process_records.write(tmp_path / "it.json", process)
        assert process_records.read(tmp_path / "it.json") == process
        process.kill()
        assert process_records.read(tmp_path / "it.json") is None  # though nobody has reaped it yet
    assert Process.of(os.getpid()) is not None
