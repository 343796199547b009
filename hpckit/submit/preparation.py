"""Prepares submissions, for all commands that submit one.

A command composes a spec (`compose`) and checks it (`check`), or takes the spec of an earlier
submission. `prepare` does the rest, under the run locks: it moves an earlier run aside, refuses a
run that is queued already, and writes the submission with a copy of the code into the run
directory. `hpckit.submit.submission_start` starts what is prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpckit.config.last_step import planned_steps
from hpckit.config.spec import PackSpec, RunSpec
from hpckit.config.spec_parser import SpecError, read_spec
from hpckit.rundir.code_snapshot import newest_snapshot
from hpckit.rundir.code_snapshot.snapshot import Project
from hpckit.rundir.directory import RunDir, lock_paths, run_directory, run_name
from hpckit.rundir.lock import hold_all
from hpckit.submit.compose import compose_spec, spec_of
from hpckit.submit.preflight.checks import (
    Preflight,
    preflight,
    slurm_problems,
    with_absolute_paths,
)
from hpckit.submit.program.program_command import (
    command_overrides,
    parse_program,
    split,
    with_arguments,
)
from hpckit.submit.resume_overrides import with_kept_extension
from hpckit.submit.submission_files import add_amended_submission, add_submission
from hpckit.system.atomic_files import read_json
from hpckit.system.store_timeouts import interactive_store_options

if TYPE_CHECKING:
    from hpckit.submit.composition.composition_process import CompositionProcess


@dataclass(frozen=True)
class SubmissionRequest:
    """A run for which a submission is to be prepared."""

    run: RunDir
    spec: RunSpec
    overrides: Sequence[str]
    """What the user typed. For an earlier submission, the overrides beyond its own."""
    code: Project | int
    """The project whose code is copied, or the number of the earlier submission to amend, whose
    code is used again."""
    is_fresh: bool = False
    """Whether the run starts afresh, so that an earlier run in its directory is moved aside."""


@dataclass(frozen=True)
class CommandOptions:
    """The properties that distinguish the commands that prepare submissions."""

    title: str
    """The name of the command, for other processes that find the run locked."""
    is_queue_checked: bool = True
    """Whether to refuse runs of which Slurm has a job already. False: this process is that job."""
    say: Callable[[str], None] = print
    """Prints a message to the user."""


def compose(
    overrides: Sequence[str],
    base: Path,
    project: Project,
    composition: CompositionProcess | None = None,
) -> RunSpec:
    """Returns the spec of these overrides, with absolute paths.

    Args:
        overrides: what the user typed, with a program after `--` if there is one.
        base: the folder that relative paths start from.
        composition: composes these overrides for the project around the working directory. None:
            they are composed here.

    Raises:
        SpecError: the config cannot be used; the error has all problems that can be found together.
    """
    composed = None if composition is None else composition.result()
    if composed is None:
        spec = compose_spec(command_overrides(overrides), project=project)
    else:
        spec = spec_of(composed)
    _, program = split(overrides)
    if program is not None:
        spec = with_arguments(spec, parse_program(program))
    return with_absolute_paths(spec, base)


def request(
    spec: RunSpec, overrides: Sequence[str], base: Path, project: Project, is_fresh: bool = False
) -> SubmissionRequest:
    """Returns the request for a run with a copy of the project's code. Arguments are as in
    `compose` and `SubmissionRequest`."""
    run = run_directory(spec, base)
    kept = spec if is_fresh else with_kept_extension(run, spec)
    return SubmissionRequest(run, kept, overrides, project, is_fresh)


def check(wanted: SubmissionRequest, pack: Callable[[PackSpec, Path], None] | None) -> Preflight:
    """Checks everything that the run needs on this machine.

    Args:
        pack: packs missing shards. None: they are not packed.

    Raises:
        SpecError: there are problems; the error has all of them.
    """
    assert isinstance(wanted.code, Project)  # an earlier submission was checked already
    found = preflight(wanted.spec, wanted.run, wanted.code, pack)
    if found.problems:
        raise SpecError(found.problems)
    return found


def prepare(requests: Sequence[SubmissionRequest], options: CommandOptions) -> list[int | None]:
    """Prepares a submission for each run, and returns its number, or None for a run that is done.

    The number is that of the earlier submission where the request amends nothing.

    Raises:
        RunHeldError: one of the runs is under way. Nothing is prepared then, nor for SpecError.
        SpecError: a job of one of the runs is queued, or Slurm does not answer.
        CheckpointError: a run cannot be moved aside, as its store does not answer.
        CodeSnapshotError, OSError: a submission cannot be written.
    """
    moved = [wanted for wanted in requests if _has_to_move(wanted)]
    if moved:
        with _held(requests, options.title):
            if options.is_queue_checked:
                require_unqueued([r for r in requests if r in moved or not is_done(r.run, r.spec)])
            for wanted in moved:
                options.say(f"moved the earlier run to {move_aside(wanted.run, wanted.spec)}")
    say = say_once(options.say)
    with _held(requests, options.title):
        pending = [wanted for wanted in requests if not is_done(wanted.run, wanted.spec)]
        if not options.is_queue_checked:
            return [_add(r, lambda: None, say) if r in pending else None for r in requests]
        with ThreadPoolExecutor(1, "queue") as executor:  # while files are copied
            unqueued = executor.submit(require_unqueued, pending)
            return [_add(r, unqueued.result, say) if r in pending else None for r in requests]


def _has_to_move(wanted: SubmissionRequest) -> bool:
    """Returns whether an earlier run has to be moved aside. A canary has to be a new run each
    time."""
    is_asked = wanted.is_fresh or wanted.spec.debug.canary.mode is not None
    is_new = isinstance(wanted.code, Project)
    return is_asked and is_new and bool(wanted.run.submission_numbers())


def _held(requests: Iterable[SubmissionRequest], title: str) -> AbstractContextManager[None]:
    return hold_runs([(wanted.spec, wanted.run) for wanted in requests], title)


@contextmanager
def hold_runs(runs: Iterable[tuple[RunSpec, RunDir]], title: str) -> Iterator[None]:
    """Holds the locks of all these runs for the duration of the block.

    Raises:
        RunHeldError: another process holds a lock.
    """
    with ExitStack() as stack:
        for spec, run in runs:
            stack.enter_context(hold_all(lock_paths(spec, run), title))
        yield


def say_once(say: Callable[[str], None]) -> Callable[[str], None]:
    """Returns a function that says each message once, as several runs of one command have the same
    project and notes."""
    said: set[str] = set()

    def say_new(message: str) -> None:
        if message not in said:
            said.add(message)
            say(message)

    return say_new


def _add(
    wanted: SubmissionRequest, require_allowed: Callable[[], None], say: Callable[[str], None]
) -> int:
    """Adds the submission and returns its number.

    Args:
        require_allowed: raises an error if there may be no submission. It is called before the
            submission appears.
        say: prints a message to the user.
    """
    run, spec = wanted.run, wanted.spec
    if isinstance(wanted.code, Project):
        return add_submission(run, spec, wanted.overrides, wanted.code, require_allowed, say)
    require_allowed()
    if not wanted.overrides and spec == read_spec(run.spec(wanted.code)):
        return wanted.code
    return add_amended_submission(run, spec, wanted.overrides, wanted.code)


def is_done(run: RunDir, spec: RunSpec | None = None) -> bool:
    """Returns whether the run's newest generation reached the last step.

    Args:
        spec: of a submission that may have more steps. None: that of the newest submission.
    """
    verdict = read_json(run.verdict)
    if not verdict or verdict.get("kind") != "done":
        return False
    if (reached := verdict.get("steps")) is None or not (numbers := run.submission_numbers()):
        return True
    try:
        steps = planned_steps(spec or read_spec(run.spec(numbers[-1])))
    except SpecError:  # of another release
        return True
    return steps is None or steps <= int(reached)


def require_unqueued(requests: Sequence[SubmissionRequest]) -> None:
    """Checks that no job of these runs is queued. The run lock alone does not prevent a second
    submission.

    Raises:
        SpecError: a job of one of the runs is queued, or Slurm does not answer.
    """
    from hpckit.slurm.queued_jobs import refuse_queued  # imports the events of a run

    runs = [wanted.run for wanted in requests if wanted.spec.cluster.kind == "slurm"]
    if runs and (problems := slurm_problems()):
        raise SpecError(problems)  # for `hpckit resume`, which has no preflight
    refuse_queued(runs)


def move_aside(run: RunDir, spec: RunSpec) -> Path:
    """Renames the run directory, and the run in a store outside of it; returns the new directory.

    Nothing is deleted: both get the first free suffix `.oldN`. The directory is renamed last, so
    that a failure in the store can be retried.

    Raises:
        CheckpointError: the store does not answer.
    """
    from checkpointing import list_run, rename_run

    url, name, number = spec.checkpoint.url, run_name(spec), 1
    while (aside := run.path.with_name(f"{run.name}.old{number}")).exists() or (
        url and list_run(url, f"{name}.old{number}", interactive_store_options())
    ):
        number += 1
    if url:
        rename_run(url, name, f"{name}.old{number}", interactive_store_options())
    run.path.rename(aside)
    if project := (read_json(RunDir(aside).current / "manifest.json") or {}).get("project"):
        newest_snapshot.record_moved_run(run, aside, Path(project))
    return aside
