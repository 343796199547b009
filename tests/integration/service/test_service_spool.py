"""Deadlines that the store would miss: a copy on the node's own disk, found by the next service."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpointing.format.object_keys import new_session
from checkpointing.service.client.service_stop import end_services
from checkpointing.service.config import Budget, ServiceConfig
from checkpointing.service.snapshots import Generation
from checkpointing.store.sessions import run_ownership
from checkpointing.store.store import Store
from tests.integration.cli.ckpt_commands import ckpt, ok
from tests.integration.service.running_services import on_disk, sabotaged
from tests.integration.service.service_nodes import (
    Trainer,
    assert_exact,
    assert_nothing_held,
    config,
    content,
    generation,
    is_gone,
    kill,
    pid_of,
    saved,
    services,
    status_of,
    until,
)
from tests.services.fault_fs import small_disk

ROWS = 512  # 512 KiB of each rank
SLOW = 2e4  # bytes per second to the store: nothing is durable before some 26 s have passed


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def local(folder: Path) -> Path:
    return folder / "local"


def slow(store: Path, local: Path, node: str = "a", **changes: Any) -> ServiceConfig:
    return config(store, node, local=str(local), bytes_per_s=SLOW, **changes)


def fast(store: Path, local: Path, node: str = "a") -> ServiceConfig:
    return config(store, node, local=str(local))


def owned(store: Path, world_size: int = 1) -> Generation:
    """As of trainers that have restored: they have taken over the run."""
    owner = run_ownership.claim(Store.open(store, create=True), "r")
    return Generation(new_session(), world_size, owner)


def seated(config: ServiceConfig, made: Generation, rank: int = 0) -> Trainer:
    return Trainer(config, rank, frozenset([rank]), made, rows=ROWS)


def save(trainer: Trainer, step: int, deadline_s: float | None = None) -> None:
    slot = trainer.client.claim(step)
    assert slot is not None
    trainer.client.staged(replace(trainer.fill(step, slot), deadline_s=deadline_s))


def leave(
    config: ServiceConfig, made: Generation, steps: list[int], within_s: float | None = None
) -> None:
    """A trainer stages these and dies, and so does its service, which could not write them.

    Args:
        within_s: the service is told to end, and has so long; None: it is killed.
    """
    trainer = seated(config, made)
    trainer.register_arena()
    for step in steps:
        save(trainer, step, deadline_s=1.0 if within_s is None else None)
    for step in steps if within_s is None else []:
        trainer.hears("spooled", step)
    trainer.close(goodbye=False)
    pid = pid_of(config) if within_s is not None else kill(config)
    assert pid is not None
    if within_s is not None:
        end_services(config.url, config.run, within_s)
    until(lambda: is_gone(pid), "it is dead")


def restarted(config: ServiceConfig, made: Generation | None = None) -> Trainer:
    """As a job does: it takes its seats, looks what there is, and takes over."""
    return seated(config, made or generation(1))


def take_over(store: Path, trainer: Trainer) -> None:
    trainer.generation = owned(store)
    trainer.client.register(trainer.generation)


def found_by(trainer: Trainer) -> list[int]:
    """Steps of its rank that are in its node's memory, all of them exact."""
    left, memory = trainer.client.left, trainer.client.snapshots()
    mine = [found for found in memory.found if found.rank == trainer.rank]
    for found in mine:
        assert left is not None
        cells = left.arena.view(found.slot * left.slot_bytes, left.slot_bytes).view(np.float32)
        exact = content(trainer.rank, found.step, ROWS)
        assert np.array_equal(cells[: exact.size].reshape(ROWS, -1), exact)
        own = memory.own[found.generation, found.step]
        assert own.values == ({"extra/step": found.step} if trainer.rank == 0 else {})
        assert own.metrics == {"loss": 1.0}
    return sorted(found.step for found in mine)


def goes_on(trainer: Trainer, step: int) -> None:
    trainer.register_arena()
    trainer.client.resume()
    trainer.save_when_possible(step)
    trainer.hears("committed", step)


def log_of(folder: Path) -> str:
    return "".join(path.read_text() for path in (folder / "rt").glob("*.log"))


def assert_nothing_left(folder: Path, local: Path) -> None:
    until(lambda: not services(folder / "rt"), "all services have ended")
    assert list(local.iterdir()) == []
    assert_nothing_held()


def test_what_sigterm_leaves_no_time_for_is_restored_from_the_disk(
    store: Path, local: Path, folder: Path
) -> None:
    made = owned(store)
    leave(slow(store, local), made, [6, 7], within_s=12.0)
    assert saved(store) == {}
    written = on_disk(local)
    assert {path.name for path in written} == {f"{made.id}-0-{step}.snapshot" for step in (6, 7)}
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (local, written[0].parent)} == {0o700}
    trainer = restarted(fast(store, local))
    assert found_by(trainer) in ([6, 7], [7])  # 7 may be in the store already
    take_over(store, trainer)
    goes_on(trainer, 8)
    trainer.close()
    assert_exact(store, 8, 1, ROWS)
    assert_nothing_left(folder, local)


def test_a_service_that_gives_up_leaves_copies(store: Path, local: Path, folder: Path) -> None:
    """No trainer is left, and nothing could be saved for long: it ends by itself."""
    budget = Budget(cpu=1, nice=0, bytes_per_s=SLOW)
    hopeless = (
        "import checkpointing.service.service_lifetime as lifetime\nlifetime.HOPELESS_S = 0.5"
    )
    with sabotaged(store, hopeless, local=str(local), budget=budget, linger_s=0.2):
        there = replace(slow(store, local), node=None, budget=budget, linger_s=0.2)
        trainer = seated(there, owned(store))
        trainer.register_arena()
        save(trainer, 3)
        trainer.close(goodbye=False)
        until(lambda: not list((folder / "rt").glob("*.lock")), "it has given up")
    assert "nothing could be saved for" in log_of(folder)
    trainer = restarted(replace(there, budget=Budget(cpu=1, nice=0)))
    assert found_by(trainer) == [3]
    trainer.close(goodbye=False)


def test_a_deadline_is_met_by_a_copy_that_outlives_both(
    store: Path, local: Path, folder: Path
) -> None:
    there, made = slow(store, local), owned(store)
    trainer = seated(there, made)
    trainer.register_arena()
    save(trainer, 5, deadline_s=2.0)
    trainer.hears("spooled", 5)
    (choice,) = trainer.kinds("tier")
    assert (choice["step"], choice["tier"], choice["codec"]) == (5, "local", "raw")
    assert "1 on the local disk, step 5 by local, raw: local copy" in ok("status")
    trainer.close(goodbye=False)
    pid = kill(there)
    assert pid is not None
    until(lambda: is_gone(pid), "it is dead")
    trainer = restarted(slow(store, local))
    assert found_by(trainer) == [5]
    assert "1 recovered from the local disk" in ok("status")
    trainer.close(goodbye=False)
    kill(there)  # once more, before anything was saved
    until(lambda: not services(folder / "rt"), "it is dead")
    trainer = restarted(fast(store, local))
    assert found_by(trainer) == [5]
    take_over(store, trainer)
    goes_on(trainer, 6)
    trainer.close()
    assert_nothing_left(folder, local)


def test_a_deadline_that_the_store_meets_costs_no_copy(
    store: Path, local: Path, folder: Path
) -> None:
    trainer = seated(fast(store, local), owned(store))
    trainer.register_arena()
    save(trainer, 5, deadline_s=60.0)
    trainer.hears("committed", 5)
    assert [choice["tier"] for choice in trainer.kinds("tier")] == ["store"]
    assert trainer.kinds("spooled") == []
    assert not local.exists()
    trainer.close()


def test_nothing_stays_of_what_is_durable(store: Path, local: Path) -> None:
    """The copy comes first, then the store."""
    there = config(store, local=str(local), bytes_per_s=float(1 << 19))  # a second
    trainer = seated(there, owned(store))
    trainer.register_arena()
    save(trainer, 5, deadline_s=0.5)
    trainer.hears("spooled", 5)
    trainer.hears("committed", 5)
    until(lambda: on_disk(local) == [], "the copy is removed")
    trainer.close()
    assert_exact(store, 5, 1, ROWS)


def test_what_was_left_becomes_durable_though_the_ranks_moved(
    store: Path, local: Path, folder: Path
) -> None:
    made = owned(store, world_size=2)
    configs = [slow(store, local, node) for node in "ab"]
    old = [seated(there, made, rank) for rank, there in enumerate(configs)]
    for trainer in old:
        trainer.register_arena()
        save(trainer, 3, deadline_s=1.0)
    for trainer in old:
        until(lambda t=trainer: len(t.kinds("tier")) > 0, "it chooses")  # type: ignore[misc]
    until(lambda: len(on_disk(local)) == 2, "both have copies")
    for trainer, there in zip(old, configs, strict=True):
        trainer.close(goodbye=False)
        kill(there)
    until(lambda: not services(folder / "rt"), "both are dead")
    made = generation(2)
    new = [
        Trainer(fast(store, local, node), rank, frozenset([rank]), made, rows=ROWS)
        for rank, node in ((1, "a"), (0, "b"))
    ]
    until(lambda: 3 in saved(store), "the old step is committed")
    assert_exact(store, 3, 2, ROWS)
    until(lambda: on_disk(local) == [], "the copies are removed")
    for trainer in new:
        trainer.close()


def test_another_node_does_not_see_it(store: Path, local: Path) -> None:
    leave(slow(store, local), owned(store), [7])
    trainer = seated(fast(store, local, "b"), owned(store))
    assert trainer.client.left is None
    assert found_by(trainer) == []
    assert len(on_disk(local)) == 1
    trainer.close()


def test_the_run_went_on_elsewhere_and_the_copy_is_stale(
    store: Path, local: Path, folder: Path
) -> None:
    leave(slow(store, local), owned(store), [7])
    (path,) = on_disk(local)
    kept = path.read_bytes()
    elsewhere = seated(fast(store, local, "b"), owned(store))
    goes_on(elsewhere, 4)  # from an older step, so it is behind, and counts more
    elsewhere.close()
    trainer = seated(fast(store, local), owned(store))
    assert found_by(trainer) == []
    assert on_disk(local) == []
    assert "step 4 was saved later" in log_of(folder)
    trainer.close()
    until(lambda: not services(folder / "rt"), "it has ended")
    # and when it is there again, with nobody who restores: it is committed by no one
    path.parent.mkdir(mode=0o700)
    path.write_bytes(kept)
    trainer = seated(fast(store, local), owned(store))
    goes_on(trainer, 5)
    trainer.close()
    assert sorted(saved(store)) == [4, 5]


def test_the_step_of_a_generation_that_was_taken_over_is_restored_and_never_committed(
    store: Path, local: Path, folder: Path
) -> None:
    """The next trainers took over and died before they had saved: nobody has gone on from it."""
    leave(slow(store, local), owned(store), [7])
    owned(store)
    trainer = seated(fast(store, local), generation(1))
    assert found_by(trainer) == [7]
    until(lambda: "took over the run" in log_of(folder), "its service is refused")
    assert found_by(trainer) == [7]
    assert saved(store) == {}
    goes_on(trainer, 8)
    trainer.close()
    assert sorted(saved(store)) == [8]
    assert_nothing_left(folder, local)


def test_generations_that_do_not_say_whose_they_are_are_not_the_next_owners(
    store: Path, local: Path, folder: Path
) -> None:
    leave(slow(store, local), generation(1), [7])
    owned(store)
    trainer = seated(fast(store, local), generation(1))
    until(lambda: "took over the run" in log_of(folder), "its service is refused")
    assert saved(store) == {}
    trainer.close()


def test_damage_is_never_loaded(store: Path, local: Path, folder: Path) -> None:
    leave(slow(store, local), owned(store), [6, 7])
    older, newer = on_disk(local)
    data = bytearray(newer.read_bytes())
    data[len(data) // 2] ^= 1
    newer.write_bytes(data)
    trainer = restarted(slow(store, local))
    assert found_by(trainer) == [6]
    assert "are damaged" in log_of(folder)
    assert on_disk(local) == [older]
    trainer.close(goodbye=False)


def test_a_full_disk_costs_the_copy_alone(
    store: Path, local: Path, folder: Path, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk; run the tests as root")
    with small_disk(tmp_path, mib=1) as disk:
        (disk / "filler").write_bytes(bytes(700 << 10))
        there = config(store, local=str(disk / "local"), bytes_per_s=float(1 << 19))
        trainer = seated(there, owned(store))
        trainer.register_arena()
        save(trainer, 5, deadline_s=0.5)
        trainer.hears("spool_failed", 5)
        assert "No space left" in trainer.kinds("spool_failed")[0]["error"]
        assert on_disk(disk / "local") == []
        status = status_of(there)
        assert status is not None
        assert (status["spooled"], status["spool_failed"]) == (0, 1)
        trainer.hears("committed", 5)
        trainer.close()
        until(lambda: not services(folder / "rt"), "it has ended")
    assert_exact(store, 5, 1, ROWS)


def test_a_folder_of_somebody_elses_is_not_used(store: Path, local: Path, folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    local.symlink_to(elsewhere)
    there = config(store, local=str(local), bytes_per_s=float(1 << 19))
    trainer = seated(there, owned(store))
    trainer.register_arena()
    save(trainer, 5, deadline_s=0.5)
    trainer.hears("spool_failed", 5)
    assert "mode 0700 (not a link)" in trainer.kinds("spool_failed")[0]["error"]
    trainer.hears("committed", 5)
    result = ckpt("status")
    assert result.exit_code == 1
    assert "no local copy" in result.stderr
    assert list(elsewhere.iterdir()) == []
    trainer.close()


def test_a_service_that_is_started_again_beside_its_trainers_takes_nothing_from_them(
    store: Path, local: Path, folder: Path
) -> None:
    there = config(store, local=str(local), bytes_per_s=float(1 << 18))  # two seconds
    trainer = seated(there, owned(store))
    trainer.register_arena()
    save(trainer, 5, deadline_s=0.5)
    trainer.hears("spooled", 5)
    kill(there)
    trainer.hears("committed", 5)
    assert trainer.steps("dropped") == []
    until(lambda: on_disk(local) == [], "the copy is removed")
    trainer.close()
    assert_exact(store, 5, 1, ROWS)
