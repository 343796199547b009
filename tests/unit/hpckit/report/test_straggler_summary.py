"""What is said of stragglers and of evictions, in plain sentences, and in metrics and costs."""

from __future__ import annotations

from typing import Any

from hpckit.events.schema import Event, event_of
from hpckit.exporter.run_metrics import RunMetrics
from hpckit.report.history import build_history
from hpckit.report.performance.speed_report import speed_facts
from hpckit.report.progress import build_progress
from hpckit.submit.run_follower import describe

SLOW: dict[str, list[Any]] = {
    "nodes": [3],
    "ranks": [12],
    "hosts": ["n3"],
    "excesses": [0.3],
    "phases": ["data_wait"],
}
NONE: dict[str, list[Any]] = {name: [] for name in SLOW}


def cost(
    time: float, share: float, spread: float = 0.01, named: dict[str, list[Any]] = NONE
) -> Event:
    shares = {"share": share, "spread": spread, "collectives": 0.1}
    about = {"generation": 1, "step": 40, "traces": 12, "seconds": 10.0, "step_s": 1.0}
    return event_of(time, "straggler_cost", {**about, **shares, **named})


LIFE = [
    event_of(1.0, "run_started", {"steps": 100}),
    event_of(2.0, "generation_started", {"generation": 1, "nodes": 4, "from_step": 0}),
    event_of(3.0, "training_started", {"generation": 1, "step": 0, "world_size": 16, "samples": 9}),
]
EVICTED = event_of(
    50.0,
    "straggler_evicted",
    {
        **{"generation": 1, "step": 40, "nodes": [3], "hosts": ["n3"], "ranks": [12]},
        **{"share": 0.073, "step_s": 1.0, "restart_s": 9.0, "by": "spare", "reason": "it pays"},
    },
)
RESULT = event_of(
    60.0,
    "straggler_eviction_result",
    {
        **{"step": 60, "hosts": ["n3"], "before_s": 1.0, "after_s": 0.93, "restart_s": 40.0},
        **{"saved_s": 3600.0, "has_paid": True},
    },
)


def test_the_cost_is_a_sentence_with_the_rank_and_the_phase() -> None:
    said = build_progress([*LIFE, cost(20.0, 0.073, named=SLOW)]).stragglers
    assert said == (
        "without rank 12 on n3 a step would take 7.3% less time; slow there: waiting for data "
        "(12 traced steps)",
    )


def test_no_straggler_is_said_only_in_the_report() -> None:
    events = [*LIFE, cost(20.0, 0.0)]
    progress = build_progress(events)
    assert progress.stragglers == ()
    assert progress.straggler_cost is not None
    facts = dict(speed_facts(build_history(events), None))
    assert facts["stragglers"] == (
        "0.0% of the step time lost to slow nodes (1 window); newest: no rank is slower than "
        "chance explains (12 traced steps)"
    )
    moves = dict(speed_facts(build_history([*LIFE, cost(20.0, 0.0, 0.2)]), None))
    assert "it is not the fault of a node" in moves["stragglers"]


def test_a_new_attempt_has_no_cost_yet() -> None:
    again = event_of(
        30.0, "training_started", {"generation": 2, "step": 40, "world_size": 16, "samples": 9}
    )
    assert build_progress([*LIFE, cost(20.0, 0.073, named=SLOW), again]).straggler_cost is None


def test_the_report_says_whether_an_eviction_has_paid() -> None:
    events = [*LIFE, cost(20.0, 0.1, named=SLOW), cost(30.0, 0.2, named=SLOW), EVICTED, RESULT]
    facts = dict(speed_facts(build_history(events), None))
    assert facts["stragglers"].startswith("15.0% of the step time lost to slow nodes (2 windows)")
    assert facts["evicted"] == "n3 replaced after step 40: it pays"
    assert facts["eviction"] == (
        "the eviction of n3 has paid: a step takes 7.0% less time (1.000 s before, 0.930 s after), "
        "the restart took 40 s; 60 min saved by the last step"
    )
    record = build_history(events).record()
    assert record["straggler_cost"]["share"] == 0.15
    assert record["straggler_cost"]["newest"]["hosts"] == ["n3"]
    assert [one["hosts"] for one in record["evictions"]] == [["n3"]]
    assert record["eviction_results"][0]["has_paid"]
    assert all(describe(event) for event in events[-3:])


def test_metrics_have_the_share_and_the_phase_of_the_present_attempt() -> None:
    metrics = RunMetrics()
    for event in [*LIFE, cost(20.0, 0.073, named=SLOW)]:
        metrics.take(event)
    found = {one.name: (one.labels, one.value) for one in metrics.samples("r", 30.0)}
    assert found["hpckit_straggler_loss_ratio"] == (("r",), 0.073)
    assert found["hpckit_rank_spread_loss_ratio"] == (("r",), 0.01)
    labels = ("r", "n3", "12", "data_wait")
    assert found["hpckit_straggler_excess_ratio"] == (labels, 0.3)
    metrics.take(event_of(40.0, "training_started", {"generation": 2, "step": 40}))
    assert "hpckit_straggler_loss_ratio" not in {one.name for one in metrics.samples("r", 50.0)}
