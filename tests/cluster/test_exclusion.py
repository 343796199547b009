"""A node that is not to be used again, but without which the job would wait for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpckit.events.event_log import Event, EventLog, read_events
from hpckit.rundir.directory import RunDir
from hpckit.supervisor.node_selection.exclude_list import ExcludeList
from tests.cluster.launched import launch
from tests.cluster.slurm import Slurm
from tests.cluster.test_health import PROBLEM, SHORT, put_first
from tests.unit.hpckit.specs_and_processes import make_spec


def set_feature(slurm: Slurm, host: str, feature: str) -> None:
    names = (f"activefeatures={feature}", f"availablefeatures={feature}")
    slurm.run("scontrol", "update", f"nodename={host}", *names)


@pytest.fixture
def big(ports: Slurm) -> Iterator[tuple[str, str]]:
    """The two nodes with the feature "big"."""
    first, second, _ = (node.name for node in ports.cluster.nodes)
    for host in (first, second):
        set_feature(ports, host, "big")
    yield first, second
    for host in (first, second):
        set_feature(ports, host, "")


def test_a_job_whose_constraint_leaves_no_other_node_gets_it_again(
    ports: Slurm,
    tmp_path: Path,
    shards: Path,
    big: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The partition has three nodes, and two of them are enough; but two have the feature."""
    first = tmp_path / "first"
    script = (
        f'errors=0; [ -e {first} ] || echo "$SLURM_JOB_ID" > {first}\n'
        f'[ "$SLURMD_NODENAME $SLURM_JOB_ID" = "{big[1]} $(cat {first})" ] && errors=3\n'
        'case "$1" in\n'
        '--query-gpu=*) echo "0, GPU-1, 00000000:3B:00.0, $errors, No" ;;\n'
        '*) echo "GPU-1, 0, 0" ;;\n'
        "esac\n"
    )
    put_first(tmp_path, "nvidia-smi", script, monkeypatch)
    it = launch(ports, tmp_path, shards, "cluster.slurm.constraint=big", *SHORT)
    assert it.wait_for("run_ended", 2)["verdict"] == "done"
    it.wait_until_over()
    assert it.verdicts() == ["infra", "done"]
    assert [event["problems"] for event in it.events("node_unhealthy")] == [[PROBLEM]]
    assert [event["hosts"] for event in it.events("run_started")] == [list(big)] * 2
    assert ports.job(it.events("run_started")[1]["job"])["ExcNodeList"] in ("", "(null)")
    said = [event["what"] for event in it.events("degraded", subject="exclude_list")]
    assert said[-1].startswith(f"too few nodes would be left without {big[1]}: not excluded")
    assert "Requested node configuration is not available" in said[-1]


def told(run: RunDir, kind: str) -> list[Event]:
    return [event for event in read_events(run.events) if event.kind == kind]


def test_a_pending_job_gets_the_node_back_when_the_others_have_gone(
    ports: Slurm, tmp_path: Path, big: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ports.cluster.variables.items():
        monkeypatch.setenv(name, value)
    run, changes = RunDir(tmp_path), {"cluster.slurm.constraint": "big", "cluster.device": "cpu"}
    spec = make_spec({**changes, "launch.nodes": 1, "cluster.slurm.memory": "50M"}, "slurm")
    job = ports.submit("true", tmp_path / "log", "--constraint=big", "--nodes=1", "--hold")
    with EventLog(run.events) as events:
        events.emit_kind("run_started", job="1")
        events.emit_kind("node_unhealthy", host=big[0], problems=["bad"])
        exclusion = ExcludeList(run, spec, events)
        exclusion.keep_from(job, 5.0)
        assert ports.job(job)["ExcNodeList"] == big[0]
        exclusion.review(job)
        assert ports.job(job)["ExcNodeList"] == big[0], "another node will do"
        set_feature(ports, big[1], "")
        exclusion.review(job)
    assert ports.job(job)["ExcNodeList"] in ("", "(null)")
    (event,) = told(run, "exclusion_withdrawn")
    assert (event["job"], event["hosts"]) == (job, [big[0]])
    ports.run("scontrol", "release", job)
    ports.wait_for_job(job, "COMPLETED")
