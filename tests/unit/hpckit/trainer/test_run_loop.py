"""Earlier names in the interface of a training function still work, and name their successors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpckit.trainer.errors import TrainingError
from hpckit.trainer.run_loop import TrainingRun


def test_earlier_names_work_and_say_what_they_are_now() -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    run = cast(
        TrainingRun,
        SimpleNamespace(
            local_batch=4, emit_event=lambda kind, **fields: events.append((kind, fields))
        ),
    )
    with pytest.warns(FutureWarning, match=r"run\.share is run\.local_batch now"):
        assert TrainingRun.share.__get__(run) == 4
    with pytest.warns(FutureWarning, match=r"run\.tell is run\.emit_event now"):
        TrainingRun.tell(run, "note", text="a")
    assert events == [("note", {"text": "a"})]


def test_a_run_that_tracks_nothing_is_refused() -> None:
    train = SimpleNamespace(validate_every=None)
    run = SimpleNamespace(_records=None, _cfg=SimpleNamespace(train=train), tracked={})
    with pytest.raises(TrainingError, match=r"nothing is tracked.*call run.track\(model=model"):
        TrainingRun._check_loop(cast(TrainingRun, run), None)
