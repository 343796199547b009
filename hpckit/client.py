"""The interface of hpckit for training programs, as `hpckit launch -- python train.py` runs them.

    from hpckit import client

    for step in range(start, steps):
        loss = train_step()
        client.step(step + 1, loss=loss)
        if client.should_stop():  # on every rank, once per step
            save(step + 1)
            client.checkpointed(step + 1)
            break

A program works without it: hpckit restarts it after failures and sends it a signal when it has to
leave. With `step`, hpckit also shows its progress and restarts it if it hangs; with `should_stop`,
all ranks leave at the same step. Where hpckit did not start the program, every function does
nothing. The module imports no torch.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, SupportsFloat

if TYPE_CHECKING:
    from hpckit.ipc.heartbeat_table import WorkerPhase
    from hpckit.ipc.program_session import ProgramSession

_BOARD = "HPCKIT_BOARD"
_sessions: dict[int, ProgramSession | None] = {}


def is_launched() -> bool:
    """Returns whether hpckit has started this process as a worker."""
    return _session() is not None


def step(step: int, /, **metrics: SupportsFloat) -> None:
    """Reports that `step` steps of the whole run are finished. Call it on every rank.

    From the first call on, a rank that finishes no step within `hang.step_s` is restarted; see
    `validating` and `saving` for work that takes longer. Rank 0 records the metrics of at most one
    step per second.

    Args:
        metrics: numbers, or tensors with one number, which are read only if the step is recorded.
            `samples` and `tokens` are the numbers of samples and tokens in this step on all ranks
            together.
    """
    if (session := _session()) is not None:
        session.report_step(step, metrics)


def should_stop() -> bool:
    """Returns whether the program is asked to save and exit, because of a preemption, the time
    limit or a person. Call it on every rank, once per step, at the same place: with a process group
    of torch it is a collective, and all ranks get the same answer."""
    session = _session()
    return session is not None and session.should_stop()


def deadline_s() -> float | None:
    """Returns the seconds that are left to save and exit; None if the program is not asked to."""
    session = _session()
    return None if session is None else session.seconds_left()


def checkpointed(step: int, /) -> None:
    """Reports that the program has saved a checkpoint with `step` finished steps. A failure after a
    new checkpoint does not count against the retries (`retry`)."""
    if (session := _session()) is not None:
        session.report_checkpoint(step)


def finished() -> None:
    """Reports that training is over. What follows, such as an export of the model, may take any
    time, as before the first `step`."""
    if (session := _session()) is not None:
        session.report_end()


@contextmanager
def validating() -> Iterator[None]:
    """Reports that the program validates during the block, for at most `hang.validate_s`."""
    from hpckit.ipc.heartbeat_table import WorkerPhase

    with _phase(WorkerPhase.VALIDATING):
        yield


@contextmanager
def saving() -> Iterator[None]:
    """Reports that the program saves during the block, for at most `hang.save_s`."""
    from hpckit.ipc.heartbeat_table import WorkerPhase

    with _phase(WorkerPhase.SAVING):
        yield


@contextmanager
def _phase(phase: WorkerPhase) -> Iterator[None]:
    if (session := _session()) is None:
        yield
        return
    with session.phase(phase):
        yield


def _session() -> ProgramSession | None:
    """Returns the session of this process. A fork of a worker, such as a process that loads data,
    has none."""
    try:
        return _sessions[os.getpid()]
    except KeyError:
        pass
    found = None
    if not _sessions and _BOARD in os.environ:
        from hpckit.ipc.own_packages import own_packages

        with own_packages():
            from hpckit.ipc.program_session import ProgramSession

            found = ProgramSession.from_env()
        atexit.register(found.close)
    _sessions[os.getpid()] = found
    return found
