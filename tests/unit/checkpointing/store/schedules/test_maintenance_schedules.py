"""Schedules of compaction, flattening and repair beside others, each of which once lost, kept or
refused something."""

from __future__ import annotations

from functools import partial

import pytest

from checkpointing.errors import SaveError
from checkpointing.format.object_keys import SaveId
from checkpointing.retention import Last
from checkpointing.store import catalog
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.deletion.pack_compaction import compact
from checkpointing.store.repair import manifest_revision
from checkpointing.store.repair.checkpoint_repair import repair
from checkpointing.store.sessions.run_takeover import take_over
from checkpointing.store.sessions.session import TTL_S, Session
from checkpointing.store.store import Store
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.schedules.model_storage import ModelStorage, World
from tests.unit.checkpointing.store.schedules.scheduler import Actor, Scheduler
from tests.unit.checkpointing.store.schedules.scripted_schedules import Script, V, W, script


def _saved(play: Script, run: str, step: int, values: saves.Values) -> SaveId:
    """A checkpoint, and from then on a copy of all that there is."""
    play.finish(play.saver(run, step, values))
    copy = World(objects=dict(play.model.world.objects))
    play.model.facts.mirror = Store.at(ModelStorage(copy, Scheduler()))
    return play.model.facts.committed[-1]


def _damage(play: Script, ending: str) -> None:
    """Invert a byte of the first object of this kind: of its first chunk, or of its header."""
    objects = play.model.world.objects
    key = next(key for key in sorted(objects) if key.endswith(ending))
    data, modified = objects[key]
    objects[key] = (data[:40] + bytes([data[40] ^ 0xFF]) + data[41:], modified)


def _lose_manifest(play: Script, save: SaveId) -> None:
    del play.model.world.objects[save.manifest()]
    play.model.facts.gone.append(save)


def _repairer(play: Script, save: SaveId) -> Actor:
    def body(store: Store) -> None:
        there = {f.stored.save: f for f in catalog.committed(store, save.run)[0]}
        mirror = play.model.facts.mirror
        assert mirror is not None
        done = repair(store, save.run, there.get(save, save), [mirror])
        assert done.lost == []

    return play.actor(body)


def _revise(store: Store, run: str) -> None:
    """A revision of the newest checkpoint, with all that is in it."""
    found = catalog.newest_first(store, run)[0]
    with Session(store, run) as session:
        manifest_revision.publish(store, session, found, lambda content: content)


def _revisions(play: Script, run: str) -> list[int]:
    return [stored.revision for stored in play.model.store().manifests(run)]


def test_a_repair_does_not_remove_what_somebody_made_of_its_result() -> None:
    with script() as play:
        save = _saved(play, "a", 1, V)
        _lose_manifest(play, save)
        repairer = _repairer(play, save)
        play.up_to(repairer, "create runs/a/steps/", "delete leases/", "list runs/")
        play.finish(play.actor(partial(_revise, run="a")))
        (made,) = _revisions(play, "a")
        play.finish(repairer)
        assert _revisions(play, "a") == [made]


def test_a_damaged_manifest_that_a_repair_had_to_leave_goes_later() -> None:
    # while it is there, nothing is swept
    with script() as play:
        save = _saved(play, "a", 1, V)
        _damage(play, ".manifest")
        died = play.up_to(_repairer(play, save), "create runs/a/steps/")
        play.finish(_repairer(play, save))
        assert _revisions(play, "a") == [1, 0], "the other one's lease names it"
        play.kill(died)
        play.model.sleep(2 * TTL_S)
        play.finish(play.sweeper())
        assert _revisions(play, "a") == [1]


def test_a_repair_that_died_does_not_keep_the_next_from_bringing_a_checkpoint_back() -> None:
    with script() as play:
        save = _saved(play, "a", 1, V)
        _lose_manifest(play, save)
        play.kill(play.up_to(_repairer(play, save), "create runs/a/steps/"))
        play.model.sleep(2 * TTL_S)
        play.finish(play.sweeper(), _repairer(play, save))
        assert play.ids("a") == {save.id}


def test_a_revision_that_died_does_not_keep_a_checkpoint_from_being_repaired() -> None:
    with script() as play:
        save = _saved(play, "a", 1, V)
        dying = play.actor(partial(_revise, run="a"))
        play.kill(play.up_to(dying, "create runs/a/steps/"))
        play.model.sleep(2 * TTL_S)
        play.finish(play.sweeper())
        _damage(play, ".pack")
        assert saves.problems(play.model.store())
        play.finish(_repairer(play, save))
        assert saves.problems(play.model.store()) == []


def test_a_repair_that_comes_after_a_prune_brings_nothing_back() -> None:
    with script() as play:
        save = _saved(play, "a", 1, V)
        play.finish(play.saver("a", 2, W))
        store = play.model.store()
        found = next(f for f in catalog.committed(store, "a")[0] if f.stored.save == save)
        prune(store, "a", [Last(1)], grace_s=0)
        mirror = play.model.facts.mirror
        assert mirror is not None
        with pytest.raises(FileNotFoundError, match="was removed in the meantime"):
            repair(store, "a", found, [mirror])
        assert save.id not in play.ids("a")


def test_a_repair_that_meets_a_revision_repairs_that() -> None:
    with script() as play:
        save = _saved(play, "a", 1, V)
        repairer = play.up_to(_repairer(play, save), "list runs/", "list runs/", "list runs/")
        play.up_to(repairer, "get_range runs/")
        play.finish(play.actor(partial(_revise, run="a")), repairer)
        assert _revisions(play, "a") == [1]


def test_a_compaction_goes_on_when_a_checkpoint_goes() -> None:
    with script() as play:
        play.finish(play.saver("a", 1, V), play.saver("a", 2, W))
        compactor = play.actor(lambda store: compact(store, None, threshold=0.0))
        play.up_to(compactor, "get_range runs/a/steps/0000000001")
        while "steps/0000000001" in compactor.next:  # it has seen the first one's header
            play.model.scheduler.step(compactor)
        play.finish(play.pruner("a"), compactor)


def test_taking_over_tells_of_no_save_that_was_only_being_revised() -> None:
    with script() as play:
        play.finish(play.saver("a", 1, V))
        reviser = play.up_to(play.actor(partial(_revise, run="a")), "create runs/a/steps/")
        assert take_over(play.model.store(), "a").abandoned == []
        play.finish(reviser)
        assert isinstance(reviser.error, SaveError)
        reviser.error = None
        assert len(play.ids("a")) == 1
