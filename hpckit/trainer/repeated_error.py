"""Whether a worker's error is that of its previous attempt, so that a third one would meet it
too, and after how many steps it was raised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpckit.ipc.heartbeat_table import Heartbeat, WorkerPhase
from hpckit.text.error_words import error_words, names_gpu

_BEFORE_STEP = (WorkerPhase.STARTING, WorkerPhase.RESUMED)


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
    if may_pass or names_gpu(now["type"], now["message"]):  # another node may have a better one
        return False
    return _words(before) == _words(now)


def _words(record: Mapping[str, Any]) -> str:
    return error_words(record["type"], record["message"])
