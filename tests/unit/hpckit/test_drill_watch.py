"""How long a campaign waits for its run."""

from __future__ import annotations

import pytest

from hpckit.drill import watch
from hpckit.report.state import State


def test_patience_is_for_runs_that_have_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(watch.time, "monotonic", lambda: now_s)
    patience = watch._Patience(300.0)
    for state, seconds, is_over in (
        (State.QUEUED, 5000.0, False),
        (State.STARTING, 200.0, False),
        (State.RUNNING, 90.0, False),
        (State.WAITING, 5000.0, False),
        (State.RUNNING, 20.0, True),
    ):
        now_s += seconds
        assert patience.is_over(state) is is_over, state
