"""The command line of `launch.py`, which checks everything, starts the run and follows it."""

from __future__ import annotations

import gc
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from checkpointing import CheckpointError
from hpckit.agent.verdict_record import EXIT_STATUS, REFUSED, VerdictKind
from hpckit.config.last_step import last_step
from hpckit.config.spec import PackSpec, RunSpec
from hpckit.config.spec_parser import SpecError, dump_spec
from hpckit.rundir.code_snapshot.snapshot import CodeSnapshotError, Project, find_project
from hpckit.rundir.directory import RunDir, lock_paths, run_directory
from hpckit.rundir.lock import RunHeldError, hold_all
from hpckit.submit.compose import compose_spec
from hpckit.system.atomic_files import read_json
from hpckit.system.os_errors import describe
from hpckit.text.suggestions import did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

    from hpckit.events.event_validation import ValidatedEvents


@dataclass(frozen=True)
class LaunchCommand:
    """The parsed command line."""

    overrides: list[str]
    dry_run: bool = False
    detach: bool = False
    fresh: bool = False
    cfg: bool = False
    fake_world: bool = False
    many: bool = False
    json: bool = False

    @property
    def aside(self) -> TextIO:
        """The stream for messages that are no answer: with --json, standard output is only for the
        document."""
        return sys.stderr if self.json else sys.stdout


FLAGS = {"--dry-run": "dry_run", "--detach": "detach", "--fresh": "fresh", "--cfg": "cfg"}
FLAGS |= {"--fake-world": "fake_world", "-m": "many", "--json": "json"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `launch.py` with `argv` and returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--help" in arguments or "-h" in arguments:
        return _print_help(arguments)
    try:
        return run_command(parse_arguments(arguments))
    except SpecError as error:
        return refuse(error.violations)
    except OSError as error:
        return refuse([describe(error)])
    except (RunHeldError, CodeSnapshotError, CheckpointError) as error:
        return refuse([str(error)])
    except KeyboardInterrupt:
        print("interrupted before anything was started", file=sys.stderr)
        return EXIT_STATUS[VerdictKind.STOPPED]


def parse_arguments(arguments: Sequence[str]) -> LaunchCommand:
    """Separates flags and overrides.

    Raises:
        SpecError: there is a flag that launch.py does not have.
    """
    flags = [word for word in arguments if word.startswith("-")]
    if unknown := [word for word in flags if word not in FLAGS]:
        raise SpecError([_unknown(word) for word in unknown])
    overrides = [word for word in arguments if not word.startswith("-")]
    return LaunchCommand(overrides, **{FLAGS[word]: True for word in flags})


def _unknown(flag: str) -> str:
    from hpckit.submit.manual_page import program

    return f"{flag}: unknown option; {did_you_mean(flag, FLAGS)}see {program()} --help"


def run_command(command: LaunchCommand) -> int:
    """Composes and checks the spec, carries out the command, and returns the exit status.

    Raises:
        SpecError: the config or what it names cannot be used.
        RunHeldError: the run is under way.
    """
    from hpckit.submit.preflight.checks import preflight, with_absolute_paths
    from hpckit.submit.same_name_runs import same_name_note

    if command.json and (command.dry_run or command.cfg or command.fake_world):
        raise SpecError(["--json: tells what was started; leave out what only shows something"])
    if command.many:
        from hpckit.submit.arrays.sweep_submission import run_sweep

        return run_sweep(command)
    project = find_project(Path.cwd())
    spec = with_absolute_paths(compose_spec(command.overrides, project=project), Path.cwd())
    if command.cfg:
        print(dump_spec(spec), end="")
        return 0
    if command.fake_world:
        return _show_fake_step(spec)
    run = run_directory(spec, Path.cwd())
    found = preflight(spec, run, project, None if command.dry_run else pack)
    if found.problems:
        raise SpecError(found.problems)
    if note := same_name_note(spec, run):
        print(note, file=sys.stderr)
    if command.dry_run:
        from hpckit.submit.dry_run import describe_submission

        earlier = len(run.submission_numbers())
        print(describe_submission(spec, run, found.dataset, earlier))
        return 0
    return _start(spec, run, project, command)


def _show_fake_step(spec: RunSpec) -> int:
    from hpckit.trainer.memory.fake_step import report

    try:
        print(report(spec))
    except ValueError as error:
        raise SpecError([str(error)]) from None
    return 0


def _start(spec: RunSpec, run: RunDir, project: Project, command: LaunchCommand) -> int:
    from hpckit.submit.prepare import begins_anew, move_aside, prepare
    from hpckit.submit.start_record import show, start_record

    what = f"launch.py {' '.join(command.overrides)}"
    if begins_anew(run, spec, command.fresh):
        with hold_all(lock_paths(spec, run), what):
            require_unqueued(run, spec)
            print(f"moved the earlier run to {move_aside(run, spec)}", file=command.aside)
    with hold_all(lock_paths(spec, run), what):
        if is_done(run):
            print(f"{run.name} is done; nothing to do (--fresh begins anew)", file=command.aside)
            if command.json:
                show(start_record(run, None, None))
            else:
                _show_end(run)
            return 0
        with ThreadPoolExecutor(
            1, thread_name_prefix="queue"
        ) as executor:  # while files are copied
            unqueued = executor.submit(require_unqueued, run, spec)
            number = prepare(run, spec, command.overrides, project, unqueued.result)
    if command.json:
        show(start_record(run, number, start_quietly(run, spec, number)))
        return 0
    return start(run, spec, number, command.detach)


def require_unqueued(run: RunDir, spec: RunSpec) -> None:
    """Checks that no job of the run is queued already. The run lock alone does not prevent a second
    submission.

    Raises:
        SpecError: a job of the run is queued, or Slurm is out of reach.
    """
    from hpckit.slurm.queued_jobs import refuse_queued
    from hpckit.submit.preflight.checks import slurm_problems

    if spec.cluster.kind != "slurm":
        return
    if problems := slurm_problems():
        raise SpecError(problems)  # for `hpckit resume`, which has no preflight
    refuse_queued([run])


def start(run: RunDir, spec: RunSpec, number: int, detach: bool) -> int:
    """Submits a prepared submission and returns the exit status. On this machine, follows the run
    to its end unless `detach` is set.

    Raises:
        SpecError: Slurm refuses the job.
    """
    if spec.cluster.kind == "slurm":
        return start_job(run, spec, number)
    return start_and_follow(run, number, last_step(spec), detach)


def start_quietly(run: RunDir, spec: RunSpec, number: int) -> str:
    """Submits a prepared submission and returns the job's number, as in `start_record`.

    Raises:
        SpecError: Slurm refuses the job.
    """
    from hpckit.submit.job_submission import submit

    if spec.cluster.kind == "slurm":
        return submitted_job(run, spec, number)
    return submit(run, number).job_id


def start_and_follow(run: RunDir, number: int, steps: int, detach: bool) -> int:
    """Submits a prepared submission on this machine, and follows the run unless `detach` is set."""
    from rich.console import Console

    from hpckit.events.event_log import EventTail
    from hpckit.submit.job_submission import submit
    from hpckit.submit.run_follower import Follower

    console = Console()
    console.print(f"[bold]{run.name}[/]  {run.path}", highlight=False, soft_wrap=True)
    follower = Follower(run, number, steps, console, EventTail(run.events, from_end=True))
    with follower.noting_interrupts():
        job = submit(run, number)
        if detach:
            console.print(f"job {job.job_id} of submitit's local executor", highlight=False)
            return 0
        gc.enable()  # launch.py disables it, and this may take weeks
        status = follower.follow(lambda: not job.done())
    if status != REFUSED:
        _show_end(run)
    return status


def start_job(run: RunDir, spec: RunSpec, number: int) -> int:
    """Submits a prepared submission to Slurm and prints which commands to use next."""
    tell_job(run, submitted_job(run, spec, number))
    return 0


def tell_job(run: RunDir, job: str) -> None:
    """Prints what was started and which commands to use next."""
    print(f"{run.name}  {run.path}\njob {job}")
    path = shlex.quote(str(run.path))
    for command in (f"status {path}", f"logs {path} -f", f"why {path}"):
        print(f"    hpckit {command}")


def submitted_job(run: RunDir, spec: RunSpec, number: int) -> str:
    """Submits a prepared submission to Slurm and returns the number of its job.

    Raises:
        SpecError: Slurm refuses the job.
    """
    from hpckit.submit.job_submission import SubmitError, submit_job

    try:
        return submit_job(run, spec, number).job_id
    except SubmitError as error:
        raise SpecError([f"sbatch: {line}" for line in str(error).splitlines()]) from error


def show_report(run: RunDir, console: Console, events: ValidatedEvents | None = None) -> bool:
    """Prints the summary of a run as far as possible, and returns whether there was anything to
    print.

    Args:
        events: the run's events, if they were read already.
    """
    from hpckit.report.terminal.run_summary import show

    try:
        return show(run, console, events)
    except OSError as error:
        print(f"the report is incomplete: {error}", file=sys.stderr)
        return False


def refuse(reasons: Sequence[str]) -> int:
    """Prints to standard error why nothing was started, and returns the exit status for that."""
    for reason in reasons:
        print(f"error: {reason}", file=sys.stderr)
    return REFUSED


def _show_end(run: RunDir) -> None:
    """Prints the summary and how to see more."""
    from rich.console import Console

    console = Console()
    if show_report(run, console):
        more = f"hpckit report {shlex.quote(str(run.path))}"
        console.print(f"[bold]{'more':<12}[/] {more}", highlight=False, soft_wrap=True)


def is_done(run: RunDir) -> bool:
    """Whether the run's newest generation reached the last step."""
    verdict = read_json(run.verdict)
    return bool(verdict and verdict.get("kind") == "done")


def pack(what: PackSpec, out: Path) -> None:
    """Packs the shards `out`, with a status line meanwhile."""
    from rich.console import Console

    from hpckit.submit.shard_packing import pack_shards

    console = Console(stderr=True)
    with console.status(f"packing {what.source} into {out}"):
        pack_shards(what, out, progress=None)


def _print_help(arguments: Sequence[str]) -> int:
    from hpckit.config.config_trees import conf_dir, group_options, project_tree
    from hpckit.submit.manual_page import key_reference, manual

    words = [word for word in arguments if not word.startswith("-")]
    if words[:1] == ["keys"]:
        print(key_reference(words[1] if len(words) > 1 else ""))
    else:
        yours = project_tree(find_project(Path.cwd()).root)
        print(manual(group_options(conf_dir(), yours)), end="")
    return 0
