"""The node-seconds of evaluations."""

from __future__ import annotations

from hpckit.events.schema import EvaluationEnded, EvaluationStarted
from hpckit.report.cost.node_hours import HeldNodes, evaluation_seconds
from hpckit.report.evaluation.evaluation_records import EvaluationRecord


def start(time: float) -> EvaluationStarted:
    return EvaluationStarted(time=time, step=10, id="a", host="n1", pid=1)


def end(seconds: float) -> EvaluationEnded:
    return EvaluationEnded(step=10, id="a", seconds=seconds)


def test_an_evaluation_has_a_node_of_its_own_or_shares_that_of_the_run() -> None:
    attempts = ((start(100.0), None), (start(120.0), end(30.0)))
    done = EvaluationRecord(10, "a", attempts=attempts)
    runs = EvaluationRecord(20, "b", attempts=((start(190.0), None),), is_running=True)
    held = [HeldNodes(0.0, 130.0, 4)]
    assert evaluation_seconds([done, runs], held, 200.0, is_own_node=True) == 30.0 + 10.0
    assert evaluation_seconds([done, runs], held, 200.0, is_own_node=False) == 20.0 + 10.0
