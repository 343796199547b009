"""The trainer's own prune marks the best checkpoint, as its retention sees it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from checkpointing.events import Events
from checkpointing.retention import Best, Every, KeepPolicy, Last
from checkpointing.retention_pruner import Pruner
from checkpointing.store.catalog import list_checkpoints
from checkpointing.store.pins_and_labels import marks, put_mark
from checkpointing.store.store import Store
from hpckit.cli.ckpt.checkpoint_selection import pick
from hpckit.cli.common.store_errors import CommandUsageError
from tests.unit.checkpointing.store.saves import save_all

RUN = "a"


def marked(tmp_path: Path, steps: Sequence[int], keep: Sequence[KeepPolicy]) -> list[int | None]:
    """The step that is marked best after each save, whose loss is 1 / (step + 1)."""
    store, found = Store.open(str(tmp_path / "store"), create=True), list[int | None]()
    for step in steps:
        (made,) = save_all(store, RUN, {step: {"model/w": step}})
        Pruner(store, RUN, keep, Events(None, 0)).prune(newest=made.id)
        best = marks(store, RUN).get("best")
        found.append(None if best is None else int(best.id.partition("-")[0]))
    return found


@pytest.mark.parametrize(
    ("keep", "best"),
    [
        ([Last(1), Best("loss")], [3, 3, 7]),
        ([Last(1), Best("loss", "max", n=2)], [3, 1, 1]),
        ([Best("other")], [None] * 3),
        ([Last(1)], [None] * 3),
        ([Every(1), Best("loss", "max"), Best("loss")], [3, 1, 1]),
    ],
)
def test_the_mark_is_where_the_policy_says(
    tmp_path: Path, keep: list[KeepPolicy], best: list[int | None]
) -> None:
    assert marked(tmp_path, [3, 1, 7], keep) == best


def test_a_mark_of_what_is_gone_gives_way_to_the_metric(tmp_path: Path) -> None:
    assert marked(tmp_path, [3, 1], [Best("loss", "max")]) == [3, 1]
    store = Store.open(str(tmp_path / "store"), create=True)
    infos, named = list_checkpoints(store, RUN), marks(store, RUN)
    assert pick(infos, named, "best", "here").info.step == 1
    left = [info for info in infos if info.step != 1]
    assert pick(left, named, "best", "here").info.step == 3
    put_mark(store, save_all(store, RUN, {9: {"model/w": 9}})[0], "mine", "")
    with pytest.raises(CommandUsageError, match="'mine'"):
        pick(left, marks(store, RUN), "mine", "here")
