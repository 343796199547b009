"""A job that comes back with more nodes than it had when its run began: it has them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpckit.config.rules.violations import fewest_nodes, violations
from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import read_spec
from hpckit.rundir.directory import RunDir, lock_paths
from hpckit.rundir.lock import hold_all
from hpckit.submit.prepare import prepare_amended
from hpckit.submit.resume_overrides import overrides_of
from hpckit.supervisor.continuation.job_registration import remember

KEY = "launch.nodes"


def enlarged_spec(spec: RunSpec, nodes: int, overrides: Sequence[str]) -> RunSpec | None:
    """`spec` for as many of the job's nodes as can share its work, if these are more than it has;
    None: it is to stay as it is. Pure.

    A run of a fixed size stays, and so does one whose batch and learning rate go by that size.

    Args:
        nodes: of the job.
        overrides: of the user, who may have said how many there are to be.
    """
    is_said = any(word.lstrip("+").partition("=")[0] == KEY for word in overrides)
    is_fixed = spec.elastic.min_nodes is None or spec.elastic.scale_lr is not None
    if is_said or is_fixed or spec.debug.drill.nodes:
        return None
    for count in range(nodes - spec.elastic.spares, spec.launch.nodes, -1):
        larger = replace(spec, launch=replace(spec.launch, nodes=count))
        if not violations(larger):
            return larger
    return None


def enlarge_submission(run: RunDir, submission: int, env: Mapping[str, str]) -> int:
    """The number of the submission that this job is to go on with: a new one, if it has come back
    with more nodes.

    Raises:
        RunHeldError: somebody else is at the run.
        SpecError, OSError: its submission cannot be read, or a new one not be written.
    """
    nodes, spec = int(env.get("SLURM_JOB_NUM_NODES", "1")), read_spec(run.spec(submission))
    larger = enlarged_spec(spec, nodes, overrides_of(run, submission))
    if larger is None:
        return submission
    with hold_all(lock_paths(spec, run), f"job {env['SLURM_JOB_ID']}"):
        number = prepare_amended(run, larger, (), submission)
    remember(run, number, Path.cwd(), env)
    print(f"{nodes} nodes: {run.name} goes on with {KEY}={larger.launch.nodes}", flush=True)
    return number


def too_few(spec: RunSpec, nodes: int) -> list[str]:
    """Why a job of so many nodes cannot carry a run of `spec`."""
    needed = fewest_nodes(spec)
    if nodes >= needed:
        return []
    key = KEY if spec.elastic.min_nodes is None else "elastic.min_nodes"
    return [f"{key}: the job has {nodes}; sbatch --nodes={needed} gives it more"]
