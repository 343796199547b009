"""Deliveries to targets that fail, and the alerts of a run from its events to a web server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpckit.alerts import alert_watch
from hpckit.alerts.alert_delivery import LIMIT, AlertDelivery
from hpckit.alerts.alert_errors import AlertRejectedError, AlertUnavailableError
from hpckit.alerts.alert_limits import AlertLimits, SentAlerts
from hpckit.alerts.alert_message import AlertMessage, trial_message
from hpckit.alerts.alert_occasions import AlertOccasion
from hpckit.alerts.alert_targets import AlertTarget
from hpckit.alerts.alert_watch import sent_alerts
from hpckit.config.spec import RunSpec
from hpckit.events.event_log import EventLog, read_events
from hpckit.events.schema import Degraded, DegradedSubject, RunEnded, RunStarted
from hpckit.report.run_state import RunState
from hpckit.rundir.directory import RunDir
from tests.unit.hpckit.alerts.webhook_server import webhook_server
from tests.unit.hpckit.specs_and_processes import make_spec, until

LIMITS = AlertLimits(repeat_s=3600.0, max_per_hour=1000)
AT_ONCE = (0.01,)


class Target:
    """A target that fails as it is told."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.sent: list[str] = []
        self.is_held = threading.Event()
        self.is_held.set()

    def send(self, message: AlertMessage) -> None:
        self.is_held.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.sent.append(message.headline)


def about(headline: str) -> AlertOccasion:
    return AlertOccasion("degraded", headline, headline, None, 0.0, RunState.RUNNING)


@contextmanager
def delivering(
    target: Target, folder: Path, limits: AlertLimits = LIMITS
) -> Iterator[AlertDelivery]:
    def compose(occasion: AlertOccasion, withheld: int) -> AlertMessage:
        message = trial_message("gpt", "here", 0.0)
        words = f"{occasion.headline} +{withheld}" if withheld else occasion.headline
        return AlertMessage(**{**message.__dict__, "headline": words})

    with EventLog(folder / "events.jsonl") as events:
        it = AlertTarget("webhook", ("degraded",), target.send, lambda: None)
        delivery = AlertDelivery(it, compose, limits, SentAlerts(), events, AT_ONCE)
        yield delivery
        target.is_held.set()
        delivery.end()
        delivery.join(time.monotonic() + 60)


def kinds(folder: Path) -> list[str]:
    return [event.kind for event in read_events(folder / "events.jsonl")]


def test_a_target_that_is_away_gets_the_alert_when_it_is_back(tmp_path: Path) -> None:
    target = Target()
    target.failures = [AlertUnavailableError("down"), AlertUnavailableError("busy", 0.01)]
    with delivering(target, tmp_path) as delivery:
        delivery.put(about("a"))
        until(lambda: target.sent == ["a"])
    (event,) = read_events(tmp_path / "events.jsonl")
    assert (event.kind, event["tries"]) == ("alert_sent", 3)


@pytest.mark.parametrize("error", [AlertRejectedError("status 404"), RuntimeError("bug")])
def test_a_target_that_refuses_is_reported_and_gets_the_next_alert(
    tmp_path: Path, error: Exception
) -> None:
    target = Target()
    target.failures = [error]
    with delivering(target, tmp_path) as delivery:
        delivery.put(about("a"))
        delivery.put(about("b"))
        until(lambda: target.sent == ["b"])
    assert kinds(tmp_path) == ["alert_undelivered", "alert_sent"]


def test_a_target_that_never_answers_holds_nothing_up(tmp_path: Path) -> None:
    target = Target()
    target.is_held.clear()
    with delivering(target, tmp_path) as delivery:
        for n in range(LIMIT + 3):
            delivery.put(about(f"alert {n}"))
        assert len(delivery.waiting()) <= LIMIT + 1
        assert "alert_undelivered" in kinds(tmp_path)
        delivery.end()
        assert delivery.join(time.monotonic()) != []


def test_a_storm_of_the_same_alert_is_one_message(tmp_path: Path) -> None:
    target = Target()
    target.is_held.clear()
    with delivering(target, tmp_path) as delivery:
        for _ in range(500):
            delivery.put(about("a"))
        target.is_held.set()
        until(lambda: len(target.sent) == 1)
        delivery.put(about("a"))
        delivery.put(about("b"))
        until(lambda: len(target.sent) == 2)
    assert [words.split()[0] for words in target.sent] == ["a", "b"]
    assert "+" in target.sent[1]


def test_a_target_gets_the_kinds_that_it_has_chosen(tmp_path: Path) -> None:
    target = Target()
    with delivering(target, tmp_path) as delivery:
        delivery.put(AlertOccasion("done", "d", "done", None, 0.0, RunState.ENDED))
        delivery.put(about("a"))
        until(lambda: target.sent == ["a"])


def run_with(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> tuple[RunDir, RunSpec]:
    monkeypatch.setenv("TEST_HOOK", url)
    for name in ("END_S", "LEAVE_S"):  # for a busy machine
        monkeypatch.setattr(alert_watch, name, 120.0)
    run = RunDir(folder / "gpt-1a2b3c4d")
    run.path.mkdir()
    return run, make_spec({"alerts.webhook.url_env": "TEST_HOOK"})


@contextmanager
def supervised(run: RunDir, spec: RunSpec) -> Iterator[EventLog]:
    with EventLog(run.events) as events, sent_alerts(run, spec, events, AT_ONCE):
        yield events


def end(run: RunDir, events: EventLog, kind: str) -> None:
    record = {"kind": kind, "final": True, "reason": "it says why", "time": time.time()}
    run.verdict.write_text(json.dumps(record))
    events.emit(RunEnded(verdict=kind))


def test_the_alerts_of_a_run_reach_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with webhook_server() as server:
        run, spec = run_with(tmp_path, server.url, monkeypatch)
        with supervised(run, spec) as events:
            events.emit(RunStarted(steps=10))
            for n in range(20):
                what = f"W&B cannot be reached, try {n}"
                events.emit(Degraded(subject=DegradedSubject.TRACKER, what=what))
            end(run, events, "crash")
        with supervised(run, spec) as events:  # a person resumes it
            events.emit(RunStarted(steps=10))
            end(run, events, "done")
    assert [one["kind"] for one in server.documents] == ["degraded", "verdict", "done"]
    assert "it says why" in server.documents[1]["text"]
    for file in run.path.rglob("*"):
        assert "secret-part" not in file.read_text()


def test_a_supervisor_sends_what_a_killed_one_could_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with webhook_server() as server:
        run, spec = run_with(tmp_path, server.url, monkeypatch)
        with supervised(run, spec):
            until(run.alerts.exists)
        with EventLog(run.events) as events:  # a supervisor that is killed
            events.emit(RunStarted(steps=10))
            events.emit(Degraded(subject=DegradedSubject.LOADER, what="batches were read again"))
        with supervised(run, spec) as events:
            events.emit(RunStarted(steps=10))
            end(run, events, "done")
    found = [(one["kind"], one["text"]) for one in server.documents]
    assert [kind for kind, _ in found] == ["degraded", "verdict", "done"]
    assert "ended without a verdict" in found[1][1]


def test_the_next_job_sends_what_this_one_had_no_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with webhook_server() as server:
        run, spec = run_with(tmp_path, server.url, monkeypatch)
        server.statuses = [500]
        with supervised(run, spec) as events:
            events.emit(RunStarted(steps=10))
            events.emit(Degraded(subject=DegradedSubject.LOADER, what="batches were read again"))
            events.emit(RunEnded(verdict="preempted"))
        assert server.documents == []
        assert "alert_undelivered" not in kinds(run.path)
        server.statuses = [200]
        with supervised(run, spec) as events:
            events.emit(RunStarted(steps=10))
            end(run, events, "done")
    assert [one["kind"] for one in server.documents] == ["degraded", "done"]


def test_a_run_that_ends_while_the_server_is_down_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with webhook_server() as server:
        run, spec = run_with(tmp_path, server.url, monkeypatch)
        server.statuses = [503]
        with supervised(run, spec) as events:
            events.emit(RunStarted(steps=10))
            end(run, events, "crash")
    (event,) = (one for one in read_events(run.events) if one.kind == "alert_undelivered")
    assert event["alerts"] == ["verdict"]


def test_a_run_without_targets_has_no_thread_and_no_file(tmp_path: Path) -> None:
    run, before = RunDir(tmp_path), set(threading.enumerate())
    with supervised(run, make_spec()):
        new = set(threading.enumerate()) - before
        assert not [thread.name for thread in new if thread.name.startswith("alerts")]
    assert not run.alerts.exists()
