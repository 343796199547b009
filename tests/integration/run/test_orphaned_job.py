"""What an agent does when the node of its supervisor is lost: no save waits for what was there."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpckit.agent.agent import Agent
from hpckit.agent.message_channel import Channel
from hpckit.ipc.process_environment import job_variables
from hpckit.rundir.directory import RunDir, run_name
from tests.integration.service.service_nodes import Nodes, config, end_all, kill, services, until
from tests.unit.hpckit.specs_and_processes import make_spec

SCONTROL = """#!/bin/sh
case "$*" in
    *"show job"*) echo "JobId=7 JobState=RUNNING NodeList=n[1-2]" ;;
    *"show hostnames"*) printf 'n1\\nn2\\n' ;;
    *"show node"*) echo "NodeName=n1 State=DOWN*" ;;
esac
"""
SCANCEL = """#!/bin/sh
case "$*" in *--signal=URG*) exit 0 ;; esac
echo "$@" > {told}
"""


def write_slurm(folder: Path, told: Path) -> None:
    """One that has lost the first node, and writes down what it is to cancel."""
    folder.mkdir()
    for name, code in (("scontrol", SCONTROL), ("scancel", SCANCEL.format(told=told))):
        (folder / name).write_text(code)
        (folder / name).chmod(0o700)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With a short name: a run's own name is part of its socket's."""
    with tempfile.TemporaryDirectory(prefix="hpckit-") as folder:
        monkeypatch.setenv("HPCKIT_RUNTIME_DIR", folder)
        yield Path(folder)
        end_all(Path(folder))


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What was cancelled."""
    write_slurm(tmp_path / "bin", tmp_path / "told")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for name, value in job_variables("7", "n1").items():
        monkeypatch.setenv(name, value)
    return tmp_path / "told"


def test_a_save_of_which_a_part_went_with_the_supervisors_node_is_given_up(
    runtime: Path, told: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    spec = make_spec({"checkpoint.url": str(store), "cluster.grace_s": 3600.0})
    one = replace(config(store, linger_s=3600.0), run=run_name(spec))
    nodes = Nodes.start({name: replace(one, node=name) for name in "ab"}, per_node=1)
    gone, here = nodes.trainers
    gone.close(goodbye=False)
    kill(nodes.configs["a"])
    here.save_when_possible(1)
    here.close(goodbye=False)
    with socket.socket() as nobody:
        channel = Channel(nobody.fileno(), nobody.fileno())
        run = RunDir(tmp_path / "run")
        run.path.mkdir()
        agent = Agent(run, 1, 1, spec, channel, None, [])
        agent._supervisor_place = 0
        agent._end_without_supervisor()
    until(lambda: not services(runtime), "no service is left")
    assert told.read_text() == "7\n"
    assert run.orphan("7").exists()
