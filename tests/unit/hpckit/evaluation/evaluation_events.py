"""Events of evaluations, as tests write them."""

from __future__ import annotations

from checkpointing.events import CheckpointCommitted
from hpckit.events.schema import (
    EvaluationEnded,
    EvaluationSkipped,
    EvaluationStarted,
    EvaluationSubmitted,
)


def id_of(step: int) -> str:
    return f"{step:010d}-89abcdef"


def committed(step: int, session: str = "89abcdef") -> CheckpointCommitted:
    return CheckpointCommitted(step=step, id=f"{step:010d}-{session}", store="/store")


def submitted(step: int, job: str) -> EvaluationSubmitted:
    return EvaluationSubmitted(step=step, id=id_of(step), job=job)


def skipped(step: int) -> EvaluationSkipped:
    return EvaluationSkipped(step=step, id=id_of(step), why="newer ones wait")


def begun(step: int, job: str) -> EvaluationStarted:
    return EvaluationStarted(step=step, id=id_of(step), host="n1", pid=7, job=job)


def failed(step: int) -> EvaluationEnded:
    return EvaluationEnded(step=step, id=id_of(step), seconds=2.0, error="ValueError: bad")


def done(step: int, accuracy: float = 0.5) -> EvaluationEnded:
    end = EvaluationEnded(step=step, id=id_of(step), seconds=3.0)
    end.__dict__["eval_accuracy"] = accuracy  # a field that the class does not know, as one read
    return end
