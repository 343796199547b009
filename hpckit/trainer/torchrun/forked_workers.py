"""torchrun with workers that are forks of it, and so have all imports done from the start.

`python -m hpckit.trainer.torchrun.forked_workers` takes torchrun's arguments. The import of torch
and its FSDP takes some seconds of processor time in every worker at every restart; here a node does
it once. Before the forks there are only imports, and the validator of specs is made: no CUDA, no
thread pool, no user code. If CUDA was used nevertheless, workers are started as programs, and an
event reports it.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import multiprocessing.process
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from types import FrameType

from hpckit.trainer.torchrun.first_device_use import FIRST_USE

# isort: split

import numpy as np
import torch.distributed.checkpoint.state_dict
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.launcher.api import elastic_launch

import hpckit.trainer.language_model  # noqa: F401  for what it imports
from hpckit.config.spec_parser import prepare_parser
from hpckit.events.schema import ForkUnusable
from hpckit.ipc.process_environment import WorkerEnvironment
from hpckit.ipc.rank_events import emit_event
from hpckit.system.child_processes import die_with_parent, name_process
from hpckit.system.process_end import leave_open_files, run_to_end
from hpckit.torch_internals import count_status_0_as_return, is_in_bad_fork
from hpckit.trainer import worker
from hpckit.trainer.torchrun import rendezvous_handler
from hpckit.trainer.torchrun.import_variables import ImportVariableWatch
from hpckit.trainer.torchrun.torchrun_config import launch_config

prepare_parser()  # as an import does; each worker would take 0.05 s for it before its first step

_ENDS = (logging.shutdown, weakref.finalize._exitfunc)  # type: ignore[attr-defined]
"""The functions that `logging` and `weakref` register with atexit: handlers write what they hold,
and temporary folders are removed."""
_UNKNOWN_USE = (
    "before or while torch was imported, as by a sitecustomize, a plug-in of torch.backends or "
    "TORCH_CUDA_SANITIZER"
)


@record
def main(arguments: list[str] | None = None) -> None:
    """Run the workers of one node to their end, including restarts.

    Args:
        arguments: torchrun's arguments; None: those of this process.
    """
    name_process("torchrun")
    rendezvous_handler.register()
    config = launch_config(sys.argv[1:] if arguments is None else arguments)
    config.start_method = "fork"
    FIRST_USE.check_driver()
    count_status_0_as_return()
    elastic_launch(config, entrypoint=run_forked_worker)()


def run_forked_worker() -> None:
    """Run a worker in this fork like a program that torchrun has started."""
    parent = os.getppid()
    leave_open_files()
    os.setsid()  # as torchrun starts programs
    signal.signal(signal.SIGINT, signal.default_int_handler)  # instead of torchrun's handler
    _become_main_process()
    FIRST_USE.stop()
    env = WorkerEnvironment.from_env()
    if (why := why_unusable(env.device)) is not None:
        die_with_parent(parent)
        _report_unusable(env, why)
        if status := run_as_program():
            sys.exit(status)
        return  # torchrun waits for the return value of a worker
    watch = ImportVariableWatch(env) if env.rank == 0 else None
    if watch is not None:
        watch.start()
    try:
        status = run_to_end(worker.main)  # torch would pickle an error to a file, and load that
    finally:
        if watch is not None:
            watch.close()
    if status:
        sys.exit(status)


def _become_main_process() -> None:
    """Make this fork look to the user's code like a process that torchrun has started: by its name
    and those of its children, with no start method and no folder for temporary files chosen, with
    random numbers that no other rank draws, and with the functions of atexit that modules have
    registered when they were imported, which multiprocessing forgets in a fork from Python 3.13
    on."""
    multiprocessing.current_process().name = "MainProcess"
    vars(multiprocessing.current_process())["_identity"] = ()
    vars(multiprocessing.process)["_parent_process"] = None
    multiprocessing.set_start_method(None, force=True)
    tempfile.tempdir = None
    for end in _ENDS:
        atexit.unregister(end)
        atexit.register(end)
    np.random.seed()
    torch.default_generator.seed()


def why_unusable(device: str) -> str | None:
    """Return why this fork cannot use CUDA as a new process could; None if it can.

    Args:
        device: the device on which the worker trains, `cpu` or `cuda`.
    """
    is_refused = is_in_bad_fork()
    if not is_refused and not (FIRST_USE.is_of_driver and device == "cuda"):
        return None
    return f"CUDA was used before the fork: {FIRST_USE.call or _UNKNOWN_USE}"


def run_as_program() -> int:
    """Run the worker as a program, which imports everything again, and return its exit status.

    This process waits for it, since torchrun knows the worker by the id of this process, and passes
    SIGTERM on to it.
    """
    process = subprocess.Popen([sys.executable, "-P", "-m", "hpckit.trainer.worker"])

    def pass_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    signal.signal(
        signal.SIGTERM, pass_on
    )  # after the start, so that the program inherits the earlier handling
    returncode = process.wait()
    return returncode if returncode >= 0 else 128 - returncode


def _report_unusable(env: WorkerEnvironment, why: str) -> None:
    """Write an event for the supervisor, which logs it once."""
    print(f"rank {env.rank} is started as a program of its own: {why}", file=sys.stderr)
    emit_event(env, ForkUnusable(rank=env.rank, attempt=env.attempt, why=why))


if __name__ == "__main__":
    main()
