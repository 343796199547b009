"""What is told of the sources of a mixture, and of changes of their weights."""

from __future__ import annotations

from typing import Any

from hpckit.events.event_log import Event
from hpckit.events.event_validation import is_valid
from hpckit.events.schema import MixtureChanged, event_of
from hpckit.report.progress import build_progress
from hpckit.report.source_progress import describe_change, describe_source, newest_sources


def event(time: float, kind: str, **fields: Any) -> Event:
    return event_of(time, kind, fields)


WEB = {"weight": 0.7, "samples": 12345, "epochs": 0.1234567, "tokens": 99000, "loss": 2.34567}
BOOKS = {"weight": 0.0, "samples": 3, "epochs": 3.0}


def test_sources_are_told_as_of_the_newest_record() -> None:
    records = [
        event(1, "mixture", step=1, sources={"web": {**WEB, "samples": 1}}),
        event(2, "mixture", step=2, sources={"web": WEB, "books": BOOKS}),
        event(3, "mixture", step=3, sources={"web": "not fields"}),
    ]
    assert all(map(is_valid, records))
    assert build_progress(records[:2]).sources == {"web": WEB, "books": BOOKS}
    assert newest_sources(records, most=1)["web"]["samples"] == 1
    assert newest_sources(records) == {}
    assert newest_sources([]) == {}


def test_a_source_is_described_by_what_is_known_of_it() -> None:
    assert describe_source("web", WEB) == (
        "web: 12,345 samples (0.123 epochs), 99,000 tokens, loss 2.346, "
        "70.0% of the samples to come"
    )
    assert describe_source("books", BOOKS) == "books: 3 samples (3 epochs), paused"


def test_a_change_is_described_with_its_place() -> None:
    before, after = {"web": 1.0}, {"web": 0.25, "code": 0.75}
    change = MixtureChanged(step=5, position=40, reason="resume", before=before, after=after)
    assert describe_change(change) == (
        "step 5: the run resumed with other weights, from sample 40 of the stream on: "
        "web 100.0% -> 25.0%, code 0.0% -> 75.0%"
    )
    stage = MixtureChanged(step=5, reason="stage", before=before, after=after)
    assert describe_change(stage).startswith("step 5: a stage began, from there on: web")
