"""What sbatch prints when it refuses a job, in words."""

from __future__ import annotations

import pytest

from hpckit.slurm.sbatch_answers import explain_refusal

_FAILED = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        (
            "sbatch: error: QOSMaxSubmitJobPerUserLimit "
            f"{_FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or "
            "time limits)",
            "launch.continuation=requeue",
        ),
        ("sbatch: error: AssocMaxSubmitJobLimit", "launch.continuation=requeue"),
        ("sbatch: error: AssocGrpSubmitJobsLimit", "launch.continuation=requeue"),
        ("sbatch: error: QOSMaxWallDurationPerJobLimit", "cluster.slurm.time_limit"),
        ("sbatch: error: QOSMaxGRESPerUser", "launch.nproc_per_node"),
        (f"{_FAILED}Invalid license specification", "scontrol show licenses"),
        (f"{_FAILED}Invalid wckey specification", "wckey in cluster.slurm.options"),
        (f"{_FAILED}Requested topology configuration is not available", "switches"),
        (f"{_FAILED}Job dependency problem", "dependency in cluster.slurm.options"),
        (f"{_FAILED}Reach max job count", "try again later"),
        (f"sbatch: error: lua: say what for {_FAILED}Unspecified error", "ask the administrators"),
        ("sbatch: error: cli_filter plugin terminated with error", "ask the administrators"),
        ("sbatch: error: Munge encode failed: Failed to access", "login node"),
        (f"{_FAILED}Protocol authentication error", "login node"),
        (f"{_FAILED}Incompatible versions of client and server code", "first on the path"),
        (f"{_FAILED}Required node not available (down, drained or reserved)", "sinfo"),
        (f"{_FAILED}Invalid account or account/partition combination specified", "account"),
        ("sbatch: error: invalid partition specified: gpuu", "cluster.slurm.partition"),
        (f"{_FAILED}User's group not permitted to use this partition", "cluster.slurm.partition"),
        (f"{_FAILED}Invalid qos specification", "cluster.slurm.qos"),
        (f"{_FAILED}Requested time limit is invalid (missing or exceeds some limit)", "time_limit"),
        (f"{_FAILED}Invalid generic resource (gres) specification", "gpu_type"),
        (f"{_FAILED}Invalid job array specification", "MaxArraySize"),
        (
            f"{_FAILED}Requested GRES option unsupported by configured SelectType plugin",
            "cluster.slurm.gpus=gres",
        ),
        (f"{_FAILED}Invalid feature specification", "constraint"),
        ("sbatch: error: Memory specification can not be satisfied", "memory"),
        (f"{_FAILED}Requested reservation is invalid", "reservation"),
        (f"{_FAILED}Requested node configuration is not available", "launch.nodes"),
        (f"{_FAILED}Socket timed out on send/recv operation", "try again"),
        (f"{_FAILED}Unable to contact slurm controller (connect failure)", "try again"),
        (f"{_FAILED}Access/permission denied", "administrators"),
    ],
)
def test_refusals_have_a_remedy(message: str, advice: str) -> None:
    found = explain_refusal(message)
    assert found is not None
    assert advice in found.advice


def test_what_is_not_known_is_left_as_it_is() -> None:
    assert explain_refusal("sbatch: error: a rule of this site") is None
