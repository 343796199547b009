"""Hands a prepared submission to submitit."""

from __future__ import annotations

import io
import os
import pkgutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import submitit

from hpckit.agent.device_assignment import visible_gpus
from hpckit.config.spec import RunSpec
from hpckit.rundir.code_snapshot.module_names import SUPERVISOR, module_in
from hpckit.rundir.directory import RunDir
from hpckit.rundir.requeue_link import snapshot_variables
from hpckit.submit import batch_script

# submitit's local executor ends jobs after this long; a run ends by its verdict.
_NO_LIMIT_MIN = 60 * 24 * 366
# What a terminal sends to all that was started from it. The job lives on without the terminal.
_TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)


class SubmitError(RuntimeError):
    """There is no job."""


class _Supervise:
    """The function `supervise` of the supervisor, by its name in the snapshot that a job runs: its
    module imports all that a supervisor needs, of which this process needs nothing."""

    def __init__(self, code: Path) -> None:
        self._name = f"{module_in(code, SUPERVISOR)}:supervise"

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return pkgutil.resolve_name, (self._name,)

    def __call__(self, run_path: str, submission: int, gpus: tuple[str, ...] | None = None) -> int:
        status: int = pkgutil.resolve_name(self._name)(run_path, submission, gpus)
        return status


def submit(run: RunDir, submission: int) -> submitit.Job[int]:
    """Start the supervisor of a submission as a job of its own, that outlives this process.

    It gets the run directory's path and the submission's number, nothing else: whatever it needs
    it reads there. It runs the snapshot's code, never the working tree's.
    """
    executor = submitit.LocalExecutor(folder=run.submitit)
    executor.update_parameters(timeout_min=_NO_LIMIT_MIN)
    gpus = visible_gpus(os.environ)  # submitit's local executor hides them from its jobs
    with (
        _environment(job_variables(run, submission)),
        _ignored(_TERMINAL_SIGNALS),
        _streams_to(run.submitit / "controller.log"),
    ):
        job: submitit.Job[int] = executor.submit(
            _Supervise(run.code(submission)), str(run.path), submission, gpus
        )
    _close(run.submitit)
    return job


def submit_job(
    run: RunDir,
    spec: RunSpec,
    submission: int,
    after: str | None = None,
    exclude: tuple[str, ...] = (),
) -> submitit.Job[int]:
    """The same as a Slurm job, which is the supervisor from its first process on. It begins when no
    other job of this run is left.

    Args:
        after, exclude: as of `batch.of_run`.

    Raises:
        SubmitError: there is no Slurm here, or it refuses the job; says why.
    """
    run.logs.mkdir(exist_ok=True)
    with _executor(spec, batch_script.of_run(run, submission, after, exclude)) as executor:
        job: submitit.Job[int] = executor.submit(
            _Supervise(run.code(submission)), str(run.path), submission
        )
    return job


def submit_array(
    place: batch_script.BatchJob, spec: RunSpec, runs: Sequence[tuple[RunDir, int]]
) -> list[submitit.Job[int]]:
    """Submissions of several runs as the tasks of one job array, which the specs of all of them ask
    the same of.

    Raises:
        SubmitError: there is no Slurm here, or it refuses the array; says why.
    """
    for run, _ in runs:
        run.logs.mkdir(exist_ok=True)
    paths, numbers = zip(*((str(run.path), number) for run, number in runs), strict=True)
    first, submission = runs[0]
    with _executor(spec, place) as executor:
        jobs: list[submitit.Job[int]] = executor.map_array(
            _Supervise(first.code(submission)), paths, numbers
        )
    return jobs


@contextmanager
def _executor(spec: RunSpec, place: batch_script.BatchJob) -> Iterator[submitit.SlurmExecutor]:
    assert spec.cluster.slurm is not None  # the spec was checked
    try:
        executor = submitit.SlurmExecutor(
            folder=place.folder, python=batch_script.interpreter(spec.cluster.slurm, place)
        )
        executor.update_parameters(**batch_script.parameters(spec, place))
        with redirect_stderr(io.StringIO()):  # it prints there what it raises
            yield executor
        _close(place.folder)
    except (OSError, RuntimeError) as error:
        raise SubmitError(str(error).strip() or type(error).__name__) from error


def _close(folder: Path) -> None:
    """What submitit has pickled there is for nobody else to read, let alone to change."""
    for path in folder.glob("*_submitted.pkl"):
        path.chmod(0o600)


def job_variables(run: RunDir, submission: int) -> dict[str, str]:
    """Environment of a job: imports come from the snapshot, and not from where it was started."""
    return snapshot_variables(run.code(submission), os.environ)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _streams_to(path: Path) -> Iterator[None]:
    """A process started meanwhile says what it says there: it outlives the terminal, or the pipe
    whose other end waits for all who may write to it."""
    sys.stdout.flush()
    sys.stderr.flush()
    path.parent.mkdir(exist_ok=True)
    before = [os.dup(number) for number in (0, 1, 2)]
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number, to in enumerate((nothing, log, log)):
        os.dup2(to, number)
    try:
        yield
    finally:
        for number, to in enumerate(before):
            os.dup2(to, number)
        for number in (*before, nothing, log):
            os.close(number)


@contextmanager
def _ignored(numbers: tuple[signal.Signals, ...]) -> Iterator[None]:
    """Ignore signals meanwhile; a process started meanwhile ignores them from then on."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
