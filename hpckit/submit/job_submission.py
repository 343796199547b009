"""Submits a prepared submission through submitit."""

from __future__ import annotations

import io
import os
import pkgutil
import shlex
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import submitit

from hpckit.agent.device_assignment import visible_gpus
from hpckit.config.spec import RunSpec
from hpckit.rundir.code_snapshot.module_names import SIGNAL_HOLD, SUPERVISOR, module_in
from hpckit.rundir.directory import RunDir
from hpckit.rundir.requeue_link import snapshot_variables
from hpckit.slurm.environment import removed_variables, shortened_variables
from hpckit.slurm.sbatch_answers import submitted_job
from hpckit.submit import batch_script

# submitit's local executor ends jobs after this time; a run ends by its verdict.
_NO_LIMIT_MIN = 60 * 24 * 366
# Signals that a terminal sends to all processes started from it. The job outlives the terminal.
_TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)


class SubmitError(RuntimeError):
    """Raised if no job was submitted."""


class _Supervise:
    """The function `supervise` of the supervisor, referred to by its name in the snapshot that a
    job runs. Its module imports all that a supervisor needs, which this process does not need."""

    def __init__(self, code: Path) -> None:
        self._name = f"{module_in(code, SUPERVISOR)}:supervise"

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return pkgutil.resolve_name, (self._name,)

    def __call__(self, run_path: str, submission: int, gpus: tuple[str, ...] | None = None) -> int:
        status: int = pkgutil.resolve_name(self._name)(run_path, submission, gpus)
        return status


def submit(run: RunDir, submission: int) -> submitit.Job[int]:
    """Starts the supervisor of a submission as a local job that outlives this process.

    The job gets only the path of the run directory and the number of the submission, and reads the
    rest from there. It runs the code of the snapshot, never of the working tree.
    """
    executor = submitit.LocalExecutor(
        folder=run.submitit, python=_interpreter(run.code(submission))
    )
    executor.update_parameters(timeout_min=_NO_LIMIT_MIN)
    gpus = visible_gpus(os.environ)  # submitit's local executor hides them from its jobs
    with (
        _environment(local_variables(run, submission, os.environ)),
        _signals_ignored(_TERMINAL_SIGNALS),
        _streams_to(run.submitit / "controller.log"),
    ):
        job: submitit.Job[int] = executor.submit(
            _Supervise(run.code(submission)), str(run.path), submission, gpus
        )
    _restrict_access(run.submitit)
    return job


def submit_job(
    run: RunDir,
    spec: RunSpec,
    submission: int,
    after: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
) -> submitit.Job[int]:
    """Submits a submission as a Slurm job whose first process is the supervisor.

    Args:
        after, exclude: as in `batch_script.of_run`.

    Raises:
        SubmitError: this machine has no Slurm, or Slurm refuses the job; the message has the
        reason.
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
    """Submits submissions of several runs as the tasks of one job array. Their specs must request
    the same resources.

    Raises:
        SubmitError: this machine has no Slurm, or Slurm refuses the array; the message has the
        reason.
    """
    for run, _ in runs:
        run.logs.mkdir(exist_ok=True)
    paths, numbers = zip(*((str(run.path), number) for run, number in runs), strict=True)
    first, submission = runs[0]
    # submitit submits an array by an executor of its own; no other thread runs here
    changes = _submission_changes(os.environ, batch_script.passed_variables(spec))
    with _environment(changes), _executor(spec, place) as executor:
        jobs: list[submitit.Job[int]] = executor.map_array(
            _Supervise(first.code(submission)), paths, numbers
        )
    return jobs


class _EnvironmentExecutor(submitit.SlurmExecutor):
    """Submits with an environment that has nothing of the job, step or launcher that this process
    is in. `env` removes it, and not this process, whose other threads use its environment."""

    def __init__(self, spec: RunSpec, place: batch_script.BatchJob) -> None:
        slurm = spec.cluster.slurm
        assert slurm is not None  # the spec is valid
        super().__init__(folder=place.folder, python=batch_script.interpreter(slurm, place))
        self._passed = batch_script.passed_variables(spec)

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        changes = sorted(_submission_changes(os.environ, self._passed).items())
        words = [word for name, value in changes if value is None for word in ("-u", name)]
        words += [f"{name}={value}" for name, value in changes if value is not None]
        command = super()._make_submission_command(submission_file_path)
        return ["env", *words, *command] if words else command

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        text = string.decode(errors="replace") if isinstance(string, bytes) else string
        if (job := submitted_job(text)) is not None:
            return job
        number: str = submitit.SlurmExecutor._get_job_id_from_submission_command(text)
        return number


def _submission_changes(env: Mapping[str, str], passed: Collection[str]) -> dict[str, str | None]:
    """Returns how the environment of `sbatch` differs from `env`. None: it does without the
    variable."""
    removed = dict.fromkeys(removed_variables("submission", env, passed))
    return {**shortened_variables(env), **removed}


@contextmanager
def _executor(spec: RunSpec, place: batch_script.BatchJob) -> Iterator[submitit.SlurmExecutor]:
    try:
        executor = _EnvironmentExecutor(spec, place)
        executor.update_parameters(**batch_script.parameters(spec, place))
        with redirect_stderr(io.StringIO()):  # submitit prints there what it raises
            yield executor
        _restrict_access(place.folder)
    except (OSError, RuntimeError) as error:
        raise SubmitError(str(error).strip() or type(error).__name__) from error


def _restrict_access(folder: Path) -> None:
    """Makes submitit's pickle files accessible only to this user."""
    for path in folder.glob("*_submitted.pkl"):
        path.chmod(0o600)


def local_variables(run: RunDir, submission: int, env: Mapping[str, str]) -> dict[str, str | None]:
    """Returns what a job on this machine gets beside `env`: it imports from the snapshot, and not
    from where it was submitted. None: the job does without the variable, as a launcher that has
    started this shell means its own ranks by it."""
    removed: dict[str, str | None] = dict.fromkeys(removed_variables("job", env))
    return removed | snapshot_variables(run.code(submission), env)


@contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Sets variables of this process for the duration of the block; None: removes them."""
    before = {name: os.environ.get(name) for name in variables}
    _set_variables(variables)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _streams_to(path: Path) -> Iterator[None]:
    """Redirects the streams of a process that is started in the block to a file, as it outlives the
    terminal, or the pipe whose reader waits until all writers have closed it."""
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
def _signals_ignored(numbers: tuple[signal.Signals, ...]) -> Iterator[None]:
    """Ignores signals for a process that is started in the block, from then on. For this process
    they stay pending until the block ends: a Ctrl-C is not lost."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _interpreter(code: Path) -> str:
    """Returns the shell words that start the interpreter of a local job, whose early signals wait
    for its supervisor as those of a Slurm job do."""
    hold = code / f"{module_in(code, SIGNAL_HOLD).replace('.', '/')}.py"
    return shlex.join([sys.executable, "-IS", str(hold)])
