"""Resize of a run: a job that is requeued with more nodes than before uses all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpckit.config.rules.violations import fewest_nodes, violations
from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import read_spec
from hpckit.rundir.directory import RunDir
from hpckit.submit.preparation import CommandOptions, SubmissionRequest, prepare
from hpckit.submit.resume_overrides import overrides_of
from hpckit.supervisor.continuation.job_registration import remember
from hpckit.text.quantities import count

KEY = "launch.nodes"


def enlarged_spec(spec: RunSpec, nodes: int, overrides: Sequence[str]) -> RunSpec | None:
    """Returns `spec` for as many of the job's nodes as can divide its work, if these are more than
    it has, or None if it stays as it is. Pure.

    A run of a fixed size is not resized, and neither is one whose batch size and learning rate are
    scaled with its size.

    Args:
        nodes: the number of nodes of the job.
        overrides: the user's overrides, which may set the number of nodes.
    """
    is_said = any(word.lstrip("+").partition("=")[0] == KEY for word in overrides)
    is_fixed = spec.elastic.min_nodes is None or spec.elastic.scale_lr is not None
    if is_said or is_fixed or spec.debug.drill.nodes:
        return None
    for number in range(nodes - spec.elastic.spares, spec.launch.nodes, -1):
        larger = replace(spec, launch=replace(spec.launch, nodes=number))
        if not violations(larger):
            return larger
    return None


def enlarge_submission(run: RunDir, submission: int, env: Mapping[str, str]) -> int:
    """Returns the number of the submission for this job to continue with: a new one, if the job was
    requeued with more nodes.

    Raises:
        RunHeldError: another process holds the run lock.
        SpecError, OSError: the submission cannot be read, or a new one cannot be written.
    """
    nodes, spec = int(env.get("SLURM_JOB_NUM_NODES", "1")), read_spec(run.spec(submission))
    larger = enlarged_spec(spec, nodes, overrides_of(run, submission))
    if larger is None:
        return submission
    options = CommandOptions(f"job {env['SLURM_JOB_ID']}", is_queue_checked=False)
    (number,) = prepare([SubmissionRequest(run, larger, (), submission)], options)
    if number is None:
        return submission  # the run is done
    remember(run, number, Path.cwd(), env)
    has = count(nodes, "node")
    print(f"{has}: {run.name} continues with {KEY}={larger.launch.nodes}", flush=True)
    return number


def too_few(spec: RunSpec, nodes: int) -> list[str]:
    """Returns why a job of this number of nodes cannot carry a run of `spec`."""
    needed = fewest_nodes(spec)
    if nodes >= needed:
        return []
    key = KEY if spec.elastic.min_nodes is None else "elastic.min_nodes"
    return [f"{key}: the job has {nodes}; sbatch --nodes={needed} gives it more"]
