"""What measured faults are said to cost: by hand, event by event, and against the simulator."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.planner.goodput.failure_simulation import (
    SimulatedFault,
    SimulatedJob,
    SimulatedSaves,
    simulate,
)
from hpckit.planner.goodput.goodput_prediction import FaultCampaign, MeasuredFault, predict

CRASH = MeasuredFault(per_node_hour=0, detect_s=1, queue_s=0, meet_s=2, load_s=3, steps_again=10)
NODE = MeasuredFault(per_node_hour=0, detect_s=5, queue_s=4, meet_s=2, load_s=3, steps_again=25)


def campaign(
    faults: dict[str, MeasuredFault], *, is_patient: bool = True, stall_s: float = 0.0
) -> FaultCampaign:
    return FaultCampaign(nodes=4, step_s=0.2, stall_s=stall_s, faults=faults, is_patient=is_patient)


def test_by_hand_event_by_event() -> None:
    """600 s, in which a worker is lost after 100 s and 300 s, and a node after 200 s."""
    happened = [(100.0, CRASH), (200.0, NODE), (300.0, CRASH)]
    now, kept, again = 0.0, 0, 0
    for at, cost in [*happened, (600.0, None)]:
        kept += round((at - now) / 0.2) - again
        if cost is not None:
            again = int(cost.steps_again)
            now = at + cost.detect_s + cost.queue_s + cost.meet_s + cost.load_s
    assert kept == (600 - 6 - 14 - 6) * 5 - 10 - 25 - 10
    said = predict(
        campaign(
            {
                "worker": replace(CRASH, per_node_hour=2 * 6 / 4),
                "node": replace(NODE, per_node_hour=1 * 6 / 4),
            }
        )
    )
    assert said.ettr == pytest.approx(kept * 0.2 / 600)
    assert said.parts == pytest.approx(
        {"detect": 7 / 600, "queue": 4 / 600, "meet": 6 / 600, "load": 9 / 600, "again": 9 / 600}
    )
    assert said.kinds == pytest.approx({"worker": 16 / 600, "node": 19 / 600})


def test_saves_take_their_share_of_what_is_left() -> None:
    said = predict(
        campaign({"worker": replace(CRASH, per_node_hour=6 / 4, steps_again=0)}, stall_s=0.05)
    )
    assert said.ettr == pytest.approx(0.99 * 0.8)
    assert said.stall == pytest.approx(0.99 * 0.2)


def test_nothing_goes_wrong_without_faults() -> None:
    for is_patient in (True, False):
        said = predict(campaign({"worker": CRASH}, is_patient=is_patient))
        assert (said.ettr, said.stall, sum(said.parts.values())) == (1, 0, 0)


def test_more_faults_than_there_is_time_for() -> None:
    for is_patient, per_hour in ((True, 3600.0), (False, 3600.0), (False, 1e9)):
        said = predict(
            campaign({"worker": replace(CRASH, per_node_hour=per_hour)}, is_patient=is_patient)
        )
        assert 0 <= said.ettr < 0.01
        assert sum(said.parts.values()) + said.ettr == pytest.approx(1)


def test_faults_that_strike_while_it_comes_back_cost_more() -> None:
    costs = replace(CRASH, steps_again=0)
    for per_hour, is_close in ((0.1, True), (60.0, False)):
        faults = {"worker": replace(costs, per_node_hour=per_hour / 4)}
        patient, restless = (predict(campaign(faults, is_patient=p)).ettr for p in (True, False))
        assert (restless == pytest.approx(patient, abs=1e-6)) is is_close
    rate = 60 / 3600
    assert restless == pytest.approx(math.exp(-rate * CRASH.away_s)), "of being up, by renewal"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (campaign({"worker": replace(CRASH, per_node_hour=-1.0)}), "per_node_hour of worker"),
        (campaign({"node": replace(NODE, load_s=math.nan)}), "load_s of node"),
        (replace(campaign({}), step_s=0.0), "step_s"),
    ],
)
def test_what_is_no_measurement_is_refused(wrong: FaultCampaign, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        predict(wrong)


measured = st.builds(
    MeasuredFault,
    per_node_hour=st.floats(0, 15),
    detect_s=st.floats(0, 60),
    queue_s=st.just(0.0),
    meet_s=st.floats(0, 60),
    load_s=st.just(3.0),
    steps_again=st.just(0.0),
)
kinds = st.dictionaries(st.sampled_from(["worker", "node", "hang"]), measured)


@given(faults=kinds, is_patient=st.booleans(), stall_s=st.floats(0, 1))
def test_all_shares_add_up(
    faults: dict[str, MeasuredFault], is_patient: bool, stall_s: float
) -> None:
    faults = {kind: replace(one, steps_again=7, queue_s=1) for kind, one in faults.items()}
    said = predict(campaign(faults, is_patient=is_patient, stall_s=stall_s))
    for split in (said.parts, said.kinds):
        assert said.ettr + said.stall + sum(split.values()) == pytest.approx(1)
    assert min(said.ettr, said.stall, *said.parts.values()) >= 0


@given(faults=kinds.filter(len), interval_s=st.floats(1, 60), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_the_simulator_agrees(
    faults: dict[str, MeasuredFault], interval_s: float, seed: int
) -> None:
    """Its faults strike at any moment; each loses half an interval, or less if it comes early."""
    per_hour = 4 * sum(one.per_node_hour for one in faults.values())
    if per_hour < 1:
        return
    rate = per_hour / 3600
    lost_s = 1 / rate - interval_s / math.expm1(rate * interval_s)  # mean age of the last save
    said = predict(
        campaign(
            {kind: replace(one, steps_again=lost_s / 0.2) for kind, one in faults.items()},
            is_patient=False,
        )
    )
    job = SimulatedJob(nodes=4, spares=10**6, fewest=4, repair_s=0, queue_s=0)
    saves = SimulatedSaves(interval_s, 0, 0, True, 1, load_memory_s=3.0, load_store_s=3.0)
    shapes = [
        SimulatedFault(kind, 3600 / (4 * one.per_node_hour), "worker", one.detect_s, one.meet_s)
        for kind, one in faults.items()
        if one.per_node_hour > 0
    ]
    time = simulate(job, shapes, saves, 10_000 * 3600 / per_hour, random.Random(seed))
    assert said.ettr == pytest.approx(time.goodput, abs=0.015)
    for part, share in said.parts.items():
        assert share == pytest.approx(time.shares().get(part, 0.0), abs=0.015), part
