"""What a job that somebody else submitted makes of itself."""

from __future__ import annotations

import pytest

from hpckit.supervisor.user_job import job_problems, of_the_job
from tests.unit.hpckit.specs_and_processes import make_spec

ENV = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "4"}


def test_its_size_is_what_slurm_gave_it() -> None:
    assert of_the_job([], ENV, False) == [
        *("cluster=slurm", "launch.nodes=2", "launch.nproc_per_node=4"),
        "launch.continuation=requeue",
    ]
    assert of_the_job([], {"SLURM_JOB_ID": "7"}, True) == [
        *("cluster=slurm", "launch.continuation=none")
    ]


def test_what_is_said_holds() -> None:
    said = ["cluster=site_gres", "++launch.nodes=1", "launch.nproc_per_node=2"]
    assert of_the_job([*said, "launch.continuation=chain"], ENV, False) == []


def test_a_range_of_nodes_is_held_to_its_fewest() -> None:
    env = {**ENV, "SLURM_JOB_NUM_NODES": "3"}
    changes = {"launch.nodes": 4, "train.global_batch": 12, "train.micro_batch": 1}
    assert job_problems(make_spec({**changes, "elastic.min_nodes": 2}, "slurm"), env) == []
    (line,) = job_problems(make_spec({**changes, "elastic.min_nodes": 4}, "slurm"), env)
    assert line == "elastic.min_nodes: the job has 3; sbatch --nodes=4 gives it more"


@pytest.mark.parametrize(
    ("nodes", "cluster", "env", "said"),
    [
        (2, "slurm", ENV, None),
        (3, "slurm", ENV, "launch.nodes: the job has 2; sbatch --nodes=3 gives it more"),
        (1, "local", ENV, "cluster: a Slurm job cannot run a spec of kind local"),
        (1, "slurm", {}, "this process is not in a Slurm job"),
    ],
)
def test_what_it_cannot_carry(
    nodes: int, cluster: str, env: dict[str, str], said: str | None
) -> None:
    spec = make_spec({"launch.nodes": nodes, "train.global_batch": 12}, cluster)
    found = job_problems(spec, env)
    assert [line[: len(said or "")] for line in found] == ([said] if said else [])
