"""Submits a fork: checks it, writes its submission, and gives it its first checkpoint."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from checkpointing import CheckpointError, CheckpointInfo, fork_run, list_run
from hpckit.config.spec_parser import SpecError
from hpckit.events.checkpoints_left_behind import choices
from hpckit.events.earlier_events import ids_left_behind
from hpckit.rundir.code_snapshot.snapshot import find_project
from hpckit.rundir.directory import RunDir, checkpoint_root, run_name
from hpckit.rundir.fork_record import ForkRecord, read_fork, write_fork
from hpckit.slurm.sbatch_variables import with_sbatch_variables
from hpckit.submit.continuation.continuation_facts import with_continuation
from hpckit.submit.fork.fork_request import ForkRequest, fork_problems, fork_spec
from hpckit.submit.preparation import CommandOptions, SubmissionRequest, check, prepare, request
from hpckit.system.store_timeouts import interactive_store_options


@dataclass(frozen=True)
class CheckedFork:
    """A fork that can be submitted."""

    request: ForkRequest
    wanted: SubmissionRequest
    record: ForkRecord


def check_fork(parent: RunDir, step: int | None, overrides: Sequence[str]) -> CheckedFork:
    """Return the fork of a run, once everything that it needs is checked.

    Args:
        step: of the checkpoint; None: the newest one that the parent would continue from.

    Raises:
        SpecError: it cannot be; the error has all problems that can be found together.
        CheckpointError: there is no such checkpoint, or the store does not answer.
    """
    before, spec = fork_spec(parent, overrides)
    store, name = checkpoint_root(before, parent), run_name(before)
    left_behind = ids_left_behind(parent)
    found = choose_checkpoint(store, name, step, left_behind)
    fork = ForkRequest(parent, before, spec, found.step)
    if problems := fork_problems(fork):
        raise SpecError(problems)
    spec, of_shell = with_sbatch_variables(spec, os.environ)
    spec, of_site = with_continuation(spec)
    fork = replace(fork, spec=spec)
    base = Path.cwd()
    wanted = request(spec, overrides, base, find_project(base))
    if _is_there(wanted.run, fork):
        raise SpecError(
            [
                f"there is a run {run_name(spec)} already; give the fork a name=OTHER, or resume "
                f"that one: hpckit resume {wanted.run.path}"
            ]
        )
    if (why := left_behind.get(found.id)) is not None:
        print(f"note: {name} does not use step {found.step} any more: {why}", file=sys.stderr)
    for line in (*of_shell, *of_site, *check(wanted, None).notes):
        print(f"note: {line}", file=sys.stderr)
    record = ForkRecord(name, str(parent.path), store, found.step, found.id)
    return CheckedFork(fork, wanted, record)


def _is_there(run: RunDir, fork: ForkRequest) -> bool:
    """Return whether the fork was made before. One that has failed before its first checkpoint was
    written is made again."""
    is_in_store = bool(list_run(fork.store, run_name(fork.spec), interactive_store_options()))
    return is_in_store or (bool(run.submission_numbers()) and read_fork(run) is None)


def prepare_fork(fork: CheckedFork, say: Callable[[str], None] = print) -> int:
    """Write the submission of a fork, then give it its first checkpoint. Return the number of the
    submission.

    Raises:
        RunHeldError, CodeSnapshotError, CheckpointError, OSError: it cannot be written. The run has
            no submission then, or none that can start without its checkpoint.
    """
    wanted, record = fork.wanted, fork.record
    # first, as a fork without its checkpoint must not begin at step 0
    write_fork(wanted.run, record)
    title = f"hpckit fork {fork.request.parent.name}"
    (number,) = prepare([wanted], CommandOptions(title, say=say))
    assert number is not None  # it has no verdict
    name = run_name(fork.request.spec)
    fork_run(record.store, record.run, name, record.step, interactive_store_options())
    return number


def choose_checkpoint(
    store: str, run: str, step: int | None, left_behind: Mapping[str, str]
) -> CheckpointInfo:
    """Return the checkpoint that a fork begins with.

    Args:
        step: None: the newest that is not left behind; of one that is, it has to be named.
        left_behind: as `checkpoints_left_behind`.

    Raises:
        CheckpointError: there is none, or the store does not answer.
    """
    every = list_run(store, run, interactive_store_options())
    infos = [info for info in every if info.state == "committed"]
    chosen = choices(infos, step, left_behind)
    if step is None:
        chosen = [info for info in chosen if not info.is_suspect] or chosen
    if chosen:
        return chosen[-1]
    steps = ", ".join(str(info.step) for info in infos) or "none"
    what = f"of step {step} of run {run}"
    if step is None:
        what = f"that run {run} would continue from" if infos else f"of run {run}"
    raise CheckpointError(f"{store} has no checkpoint {what}; its steps: {steps}")
