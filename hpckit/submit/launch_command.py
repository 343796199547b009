"""The command line of `launch.py`, which checks everything, starts the run and follows it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from checkpointing import CheckpointError
from hpckit.agent.verdict_record import EXIT_STATUS, REFUSED, VerdictKind
from hpckit.config.spec import PackSpec, RunSpec
from hpckit.config.spec_parser import SpecError, dump_spec, prepare_parser
from hpckit.rundir.code_snapshot.snapshot import CodeSnapshotError, find_project
from hpckit.rundir.lock import RunHeldError
from hpckit.submit.program.program_command import left_out_note, split, typed_overrides
from hpckit.system.early_signals import early_signals
from hpckit.system.os_errors import describe_error
from hpckit.system.output_streams import checked_output
from hpckit.system.process_end import end_process
from hpckit.text.suggestions import did_you_mean

if TYPE_CHECKING:
    from hpckit.submit.composition.composition_process import CompositionProcess
    from hpckit.submit.preparation import SubmissionRequest


@dataclass(frozen=True)
class LaunchCommand:
    """The parsed command line."""

    overrides: list[str]
    """The overrides, then `--` and the words of a program if there is one."""
    dry_run: bool = False
    detach: bool = False
    fresh: bool = False
    cfg: bool = False
    fake_world: bool = False
    many: bool = False
    json: bool = False

    def say(self, message: str) -> None:
        """Prints a message that is not part of the result. With --json, standard output is only for
        the document."""
        print(message, file=sys.stderr if self.json else sys.stdout)


FLAGS = {"--dry-run": "dry_run", "--detach": "detach", "--fresh": "fresh", "--cfg": "cfg"}
FLAGS |= {"--fake-world": "fake_world", "-m": "many", "--json": "json"}


def run_as_program(composition: CompositionProcess | None) -> NoReturn:
    """Runs `launch.py` with the arguments of this process, and ends the process.

    Args:
        composition: as of `main`.
    """
    with checked_output():
        status = main(composition=composition)
    end_process(status)


def main(argv: Sequence[str] | None = None, composition: CompositionProcess | None = None) -> int:
    """Runs `launch.py` with `argv` and returns its exit status.

    Args:
        composition: composes the config of `argv`. None: it is composed here.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    own, _ = split(arguments)
    try:
        if "--help" in own or "-h" in own:
            return _print_help(own)
        with early_signals():
            return run_command(parse_arguments(arguments), composition)
    except SpecError as error:
        return refuse(error.violations)
    except BrokenPipeError:  # the reader of the output has ended
        raise
    except OSError as error:
        return refuse([describe_error(error)])
    except (RunHeldError, CodeSnapshotError, CheckpointError) as error:
        return refuse([str(error)])
    except KeyboardInterrupt:
        print("interrupted before anything was started", file=sys.stderr)
        return EXIT_STATUS[VerdictKind.STOPPED]


def parse_arguments(arguments: Sequence[str]) -> LaunchCommand:
    """Separates flags and overrides. The words after `--` are those of a program.

    Raises:
        SpecError: there is a flag that launch.py does not have.
    """
    flags = [word for word in split(arguments)[0] if word.startswith("-")]
    if unknown := [word for word in flags if word not in FLAGS]:
        raise SpecError([_unknown(word) for word in unknown])
    return LaunchCommand(typed_overrides(arguments), **{FLAGS[word]: True for word in flags})


def _unknown(flag: str) -> str:
    from hpckit.config.spec_parser import suggested_keys
    from hpckit.submit.manual_page import program

    hint = did_you_mean(flag, FLAGS)
    name, _, value = flag.lstrip("-").replace("-", "_").partition("=")
    if not hint and (keys := suggested_keys(name)):
        given = " or ".join(f"{key}={value or 'VALUE'}" for key in keys)
        hint = f"keys have no dashes: {given}; "
    return f"{flag}: unknown option; {hint}see {program()} --help"


def run_command(command: LaunchCommand, composition: CompositionProcess | None = None) -> int:
    """Composes and checks the spec, carries out the command, and returns the exit status.

    Args:
        composition: as in `main`.

    Raises:
        SpecError: the config or what it names cannot be used.
        RunHeldError: the run is under way.
    """
    from hpckit.slurm.sbatch_variables import with_sbatch_variables
    from hpckit.submit import preparation
    from hpckit.submit.continuation.continuation_facts import with_continuation
    from hpckit.submit.same_name_runs import same_name_note

    if command.json and (command.dry_run or command.cfg or command.fake_world):
        raise SpecError(
            ["--json describes what was started; leave out the options that only show something"]
        )
    if command.many:
        from hpckit.submit.arrays.sweep_submission import run_sweep

        return run_sweep(command)
    base, project = Path.cwd(), find_project(Path.cwd())
    if composition is not None:
        _import_ahead(command)
    spec = preparation.compose(command.overrides, base, project, composition)
    spec, of_shell = with_sbatch_variables(spec, os.environ)
    if command.cfg:
        print(dump_spec(spec), end="")
        return 0
    if command.fake_world:
        return _show_fake_step(spec)
    spec, of_site = with_continuation(spec)
    wanted = preparation.request(spec, command.overrides, base, project, command.fresh)
    spec = wanted.spec
    found = preparation.check(wanted, None if command.dry_run else pack)
    notes = [f"note: {line}" for line in (*of_shell, *of_site, *found.notes)]
    for note in (*notes, same_name_note(spec, wanted.run), left_out_note(command.overrides)):
        if note:
            print(note, file=sys.stderr)
    if command.dry_run:
        from hpckit.submit.dry_run import describe_submission
        from hpckit.submit.submission_files import describe_code

        earlier, code = len(wanted.run.submission_numbers()), partial(describe_code, spec, project)
        print(describe_submission(spec, wanted.run, found.dataset, earlier, code))
        return 0
    return _start(wanted, command)


def _import_ahead(command: LaunchCommand) -> None:
    """Imports what most commands need once their config is composed, while another process composes
    it."""
    prepare_parser()
    if command.dry_run:
        import hpckit.submit.dry_run
    elif not command.cfg:
        import hpckit.submit.job_submission  # noqa: F401


def _show_fake_step(spec: RunSpec) -> int:
    from hpckit.trainer.memory.fake_step import report

    try:
        print(report(spec))
    except ValueError as error:
        raise SpecError([str(error)]) from None
    return 0


def _start(wanted: SubmissionRequest, command: LaunchCommand) -> int:
    from hpckit.submit.preparation import CommandOptions, prepare
    from hpckit.submit.submission_start import (
        print_record,
        show_end,
        start,
        start_record,
        start_silently,
    )

    run, spec = wanted.run, wanted.spec
    title = f"launch.py {shlex.join(command.overrides)}"
    (number,) = prepare([wanted], CommandOptions(title, say=command.say))
    if number is None:
        command.say(f"{run.name} is done; nothing to do (--fresh starts a new run)")
        if command.json:
            print_record(start_record(run, None, None))
        else:
            show_end(run)
        return 0
    if command.json:
        print_record(start_record(run, number, start_silently(run, spec, number)))
        return 0
    return start(run, spec, number, command.detach)


def refuse(reasons: Sequence[str]) -> int:
    """Prints the reasons why nothing was started to standard error, and returns the exit status for
    that."""
    for reason in reasons:
        print(f"error: {reason}", file=sys.stderr)
    return REFUSED


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
