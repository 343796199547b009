"""Records on their way to a tracker that is away, refuses, hangs or fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hpckit.events.event_log import EventLog, read_events
from hpckit.trainer.metrics.record_writer import StepRecordWriter
from hpckit.trainer.trackers import tracker_delivery
from hpckit.trainer.trackers.delivery_mark import DeliveryMark, read_mark, write_mark
from hpckit.trainer.trackers.mlflow import flat
from hpckit.trainer.trackers.tracker_builder import close_all
from hpckit.trainer.trackers.tracker_delivery import TrackerDelivery
from hpckit.trainer.trackers.tracker_interface import (
    StepRecord,
    TrackerRejectedError,
    TrackerUnavailableError,
)
from hpckit.trainer.trackers.weights_and_biases import merged
from tests.unit.hpckit.specs_and_processes import until

SECRET = "hush5ecret"


@dataclass
class Shelf:
    """A tracker that keeps what it is told, unless `answer` raises."""

    answer: Callable[[], None] = lambda: None
    run: str = "their-name"
    note: str | None = None
    told: list[tuple[str, int]] = field(default_factory=list)
    opened: list[str | None] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)

    def open_run(self, run: str | None) -> Shelf:
        self.opened.append(run)
        return self

    def send(self, records: Sequence[StepRecord]) -> None:
        self.answer()
        self.told += [(record.kind, record.step) for record in records]

    def close(self, is_done: bool) -> None:
        self.ended.append(is_done)

    @property
    def steps(self) -> list[int]:
        return [step for _, step in self.told]


@contextmanager
def attempt(tmp: Path, shelf: Shelf) -> Iterator[TrackerDelivery]:
    with EventLog(tmp / "events.jsonl", rank=0) as events:
        yield TrackerDelivery(
            "shelf", shelf.open_run, tmp / "marks" / "shelf.json", events, (0.01,)
        )


def put(to: TrackerDelivery, *steps: int, kind: str = "step") -> None:
    for step in steps:
        to.put(StepRecord(kind, step, time.time(), {"loss": 1.0}))


def said(tmp: Path, kind: str) -> list[dict[str, object]]:
    return [event.fields for event in read_events(tmp / "events.jsonl") if event.kind == kind]


def test_all_is_told_in_order_and_the_end_too(tmp_path: Path) -> None:
    shelf = Shelf()
    with attempt(tmp_path, shelf) as to:
        put(to, *range(1, 101))
        close_all([to], is_done=True, within_s=120)
    assert shelf.steps == [*range(1, 101)]
    assert (shelf.opened, shelf.ended) == ([None], [True])
    assert not (tmp_path / "events.jsonl").read_text()


def test_without_records_nothing_is_opened(tmp_path: Path) -> None:
    shelf = Shelf()
    with attempt(tmp_path, shelf) as to:
        close_all([to], is_done=True)
    assert shelf.opened == []


def test_the_next_attempt_goes_on_with_the_run_and_tells_no_step_twice(tmp_path: Path) -> None:
    first, second = Shelf(), Shelf()
    with attempt(tmp_path, first) as to:
        put(to, 1, 2, 3, 4)
        put(to, 2, kind="validated")
        close_all([to], is_done=False, within_s=120)
    with attempt(tmp_path, second) as to:
        put(to, 3, 4, 5)  # from the checkpoint of step 2 on
        put(to, 4, kind="validated")
        close_all([to], is_done=True, within_s=120)
    assert second.opened == ["their-name"]
    assert second.told == [("step", 5), ("validated", 4)]
    assert (first.ended, second.ended) == ([False], [True])


def test_what_waits_while_it_is_away_is_told_when_it_is_back(tmp_path: Path) -> None:
    is_back = threading.Event()

    def answer() -> None:
        if not is_back.is_set():
            raise TrackerUnavailableError(f"no route to http://me:{SECRET}@host")

    shelf = Shelf(answer)
    with attempt(tmp_path, shelf) as to:
        put(to, 1, 2, 3)
        until(lambda: bool(said(tmp_path, "degraded")))
        is_back.set()
        put(to, 4)
        close_all([to], is_done=True, within_s=120)
    assert shelf.steps == [1, 2, 3, 4]
    (away,) = said(tmp_path, "degraded")
    assert "shelf cannot be reached" in str(away["what"])
    assert SECRET not in str(away)
    assert len(said(tmp_path, "tracker_back")) == 1
    assert said(tmp_path, "tracker_undelivered") == []


def test_the_newest_are_kept_and_the_others_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_delivery, "LIMIT", 10)
    is_back, is_asked = threading.Event(), threading.Event()

    def answer() -> None:
        is_asked.set()
        if not is_back.is_set():
            raise TrackerUnavailableError("away")

    shelf = Shelf(answer)
    with attempt(tmp_path, shelf) as to:
        put(to, 1)
        assert is_asked.wait(120)
        put(to, *range(2, 32))
        is_back.set()
        close_all([to], is_done=True, within_s=120)
    assert shelf.steps == [1, *range(22, 32)]
    assert sum(int(str(e["records"])) for e in said(tmp_path, "tracker_undelivered")) == 20


def test_an_end_does_not_wait_for_one_that_hangs(tmp_path: Path) -> None:
    release, is_asked = threading.Event(), threading.Event()

    def answer() -> None:
        is_asked.set()
        release.wait(60)

    hung = Shelf(answer)
    with attempt(tmp_path, hung) as to:
        put(to, 1, 2)
        assert is_asked.wait(120)
        close_all([to], is_done=True, within_s=0.0)
        assert not release.is_set()
        assert [event["records"] for event in said(tmp_path, "tracker_undelivered")] == [2]
    before = (tmp_path / "events.jsonl").read_bytes()
    release.set()
    until(lambda: bool(hung.ended))
    assert (tmp_path / "events.jsonl").read_bytes() == before, "the log was closed by then"


def test_what_it_refuses_is_said_once_and_counted(tmp_path: Path) -> None:
    def answer() -> None:
        raise TrackerRejectedError("no such metric")

    with attempt(tmp_path, Shelf(answer)) as to:
        put(to, 1)
        until(lambda: bool(said(tmp_path, "degraded")))
        put(to, 2, 3)
        close_all([to], is_done=True, within_s=120)
    (refused,) = said(tmp_path, "degraded")
    assert "no such metric" in str(refused["what"])
    assert [event["records"] for event in said(tmp_path, "tracker_undelivered")] == [3]


def test_an_error_of_a_library_ends_the_tracker_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SHELF_API_KEY", SECRET)

    def answer() -> None:
        raise KeyError(f"key {SECRET}")

    with attempt(tmp_path, Shelf(answer)) as to:
        put(to, 1)
        until(lambda: bool(said(tmp_path, "degraded")))
        put(to, 2)
        close_all([to], is_done=True, within_s=120)
    (ended,) = said(tmp_path, "degraded")
    assert "gets no more records: KeyError" in str(ended["what"])
    assert SECRET not in str(ended) + caplog.text
    assert "in answer" in caplog.text, "the log says where"
    assert [event["records"] for event in said(tmp_path, "tracker_undelivered")] == [2]


def test_what_a_run_has_to_know_is_said(tmp_path: Path) -> None:
    shelf = Shelf(note="kept in files")
    with attempt(tmp_path, shelf) as to:
        put(to, 1)
        close_all([to], is_done=True, within_s=120)
    assert [event["what"] for event in said(tmp_path, "degraded")] == ["kept in files"]


def test_records_tell_trackers_what_they_write(tmp_path: Path) -> None:
    shelf = Shelf()
    with attempt(tmp_path, shelf) as to, EventLog(tmp_path / "own.jsonl") as events:
        records = StepRecordWriter(events, tmp_path / "tensorboard", [to])
        records.write("step", 1, {"loss": 1.0})
        records.write("validated", 1, {"val_loss": 2.0}, seconds=3.0)
        records.close(is_done=True)
    assert shelf.told == [("step", 1), ("validated", 1)]
    assert shelf.ended == [True]


@pytest.mark.parametrize("text", ["", "[1]", '{"run": 5, "told": {}}', '{"run": "x"}', "{"])
def test_a_damaged_mark_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "mark.json").write_text(text)
    assert read_mark(tmp_path / "mark.json") == DeliveryMark()


def test_a_mark_comes_back(tmp_path: Path) -> None:
    mark = DeliveryMark("theirs", {"step": 7, "validated": 5})
    write_mark(tmp_path / "folder" / "mark.json", mark)
    assert read_mark(tmp_path / "folder" / "mark.json") == mark


def test_a_step_with_two_records_is_told_as_one() -> None:
    records = [
        StepRecord("step", 1, 0.0, {"loss": 1.0}),
        StepRecord("validated", 1, 0.0, {"val_loss": 2.0}),
        StepRecord("step", 2, 0.0, {"loss": 0.5}),
    ]
    assert list(merged(records)) == [(1, {"loss": 1.0, "val_loss": 2.0}), (2, {"loss": 0.5})]


def test_parameters_have_dotted_names() -> None:
    assert dict(flat({"a": {"b": 1, "c": {"d": None}}, "e": [2]})) == {
        **{"a.b": 1, "a.c.d": None},
        "e": [2],
    }
