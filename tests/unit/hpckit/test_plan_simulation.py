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
from hpckit.plan.goodput import useful
from hpckit.plan.simulation import Job, Recovery, Saves, simulate
from hpckit.plan.tiers import TIERS, Fleet, outcome, scenario

HOUR, DAY = 3600.0, 86400.0
LARGE = Fleet(
    gpus=16384,
    gpus_per_node=8,
    state_gb=4860.0,
    mtbf_hours=6335.0,
    lost_share=0.78,
    spares=20,
    repair_hours=4.0,
    store_gbps=1638.4,
    host_gbps=100.0,
    network_gbps=50.0,
    detect_s=5.0,
    restart_s=60.0,
)


@pytest.mark.parametrize("interval_s", [100.0, 600.0, 1800.0])
def test_with_one_place_to_save_it_is_dalys_formula(interval_s: float) -> None:
    mtbf_s, stall_s, restart_s = 3 * HOUR, 5.0, 180.0
    job = Job(nodes=1, mtbf_s=mtbf_s, lost_share=0.0, spares=0, repair_s=0.0)
    saves = Saves(interval_s, stall_s, durable_s=0.0, in_memory=True, replicas=0)
    recovery = Recovery(10.0, 110.0, load_memory_s=60.0, load_store_s=0.0)
    time = simulate(job, saves, recovery, 3e8, random.Random(1))
    assert time.goodput == pytest.approx(useful(interval_s, stall_s, restart_s, mtbf_s), abs=0.002)


seconds = st.floats(0.0, 1000.0)


@given(
    job=st.builds(
        Job,
        nodes=st.integers(1, 100),
        mtbf_s=st.floats(1e5, 1e7),
        lost_share=st.floats(0, 1),
        spares=st.integers(0, 3),
        repair_s=st.floats(0, 1e5),
    ),
    saves=st.builds(
        Saves,
        interval_s=st.floats(1, 1e4),
        stall_s=seconds,
        durable_s=seconds,
        in_memory=st.booleans(),
        replicas=st.integers(0, 1),
    ),
    recovery=st.builds(Recovery, seconds, seconds, seconds, seconds),
    seed=st.integers(0, 100),
)
@settings(max_examples=50, deadline=None)
def test_all_time_is_told_and_none_twice(
    job: Job, saves: Saves, recovery: Recovery, seed: int
) -> None:
    time = simulate(job, saves, recovery, DAY, random.Random(seed))
    assert time.total == pytest.approx(DAY)
    assert all(part >= -1e-6 for part in vars(time).values())
    assert sum(time.shares().values()) == pytest.approx(1)


def test_without_failures_only_saves_cost() -> None:
    job = Job(nodes=1, mtbf_s=1e15, lost_share=1.0, spares=0, repair_s=0.0)
    saves = Saves(interval_s=9.0, stall_s=1.0, durable_s=0.0, in_memory=False, replicas=0)
    time = simulate(job, saves, Recovery(1, 1, 1, 1), 1000.0, random.Random(0))
    assert [time.training, time.stall] == pytest.approx([900.0, 100.0])


def test_what_was_on_its_way_to_the_store_is_done_again() -> None:
    job = Job(nodes=1, mtbf_s=1000.0, lost_share=1.0, spares=10**6, repair_s=1e9)
    slow = Saves(interval_s=1.0, stall_s=0.0, durable_s=100.0, in_memory=True, replicas=0)
    none, one = (
        simulate(job, replace(slow, replicas=n), Recovery(0, 0, 0, 0), 1e6, random.Random(2))
        for n in (0, 1)
    )
    failures = 1e6 / 1000.0
    assert none.again / failures == pytest.approx(140, rel=0.1)  # a whole one, and half of another
    assert one.again / failures == pytest.approx(0.5, rel=0.1)


def test_a_job_without_spares_waits_for_repairs() -> None:
    alone = Job(nodes=10, mtbf_s=1e5, lost_share=1.0, spares=0, repair_s=5000.0)
    saves = Saves(interval_s=1.0, stall_s=0.0, durable_s=0.0, in_memory=True, replicas=1)
    waits = [
        simulate(job, saves, Recovery(0, 0, 0, 0), 1e7, random.Random(3)).shares()["wait"]
        for job in (alone, replace(alone, spares=5))
    ]
    away = 1e7 * 5000.0 / 1e4  # what all repairs take, one after the other
    assert waits[0] == pytest.approx(1 - math.exp(-away / 1e7), abs=0.02)  # of M/G/infinity
    assert waits[1] < 0.01


def test_tiers_cost_less_the_nearer_they_are() -> None:
    slow = replace(LARGE, store_gbps=20.0)
    found = {tier: outcome(slow, tier, days=20, courses=3, seed=0) for tier in TIERS}
    goodputs = [found[tier].goodput for tier in TIERS]
    assert goodputs == sorted(goodputs)
    assert goodputs[-1] - goodputs[0] > 0.01
    assert found["store"].interval_s == pytest.approx(4860 / 20 + 2)
    assert outcome(slow, "store", 20, 3, 0) == found["store"], "the same seed, the same courses"
    job, saves, _ = scenario(LARGE, "neighbours")
    assert (job.nodes, saves.replicas, saves.in_memory) == (2048, 1, True)


def test_the_command_tells_all_tiers() -> None:
    words = ["plan", "simulate", "--gpus", "1024", "--days", "5", "--courses", "2"]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.stderr
    assert all(tier in done.stdout for tier in TIERS)
    assert "128 nodes" in done.stdout
    body = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert [one["tier"] for one in body["tiers"]] == list(TIERS)
    assert 0.9 < body["tiers"][0]["goodput"] <= 1
    assert CliRunner().invoke(app, ["plan", "simulate", "--gpus", "0"]).exit_code == 2
