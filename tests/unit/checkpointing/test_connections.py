"""What is opened on all ranks or on none, where the other ranks are played."""

from pathlib import Path
from typing import Any

import pytest

from checkpointing import connections
from checkpointing.errors import OtherRankError, StoreAccessError
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.store.store import Store
from tests.unit.checkpointing.lonely_ranks import Lonely


def test_a_store_is_closed_if_another_rank_cannot_open_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Store] = []
    close = Store.close

    def recorded(store: Store) -> None:
        closed.append(store)
        close(store)

    monkeypatch.setattr(Store, "close", recorded)
    with pytest.raises(OtherRankError, match="has ended"):
        connections.open_store(Lonely(), tmp_path / "store", None)
    assert len(closed) == 1


def test_the_class_of_what_a_store_refuses_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> Store:
        raise StoreAccessError("create marker: permission denied")

    monkeypatch.setattr(Store, "open", refuse)
    with pytest.raises(StoreAccessError, match=r"cannot keep checkpoints in .*: create marker"):
        connections.open_store(RankGroup(), tmp_path / "store", None)
