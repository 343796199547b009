"""What the tests of the registry share."""

from __future__ import annotations

import pytest

from checkpointing.service.registry import snapshot_registry


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HANDOVER_S", "LEFT_S", "REJOIN_S"):
        monkeypatch.setattr(snapshot_registry, name, 0.0)
