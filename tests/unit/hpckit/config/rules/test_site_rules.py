"""What a site's file may not say."""

from __future__ import annotations

from typing import Any

import pytest

from hpckit.config.spec_parser import SpecError
from tests.unit.hpckit.specs_and_processes import make_spec

CONTAINER = "cluster.slurm.container"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"cluster.slurm.env": {"A-B": "1"}},
            "env.A-B: is not a valid name of an environment variable",
        ),
        (
            {"cluster.slurm.env": {"A=B": "1"}},
            "env.A=B: is not a valid name of an environment variable",
        ),
        ({"cluster.slurm.env": {"A;id": "1"}}, "env.A;id: is not a valid name of an environment"),
        ({"cluster.slurm.env": {"NCCL_SOCKET_IFNAME": "a"}}, "use cluster.slurm.interface instead"),
        ({"cluster.slurm.env": {"OMP_NUM_THREADS": 3}}, "use launch.threads_per_worker instead"),
        ({"cluster.slurm.env": {"HPCKIT_RUN": "x"}}, "sets this variable itself"),
        ({"cluster.slurm.env": {"PYTHONPATH": "x"}}, "sets this variable itself"),
        ({"cluster.slurm.env": {"A": "x\0y"}}, "cluster.slurm.env.A"),
        ({"cluster.slurm.pass_environment": ["A-B"]}, "A-B is not a valid name"),
        ({"cluster.slurm.pass_environment": ["SBATCH_WAIT"]}, "SBATCH_WAIT is an option of sbatch"),
        ({"cluster.slurm.pass_environment": ["RANK"]}, "RANK is set by hpckit, submitit or torch"),
        ({"cluster.slurm.interface": "ib0;id"}, "cluster.slurm.interface: "),
        ({"cluster.slurm.scratch": "$TMPDIR"}, "cluster.slurm.scratch: "),
        ({f"{CONTAINER}.mounts": ["relative"]}, f"{CONTAINER}.mounts.0: "),
        ({f"{CONTAINER}.mounts": ["/a:/b:rx"]}, f"{CONTAINER}.mounts.0: "),
        ({f"{CONTAINER}.mounts": ["/a:/b,/c:/d"]}, f"{CONTAINER}.mounts.0: "),
        ({f"{CONTAINER}.image": "--privileged"}, "would be read as an option"),
        ({f"{CONTAINER}.options": ["--gpus=8"]}, "is not an option of pyxis"),
        ({f"{CONTAINER}.kind": "docker"}, f"{CONTAINER}.kind: "),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(changes, "site_pyxis")
    line, *_ = caught.value.violations  # of a union, one for each kind
    assert said in line


def test_values_may_be_anything() -> None:
    env = {"A": "$(id) 'x' \"y\"\n;", "_B2": 3, "EMPTY": ""}
    slurm = make_spec({"cluster.slurm.env": env}, "slurm").cluster.slurm
    assert slurm is not None
    assert slurm.env == env
