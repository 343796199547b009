"""The supervisor, which runs one generation of the run after the other until a verdict is final.

It is the batch process of a job: submitit calls `supervise` with only the run directory and the
number of the submission, so that no stale state is ever pickled. What happens, in order:

    supervise                  the log, the run lock, and the requeue of the job at the end
    supervise_job              the record of the start and the end, and the successor job
    open_resources             nodes, agents, rendezvous store (`hpckit.supervisor.job_resources`)
    run_generations            one `WorkerGeneration` after the other

`hpckit.supervisor.signal_requests` describes what signals request of it. On Slurm, a preemption
ends the job, and its successor continues the run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from checkpointing.service.client.service_stop import end_services
from hpckit.agent.device_assignment import visible_gpus
from hpckit.agent.verdict_record import Verdict, VerdictKind
from hpckit.config.last_step import planned_steps
from hpckit.events.event_log import EventLog, read_events
from hpckit.events.schema import (
    Degraded,
    DegradedSubject,
    RunEnded,
    RunFailed,
    RunRefused,
    RunStarted,
)
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.rundir.directory import RunDir, store_and_name
from hpckit.rundir.lock import RunHeldError
from hpckit.submit.newest_checkpoint import saved_step_of
from hpckit.supervisor.continuation.job_chain import KEEP_S
from hpckit.supervisor.continuation.next_job import JobRequeue, continued
from hpckit.supervisor.continuation.predecessor_job import hold_run, is_needless
from hpckit.supervisor.continuation.unproductive_jobs import (
    end_verdict,
    start_verdict,
    warn_of_short_rest,
)
from hpckit.supervisor.failure_context import describe_failure
from hpckit.supervisor.generation import WorkerGeneration
from hpckit.supervisor.generation_history import GenerationHistory
from hpckit.supervisor.generation_record import GenerationRecorder
from hpckit.supervisor.job_resources import JobControls, JobResources, open_resources
from hpckit.supervisor.node_selection.node_wait import pause
from hpckit.supervisor.signal_requests import SupervisorRequests
from hpckit.supervisor.supervised_run import SupervisedRun, open_run
from hpckit.supervisor.termination_cause import TerminationCause
from hpckit.supervisor.verdict import past_of
from hpckit.system.process_end import end_process

log = logging.getLogger(__name__)


def supervise(run_path: str, submission: int, gpus: tuple[str, ...] | None = None) -> int:
    """Runs submission `submission` of the run at `run_path` until a final verdict, and returns its
    exit status.

    Any error that prevents this is also written as an event, for whoever follows the run.

    Args:
        gpus: the GPUs of this machine to use. None: all that are visible.

    Raises:
        RunHeldError: another supervisor holds the run lock.
    """
    run = RunDir(Path(run_path))
    run.logs.mkdir(exist_ok=True)
    logging.basicConfig(
        filename=run.logs / "supervisor.log",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        force=True,
    )
    with EventLog(run.events, submission=submission) as events:
        report = _FailureReport(events)
        with report:
            status = _supervise(run, submission, gpus, events, report)
    if status and os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
        # otherwise submitit's process ends with 0, and the job as a success
        end_process(status)
    return status


class _FailureReport:
    """A context, which may be entered within itself, that emits the event of an error that ends
    it."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._reported: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if not isinstance(error, Exception) or error is self._reported:
            return
        self._reported = error
        if isinstance(error, RunHeldError):
            self._events.emit(RunRefused(error=str(error)))
            return
        log.error("the supervisor failed", exc_info=error)
        self._events.emit(RunFailed(error=describe_failure(error)))


def _supervise(
    run: RunDir,
    submission: int,
    gpus: tuple[str, ...] | None,
    events: EventLog,
    report: _FailureReport,
) -> int:
    """Returns the exit status."""
    supervised = open_run(run, submission, events, os.environ)
    controls = open_controls(supervised)
    own = supervised.job_number
    with JobRequeue(run, supervised.spec, events, own) as requeue, hold_run(supervised):
        if is_needless(run, supervised.job_number, events):
            return 0
        with (
            _sent_alerts(supervised),  # an error of this job is sent, too
            _evaluations(supervised, gpus) as announce_end,
            report,
        ):
            verdict = supervise_job(supervised, controls, requeue, gpus)
            announce_end(verdict.final)
        if verdict.final:
            requeue.withdraw()
    return verdict.exit_status


def _sent_alerts(supervised: SupervisedRun) -> AbstractContextManager[None]:
    """Has alerts sent for the duration of a block, if the spec configures any target."""
    if not supervised.spec.alerts.has_targets:
        return nullcontext()
    from hpckit.alerts.alert_watch import sent_alerts  # imports http and email

    return sent_alerts(supervised.run, supervised.spec, supervised.events)


def _evaluations(
    supervised: SupervisedRun, gpus: tuple[str, ...] | None
) -> AbstractContextManager[Callable[[bool], None]]:
    """Has checkpoints evaluated for the duration of a block, if the spec wants it. What it returns
    is called with whether the verdict is final."""
    if supervised.spec.eval.every is None or supervised.spec.command is not None:
        return nullcontext(lambda is_final: None)
    from hpckit.evaluation.evaluation_watch import evaluated_run  # most runs do without it

    run, spec, number = supervised.run, supervised.spec, supervised.submission
    there = visible_gpus(os.environ) if gpus is None else gpus
    return evaluated_run(run, spec, number, supervised.events, there)


def _measure_nodes(resources: JobResources) -> None:
    """Has the nodes measured, if `health.deep` asks for it now."""
    if resources.supervised.spec.health.deep is None:
        return
    from hpckit.supervisor.node_selection.deep_health_check import (
        DeepHealthCheck,  # most runs do without it
    )

    DeepHealthCheck(resources).run_if_due()


def open_controls(supervised: SupervisedRun) -> JobControls:
    """Installs the signal handlers of the process, so that no signal is lost from here on, and
    returns what handles the requests and records of the run."""
    run, spec, events = supervised.run, supervised.spec, supervised.events
    cause = TerminationCause(run, supervised.job, spec.cluster, events)
    return JobControls(
        SupervisorRequests(cause.is_cancelled),
        cause,
        GenerationRecorder(run, spec, supervised.submission, events),
    )


def supervise_job(
    supervised: SupervisedRun,
    controls: JobControls,
    requeue: JobRequeue,
    gpus: tuple[str, ...] | None = None,
) -> Verdict:
    """Runs the generations of this job, and returns the last verdict. If it is not final, the run
    continues in another job. The caller holds the run lock."""
    run, events, job = supervised.run, supervised.events, supervised.job
    controls.recorder.reserve_space()
    events.emit(
        RunStarted(
            pid=os.getpid(),
            steps=planned_steps(supervised.spec),
            job=None if job is None else job.job,
            hosts=None if job is None else list(job.hosts),
        )
    )
    written = read_events(run.events)
    verdict = start_verdict(supervised, written)
    if verdict is not None:
        _record_verdict(controls, supervised, verdict)
        events.emit(RunEnded(verdict=verdict.kind, status=verdict.exit_status))
        return verdict
    warn_of_short_rest(supervised, written)
    history = GenerationHistory(past_of(written), written)
    with continued(supervised, written, requeue) as chain:
        with open_resources(supervised, controls, chain, written, gpus) as resources:
            try:
                verdict = run_generations(resources, history)
            finally:
                if job is None:
                    _end_services(supervised)
            # agents take time to write what they hold, and Slurm may leave this process less
            if chain is not None:
                chain.drop() if verdict.final else chain.keep(KEEP_S)
        judged = verdict
        verdict = end_verdict(supervised, judged)  # of a checkpoint that agents have written, too
        if verdict is not judged:
            _record_verdict(controls, supervised, verdict)
            if chain is not None:
                chain.drop()
    controls.recorder.complete_curves(verdict, controls.requests.has_any)
    events.emit(RunEnded(verdict=verdict.kind, status=verdict.exit_status))
    return verdict


def _record_verdict(controls: JobControls, supervised: SupervisedRun, verdict: Verdict) -> None:
    """Writes a verdict that is about the jobs so far, and not about one generation."""
    number = max(supervised.run.generation_numbers(), default=0)
    saved = saved_step_of(read_events(supervised.run.events, with_steps=False))
    controls.recorder.write_verdict(number, verdict, saved)


def run_generations(resources: JobResources, history: GenerationHistory) -> Verdict:
    """Runs one generation after the other until a verdict is final or, in a Slurm job, until
    another job has to run the next generation. Returns the last verdict."""
    requests, is_slurm = resources.controls.requests, resources.supervised.job is not None
    while True:
        _measure_nodes(resources)
        generation = WorkerGeneration(resources, history)
        verdict = generation.run()
        if verdict.final:
            return verdict
        if is_slurm and history.is_retry_worthwhile:
            pause(resources.agents, resources.is_asked)
        resources.read_requests()
        asked = requests.wait_until_known()
        if asked is WorkerRequest.STOP:
            stopped = Verdict(VerdictKind.STOPPED, True, "stopped between two generations")
            resources.controls.recorder.write_verdict(
                generation.number, stopped, resources.saved_step.step
            )
            return stopped
        if is_slurm and history.has_to_leave(asked):
            return verdict


def _end_services(supervised: SupervisedRun) -> None:
    """Makes snapshots in the memory of this machine durable, and ends the run's checkpoint
    services."""
    place = store_and_name(supervised.spec, supervised.run)
    if not end_services(*place, supervised.report_limit_s):
        supervised.events.emit(
            Degraded(
                subject=DegradedSubject.CHECKPOINT_SERVICE,
                what="a checkpoint service is still writing",
            )
        )
