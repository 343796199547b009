"""A cluster's life from up to down, and what its users can do to it."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hpckit.agent.orphaned_job import is_lost
from hpckit.slurm.scontrol import field
from slurm.devcluster import tools
from slurm.devcluster.cluster import Cluster, take_down
from slurm.devcluster.daemons.process_records import read
from slurm.devcluster.errors import DevclusterError, MissingToolError
from slurm.devcluster.files.folder import ClusterFolder
from slurm.devcluster.nodes.cluster_node import PREFIX, ClusterNode
from slurm.devcluster.options import ClusterOptions, Form
from tests.cluster import guard, traces
from tests.cluster.conftest import need, options
from tests.cluster.slurm import Slurm, wait_for

_SCRIPTS = Path(tools.__file__).parent
_BOTH = pytest.mark.parametrize("form", ["ports", "namespaces"])
_TELL = "--signal=B:USR2@60"
_UNTIL_TOLD = "while [ ! -e {0} ]; do sleep 0.1; done; echo end"


def script(
    name: str, *words: str, folder: Path, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a script of the folder as a user without a virtual environment does."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(_SCRIPTS / name), *words],
        env={**os.environ, "HPCKIT_DEVCLUSTER": str(folder), "SHELL": "/bin/sh"},
        input=given,
        capture_output=True,
        text=True,
        timeout=300,
    )


def mark() -> str:
    """Seconds to sleep, by which one process is found among all."""
    return f"{random.randrange(10**8, 10**9)}"


@dataclass(frozen=True)
class Doomed:
    """Two jobs on a node that something will happen to."""

    slurm: Slurm
    node: ClusterNode
    again: str  # the one that is to be requeued
    once: str  # the one that is not
    sleep: str

    @classmethod
    def submitted(cls, slurm: Slurm, node: ClusterNode, folder: Path) -> Doomed:
        """Both run, and one has left a daemon."""
        sleep, there = mark(), f"--nodelist={node.name}"
        program = f"(setsid sleep {sleep} >/dev/null 2>&1 &); sleep 600"
        jobs = (
            slurm.submit(program, folder / "out", there),
            slurm.submit("sleep 600", folder / "out", there, "--no-requeue"),
        )
        for job in jobs:
            slurm.wait_for_job(job, "RUNNING")
        doomed = cls(slurm, node, *jobs, sleep)
        wait_for(doomed.runs, "the daemon of the job")
        return doomed

    def runs(self) -> bool:
        """Whether the daemon does."""
        return traces.processes(f"sleep\0{self.sleep}") != []

    def wait_for_failure(self) -> None:
        """Wait until Slurm has given the node up; the requeued job will not run again."""
        self.slurm.wait_for_job(self.once, "NODE_FAIL")
        wait_for(lambda: self.slurm.job(self.again)["Restarts"] == "1", "the other is requeued")
        self.slurm.run("scancel", self.again)


def check_comes_back(slurm: Slurm, node: ClusterNode) -> None:
    slurm.wait_for_idle()
    words = ("srun", f"--nodelist={node.name}", "printenv", "SLURMD_NODENAME")
    assert slurm.run(*words).strip() == node.name


@_BOTH
def test_down_leaves_nothing(form: Form, tmp_path: Path) -> None:
    need(form)
    sleep = mark()
    with guard.cluster(tmp_path / "c", options(form, nodes=2)) as cluster:
        slurm = Slurm(cluster)
        daemon = f"(setsid sleep {sleep} >/dev/null 2>&1 &)"
        slurm.submit(f"srun sh -c '{daemon}; sleep 600'", tmp_path / "out", "--nodes=2")
        wait_for(lambda: len(traces.processes(f"sleep\0{sleep}")) == 2, "both daemons")
        assert traces.of(cluster)
    assert traces.of(cluster, sleep) == []


@_BOTH
@pytest.mark.parametrize("begun", ["munged", "slurmctld", "node-n*"])
def test_a_cluster_whose_up_was_killed_can_be_taken_down(
    form: Form, begun: str, tmp_path: Path
) -> None:
    need(form)
    folder = tmp_path / "c"
    never_idle = ("--set", "DownNodes=ALL State=DOWN")
    command = [sys.executable, str(_SCRIPTS / "up"), "--folder", str(folder), *never_idle]
    with guard.guarded(folder), subprocess.Popen([*command, "--form", form]) as up:
        wait_for(lambda: any(folder.glob(f"run/{begun}.json")), f"{begun} was started")
        up.kill()
        assert up.wait() == -signal.SIGKILL
        cluster = Cluster.at(folder)
        done = script("down", folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert traces.of(cluster) == []


def test_down_ends_nodes_whose_first_process_was_killed(tmp_path: Path) -> None:
    need("ports")
    sleep = mark()
    with guard.cluster(tmp_path / "c", options("ports", nodes=2)) as cluster:
        slurm = Slurm(cluster)
        slurm.submit(f"sleep {sleep}", tmp_path / "out", "--nodes=2")
        wait_for(lambda: traces.processes(f"sleep\0{sleep}") != [], "the job runs")
        for node in cluster.nodes:
            first = read(cluster.folder.record(f"{PREFIX}{node.name}"))
            assert first is not None
            first.kill()
        cluster.nodes[1].start()
        assert traces.processes(f"sleep\0{sleep}") != []
    assert traces.of(cluster, sleep) == []


def test_a_folder_is_one_clusters_and_its_alone(ports: Slurm, tmp_path: Path) -> None:
    folder = ports.cluster.folder.path
    with pytest.raises(DevclusterError, match="has a cluster, up or left over"):
        Cluster.up(folder, options("ports"))
    assert ports.states() == {"idle"}
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(DevclusterError, match=r"not empty \(thesis.tex\)"):
        Cluster.up(tmp_path, options("ports"))
    with pytest.raises(DevclusterError, match="no cluster"):
        take_down(ClusterFolder(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_down_leaves_what_others_put_into_the_folder(tmp_path: Path) -> None:
    need("ports")
    cluster = Cluster.up(tmp_path / "c", options("ports", nodes=1))
    (tmp_path / "c" / "job.sh").write_text("#!/bin/sh\n")
    done = script("down", "--keep-logs", str(tmp_path / "not" / "there"), folder=tmp_path / "c")
    assert "cannot be created" in done.stderr
    assert cluster.nodes[0].is_up()
    done = script("down", "--keep-logs", str(tmp_path / "logs"), folder=tmp_path / "c")
    assert "job.sh" in done.stdout
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["job.sh"]
    assert "slurmctld.log" in {path.name for path in (tmp_path / "logs").iterdir()}
    assert traces.processes(str(cluster.folder.path)) == []


def test_what_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    need("ports")
    with pytest.raises(DevclusterError, match=r"slurmctld ended(.|\n)*no_such_plugin"):
        Cluster.up(
            tmp_path / "c", ClusterOptions(nodes=1, settings=("SelectType=select/no_such_plugin",))
        )
    assert not (tmp_path / "c").exists()
    assert traces.processes(str(tmp_path / "c")) == []


def test_a_private_folder_is_one_of_this_machine(tmp_path: Path) -> None:
    need("namespaces")
    chosen = replace(options("namespaces", nodes=1), private=(str(tmp_path / "scratch"),))
    with pytest.raises(DevclusterError, match="not exist on this machine: create it first"):
        Cluster.up(tmp_path / "c", chosen)
    assert not (tmp_path / "c").exists()


def test_without_slurm_the_packages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "PATH", str(tmp_path))
    with pytest.raises(MissingToolError, match=r"apt-get install .* munge slurm-wlm$"):
        Cluster.up(tmp_path / "c", options("ports"))
    assert not (tmp_path / "c").exists()


@_BOTH
def test_several_clusters_at_once(
    form: Form, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    first: Slurm = request.getfixturevalue(form)
    with guard.cluster(tmp_path / "c", options(form, nodes=2)) as cluster:
        second = Slurm(cluster)
        names = [
            set(slurm.run("srun", "--nodes=2", "printenv", "SLURMD_NODENAME").split())
            for slurm in (first, second)
        ]
        assert names == [
            {node.name for node in slurm.cluster.nodes[:2]} for slurm in (first, second)
        ]
        second.wait_for_job(second.submit("sleep 600", tmp_path / "out"), "RUNNING")
        wait_for(lambda: first.run("squeue", "--noheader") == "", "no job on the other one")
    assert traces.of(cluster) == []
    assert first.states() == {"idle"}


def test_a_step_runs_on_every_node_with_its_gpus(slurm: Slurm) -> None:
    seen = slurm.run(
        *("srun", "--nodes=3", "--gpus-per-node=2", "sh", "-c"),
        "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES",
    )
    assert set(seen.splitlines()) == {f"{node.name} 0,1" for node in slurm.cluster.nodes}


def test_gpus_are_given_to_one_job_at_a_time(ports: Slurm, tmp_path: Path) -> None:
    three = ("--gpus-per-node=3", f"--nodelist={ports.cluster.nodes[0].name}")
    first = ports.submit("sleep 600", tmp_path / "out", *three)
    second = ports.submit("sleep 600", tmp_path / "out", *three)
    ports.wait_for_job(first, "RUNNING")
    assert ports.job(second)["JobState"] == "PENDING"
    ports.run("scancel", first)
    ports.wait_for_job(second, "RUNNING")


@pytest.mark.parametrize(
    ("form", "then"), [("ports", ":"), ("namespaces", "scontrol requeue $SLURM_JOB_ID")]
)
def test_high_preempts_low_which_is_told_and_runs_again(
    form: Form, then: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Slurm requeues it at the end of the grace time, or it does so itself once it is told."""
    slurm: Slurm = request.getfixturevalue(form)
    out = tmp_path / "out"
    loop = "echo run ${SLURM_RESTART_COUNT:-0}; while :; do sleep 0.1; done"
    all_nodes = ("--nodes=3", "--exclusive")
    low = slurm.submit(f"trap 'echo told; {then}' USR2; {loop}", out, *all_nodes, _TELL)
    slurm.wait_for_line(out, "run 0")
    slurm.run("srun", "--partition=high", *all_nodes, "true")
    slurm.wait_for_line(out, "run 1")
    assert out.read_text().split("\n")[:2] == ["run 0", "told"]
    assert slurm.job(low)["Restarts"] == "1"


def test_a_killed_node_fails_its_jobs_and_comes_back(ports: Slurm, tmp_path: Path) -> None:
    node = ports.cluster.nodes[2]
    doomed = Doomed.submitted(ports, node, tmp_path)
    node.kill()
    assert not node.is_up()
    assert not doomed.runs()
    doomed.wait_for_failure()
    told = ports.run("scontrol", "--oneliner", "show", "node", node.name)
    assert "NOT_RESPONDING" in (field(told, "State") or ""), "by which `is_lost` knows it earlier"
    assert is_lost(told)
    node.start()
    check_comes_back(ports, node)
    assert not is_lost(ports.run("scontrol", "--oneliner", "show", "node", node.name))


def test_a_node_without_power_and_one_without_network(namespaces: Slurm, tmp_path: Path) -> None:
    """Slurm cannot tell them apart, but what runs on the second one runs on."""
    nodes = namespaces.cluster.nodes[1:]
    doomed = [Doomed.submitted(namespaces, node, tmp_path) for node in nodes]
    nodes[0].kill()
    nodes[1].cut()
    assert [node.is_up() for node in nodes] == [False, True]
    for jobs in doomed:
        jobs.wait_for_failure()
    assert [jobs.runs() for jobs in doomed] == [False, True]
    assert {state.rstrip("*") for state in namespaces.states()} == {"idle", "down"}
    nodes[0].start()
    nodes[1].heal()
    for node in nodes:
        check_comes_back(namespaces, node)


def arrived(node: ClusterNode, sent: int) -> int:
    """Of so many datagrams to the node: no more than a socket keeps while nobody reads."""
    code = (
        "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', 9999)); "
        "print('there', flush=True); sys.stdin.read(); s.settimeout(2); n = 0\n"
        "try:\n while True: s.recv(9); n += 1\n"
        "except TimeoutError: print(n)"
    )
    command = node.command([sys.executable, "-I", "-S", "-c", code])
    with (
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
        socket.socket(type=socket.SOCK_DGRAM) as here,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        for _ in range(sent):
            here.sendto(b"x", (node.address, 9999))
            time.sleep(0.001)
        process.stdin.close()  # they are counted once all were sent
        return int(process.stdout.readline())


def test_a_bad_cable_loses_some_of_the_packets(namespaces: Slurm) -> None:
    node = namespaces.cluster.nodes[1]
    assert arrived(node, 200) == 200
    node.lossy()
    node.lossy()  # no more than once
    assert 140 < arrived(node, 200) < 198
    node.heal()
    assert arrived(node, 200) == 200


def reaches(here: ClusterNode, there: ClusterNode) -> bool:
    """Whether slurmd of one node is reached from another."""
    code = "import socket, sys; socket.create_connection((sys.argv[1], sys.argv[2]), timeout=1)"
    words = [sys.executable, "-I", "-S", "-c", code, there.address, str(there.node.port)]
    return subprocess.run(here.command(words), capture_output=True).returncode == 0


def test_two_nodes_are_parted_and_no_others(namespaces: Slurm) -> None:
    one, other, third, *_ = namespaces.cluster.nodes
    one.part(other)
    try:
        assert not reaches(one, other)
        assert not reaches(other, one)
        assert reaches(one, third)
        assert reaches(third, other)
        assert arrived(one, 20) == 20, "this machine, with slurmctld, reaches it"
    finally:
        one.heal()
    assert reaches(one, other)
    assert reaches(other, one)


def test_a_job_outlives_slurmd(slurm: Slurm, tmp_path: Path) -> None:
    out, told = tmp_path / "out", tmp_path / "told"
    node = slurm.cluster.nodes[1]
    job = slurm.submit(f"echo begin; {_UNTIL_TOLD.format(told)}", out, f"--nodelist={node.name}")
    slurm.wait_for_line(out, "begin")
    node.kill_daemon()
    assert node.is_up()
    told.touch()
    slurm.wait_for_line(out, "end")
    node.start()
    assert slurm.wait_for_job(job, "COMPLETED")["Restarts"] == "0"


def test_jobs_outlive_the_controller(ports: Slurm, tmp_path: Path) -> None:
    out, told = tmp_path / "out", tmp_path / "told"
    job = ports.submit(f"echo begin; {_UNTIL_TOLD.format(told)}", out)
    ports.wait_for_line(out, "begin")
    controller = ports.cluster.controller
    controller.restart()
    assert ports.job(job)["JobState"] == "RUNNING"
    controller.kill()
    assert read(ports.cluster.folder.record("slurmctld")) is None
    controller.start()
    told.touch()
    assert ports.wait_for_job(job, "COMPLETED")["Restarts"] == "0"


def test_the_scripts_of_a_shell(ports: Slurm) -> None:
    folder, nodes = ports.cluster.folder.path, len(ports.cluster.nodes)
    sinfo = "sinfo --noheader --partition=low --format=%D,%T\n"
    lines = script("env", folder=folder).stdout
    evaluated = subprocess.run(["sh", "-c", f"{lines}\n{sinfo}"], capture_output=True, text=True)
    assert evaluated.stdout == f"{nodes},idle\n"
    assert script("shell", folder=folder, given=sinfo).stdout == f"{nodes},idle\n"
    assert script("controller", "start", folder=folder).returncode == 0
    words = ("exec", ports.cluster.nodes[0].name, "--", "sh", "-c", "echo $SLURM_CONF")
    assert script("node", *words, folder=folder).stdout == f"{folder}/slurm.conf\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cut", "n1"), "no network of its own to cut"),
        (("heal", "n1"), "Take the namespaces form"),
        (("kill", "n9"), "no node 'n9' in this cluster: they are n1 to n3"),
    ],
)
def test_what_a_node_cannot_do_is_said(ports: Slurm, words: tuple[str, ...], said: str) -> None:
    done = script("node", *words, folder=ports.cluster.folder.path)
    assert done.returncode == 1
    assert said in done.stderr


def test_the_scripts_of_a_node(namespaces: Slurm) -> None:
    folder, node = namespaces.cluster.folder.path, namespaces.cluster.nodes[0]
    assert (
        script("node", "exec", node.name, "--", "hostname", folder=folder).stdout.strip()
        == node.name
    )
    for verb, is_up in (("cut", True), ("heal", True), ("kill", False), ("start", True)):
        done = script("node", verb, node.name, folder=folder)
        assert (done.returncode, done.stderr, node.is_up()) == (0, "", is_up)


def test_a_drained_node_is_resumed_and_another_one_is_left_alone(ports: Slurm) -> None:
    node = ports.cluster.nodes[1]
    node.resume()  # a slurmctld that was killed may have forgotten that it was drained
    node.drain()
    wait_for(lambda: "drained" in ports.states(), "drained")
    node.resume()
    ports.wait_for_idle()


def test_a_command_waits_for_the_one_at_work(ports: Slurm) -> None:
    folder = ports.cluster.folder
    holding = f"flock {folder.path}/lock sh -c 'echo held; read line'"
    with subprocess.Popen(
        ["sh", "-c", holding], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(DevclusterError, match="another command is at work"),
            folder.locked(within_s=0.1),
        ):
            raise AssertionError("two hold it")
        other.stdin.close()
        with folder.locked():
            assert other.wait(120) != -signal.SIGKILL
