"""A real run names the node that slows it down, with its cost, and replaces it by a spare if that
pays."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from statistics import median

import pytest

from hpckit.events.event_log import Event
from hpckit.report.cost.cost_summary import Prices, read_cost
from hpckit.report.overview import Queue, read_overview
from hpckit.report.performance.speed_report import speed_facts
from hpckit.system.atomic_files import read_json
from hpckit.system.child_processes import strays
from tests.integration.run.one_slow_node import SLOWER, losses
from tests.integration.run.runs import REPO, Started, history, started
from tests.integration.run.runs import losses as logged

NODES = 3
ENDLESS = 1_000_000
"""Steps after which a restart has paid in any case."""
FEW = 400


def launch(tmp_path: Path, steps: int) -> list[str]:
    keys = [f"launch.nodes={NODES}", "elastic=spares", "elastic.evict_stragglers=spare"]
    keys += ["elastic.evict_evidence_minutes=0.01", "train.trace_share=1", "train.log_every=1"]
    keys += ["entry=tests.integration.run.one_slow_node:main", "cluster.device=cpu", "name=t"]
    keys += [f"train.steps={steps}", "launch.threads_per_worker=1", "train.global_batch=3"]
    keys += ["model=gpt_nano", "checkpoint.every_steps=100000"]
    return [sys.executable, str(REPO / "launch.py"), f"root={tmp_path / 'runs'}", *keys]


def costs(it: Started) -> list[Event]:
    return [event for event in it.events() if event.kind == "straggler_cost"]


def slow_down(it: Started, share: float) -> int:
    """Make a node that takes part slower, and return its number."""
    node = int(it.wait_for("nodes_chosen")["nodes"][1])
    temporary = it.root / f"{SLOWER}.new"
    temporary.write_text(f"{node} {share}")
    temporary.rename(it.root / SLOWER)
    return node


def test_a_node_that_takes_five_times_as_long_is_replaced_once_by_a_spare(tmp_path: Path) -> None:
    with started(tmp_path / "runs", launch(tmp_path, ENDLESS)) as it:
        slow = slow_down(it, 4.0)  # by more than steps vary on a busy machine
        evicted = it.wait_for("straggler_evicted")
        assert evicted["nodes"] == [slow]
        assert evicted["share"] > 0.2
        chosen = it.wait_for("nodes_chosen", count=2)
        assert chosen["nodes"] == [node for node in range(NODES + 1) if node != slow]
        result = it.wait_for("straggler_eviction_result")
        assert result["has_paid"]
        assert result["after_s"] < result["before_s"]
        it.process.send_signal(signal.SIGINT)
        status, output = it.finish()
        assert status == 130, output
        run = it.run
        kinds = [event.kind for event in it.events()]
    assert kinds.count("straggler_evicted") == 1
    ended = [life.end for life in history(run).lives]
    assert ended == ["evicted", "stopped"]
    first, second = history(run).lives
    assert second.start_step == first.end_step, "it has saved right before"
    found = logged(run)
    assert [*found] == [*range(1, len(found) + 1)]
    assert [*found.values()] == losses(len(found), NODES)
    told = [text for name, text in speed_facts(history(run), None) if name == "eviction"]
    assert "has paid" in told[0]
    assert "stragglers" in read_cost(run, Prices()).node_hours
    assert read_json(run.verdict)["kind"] == "stopped"
    assert read_overview(run, Queue()).progress.interruptions == {"evicted": 1}
    assert strays(run.path) == []


@pytest.mark.thorough
@pytest.mark.parametrize("slower", [0.05, 0.2])
def test_a_slow_node_is_kept_if_few_steps_are_left(tmp_path: Path, slower: float) -> None:
    with started(tmp_path / "runs", launch(tmp_path, FEW)) as it:
        slow = slow_down(it, slower)
        status, output = it.finish()
        assert status == 0, output
        kinds = {event.kind for event in it.events()}
        assert "straggler_evicted" not in kinds
        windows = costs(it)
        named = [one for one in windows if one["nodes"]]
        assert all(one["nodes"] == [slow] for one in named)
        if slower > 0.1:
            assert named
            assert 0 < median(one["share"] for one in named) < slower
            (kept, *_) = [event for event in it.events() if event.kind == "straggler_kept"]
            assert kept["answer"] in ("unproven", "too_late")
        print(f"{slower:.0%}: named in {len(named)} of {len(windows)} windows")
