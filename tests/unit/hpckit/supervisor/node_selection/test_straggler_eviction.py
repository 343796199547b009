"""When a slow node is replaced: never without proof, without a gain, or twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checkpointing.events import CheckpointCommitted, Event, event_with
from hpckit.agent.verdict_record import VerdictKind
from hpckit.config.spec import ElasticSpec
from hpckit.events.schema import (
    RunEnded,
    RunStarted,
    StepLogged,
    StragglerCost,
    StragglerEvicted,
    StragglerEvictionResult,
    TrainingStarted,
)
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.supervisor.generation_history import GenerationHistory
from hpckit.supervisor.node_selection.restart_cost import (
    ASSUMED_QUEUE_S,
    ASSUMED_RESTART_S,
    restart_cost,
)
from hpckit.supervisor.node_selection.straggler_eviction import (
    RECORDS,
    EvictionAnswer,
    EvictionDecision,
    EvictionHistory,
    NodeSupply,
    decide_eviction,
    eviction_result,
)
from hpckit.supervisor.verdict import GenerationEnd, PastGeneration, judge_generation
from tests.unit.hpckit.specs_and_processes import make_spec

ELASTIC = ElasticSpec(spares=1, min_nodes=None, scale_lr=None, evict_stragglers="spare")
SUPPLY = NodeSupply(names=("n0", "n1", "n2", "n3"), spares=1, has_next_job=False)
MINUTES = 10.0


class Told:
    """The events of a run of 10,000 steps of a second."""

    def __init__(self, steps: int | None = 10_000) -> None:
        self.now, self.step = 0.0, 0
        self.events: list[Event] = []
        self.add(RunStarted, steps=steps)
        self.train(after=20.0)

    def add(self, kind: type[Event], after: float = 0.0, **fields: Any) -> None:
        self.now += after
        self.events.append(event_with(kind, self.now, fields))

    def train(self, after: float, generation: int = 1, **more: Any) -> None:
        self.generation = generation
        fields = {"generation": generation, "step": self.step, "world_size": 3, "samples": 9}
        self.add(TrainingStarted, after, **fields, **more)

    def steps(self, number: int, step_s: float = 1.0) -> None:
        for _ in range(number):
            self.step += 1
            fields = {"generation": self.generation, "step": self.step, "step_s": step_s}
            self.add(StepLogged, step_s, **fields)

    def window(self, *nodes: int, share: float = 0.3, minutes: float = 5.0) -> None:
        named: dict[str, Any] = {
            "nodes": list(nodes),
            "ranks": list(nodes),
            "hosts": [f"h{n}" for n in nodes],
        }
        named |= {"phases": ["compute"] * len(nodes), "excesses": [share] * len(nodes)}
        shares: dict[str, Any] = {
            "share": share if nodes else 0.0,
            "spread": share,
            "collectives": 0.1,
        }
        measured: dict[str, Any] = {
            "traces": 12,
            "seconds": 60 * minutes,
            "step_s": 1.0,
            "generation": 1,
        }
        self.add(StragglerCost, 60 * minutes, step=self.step, **measured, **shares, **named)

    def evict(self, *hosts: str, has_paid: bool | None = True) -> None:
        fields: dict[str, Any] = {"generation": 1, "step": self.step, "nodes": [0] * len(hosts)}
        fields |= {"ranks": [0] * len(hosts), "share": 0.3, "step_s": 1.0, "restart_s": 9.0}
        self.add(StragglerEvicted, hosts=list(hosts), by="spare", reason="", **fields)
        if has_paid is not None:
            times: dict[str, Any] = {
                "before_s": 1.0,
                "after_s": 1.0,
                "restart_s": 1.0,
                "saved_s": 1.0,
            }
            result: dict[str, Any] = {
                "step": self.step,
                "hosts": list(hosts),
                "has_paid": has_paid,
                **times,
            }
            self.add(StragglerEvictionResult, **result)

    def answer(self, elastic: ElasticSpec = ELASTIC, supply: NodeSupply = SUPPLY) -> str:
        return decide(self, elastic, supply).answer


def decide(
    told: Told, elastic: ElasticSpec = ELASTIC, supply: NodeSupply = SUPPLY
) -> EvictionDecision:
    return decide_eviction(told.events, elastic, supply, told.now)


def slow(*, steps: int | None = 10_000, windows: int = 2, share: float = 0.3) -> Told:
    told = Told(steps)
    told.steps(5)
    for _ in range(windows):
        told.window(1, share=share)
    return told


def test_a_node_that_costs_more_than_a_restart_is_replaced() -> None:
    decision = decide(slow())
    assert decision.answer is EvictionAnswer.EVICT
    assert decision.event is not None
    assert (decision.event.nodes, decision.event.hosts) == ([1], ["n1"])
    assert decision.event.by == "spare"
    assert decision.reason == (
        "n1 costs 30.0% of each step, by 2 windows in a row; without it the remaining 9,995 "
        "steps take 50 min less, and a restart takes 20 s (by the start of this job and its last "
        "save)"
    )


def test_the_smallest_saving_of_the_windows_counts() -> None:
    told = slow(share=0.3)
    told.window(1, share=0.1)
    event = decide(told).event
    assert event is not None
    assert event.share == 0.1


@pytest.mark.parametrize(
    ("told", "answer"),
    [
        (Told(), "no_straggler"),
        (slow(windows=1), "unproven"),
        (slow(steps=None), "endless"),
        (slow(steps=100), "too_late"),
        (slow(share=0.001), "too_late"),
    ],
)
def test_reasons_to_keep_a_node(told: Told, answer: str) -> None:
    assert told.answer() == answer


def test_long_evidence_needs_two_windows_and_short_ones_the_time() -> None:
    once = Told()
    once.window(1, minutes=60)
    assert once.answer() == "unproven"
    once.window(1, minutes=60)
    assert once.answer() == "evict"
    often = Told()
    for _ in range(9):
        often.window(1, minutes=1)
    assert often.answer() == "unproven"
    often.window(1, minutes=1)
    assert often.answer() == "evict"


def test_a_window_without_a_straggler_breaks_the_proof() -> None:
    told = slow(windows=1)
    told.window()
    assert told.answer() == "no_straggler"
    told.window(1)
    assert told.answer() == "unproven"
    told.window(1)
    assert told.answer() == "evict"


def test_a_straggler_that_moves_about_is_no_nodes_fault() -> None:
    told = slow(windows=1)
    told.window(2)
    decision = decide(told)
    assert decision.answer is EvictionAnswer.MOVES
    assert decision.reason == "n1 was slow before n2, so it is not the fault of a node"


def test_evidence_of_an_earlier_attempt_does_not_count() -> None:
    told = slow(windows=1)
    told.train(30.0, generation=2)
    told.window(1)
    assert told.answer() == "unproven"


def test_no_node_is_replaced_twice() -> None:
    told = Told()
    told.evict("n1")
    told.window(1)
    told.window(1)
    assert told.answer() == "repeated"


@pytest.mark.parametrize("has_paid", [False, None])
def test_nothing_is_replaced_after_what_has_not_paid(has_paid: bool | None) -> None:
    told = Told()
    told.evict("n3", has_paid=has_paid)
    told.window(1)
    told.window(1)
    assert told.answer() == "unpaid"


def test_the_number_of_replaced_nodes_is_limited_for_a_while() -> None:
    told = Told()
    told.evict("n2")
    told.evict("n3")
    told.window(1)
    told.window(1)
    assert told.answer() == "limit"
    told.add(StepLogged, 24 * 3600.0, step=9, step_s=1.0, generation=1)
    assert told.answer() == "evict"


def test_all_slow_nodes_are_replaced_or_none() -> None:
    told = Told()
    told.window(1, 2)
    told.window(1, 2)
    assert told.answer() == "no_node"
    assert told.answer(supply=replace(SUPPLY, spares=2)) == "evict"


def test_another_job_is_for_those_who_want_it_and_has_to_wait_in_the_queue() -> None:
    by_job = replace(ELASTIC, evict_stragglers="job")
    none, queue = replace(SUPPLY, spares=0), replace(SUPPLY, spares=0, has_next_job=True)
    assert slow().answer(ELASTIC, queue) == "no_node"
    assert slow().answer(by_job, none) == "no_node"
    assert slow().answer(by_job, queue) == "too_late", "30 min are assumed in the queue"
    assert slow(steps=50_000).answer(by_job, queue) == "evict"
    event = decide(slow(steps=50_000), by_job, queue).event
    assert event is not None
    assert event.by == "job"
    assert decide(slow(), by_job).answer is EvictionAnswer.EVICT, "there is a spare"


def test_the_cost_of_a_restart_is_that_of_the_runs_own() -> None:
    none = restart_cost([], in_queue=False)
    assert none.seconds == ASSUMED_RESTART_S
    told = Told()
    told.add(CheckpointCommitted, step=1, seconds=4.0)
    assert restart_cost(told.events, in_queue=False).seconds == 24.0
    told.steps(5)
    told.train(40.0, generation=2)
    told.steps(5)
    told.train(60.0, generation=3)
    told.steps(5)
    told.train(1.0, generation=3, attempt=1)  # workers were restarted in place
    told.steps(5)
    found = restart_cost(told.events, in_queue=False)
    assert (found.seconds, found.source) == (50.0, "by 2 restarts of this run")
    assert restart_cost(told.events, in_queue=True).seconds == 50.0 + ASSUMED_QUEUE_S
    told.add(RunEnded, verdict="preempted")
    told.add(RunStarted, 100.0, steps=10_000)
    queued = restart_cost(told.events, in_queue=True)
    assert queued.seconds == 150.0
    assert queued.source == "by 2 restarts of this run, and by 1 earlier job in the queue"


@pytest.mark.parametrize(("after_s", "has_paid"), [(0.7, True), (1.0, False), (1.1, False)])
def test_whether_it_has_paid(after_s: float, has_paid: bool) -> None:
    told = Told()
    told.steps(30)
    told.evict("n1", has_paid=None)
    told.steps(2)  # until the ranks leave
    told.train(50.0, generation=2)
    told.steps(1, 9.0)  # the first step takes longer
    told.steps(RECORDS - 1, after_s)
    assert eviction_result(told.events) is None
    told.steps(1, after_s)
    result = eviction_result(told.events)
    assert result is not None
    assert (result.before_s, result.after_s) == (1.0, after_s)
    assert result.restart_s == pytest.approx(50.0 + 9.0 - after_s)
    assert result.saved_s == pytest.approx((1.0 - after_s) * 9970 - result.restart_s)
    assert result.has_paid is has_paid
    told.events.append(result)
    assert eviction_result(told.events) is None


def test_a_long_history_is_short_and_decides_the_same() -> None:
    told = Told()
    told.steps(500)
    told.train(50.0, generation=2)
    told.steps(500)
    told.window(1)
    told.window(1)
    kept = EvictionHistory(told.events)
    assert len(kept.events()) < 80
    short = decide_eviction(kept.events(), ELASTIC, SUPPLY, told.now)
    assert short.answer is EvictionAnswer.EVICT
    assert short.reason == decide(told).reason
    assert not kept.has_unjudged
    told.steps(1)
    told.evict("n1", has_paid=None)
    assert EvictionHistory(told.events).has_unjudged
    told.train(50.0, generation=3)
    told.steps(RECORDS + 1, 0.5)
    found = eviction_result(EvictionHistory(told.events).events())
    assert found is not None
    assert (found.before_s, found.after_s, found.restart_s) == (1.0, 0.5, 50.0)


def test_an_eviction_is_a_verdict_after_which_the_job_continues() -> None:
    spec = make_spec()
    why = "n1 is slow"
    end = GenerationEnd(WorkerRequest.PREEMPT, (), (), True, eviction=why)
    verdict = judge_generation(end, (), spec.retry)
    assert (verdict.kind, verdict.final) == (VerdictKind.EVICTED, False)
    assert verdict.reason.startswith(f"{why}; ")
    history = GenerationHistory([PastGeneration(verdict.kind, True)])
    assert not history.has_to_leave(WorkerRequest.NONE), "a spare takes over"
    assert history.has_to_leave(WorkerRequest.PREEMPT)
    history.is_evicted_by_next_job = True
    assert history.has_to_leave(WorkerRequest.NONE)
    stopped = judge_generation(replace(end, request=WorkerRequest.STOP), (), spec.retry)
    assert stopped.kind is VerdictKind.STOPPED
