"""A node's workers, as its agent sees them; with real ones it is tested as a whole."""

from __future__ import annotations

import os

import pytest

from hpckit.agent.workers.worker_processes import _alive


@pytest.mark.parametrize(
    ("error", "is_there"), [(None, True), (ProcessLookupError, False), (PermissionError, False)]
)
def test_a_worker_whose_number_another_user_has_is_gone(
    monkeypatch: pytest.MonkeyPatch, error: type[OSError] | None, is_there: bool
) -> None:
    def kill(*_: object) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(os, "kill", kill)
    assert _alive(4_000_000) is is_there
