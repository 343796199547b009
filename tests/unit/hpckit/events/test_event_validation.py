"""An event is read if it has what it is read for; everything else is left out, and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpointing.events import EVENT_KINDS
from hpckit.events.event_log import Event
from hpckit.events.event_validation import (
    is_valid,
    read_valid_events,
    without_unread_fields,
)
from hpckit.events.schema import event_of
from hpckit.report.history import build_history
from hpckit.report.performance.measured_step_time import step_time
from hpckit.report.progress import build_progress
from tests.effort import times
from tests.unit.hpckit.report.sample_runs import ran, submitted, write

STEP: dict[str, Any] = {"generation": 1, "attempt": 0, "step": 1, "step_s": 1.0, "loss": 2.0}
NAMES = ("generation", "attempt", "step", "step_s", "nodes", "world_size", "verdict", "host", "id")
OTHERS: st.SearchStrategy[Any] = st.sampled_from([None, "", "x", [], {}, True])
JSON = OTHERS | st.integers() | st.floats()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("step", "<script>"), ("step", -1), ("step", True), ("step", 1.5), ("step", 2**70)),
        *(("step_s", None), ("step_s", float("nan")), ("loss", "x"), ("loss", [1])),
        *(("attempt", "0"), ("generation", None), ("tokens_per_s", {})),
        *(("loss", 10**400), ("step_s", 10**400), ("data_wait_s", -(10**400))),
    ],
)
def test_a_record_with_a_wrong_value_is_not_sound(name: str, value: Any) -> None:
    assert is_valid(without_unread_fields(event_of(1.0, "step", STEP)))
    assert not is_valid(without_unread_fields(event_of(1.0, "step", {**STEP, name: value})))


def test_a_loss_may_be_no_number_and_what_is_not_read_may_be_anything() -> None:
    told = {**STEP, "loss": float("nan"), "mine": "text", "tokens_per_s": None}
    found = without_unread_fields(event_of(1.0, "step", told))
    assert is_valid(found)
    assert "mine" not in found.fields
    assert is_valid(event_of(1.0, "unheard_of", {"step": "x"}))


@settings(max_examples=times(25))
@given(
    st.lists(
        st.builds(
            lambda kind, fields: event_of(1.0, kind, fields),
            st.sampled_from(sorted(EVENT_KINDS)),
            st.dictionaries(st.sampled_from(NAMES), JSON | st.integers(0, 9)),
        ),
        max_size=12,
    )
)
def test_what_is_sound_can_be_read(events: list[Event]) -> None:
    sound = [event for event in map(without_unread_fields, events) if is_valid(event)]
    build_progress(sound)
    step_time(build_history(sound))


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    run = ran(tmp_path / "run")
    before = len(read_valid_events(run).events)
    bad = json.dumps({"time": 1.0, "kind": "step", "step": "x"})
    write(run, '{"time": 1.0, "kind"', "[]", "\x00", bad)
    told = read_valid_events(run)
    assert (len(told.events), told.torn, told.unsound) == (before, 3, 1)
    assert read_valid_events(submitted(tmp_path / "other")).events == []
