"""torchrun whose workers are forks of it, which have all imports of a worker from the start.

`python -m hpckit.trainer.torchrun.forked_workers` takes torchrun's arguments. Importing torch and
its FSDP takes some seconds of processor time in every worker at every restart; here it is done once
on a node. Nothing but imports happens before the forks: no CUDA, no thread pool, no user code. If
something has used CUDA nevertheless, workers are programs of their own, and the run says so.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import traceback
from types import FrameType

from hpckit.trainer.torchrun.first_device_use import FIRST_USE

# isort: split

import numpy as np
import torch
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.launcher.api import elastic_launch

import hpckit.trainer.language_model  # noqa: F401  for what it imports
from hpckit.events.event_log import EventLog
from hpckit.ipc.process_environment import WorkerEnvironment
from hpckit.system.child_processes import die_with_parent
from hpckit.trainer import worker
from hpckit.trainer.torchrun import rendezvous_handler
from hpckit.trainer.torchrun.torchrun_config import launch_config

_UNSEEN = (
    "before or while torch was imported, as by a sitecustomize, a plug-in of torch.backends or "
    "TORCH_CUDA_SANITIZER"
)


@record
def main(arguments: list[str] | None = None) -> None:
    """Run the workers of one node to their end, including restarts.

    Args:
        arguments: torchrun's; None: those of this process.
    """
    rendezvous_handler.register()
    config = launch_config(sys.argv[1:] if arguments is None else arguments)
    config.start_method = "fork"
    FIRST_USE.look()
    elastic_launch(config, entrypoint=run_forked_worker)()


def run_forked_worker() -> None:
    """Be a worker, in a fork, as if it had been started as a program of its own."""
    parent = os.getppid()
    os.setsid()  # as torchrun starts programs
    signal.signal(signal.SIGINT, signal.default_int_handler)  # not torchrun's
    np.random.seed()  # or all ranks of a node would draw the same
    FIRST_USE.stop()
    env = WorkerEnvironment.from_env()
    if (why := why_unusable(env.device)) is not None:
        die_with_parent(parent)
        _report_unusable(env, why)
        if status := run_as_program():
            sys.exit(status)
        return  # torchrun waits for the return value of a worker
    try:
        worker.main()
    except Exception:  # noqa: BLE001  torch would pickle it to a file in /tmp, and load that
        traceback.print_exc()
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()  # programs do this at their end, forks of multiprocessing do not


def why_unusable(device: str) -> str | None:
    """Return why this process, a fork, cannot use CUDA as a new one could; None: it can.

    Args:
        device: what the worker is to train on, `cpu` or `cuda`.
    """
    is_refused = torch.cuda._is_in_bad_fork()
    if not is_refused and not (FIRST_USE.is_of_driver and device == "cuda"):
        return None
    return f"CUDA was used before the fork: {FIRST_USE.call or _UNSEEN}"


def run_as_program() -> int:
    """Run the worker as a program of its own, which imports everything again; returns its exit
    status.

    This process stays, since torchrun knows the worker by this process id. SIGTERM is passed on.
    """
    process = subprocess.Popen([sys.executable, "-m", "hpckit.trainer.worker"])

    def pass_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)  # after the start: the program keeps what is inherited
    returncode = process.wait()
    return returncode if returncode >= 0 else 128 - returncode


def _report_unusable(env: WorkerEnvironment, why: str) -> None:
    """Report it to the supervisor, which logs it once."""
    print(f"rank {env.rank} is started as a program of its own: {why}", file=sys.stderr)
    at = env.at
    with EventLog(at.run.events, generation=at.generation, node=at.node) as events:
        events.emit("fork_unusable", rank=env.rank, attempt=env.attempt, why=why)


if __name__ == "__main__":
    main()
