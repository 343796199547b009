"""The trainer's own prune marks the best checkpoint, as its retention sees it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from checkpointing.events import Events
from checkpointing.retention import Best, Every, KeepPolicy, Last, Unevaluated
from checkpointing.retention_pruner import Pruner, mark_best
from checkpointing.store.catalog import list_checkpoints
from checkpointing.store.deletion import checkpoint_prune, manifest_removal
from checkpointing.store.pins_and_labels import marks, put_mark, put_metrics
from checkpointing.store.sessions.session import Session
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


def test_what_was_passed_over_does_not_count_and_stays_no_longer_than_if_it_did(
    tmp_path: Path,
) -> None:
    store = Store.open(str(tmp_path / "store"), create=True)
    pruner = Pruner(store, RUN, [Last(2), Best("loss")], Events(None, 0))
    behind = save_all(store, RUN, {40: {"model/w": 40}, 45: {"model/w": 45}})
    pruner.skipped = {one.id for one in behind}
    kept = []
    for step in (20, 30, 42, 50):
        (made,) = save_all(store, RUN, {step: {"model/w": step}})
        pruner.prune(newest=made.id)
        kept.append(sorted(info.step for info in list_checkpoints(store, RUN)))
        assert marks(store, RUN)["best"].id == made.id
    assert kept == [[20, 40, 45], [20, 30, 40, 45], [30, 42, 45], [42, 45, 50]]


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


def best_step(store: Store) -> int:
    return int(marks(store, RUN)["best"].id.partition("-")[0])


def test_metrics_of_evaluations_decide_what_stays_and_what_is_best(tmp_path: Path) -> None:
    """The mark of an evaluation goes with its checkpoint; `best` follows the later ones."""
    store = Store.open(str(tmp_path / "store"), create=True)
    accuracy = Best("eval_accuracy", "max")
    keep: list[KeepPolicy] = [Last(1), accuracy, Unevaluated(2, 3600.0)]
    saves = save_all(store, RUN, {step: {"model/w": step} for step in (1, 2, 3, 4)})
    pruner = Pruner(store, RUN, keep, Events(None, 0))
    pruner.prune(newest=saves[-1].id)
    assert [one.step for one in list_checkpoints(store, RUN)] == [2, 4]  # both wait
    assert mark_best(store, RUN, accuracy) is None
    put_metrics(store, saves[3], {"eval_accuracy": 0.5}, "")
    mark_best(store, RUN, accuracy)
    assert best_step(store) == 4
    put_metrics(store, saves[1], {"eval_accuracy": 0.75}, "")
    mark_best(store, RUN, accuracy)
    assert best_step(store) == 2
    (last,) = save_all(store, RUN, {6: {"model/w": 6}})
    pruner.prune(newest=last.id)
    assert [one.step for one in list_checkpoints(store, RUN)] == [2, 6]
    assert {name for name in marks(store, RUN) if name != "best"} == {f"eval-{saves[1].id}"}


def test_of_two_evaluations_that_end_together_both_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one gets its metrics between the choice of the best and the mark."""
    store = Store.open(str(tmp_path / "store"), create=True)
    saves = save_all(store, RUN, {step: {"model/w": step} for step in (1, 2)})
    accuracy = Best("eval_accuracy", "max")
    put_metrics(store, saves[0], {"eval_accuracy": 0.5}, "")

    def put_mark_late(*arguments: Any, **options: Any) -> None:
        put_metrics(store, saves[1], {"eval_accuracy": 0.75}, "")
        put_mark(*arguments, **options)

    monkeypatch.setattr("checkpointing.retention_pruner.put_mark", put_mark_late)
    mark_best(store, RUN, accuracy)
    assert best_step(store) == 2


def test_metrics_that_come_during_a_prune_go_or_stay_with_their_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prune has chosen before they come, and has marked both checkpoints for deletion."""
    store = Store.open(str(tmp_path / "store"), create=True)
    saves = save_all(store, RUN, {step: {"model/w": step} for step in (1, 2, 3)})

    def put_metrics_late(*arguments: Any) -> Any:
        for save in saves[:2]:
            put_metrics(store, save, {"eval_accuracy": 0.5}, "")
        return manifest_removal.revisions(*arguments)

    monkeypatch.setattr(checkpoint_prune, "revisions", put_metrics_late)
    with Session(store, RUN) as session, session.reading(saves[0].manifest()):
        found = checkpoint_prune.prune(store, RUN, [Last(1)])
        assert (found.removed, [*found.spared]) == ([saves[1].id], [saves[0].id])
        with manifest_removal.marking_for_deletion(store, [saves[0].manifest()]):
            put_metrics(store, saves[0], {"eval_accuracy": 0.75}, "")
    assert {name: dict(mark.metrics) for name, mark in marks(store, RUN).items()} == {
        f"eval-{saves[0].id}": {"eval_accuracy": 0.75}
    }
