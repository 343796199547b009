"""The fork server of the suite. There is one, and its first user decides what it imports."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

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


def fork_server() -> ForkServerContext:
    """For processes that begin as forks of one that has imported all, and has no threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context
