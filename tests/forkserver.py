"""The fork servers of the tests themselves, one for each process of the suite. They are forks of a
process that has done the imports: see `tests.startup.shared_imports`."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

from tests.startup.fork_request import FOR, TESTS

_IMPORTED = [  # what is not here, each child imports by itself
    "pytest",
    "torch.distributed.fsdp",
    "torch._dynamo",  # the first optimizer that is made would import it
    "checkpointing.checkpointer",
    "checkpointing.interop.dcp",
    "checkpointing.storage.posix.posix_storage",
    "checkpointing.storage.s3.s3_storage",
    "hpckit.submit.compose",
    "hpckit.trainer.language_model",
    "hpckit.trainer.parallel.parallel_model",
    "torch.distributed.pipelining",
    "tests.faults.crashing",
    "tests.faults.following",
    "tests.faults.hanging_ranks",
    "tests.faults.storming",
    "tests.integration.checkpoint.killed_trainers",
    "tests.integration.rank_worlds",
    "tests.frozen_imports",
]
WITH_IMPORTS = {FOR: TESTS}
"""Variables of a process that is to be a fork of the one with these imports."""


def fork_server() -> ForkServerContext:
    """For processes that begin as forks of one that has imported all, and has no threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    os.environ |= WITH_IMPORTS
    try:
        forkserver.ensure_running()  # before the first process, for these variables
    finally:
        for name in WITH_IMPORTS:
            os.environ.pop(name, None)
    return context


def import_all() -> None:
    """Do the imports of fork servers."""
    for name in _IMPORTED:
        importlib.import_module(name)
