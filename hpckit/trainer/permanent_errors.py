"""Decides which errors of a worker another attempt would meet too: errors in the input, and those
that two attempts have raised before their first step. `hpckit.agent.error_repetition` decides of
those that are raised at the same step each time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from checkpointing import CheckpointError, OtherRankError, SaveError, ServiceError, StoreError
from checkpointing.errors import causes
from data import DataError
from hpckit.config.spec_parser import SpecError
from hpckit.ipc.heartbeat_table import Heartbeat, WorkerPhase
from hpckit.text.error_words import error_words, names_gpu
from hpckit.trainer.errors import TrainingError, message_of
from hpckit.trainer.memory.out_of_memory import memory_of

# The messages of RuntimeErrors by which gloo reports a peer that is gone or cannot be reached.
_NETWORK = re.compile(r"\bgloo\b|Connection (closed by peer|reset|refused)|[Tt]imed out")
_OF_INPUT = (SpecError, DataError, CheckpointError, TrainingError, ImportError, SyntaxError)
_BEFORE_STEP = (WorkerPhase.STARTING, WorkerPhase.RESUMED)


def is_permanent(error: BaseException) -> bool:
    """Whether another attempt would fail in the same way. Errors of storage and of memory are not
    permanent, since both may be available next time; of an error on another rank, that rank
    decides."""
    if memory_of(error) is not None or any(map(_may_pass, causes(error))):
        return False
    return isinstance(error, _OF_INPUT)


def is_passing(error: BaseException) -> bool:
    """Whether the error came from storage, the network or another rank and may not occur again."""
    return any(_may_pass(one) or _is_of_network(one) for one in causes(error))


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, OSError | SaveError | StoreError | ServiceError | OtherRankError)


def _is_of_network(error: BaseException) -> bool:
    names = {kind.__qualname__ for kind in type(error).__mro__}  # torch need not be installed
    return "DistError" in names or _NETWORK.search(message_of(error)) is not None


def is_before_step(slot: Heartbeat, attempt: int) -> bool:
    """Return whether this attempt has finished no step, by the last heartbeat in the slot of its
    rank, which may be that of the attempt before. A program that says no steps has finished
    none."""
    if slot.attempt != attempt or slot.phase in _BEFORE_STEP:
        return True
    return slot.phase is WorkerPhase.RUNNING and slot.step == 0


def finished_steps(slot: Heartbeat, attempt: int, others: Sequence[Heartbeat] = ()) -> int | None:
    """Return the number of steps that this attempt has finished when it failed; None: it has
    finished none, or they are not known.

    Args:
        slot: the row of the rank in the heartbeat table.
        others: rows of which one may have the steps of a program that only rank 0 tells.
    """
    known = [one for one in (slot, *others) if not is_before_step(one, attempt)]
    return max((one.step for one in known), default=None)


def is_repeated(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> bool:
    """Return whether two successive attempts of a rank have failed with the same error before their
    first step, and a third one would.

    Args:
        before: the record of the error of the previous attempt, if it has one.
        now: the record of this one's.
    """
    if before is None or not (before.get("is_before_step") and now["is_before_step"]):
        return False
    may_pass = now["is_passing"] or now["memory"] is not None
    if may_pass or names_gpu(now["type"], now["message"]):  # a GPU of another node may work
        return False
    return _words(before) == _words(now)


def _words(record: Mapping[str, Any]) -> str:
    return error_words(record["type"], record["message"])
