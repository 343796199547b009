"""What Prometheus reads: by its own parser, and from real events."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from hpckit.events.event_log import read_events
from hpckit.events.schema import event_of
from hpckit.exporter.exporter import worker_samples
from hpckit.exporter.exposition import MetricSample, exposition
from hpckit.exporter.metric_names import METRICS, Metric
from hpckit.exporter.run_metrics import RunMetrics
from hpckit.ipc.heartbeat_table import Heartbeat, WorkerPhase
from tests.effort import times

ROOT = Path(__file__).resolve().parents[4]
DASHBOARD = ROOT / "hpckit" / "exporter" / "dashboard.json"
NAMES = {metric.name for metric in METRICS}


def series(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """All of a page, by name and labels."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, "a series is there twice"
            found[key] = sample.value
    return found


def values(standing: RunMetrics, now_s: float = 1000.0) -> dict[str, float]:
    """Of a run, by name; those with a kind or tracker as name/kind."""
    found = series(exposition(standing.samples("r", now_s)))
    return {
        "/".join([name, *(v for k, v in sorted(labels) if k != "run")]): value
        for (name, labels), value in found.items()
    }


def standing(*told: tuple[float, str, dict[str, Any]]) -> RunMetrics:
    found = RunMetrics()
    for time_s, kind, fields in told:
        found.take(event_of(time_s, kind, fields))
    return found


def test_names_are_well_formed() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"hpckit_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.labels[0] == "run"
        assert metric.help.endswith(".")
    assert len(NAMES) == len(METRICS)


@settings(max_examples=times(25), deadline=None)
@example([METRICS[0]], "", 2**53 + 1)  # which no float is
@given(
    chosen=st.lists(st.sampled_from(METRICS), max_size=8, unique_by=lambda metric: metric.name),
    label=st.text(st.characters(exclude_categories=["Cs"])),
    value=st.floats() | st.integers(0, 2**62),
)
def test_prometheus_reads_back_what_was_written(
    chosen: list[Metric], label: str, value: float
) -> None:
    samples = [
        MetricSample(m.name, tuple(label + str(n) for n in range(len(m.labels))), value)
        for m in chosen
    ]
    page = exposition(samples)
    found = series(page)
    assert {name for name, _ in found} == {metric.name for metric in chosen}
    for sample, metric in zip(samples, chosen, strict=True):
        got = found[sample.name, frozenset(zip(metric.labels, sample.labels, strict=True))]
        assert got == float(value) or (math.isnan(got) and math.isnan(value))
    by_name = {family.name: family for family in text_string_to_metric_families(page)}
    for metric in chosen:
        family = by_name[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)


def test_a_name_that_is_no_text_is_shown_as_it_can_be() -> None:
    page = exposition([MetricSample("hpckit_step", ("run\udcff",), 1)])
    assert series(page) == {("hpckit_step", frozenset({("run", "run?")})): 1}


def test_a_metric_with_other_labels_is_refused() -> None:
    with pytest.raises(ValueError):
        exposition([MetricSample("hpckit_step", ("run", "more"), 1)])
    with pytest.raises(KeyError):
        exposition([MetricSample("hpckit_other", ("run",), 1)])


def test_of_a_run_that_has_said_nothing_little_is_told() -> None:
    assert values(standing()) == {"hpckit_checkpoint_failures_total": 0}


def test_a_run_as_it_stands() -> None:
    record = {"step": 30, "loss": math.nan, "step_s": 0.5, "data_wait_s": 0.1, "tokens_per_s": 9.0}
    found = values(
        standing(
            (1.0, "run_started", {"steps": 100}),
            (2.0, "generation_started", {"generation": 3, "nodes": 2}),
            (3.0, "training_started", {"step": 10, "world_size": 8}),
            (500.0, "checkpoint_committed", {"step": 20, "bytes": 1000, "new_bytes": 10}),
            (600.0, "checkpoint_failed", {"step": 25, "error": "full"}),
            (700.0, "step", record),
            (710.0, "tracker_undelivered", {"tracker": "mlflow", "records": 5}),
            (720.0, "tracker_undelivered", {"tracker": "mlflow", "records": 2}),
            (721.0, "degraded", {"subject": "tracker", "what": "mlflow cannot be reached"}),
            (722.0, "degraded", {"subject": "tracker", "what": "mlflow cannot be reached"}),
            (723.0, "degraded", {"what": "written by an earlier release"}),
        )
    )
    assert math.isnan(found.pop("hpckit_loss"))
    assert found == {
        **{"hpckit_step": 30, "hpckit_steps": 100, "hpckit_ranks": 8, "hpckit_nodes": 2},
        **{"hpckit_generation": 3, "hpckit_record_timestamp_seconds": 700},
        **{"hpckit_step_seconds": 0.5, "hpckit_data_wait_seconds": 0.1},
        **{"hpckit_tokens_per_second": 9, "hpckit_checkpoint_step": 20},
        **{"hpckit_checkpoint_bytes": 1000, "hpckit_checkpoint_new_bytes": 10},
        **{"hpckit_checkpoint_lag_steps": 10, "hpckit_checkpoint_lag_seconds": 500},
        **{"hpckit_checkpoint_failures_total": 1, "hpckit_tracker_undelivered_total/mlflow": 7},
        **{"hpckit_degradations_total/tracker": 2, "hpckit_degradations_total/unknown": 1},
    }


def test_a_run_that_has_gone_back_and_has_saved_nothing() -> None:
    found = values(
        standing(
            (1.0, "step", {"step": 30}),
            (2.0, "generation_ended", {"verdict": "preempted", "final": False}),
            (3.0, "training_started", {"step": 0, "attempt": 0}),
            (4.0, "training_started", {"step": 0, "attempt": 1}),
        ),
        now_s=14.0,
    )
    assert (found["hpckit_step"], found["hpckit_checkpoint_lag_steps"]) == (0, 0)
    assert found["hpckit_checkpoint_lag_seconds"] == 10
    assert found["hpckit_restarts_total/preempted"] == 1
    assert found["hpckit_restarts_total/worker lost"] == 1


def test_events_that_lack_what_they_should_have_do_no_harm() -> None:
    kinds = (
        *("run_started", "generation_started", "training_started", "step", "generation_ended"),
        *("checkpoint_committed", "tracker_undelivered", "unheard_of"),
    )
    wrong: dict[str, Any] = {"step": "x", "steps": None, "loss": True, "records": [], "bytes": {}}
    for fields in ({}, wrong):
        series(exposition(standing(*((1.0, kind, fields) for kind in kinds)).samples("r", 2.0)))


def test_workers_that_have_said_something_are_told() -> None:
    slots = [
        Heartbeat(7, WorkerPhase.TRAINING, 12, 90.0, 0, 2**30),
        Heartbeat(0, WorkerPhase.STARTING, 0, 0.0, 0),
    ]
    found = series(exposition(worker_samples("r", 3, slots, "cuda", 100.0)))
    labels = frozenset({("run", "r"), ("node", "3"), ("local_rank", "0")})
    assert found == {
        ("hpckit_worker_step", labels): 12,
        ("hpckit_worker_heartbeat_age_seconds", labels): 10,
        ("hpckit_worker_gpu_memory_peak_bytes", labels): 2**30,
    }
    page = exposition(worker_samples("r", 3, slots, "cpu", 100.0))
    assert ("hpckit_worker_host_memory_peak_bytes", labels) in series(page)


def test_the_page_of_a_run_is_that_of_the_release_before() -> None:
    """`demo_run` has events of a run, and the page that hpckit 0.1 wrote of them by itself."""
    folder = Path(__file__).with_name("demo_run")
    events = read_events(folder / "events.jsonl")
    workers = [
        Heartbeat(7, WorkerPhase.TRAINING, 120, 90.0, 0, 2**30),
        Heartbeat(9, WorkerPhase.TRAINING, 119, 99.5, 0, 3 * 2**29),
    ]
    run = RunMetrics()
    for event in events:
        run.take(event)
    samples = [
        *worker_samples("demo", 1, workers, "cpu", 100.0),
        *run.samples("demo", events[-1].time + 60),
    ]
    before, page = (folder / "metrics.prom").read_text(encoding="utf-8"), exposition(samples)
    assert series(page) == series(before)
    comments = [line for line in before.splitlines() if line.startswith("#")]
    assert [line for line in page.splitlines() if line.startswith("#")] == comments


def test_the_dashboard_is_one_and_shows_what_is_exported() -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert board["schemaVersion"] >= 36
    assert (board["uid"], board["title"]) == ("hpckit-runs", "hpckit runs")
    variables = {variable["name"] for variable in board["templating"]["list"]}
    assert variables == {"datasource", "run"}
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    used: set[str] = set()
    for panel in panels:
        assert panel["type"] in ("stat", "timeseries")
        assert panel["title"]
        assert {"h", "w", "x", "y"} == panel["gridPos"].keys()
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert target["expr"].count("(") == target["expr"].count(")")
            found = set(re.findall(r"hpckit_\w+", target["expr"]))
            assert found
            used |= found
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels]
    assert len(set(places)) == len(places)
    assert used <= NAMES
    assert used == NAMES, "each metric is shown somewhere"


def test_the_page_of_documentation_has_each_metric() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `hpckit_")]
    assert rows == [
        f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.help} |" for m in METRICS
    ]
