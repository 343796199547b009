"""What was published of large jobs, beside what the simulator makes of what was published.

Neither paper says how far apart its saves were, or how long a restart took. So no single number
can be held against theirs: these tests hold the count of interruptions, which is given, and for
which restarts and intervals the published share comes out, as docs/scale.md has it in tables.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import mean

import pytest

from hpckit.planner.assumptions import NODE_MTBF_HOURS
from hpckit.planner.goodput.failure_simulation import simulate
from hpckit.planner.goodput.save_interval import useful
from hpckit.planner.goodput.snapshot_tiers import Fleet, TierOutcome, faults, outcome, scenario

LLAMA3 = Fleet(  # Grattafiori et al. 2024 (arXiv 2407.21783), sections 3.3.1 and 3.3.4
    gpus=16384,  # given
    gpus_per_node=8,  # given
    state_gb=4860.0,  # 405e9 parameters, given, of 12 bytes each: assumed
    mtbf_hours=54 * 24 * 2048 / 419,  # given: 419 unexpected interruptions in 54 days
    lost_share=0.78,  # given: hardware; that each takes its node away is assumed
    hang_share=0.0,
    preempt_hours=math.inf,
    spares=20,  # assumed
    shrink=0,
    repair_hours=4.0,  # assumed
    queue_s=0.0,
    store_gbps=2000.0,  # given
    manifest_s=2.0,  # assumed
    manifest_read_s=2.0,  # assumed
    host_gbps=100.0,
    network_gbps=50.0,
    detect_s=0.0,
    hang_s=0.0,
    restart_s=0.0,  # not given: in the tests
    interval_s=None,  # not given: in the tests
    stall_s=0.0,  # not given
)
BYTEROBUST = replace(LLAMA3, gpus=9600)  # Wan et al. 2025 (arXiv 2509.16293); at Llama 3's rate


def at(fleet: Fleet, restart_minutes: float, interval_minutes: float, days: float) -> TierOutcome:
    changed = replace(fleet, restart_s=60 * restart_minutes, interval_s=60 * interval_minutes)
    return outcome(changed, "store", days, courses=10, seed=0)


def test_llama3_was_interrupted_as_often() -> None:
    assert LLAMA3.mtbf_hours == pytest.approx(NODE_MTBF_HOURS, rel=0.01)
    job, saves = scenario(replace(LLAMA3, restart_s=1.0), "store")
    counts = []
    for seed in range(10):
        each = [replace(one, meet_s=1.0) for one in faults(LLAMA3)]
        time = simulate(job, each, saves, 54 * 86400, random.Random(seed))
        counts.append(round(sum(cost.meet for cost in time.costs.values())))
    assert mean(counts) == pytest.approx(419, abs=3 * math.sqrt(419 / 10))


LLAMA3_SHARES = {  # minutes of a restart, and between saves -> percent, as in docs/scale.md
    (5, 10): 94.6,
    (10, 10): 92.0,
    (10, 30): 87.0,
    (15, 5): 90.8,
    (15, 10): 89.6,
    (20, 5): 88.3,
}
BYTEROBUST_SHARES = {(1, 10): 98.0, (2, 10): 97.7, (5, 5): 97.6, (5, 10): 96.8, (10, 10): 95.2}


@pytest.mark.parametrize(("minutes", "percent"), LLAMA3_SHARES.items(), ids=str)
def test_llama3(minutes: tuple[float, float], percent: float) -> None:
    found = at(LLAMA3, *minutes, days=54)
    assert 100 * found.goodput == pytest.approx(percent, abs=0.1)
    restart_s, interval_s = 60 * minutes[0] + 4.43, 60 * minutes[1]
    daly = useful(interval_s, 0.0, restart_s, LLAMA3.mtbf_s)
    assert found.goodput == pytest.approx(daly, abs=0.005), (
        "Daly's formula, without spares or tiers"
    )


@pytest.mark.parametrize(("minutes", "percent"), BYTEROBUST_SHARES.items(), ids=str)
def test_byterobust(minutes: tuple[float, float], percent: float) -> None:
    assert 100 * at(BYTEROBUST, *minutes, days=90).goodput == pytest.approx(percent, abs=0.1)


@pytest.mark.parametrize(
    ("gpus", "days", "share", "minutes"), [(16384, 54, 0.90, 18.6), (9600, 90, 0.97, 9.5)]
)
def test_what_the_published_shares_leave_for_a_fault(
    gpus: int, days: float, share: float, minutes: float
) -> None:
    """A share says how long a fault takes on average; the simulator gives the share back."""
    fleet = replace(LLAMA3, gpus=gpus)
    each_s = (1 - share) * fleet.mtbf_s
    assert each_s / 60 == pytest.approx(minutes, abs=0.1)
    # all of it a restart; as one fault may come in another one's restart, a little less is lost
    found = at(fleet, each_s / 60, 1 / 60, days)
    assert found.goodput == pytest.approx(share, abs=0.01)
