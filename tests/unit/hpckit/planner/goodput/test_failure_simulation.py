"""A job's time when nodes fail: against Daly's formula, and by what has to hold of any course."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hpckit.cli.main import app
from hpckit.planner.goodput.failure_simulation import (
    GROWING,
    SimulatedFault,
    SimulatedJob,
    SimulatedSaves,
    Takes,
    TimeBreakdown,
    simulate,
)
from hpckit.planner.goodput.save_interval import useful
from hpckit.planner.goodput.snapshot_tiers import TIERS, Fleet, faults, outcome, scenario
from tests.effort import times

HOUR, DAY = 3600.0, 86400.0
LARGE = Fleet(
    gpus=16384,
    gpus_per_node=8,
    state_gb=4860.0,
    mtbf_hours=6335.0,
    lost_share=0.78,
    hang_share=0.02,
    preempt_hours=math.inf,
    spares=20,
    shrink=0,
    repair_hours=4.0,
    queue_s=0.0,
    store_gbps=1638.4,
    manifest_s=2.0,
    manifest_read_s=2.0,
    host_gbps=100.0,
    network_gbps=50.0,
    detect_s=5.0,
    hang_s=600.0,
    restart_s=60.0,
    interval_s=None,
    stall_s=None,
)
ALONE = SimulatedJob(nodes=1, spares=10**6, fewest=1, repair_s=0.0, queue_s=0.0)
OFTEN = SimulatedSaves(
    1.0, 0.0, 0.0, in_memory=True, replicas=0, load_memory_s=0.0, load_store_s=0.0
)


def fault(
    takes: Takes, mtbf_s: float, detect_s: float = 0.0, meet_s: float = 0.0, kind: str = "one"
) -> SimulatedFault:
    return SimulatedFault(kind, mtbf_s, takes, detect_s, meet_s)


def course(
    job: SimulatedJob, saves: SimulatedSaves, length_s: float, seed: int, *what: SimulatedFault
) -> TimeBreakdown:
    return simulate(job, what, saves, length_s, random.Random(seed))


@pytest.mark.parametrize("interval_s", [100.0, 600.0, 1800.0])
def test_with_one_place_to_save_it_is_dalys_formula(interval_s: float) -> None:
    mtbf_s, stall_s, restart_s = 3 * HOUR, 5.0, 180.0
    saves = replace(OFTEN, interval_s=interval_s, stall_s=stall_s, load_memory_s=60.0)
    time = course(ALONE, saves, 3e8, 1, fault("worker", mtbf_s, 10.0, 110.0))
    assert time.goodput == pytest.approx(useful(interval_s, stall_s, restart_s, mtbf_s), abs=0.002)


seconds = st.floats(0.0, 1000.0)
KINDS: tuple[Takes, ...] = ("worker", "node", "job")


@given(
    job=st.builds(
        SimulatedJob,
        nodes=st.integers(10, 100),
        spares=st.integers(0, 3),
        fewest=st.integers(1, 10),
        repair_s=st.floats(0, 1e5),
        queue_s=seconds,
    ),
    each=st.tuples(
        *(
            st.builds(
                SimulatedFault,
                st.just(takes),
                st.floats(1e3, 1e6),
                st.just(takes),
                seconds,
                seconds,
            )
            for takes in KINDS
        )
    ),
    saves=st.builds(
        SimulatedSaves,
        interval_s=st.floats(1, 1e4),
        stall_s=seconds,
        durable_s=seconds,
        in_memory=st.booleans(),
        replicas=st.integers(0, 1),
        load_memory_s=seconds,
        load_store_s=seconds,
    ),
    seed=st.integers(0, 100),
)
@settings(max_examples=times(25), deadline=None)
def test_all_time_is_told_and_none_twice(
    job: SimulatedJob, each: tuple[SimulatedFault, ...], saves: SimulatedSaves, seed: int
) -> None:
    time = course(job, saves, DAY, seed, *each)
    assert time.total == pytest.approx(DAY)
    assert all(part >= -1e-6 for part in time.parts().values())
    assert sum(time.shares().values()) == pytest.approx(1)
    of_kinds = sum(sum(shares.values()) for shares in time.shares_of().values())
    own = sum(time.shares()[part] for part in ("training", "stall", "short"))
    assert of_kinds + own == pytest.approx(1)


def test_without_failures_only_saves_cost() -> None:
    time = course(ALONE, replace(OFTEN, interval_s=9.0, stall_s=1.0), 1000.0, 0)
    assert [time.training, time.stall] == pytest.approx([900.0, 100.0])


def test_what_was_on_its_way_to_the_store_is_done_again() -> None:
    slow = replace(OFTEN, durable_s=100.0)
    none, one = (
        course(ALONE, replace(slow, replicas=n), 1e6, 2, fault("node", 1000.0)) for n in (0, 1)
    )
    failures = 1e6 / 1000.0
    # a whole one, and half of another
    assert none.parts()["again"] / failures == pytest.approx(140, rel=0.1)
    assert one.parts()["again"] / failures == pytest.approx(0.5, rel=0.1)


def test_a_job_without_spares_waits_for_repairs() -> None:
    alone = SimulatedJob(nodes=10, spares=0, fewest=10, repair_s=5000.0, queue_s=0.0)
    waits = [
        course(job, replace(OFTEN, replicas=1), 1e7, 3, fault("node", 1e4)).shares()["wait"]
        for job in (alone, replace(alone, spares=5))
    ]
    away = 1e7 * 5000.0 / 1e4  # what all repairs take, one after the other
    assert waits[0] == pytest.approx(1 - math.exp(-away / 1e7), abs=0.02)  # of M/G/infinity
    assert waits[1] < 0.01


def test_a_job_that_shrinks_does_not_wait_and_takes_longer() -> None:
    """On average so many nodes are away as fail during one repair."""
    job = SimulatedJob(nodes=100, spares=0, fewest=90, repair_s=5000.0, queue_s=0.0)
    time = course(job, replace(OFTEN, replicas=1), 1e7, 3, fault("node", 1e4, meet_s=7.0))
    shares = time.shares()
    assert shares["wait"] == 0
    assert shares["short"] == pytest.approx(5000.0 / 1e4 / 100, rel=0.1)
    grown = time.costs[GROWING].meet
    assert grown == pytest.approx(7.0 * 1e7 / 1e4, rel=0.1), "each node that is back, once"


def test_a_preemption_is_saved_for_and_queued_for() -> None:
    job = replace(ALONE, queue_s=300.0)
    saves = replace(OFTEN, interval_s=1e9, durable_s=50.0, load_store_s=20.0)
    time = course(job, saves, 1e7, 4, fault("job", 1e4, detect_s=0.0, meet_s=10.0))
    parts, often = time.parts(), time.costs["one"].meet / 10.0
    assert parts["again"] == 0, "all of it was saved, though no save was due"
    assert parts["stall"] / often == pytest.approx(50.0, rel=0.1)
    assert parts["queue"] / often == pytest.approx(300.0, rel=0.1)
    assert parts["load"] / often == pytest.approx(20.0, rel=0.1)


def test_a_hang_costs_what_it_takes_to_know_of_it() -> None:
    crash = fault("worker", 2e4, detect_s=5.0, kind="crash")
    hang = fault("worker", 2e4, detect_s=600.0, kind="hang")
    shares = course(ALONE, OFTEN, 1e8, 5, crash, hang).shares_of()
    ratio = shares["hang"]["detect"] / shares["crash"]["detect"]
    assert ratio == pytest.approx(120, rel=0.1)


def test_tiers_cost_less_the_nearer_they_are() -> None:
    slow = replace(LARGE, store_gbps=20.0)
    found = {tier: outcome(slow, tier, days=20, courses=3, seed=0) for tier in TIERS}
    goodputs = [found[tier].goodput for tier in TIERS]
    assert goodputs == sorted(goodputs)
    assert goodputs[-1] - goodputs[0] > 0.01
    assert found["store"].interval_s == pytest.approx(4860 / 20 + 2)
    assert outcome(slow, "store", 20, 3, 0) == found["store"], "the same seed, the same courses"
    job, saves = scenario(LARGE, "neighbours")
    assert (job.nodes, saves.replicas, saves.in_memory) == (2048, 1, True)
    late = scenario(replace(LARGE, manifest_s=100.0, manifest_read_s=100.0), "neighbours")[1]
    assert late.durable_s - saves.durable_s == late.load_store_s - saves.load_store_s == 98.0


def test_kinds_share_the_faults_of_a_node() -> None:
    rates = {one.kind: 1 / one.mtbf_s for one in faults(replace(LARGE, preempt_hours=100.0))}
    of_nodes = 2048 / 6335.0 / HOUR
    expected = {"worker": 0.2, "node": 0.78, "hang": 0.02}
    assert {kind: rates[kind] / of_nodes for kind in expected} == pytest.approx(expected)
    assert rates["preemption"] == pytest.approx(0.01 / HOUR)


def test_the_interval_is_the_one_that_costs_least_or_the_one_said() -> None:
    stalled = replace(LARGE, stall_s=10.0)
    best = scenario(stalled, "memory")[1].interval_s
    assert best == pytest.approx(math.sqrt(2 * 10.0 * LARGE.mtbf_s))
    said = scenario(replace(stalled, interval_s=1234.0), "memory")[1]
    assert said.interval_s == 1234.0


def test_the_command_tells_all_tiers() -> None:
    words = ["plan", "simulate", "--gpus", "1024", "--days", "5", "--courses", "2"]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.stderr
    assert all(tier in done.stdout for tier in TIERS)
    assert "128 nodes" in done.stdout
    more = ["--preempt-hours", "24", "--queue", "600", "--shrink", "2", "--json"]
    body = json.loads(CliRunner().invoke(app, [*words, *more]).stdout)
    assert [one["tier"] for one in body["tiers"]] == list(TIERS)
    assert 0.9 < body["tiers"][0]["goodput"] <= 1
    assert (body["shrink"], body["queue_s"]) == (2, 600)
    for tier in body["tiers"]:
        assert sum(tier["shares"].values()) == pytest.approx(1)
        assert tier["shares_of"]["preemption"]["queue"] > 0
    assert json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["preempt_hours"] is None


def test_each_option_of_the_command_is_a_number_of_the_fleet() -> None:
    given = {
        **{"state-gb": 7.0, "mtbf-hours": 900.0, "lost-share": 0.3, "hang-share": 0.1},
        **{"spares": 3, "repair-hours": 2.0, "store-gbps": 11.0, "manifest": 1.0},
        **{"manifest-read": 5.0, "host-gbps": 13.0, "network-gbps": 17.0, "detect": 6.0},
        **{"detect-hang": 70.0, "restart": 80.0, "interval": 90.0, "stall": 0.5},
    }
    fields = {"detect-hang": "hang_s"}
    seconds = {"manifest", "manifest-read", "detect", "restart", "interval", "stall"}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    shape = ["--gpus", "64", "--gpus-per-node", "4", "--days", "1", "--courses", "1", "--seed", "2"]
    done = CliRunner().invoke(app, ["plan", "simulate", *shape, *words, "--json"])
    body = json.loads(done.stdout)
    assert (body["gpus"], body["gpus_per_node"]) == (64, 4)
    for name, value in given.items():
        field = fields.get(name, name.replace("-", "_") + ("_s" if name in seconds else ""))
        assert body[field] == value, name


@pytest.mark.parametrize(
    "wrong",
    [["--gpus", "0"], ["--lost-share", "0.9", "--hang-share", "0.2"], ["--shrink", "2048"]],
)
def test_the_command_refuses_what_cannot_be(wrong: list[str]) -> None:
    assert CliRunner().invoke(app, ["plan", "simulate", *wrong]).exit_code == 2
