"""Each kind of event is a documented class, and is written as before."""

from __future__ import annotations

import copy
import json
import pickle
import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

from checkpointing.events import (
    EVENT_KINDS,
    CheckpointCommitted,
    CheckpointStarted,
    Event,
    Events,
)
from docs.events_reference import events_page
from hpckit.events.event_log import EventLog, read_events
from hpckit.events.event_validation import is_valid
from hpckit.events.schema import (
    Degraded,
    DegradedSubject,
    GenerationEnded,
    NodeLost,
    StepLogged,
    UnknownEvent,
    event_of,
)


@pytest.mark.parametrize("kind", sorted(EVENT_KINDS))
def test_each_kind_says_who_emits_it(kind: str) -> None:
    assert EVENT_KINDS[kind].kind == kind
    assert re.search(" emits? this ", EVENT_KINDS[kind].__doc__ or ""), "dataclasses make another"


def test_each_field_has_a_text() -> None:
    rows: list[list[str]] = []

    def table(head: list[str], found: list[list[str]]) -> list[str]:
        rows.extend(found)
        return []

    events_page(str, table)
    assert len(rows) > len(EVENT_KINDS)
    assert all(row[-1].endswith(".") for row in rows)


def written(tmp_path: Path, event: Event, **common: Any) -> dict[str, Any]:
    with EventLog(tmp_path / "events.jsonl", **common) as log:
        log.emit(event)
    record: dict[str, Any] = json.loads((tmp_path / "events.jsonl").read_text())
    assert record.pop("time") == event.time
    return record


def test_an_optional_field_is_written_if_it_has_a_value(tmp_path: Path) -> None:
    lost = NodeLost(generation=2, node=1, host=None)
    assert written(tmp_path, lost, submission=1) == {
        **{"kind": "node_lost", "submission": 1, "generation": 2, "node": 1, "host": None}
    }


def test_a_field_that_releases_added_is_written_always(tmp_path: Path) -> None:
    ended = GenerationEnded(
        generation=1, verdict="done", reason="", final=True, step=9, saved_step=9, words=None
    )
    assert written(tmp_path, ended)["words"] is None
    (found,) = read_events(tmp_path / "events.jsonl")
    assert found == ended
    assert is_valid(found)


def test_a_subject_is_text_in_the_file(tmp_path: Path) -> None:
    event = Degraded(subject=DegradedSubject.TRACKER, what="mlflow cannot be reached")
    assert written(tmp_path, event, generation=1, rank=0) == {
        **{"kind": "degraded", "generation": 1, "rank": 0},
        **{"subject": "tracker", "what": "mlflow cannot be reached"},
    }


def test_the_fields_of_the_log_are_those_of_the_event_that_is_read(tmp_path: Path) -> None:
    written(tmp_path, StepLogged(step=3, step_s=0.5), generation=4, attempt=1, rank=0)
    (found,) = read_events(tmp_path / "events.jsonl")
    assert isinstance(found, StepLogged)
    assert (found.generation, found.attempt, found.step, found.loss) == (4, 1, 3, None)
    assert is_valid(found)


def test_a_metric_may_have_any_name() -> None:
    names = ("get", "fields", "kind_", "__class__", "time_s")
    found = event_of(1.0, "step", {"step": 1, "step_s": 1.0, **dict.fromkeys(names, 2.0)})
    assert isinstance(found, StepLogged)
    assert [found[name] for name in names] == [2.0] * len(names)
    assert found.get("get") == 2.0
    assert found.fields.keys() == {"step", "step_s", *names}


def test_a_kind_of_the_users_own_is_kept(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl", generation=1) as log:
        log.emit_kind("milestone", name="first", kinds=[1])
    (found,) = read_events(tmp_path / "events.jsonl")
    assert isinstance(found, UnknownEvent)
    assert (found.kind, found.generation, found["name"]) == ("milestone", 1, "first")
    with pytest.raises(KeyError):
        found["another"]
    assert is_valid(found)


def test_a_listener_gets_kind_and_fields_and_cannot_break_a_save() -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    Events(lambda kind, **fields: told.append((kind, fields)), rank=0).emit(
        CheckpointStarted(step=5)
    )
    assert told == [("checkpoint_started", {"step": 5})]

    def broken(kind: str, **fields: Any) -> None:
        raise RuntimeError(kind)

    Events(broken, rank=0).emit(CheckpointStarted(step=5))
    Events(broken, rank=1).emit(CheckpointStarted(step=5))


def test_the_fields_of_an_event_are_given_once_and_stay() -> None:
    event = CheckpointCommitted(step=3, id="a", store=None)
    for copied in (pickle.loads(pickle.dumps(event)), copy.deepcopy(event), replace(event)):
        assert copied.__dict__ == event.__dict__
    assert replace(event, step=4) == CheckpointCommitted(
        time=event.time, step=4, id="a", store=None
    )
    fields: dict[str, Any] = {"step": 3, "id": None, "store": None}
    for wrong, told in (
        ({"step": 3, "id": None}, "CheckpointCommitted: the field 'store' is missing"),
        ({**fields, "steps": 4, "kind": "step"}, "has no field 'steps', 'kind'"),
    ):
        with pytest.raises(TypeError, match=told):
            CheckpointCommitted(**wrong)
    with pytest.raises(FrozenInstanceError):
        setattr(event, "step", 4)  # noqa: B010
    with pytest.raises(FrozenInstanceError):
        delattr(event, "step")
