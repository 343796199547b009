"""Invariants 2, 4 and 5: savers, readers, prunes, pins and revisions in any order, frozen and
killed anywhere, lose nothing that is kept and leave nothing that is not."""

from __future__ import annotations

from functools import partial

import pytest

from checkpointing.errors import CheckpointError, SaveError
from checkpointing.format.object_keys import SaveId
from checkpointing.retention import Last, Only
from checkpointing.store import catalog, pins_and_labels
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.deletion.pack_sweep import FENCED_S
from checkpointing.store.repair import manifest_revision
from checkpointing.store.sessions.session import TTL_S, Session
from checkpointing.store.store import Store
from tests.effort import times
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.schedules.random_schedule import explore
from tests.unit.checkpointing.store.schedules.schedule_invariants import judge
from tests.unit.checkpointing.store.schedules.scripted_schedules import U, V, W, script

SEEDS = times(60)
BATCHES = 6
WEEK_S = FENCED_S


@pytest.mark.parametrize("batch", range(BATCHES))
def test_any_schedule_keeps_every_promise(batch: int) -> None:
    for seed in range(batch * SEEDS // BATCHES, (batch + 1) * SEEDS // BATCHES):
        model = explore(seed)
        assert judge(model) == [], "\n".join([f"seed {seed}", *model.scheduler.log])


def test_a_schedule_is_the_same_each_time() -> None:
    assert explore(7).scheduler.log == explore(7).scheduler.log


def test_a_tomb_that_another_sweep_ended_is_not_buried() -> None:
    # the pack X of b/1 is condemned, found needed by a/1 after all, and its tomb ended, while a
    # second sweep stands before its look at the manifests with what it knew of leases before
    with script() as play:
        play.finish(play.saver("b", 1, V))
        first = play.up_to(play.saver("a", 1, V), "create runs/a/steps/")  # refers to X
        play.finish(play.saver("b", 2, W), play.pruner("b"))  # X is condemned, and waits for first
        play.finish(first)
        slow = play.up_to(
            play.sweeper(),
            *("list packs/", "list tombs/", "list tombs/", "list leases/", "list runs/"),
        )
        play.finish(play.sweeper())  # finds X needed
        second = play.up_to(play.saver("c", 1, V), "create runs/c/steps/")  # refers to X
        play.finish(play.saver("a", 2, U), play.pruner("a"))
        play.finish(slow, second)


def test_a_revision_refers_to_nothing_condemned() -> None:
    # a listing beside a revision may show neither it nor the one before, so that a sweep might
    # bury what both refer to
    with script() as play:
        play.finish(play.saver("b", 1, V))
        first = play.up_to(play.saver("a", 1, V), "create runs/a/steps/")
        play.finish(play.saver("b", 2, W), play.pruner("b"))  # condemns what a/1 refers to
        play.finish(first)
        refused = play.actor(partial(_revise, run="a"))
        play.finish(refused, play.sweeper(), play.actor(partial(_revise, run="a")))
        assert "prune may be deleting" in str(refused.error)
        refused.error = None


def test_a_save_refers_to_nothing_condemned() -> None:
    # what first refers to was condemned after it began; second finds it there, and the tomb too
    with script() as play:
        play.finish(play.saver("b", 1, V))
        first = play.up_to(play.saver("a", 1, V), "create runs/a/steps/")
        play.finish(play.saver("b", 2, W), play.pruner("b"), first)
        second = play.up_to(play.saver("c", 1, V), "create runs/c/steps/")
        play.finish(play.saver("a", 2, U), play.pruner("a"), play.sweeper(), second)


def test_a_commit_that_comes_late_brings_nothing_back() -> None:
    # two commit the same save; it is pruned before the second one does
    with script() as play:
        first = play.up_to(play.saver("a", 1, V), "create runs/a/steps/")
        second = play.up_to(play.taker("a"), "create runs/a/steps/")
        play.finish(first, play.saver("a", 2, W), play.pruner("a"))
        play.finish(second)


def test_a_commit_that_comes_late_after_its_session_died_brings_nothing_back() -> None:
    with script() as play:
        first = play.up_to(play.saver("a", 1, V), "create runs/a/steps/")
        second = play.up_to(play.taker("a"), "create runs/a/steps/")
        play.finish(first)
        play.freeze(second, 2 * TTL_S)
        play.finish(play.sweeper(), play.saver("a", 2, W), play.pruner("a"), play.sweeper())
        assert len(play.ids("a")) == 1
        play.finish(second)


@pytest.mark.parametrize(
    ("silence_s", "unseen"),
    [
        (2 * TTL_S, False),
        (2 * TTL_S, True),  # its own clock has stood still
        (2 * WEEK_S, False),  # its fence is gone, and what stood in the manifest's place too
    ],
)
def test_who_sleeps_just_before_the_commit_commits_nothing_broken(
    silence_s: float, unseen: bool
) -> None:
    with script() as play:
        play.finish(play.saver("b", 1, V))
        saver = play.up_to(play.saver("a", 1, V), "create runs/a/steps/")
        play.freeze(saver, TTL_S + 1, unseen=unseen)
        play.finish(play.sweeper())  # declares it dead
        play.freeze(saver, silence_s, unseen=unseen)
        play.finish(play.saver("b", 2, W), play.pruner("b"), play.sweeper())
        play.finish(saver)
        assert isinstance(saver.error, SaveError)
        saver.error = None


def test_a_pin_is_not_taken_back_by_another_one_that_came_too_late() -> None:
    with script() as play:
        play.finish(play.saver("a", 1, V), play.saver("a", 2, W))
        pruning = play.up_to(play.pruner("a"), "create tombs/")
        play.finish(play.actor(_pin_oldest))
        play.up_to(pruning, "delete tombs/")  # has spared it
        late = play.actor(_pin_oldest)
        play.finish(late, pruning, play.pruner("a"))
        assert isinstance(late.error, CheckpointError)
        late.error = None
        assert len(play.ids("a")) == 2


def test_a_pin_that_comes_too_late_is_refused() -> None:
    with script() as play:
        play.finish(play.saver("a", 1, V), play.saver("a", 2, W))
        pruning = play.up_to(play.pruner("a"), "delete runs/a/steps/")
        late = play.actor(_pin_oldest)
        play.finish(late, pruning)
        assert isinstance(late.error, CheckpointError)
        late.error = None
        assert len(play.ids("a")) == 1


def test_a_mark_that_cannot_be_moved_stays_where_it_was() -> None:
    with script() as play:
        play.finish(play.saver("a", 1, V), play.saver("a", 2, W))
        store = play.model.store()
        here = catalog.newest_first(store, "a")[0].stored.save
        pins_and_labels.put_mark(store, here, "best", "")
        with pytest.raises(CheckpointError, match="does not exist"):
            pins_and_labels.put_mark(store, SaveId("a", 7, "0" * 8), "best", "")
        assert pins_and_labels.marks(store, "a")["best"].id == here.id


def test_the_tomb_of_a_prune_that_died_keeps_nobody_from_pinning_for_ever() -> None:
    with script() as play:
        play.finish(play.saver("a", 1, V), play.saver("a", 2, W))
        play.kill(play.up_to(play.pruner("a"), "delete runs/a/steps/"))
        play.model.sleep(WEEK_S)
        play.finish(play.sweeper(), play.actor(_pin_oldest), play.pruner("a"))
        assert len(play.ids("a")) == 2


def test_what_a_revision_that_died_has_replaced_goes() -> None:
    with script() as play:
        play.finish(play.saver("a", 1, V), play.saver("a", 2, W))
        dying = play.actor(_reduce)
        play.kill(play.up_to(dying, "create runs/a/steps/", "delete runs/a/steps/"))
        assert len(play.model.store().manifests("a")) == 3
        play.model.sleep(2 * TTL_S)
        play.finish(play.sweeper())
        assert len(play.model.store().manifests("a")) == 2


def test_who_reads_keeps_a_checkpoint_from_prune_and_from_revision() -> None:
    with script() as play:
        play.finish(play.saver("a", 1, V), play.saver("a", 2, W))
        reader = play.actor(_read_oldest)
        play.up_to(reader, "get_range packs/")
        play.finish(play.pruner("a"), play.actor(_reduce), play.actor(partial(_revise, run="a")))
        assert len(play.ids("a")) == 2
        play.finish(reader, play.pruner("a"))
        assert len(play.ids("a")) == 1


def test_two_revisions_at_once_are_one_revision() -> None:
    with script() as play:
        play.finish(play.saver("a", 1, V))
        revisers = [
            play.actor(partial(_revise, run="a", keep=(item,))) for item in ("model", "optim")
        ]
        for reviser in revisers:
            play.up_to(reviser, "create runs/a/steps/")
        play.finish(*revisers)
        assert isinstance(revisers[1].error, SaveError)
        revisers[1].error = None


def test_a_sweep_goes_on_after_a_lease_that_cannot_be_read() -> None:
    with script() as play:
        play.finish(play.saver("a", 1, V))
        key = "leases/00000bad.0000000001.lease"
        play.model.world.objects[key] = (b"{", play.model.world.now)
        play.finish(play.saver("a", 2, W), play.pruner("a"))
        assert len(play.ids("a")) == 2  # it may be of somebody who reads
        play.model.sleep(2 * 86400.0)
        play.finish(play.pruner("a"))
        assert len(play.ids("a")) == 1
        assert key not in play.model.world.objects


def test_what_is_not_the_stores_is_left_alone() -> None:
    with script() as play:
        play.finish(play.saver("a", 1, V))
        others = ["leases/notes.txt", "tombs.txt", "packs/00/readme", "runs/a/notes"]
        for key in others:
            play.model.world.objects[key] = (b"mine", play.model.world.now)
        play.model.sleep(2 * WEEK_S)
        play.finish(play.sweeper())
        assert all(play.model.world.objects.pop(key) for key in others)


def _revise(store: Store, run: str, keep: tuple[str, ...] = ("model", "optim", "extra")) -> None:
    """A revision of the newest checkpoint, of some items."""
    found = catalog.newest_first(store, run)[0]
    with Session(store, run) as session:
        manifest_revision.publish(
            store, session, found, lambda content: manifest_revision.drop_items(content, keep)
        )


def _reduce(store: Store) -> None:
    prune(store, "a", [Last(1), Only(("model",), Last(9))], grace_s=0)


def _pin_oldest(store: Store) -> None:
    pins_and_labels.pin(store, catalog.newest_first(store, "a")[-1].stored.save, "")


def _read_oldest(store: Store) -> None:
    found = catalog.newest_first(store, "a")[-1]
    with Session(store, "a") as session, session.reading(found.stored.key):
        assert saves.contents(Checkpoint(store, found.stored)) == saves.expected(V)
