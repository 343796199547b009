"""The process of one rank, which calls the training function and reports how it ended."""

from __future__ import annotations

import faulthandler
import importlib
import inspect
import logging
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import read_spec
from hpckit.events.schema import WorkerStarted
from hpckit.hangs.own_snapshot import describe_worker
from hpckit.ipc.heartbeat_table import HeartbeatTable, WorkerPhase
from hpckit.ipc.memory_kinds import MemoryKind
from hpckit.ipc.process_environment import STACKS_SIGNAL, WorkerEnvironment
from hpckit.ipc.rank_events import emit_event
from hpckit.ipc.snapshot_exchange import SnapshotResponder
from hpckit.system.atomic_files import read_json, write_json
from hpckit.system.child_processes import die_with_parent, name_process, rank_name, redirect_output
from hpckit.system.process_end import forks_ended, run_to_end, write_open_files
from hpckit.trainer.errors import TrainingError, message_of
from hpckit.trainer.memory.out_of_memory import memory_of
from hpckit.trainer.permanent_errors import (
    finished_steps,
    is_before_step,
    is_passing,
    is_permanent,
    is_repeated,
)
from hpckit.trainer.signal_guard import install_signal_guard
from hpckit.trainer.user_program import is_late_failure, run_program

log = logging.getLogger("hpckit.trainer.worker")  # also where this is the main module

_OF_TERMINALS = (signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)
"""Signals of a terminal besides SIGINT. None reaches the session of a worker from there."""


def main() -> int:
    """Run the training function of the spec as this rank, and return the exit status."""
    die_with_parent(os.getppid())
    started_s = time.monotonic()
    env = WorkerEnvironment.from_env()
    name_process(rank_name(env.rank))
    at = env.at
    redirect_output(at.run.rank_log(at.generation, at.node, env.rank))
    _set_up_logging()
    where = f"rank {env.rank} of {env.world_size}, attempt {env.attempt}, on {env.device}"
    log.info("%s: process %d on %s", where, os.getpid(), socket.gethostname())
    if _is_refused(env):
        log.error("an earlier attempt failed permanently: this one ends before it starts")
        return 1
    install_signal_guard(env.attach_heartbeats().request)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # what a terminal's launch has blocked
    for number in _OF_TERMINALS:
        signal.signal(number, signal.SIG_DFL)  # a supervisor without a terminal ignores them
    os.environ.pop("PYTHONSAFEPATH", None)  # the user's code may start scripts with modules beside
    _print_stacks_on_signal(at.run.node_logs(at.generation, at.node) / f"rank{env.rank}.stacks")
    if env.snapshots is not None:
        SnapshotResponder(env.snapshots, env.local_rank, describe_worker).start()
    emit_event(env, WorkerStarted(rank=env.rank, attempt=env.attempt, pid=os.getpid()))
    has_observed_steps = False
    try:
        spec = read_spec(at.run.spec(at.submission))
        if env.is_health_check:
            from hpckit.trainer.deep_health.health_measuring import (
                measure_as_worker,  # imports torch, which a program may not need
            )

            measure_as_worker(spec, env)
            return 0
        has_observed_steps = spec.command is not None and spec.command.has_observed_steps
        if spec.command is not None:
            run_program(spec.command, spec.hang, env)
        else:
            assert spec.entry is not None  # the spec is valid
            _print_records_of_users()
            with forks_ended():
                find_entry(spec.entry)(spec)
            require_end(spec.entry, env.attach_heartbeats().own_phase())
    except BaseException as error:
        may_pass = is_passing(error) or is_late_failure(env, started_s)
        _report_failure(env, error, may_pass, has_observed_steps)
        raise
    return 0


_FORMAT = logging.Formatter("%(asctime)s %(levelname)s %(message)s")


class _UnprintedRecords(logging.StreamHandler[TextIO]):
    """Prints records unless a handler of the root prints them, too: the user's code may have given
    it a handler that writes to a file of its own, or none."""

    def emit(self, record: logging.LogRecord) -> None:
        others = [one for one in logging.getLogger().handlers if one.level <= record.levelno]
        streams = (sys.stdout, sys.stderr, self.stream)
        if not any(getattr(other, "stream", None) in streams for other in others):
            super().emit(record)


def _set_up_logging() -> None:
    """Have hpckit's own records printed to the log of the rank, whatever the user's code does to
    logging. The root gets no handler, since `logging.basicConfig` of the user would do nothing
    then, and its level is Python's default, which a program expects."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    _print_info_of("hpckit", "checkpointing")


def _print_records_of_users() -> None:
    """Have records of the modules of a training function printed, too, until it configures logging.
    Modules of a program may be named as hpckit's package `data`, which are not set up then."""
    _print_info_of("data")
    logging.getLogger().setLevel(logging.INFO)
    printing = logging.StreamHandler()
    printing.setFormatter(_FORMAT)
    logging.lastResort = printing


def _print_info_of(*packages: str) -> None:
    own = _UnprintedRecords()
    own.setFormatter(_FORMAT)
    for package in packages:
        logger = logging.getLogger(package)
        logger.setLevel(logging.INFO)
        logger.addHandler(own)


def _is_refused(env: WorkerEnvironment) -> bool:
    """Returns whether a worker of this node has reported that no further attempt can help. torchrun
    may start the next attempt before the agent has read that."""
    table = HeartbeatTable.attach(env.heartbeat_table, env.local_world_size)
    return any(slot.phase is WorkerPhase.REFUSED for slot in table.slots())


def find_entry(name: str) -> Callable[[RunSpec], None]:
    """Return the training function that `module:function` names.

    Raises:
        ImportError: there is no such module, or no such function in it.
        TrainingError: it cannot be called with the spec alone.
    """
    module, _, function = name.partition(":")
    found = getattr(importlib.import_module(module), function, None)
    if not callable(found):
        raise ImportError(f"entry: {module} has no function {function}")
    try:
        inspect.signature(found).bind(None)
    except TypeError as error:
        raise TrainingError(
            f"entry: {name} cannot be called with one argument, the config ({error}): "
            f"write def {function}(cfg)"
        ) from None
    except ValueError:  # a function written in C may have no signature
        pass
    entry: Callable[[RunSpec], None] = found
    return entry


def require_end(entry: str, phase: WorkerPhase | None) -> None:
    """Check that a training function which has returned has come to the end of its run.

    Args:
        phase: the phase that this process has reported last.

    Raises:
        TrainingError: it never began a run, and another attempt would not either.
        RuntimeError: it left the run in the middle, as after an error that it caught.
    """
    if phase is None:
        raise TrainingError(
            f"the training function {entry} returned without `with training_run(cfg)`; hpckit "
            "follows and saves what happens in that block: put the training loop into it (from "
            "hpckit import training_run), or start a script as it is: hpckit launch -- python FILE"
        )
    if phase not in (WorkerPhase.DONE, WorkerPhase.LEFT):
        raise RuntimeError(
            f"the training function {entry} returned after `with training_run(cfg)` had failed "
            f"or had not ended (in phase {phase.name.lower()}); let its errors leave the function"
        )


def _print_stacks_on_signal(path: Path) -> None:
    """Have `STACKS_SIGNAL` write the stacks of all threads to the file at `path`, even while the
    main thread waits in C code."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    faulthandler.register(STACKS_SIGNAL, file=handle, all_threads=True)


def _report_failure(
    env: WorkerEnvironment, error: BaseException, may_pass: bool, has_observed_steps: bool
) -> None:
    """Write the error to where the agent reads it, then set the phase in the heartbeat table.

    Args:
        may_pass: whether another attempt may not meet the error.
        has_observed_steps: whether only rank 0 may know the finished steps.
    """
    at, heartbeats = env.at, env.attach_heartbeats()
    step, is_before = _place_in_training(env, has_observed_steps)
    notes = map(str, getattr(error, "__notes__", ()))
    record = {
        "rank": env.rank,
        "type": type(error).__name__,
        "message": _record_text(": ".join([message_of(error), *notes])),
        "traceback": _record_text("".join(traceback.format_exception(error))),
        "time": time.time(),
        "memory": (memory := memory_of(error)),
        "pid": os.getpid(),
        "is_passing": may_pass,
        "is_before_step": is_before,
        "step": step,
    }
    write_open_files()  # the agent may end this process as soon as it reads the phase
    is_final = is_permanent(error) or is_repeated(_previous_record(env), record)
    try:
        write_json(at.run.rank_error(at.generation, at.node, env.rank, env.attempt), record)
    except OSError as full:
        log.error("the error could not be written for the agent, only to this log: %s", full)
    if memory is MemoryKind.GPU:
        from hpckit.trainer.memory.memory_snapshot import (
            write_memory_snapshot,  # imports torch, which a worker without GPU may not need
        )

        write_memory_snapshot(at.run.memory_snapshot(at.generation, at.node, env.rank, env.attempt))
    phase = WorkerPhase.REFUSED if is_final else WorkerPhase.FAILED
    heartbeats.report(phase, heartbeats.last().step)


_MOST = 16_384
"""Characters of a message or a traceback that are recorded; the log of the rank has all."""


def _record_text(text: str) -> str:
    """Return the beginning and the end of a text, with escapes for what UTF-8 does not have, such
    as the bytes of a file name that is not UTF-8."""
    if len(text) > _MOST:
        half = _MOST // 2
        cut = f"\n[{len(text) - 2 * half:,} characters are left out]\n"
        text = text[:half] + cut + text[-half:]
    return text.encode("utf-8", "backslashreplace").decode()


def _place_in_training(env: WorkerEnvironment, has_observed_steps: bool) -> tuple[int | None, bool]:
    """Return the number of steps that this attempt has finished, or None, and whether it is certain
    that it has finished none."""
    table = HeartbeatTable.attach(env.heartbeat_table, env.local_world_size)
    slots = table.slots()
    own = slots[env.local_rank]
    if not has_observed_steps:
        return finished_steps(own, env.attempt), is_before_step(own, env.attempt)
    step = finished_steps(own, env.attempt, slots)
    is_rank_0_here = env.rank == env.local_rank
    return step, step is None and is_rank_0_here


def _previous_record(env: WorkerEnvironment) -> Mapping[str, Any] | None:
    """Return the record of the error of this rank's previous attempt in the generation; None if
    there is none, or it cannot be read."""
    at = env.at
    try:
        found: Mapping[str, Any] | None = read_json(
            at.run.rank_error(at.generation, at.node, env.rank, env.attempt - 1)
        )
    except OSError as error:
        log.warning("the error of the previous attempt cannot be read: %s", error)
        return None
    return found


if __name__ == "__main__":
    sys.exit(run_to_end(main))
