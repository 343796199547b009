"""torchrun whose workers are forks of it, and have all that every worker imports from the start.

`python -m hpckit.training.forking` takes torchrun's arguments. Importing torch and its FSDP takes
some seconds of processor time, in every worker, at every restart; here it is done once on a node.
Nothing but imports happens before the forks: no CUDA, no thread pool, no code of the user's.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import traceback

import numpy as np
import torch
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

import hpckit.training.language_model  # noqa: F401  for what it imports
from hpckit.training import rendezvous, worker
from hpckit.training.errors import TrainingError


@record
def main(arguments: list[str] | None = None) -> None:
    """Run the workers of one node to their end, restarts included."""
    rendezvous.register()
    config, _, _ = config_from_args(parse_args(arguments))  # type: ignore[no-untyped-call]
    config.start_method = "fork"
    elastic_launch(config, entrypoint=begin)()


def begin() -> None:
    """In a fork: be a worker as if it had been started as a program of its own.

    Raises:
        TrainingError: something has begun to use CUDA before the fork.
    """
    os.setsid()  # as torchrun starts programs
    signal.signal(signal.SIGINT, signal.default_int_handler)  # not torchrun's
    np.random.seed()  # or all ranks of a node would draw the same
    if torch.cuda._is_in_bad_fork():
        raise TrainingError(
            "CUDA was in use before the workers were forked, and cannot be used in them: "
            "set launch.preload=false"
        )
    try:
        worker.main()
    except Exception:  # noqa: BLE001  torch would pickle it to a file in /tmp, and load that
        traceback.print_exc()
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()  # as a program does at its end, and a fork of multiprocessing not


if __name__ == "__main__":
    main()
