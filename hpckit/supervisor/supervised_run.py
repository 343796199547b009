"""The run that a supervisor supervises, with its submission and its job."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import read_spec
from hpckit.events.event_log import EventLog
from hpckit.rundir.directory import RunDir
from hpckit.slurm.allocation import Allocation, allocation, leave_array
from hpckit.slurm.environment import leave_submitter

# Time that an agent may take beyond the grace to end its workers and write its report.
REPORT_MARGIN_S = 10.0


@dataclass(frozen=True)
class SupervisedRun:
    """The properties that do not change during the life of a supervisor."""

    run: RunDir
    submission: int
    spec: RunSpec
    job: Allocation | None
    """The Slurm job of this process. None: all nodes are simulated on this machine."""
    events: EventLog

    @property
    def report_limit_s(self) -> float:
        """Seconds after a request until the agents must have reported the end of their workers."""
        return self.spec.cluster.grace_s + REPORT_MARGIN_S

    @property
    def job_number(self) -> str | None:
        """The number of the Slurm job, or None outside of Slurm."""
        return None if self.job is None else self.job.job


def open_run(
    run: RunDir, submission: int, events: EventLog, env: MutableMapping[str, str]
) -> SupervisedRun:
    """Reads the spec of the submission and finds the job of this process. It removes from
    `env` the variables of a job array, and those that are the submitter's own.

    Raises:
        SpecError, OSError: the spec cannot be read.
        RuntimeError: the spec is for Slurm, but this process is not in a job, or the code snapshot
            of the submission is gone.
        OSError, subprocess.SubprocessError: Slurm does not report the names of the nodes.
    """
    _require_snapshot(run.code(submission))
    spec = read_spec(run.spec(submission))
    job = None
    if spec.cluster.kind == "slurm":
        job = allocation(env)
        leave_array(env)
        assert spec.cluster.slurm is not None  # the spec is valid
        leave_submitter(env, spec.cluster.slurm.pass_environment)
    return SupervisedRun(run, submission, spec, job, events)


def _require_snapshot(code: Path) -> None:
    """Raises RuntimeError unless this file belongs to the code snapshot, as no other code may
    run."""
    if not Path(__file__).resolve().is_relative_to(code.resolve()):
        raise RuntimeError(
            f"the code snapshot {code} no longer exists; start again with hpckit launch"
        )
