"""Invariants 4 and 5 with real processes: many at once on one store, and races for one object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checkpointing.format.manifest import ManifestHeader
from checkpointing.retention import Last
from checkpointing.store import catalog
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import write_part
from checkpointing.store.write.part_writer import write
from tests.effort import times
from tests.faults import crashing, storming
from tests.faults.crashing import Place, opened
from tests.services import faults
from tests.services.fault_proxy import fault_proxy
from tests.services.s3 import S3Place, S3Server
from tests.unit.checkpointing.store import saves

SECONDS, ROUNDS = times(6), times(10)
RUNS = ("a", "b", "c")
RACERS = 12


def test_many_at_once_lose_and_leave_nothing(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "store"), {})
    with opened(place) as storage:
        Store.at(storage, create=True)
    jobs = [("saver", run) for run in RUNS]
    jobs += [(name, run) for name in ("reader", "pruner") for run in RUNS[:2]]
    jobs += [("maintainer", RUNS[0])]
    with storming.processes(len(jobs)) as run_all:
        results = run_all(_do, [(name, place, run, SECONDS) for name, run in jobs])
    assert all(results), f"somebody did nothing: {results}"
    with opened(place) as storage:
        store = Store.at(storage)
        assert saves.problems(store) == []
        for made, run in zip(results, RUNS, strict=False):
            there = {f.stored.save for f in catalog.committed(store, run)[0]}
            assert set(made[-storming.KEEP :]) <= there
        for _ in range(2):
            for run in RUNS:
                prune(store, run, [Last(storming.KEEP)], grace_s=0)
        assert saves.problems(store) == []
        assert crashing.leaks(store) == []


def test_all_who_commit_one_save_agree(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "store"), {})
    with opened(place) as storage, storming.processes(RACERS) as run_all:
        store = Store.at(storage, create=True)
        for step in range(1, 9):
            with Session(store, "a") as session:
                save = session.begin(step)
                for rank in range(3):
                    mine = saves.pieces(storming.values_of(step), rank, 3)
                    made = write(
                        store, save, mine, {}, RunChunkIndex(store, "a").index(), saves.PLAIN
                    )
                    write_part(store, ManifestHeader(save, 1.0, 3), rank, made)
                counts = run_all(storming.committer, [(place, save, 3)] * RACERS)
                session.end(save.manifest())
            assert len(set(counts)) == 1
        assert saves.problems(store) == []
        assert len(catalog.committed(store)[0]) == 8
        assert crashing.leaks(store) == []


def test_one_of_many_creates_an_object_on_a_disk(tmp_path: Path) -> None:
    """More rounds, as of the next one: HPCKIT_RACE_ROUNDS."""
    _race(Place(str(tmp_path / "store"), {}), max(100, ROUNDS))


@pytest.mark.timeout(0 if ROUNDS > 100 else 600)
@pytest.mark.parametrize(
    ("name", "has_conditions"), [("ceph", True), ("ministack", True), ("ministack", False)]
)
def test_one_of_many_creates_an_object_in_s3(
    name: str, has_conditions: bool, request: pytest.FixtureRequest
) -> None:
    """Twelve processes for each object, while replies are lost; on a server that knows
    If-None-Match, and on one that does not, where they agree by claims.

    Thousands of rounds, which take many minutes:

        HPCKIT_RACE_ROUNDS=3000 python -m pytest tests/faults/test_store_processes.py -k in_s3
    """
    server: S3Server = request.getfixturevalue(f"{name}_server")
    with fault_proxy(server.http) as proxy:
        if not has_conditions:
            proxy.inject(faults.NO_CONDITIONS, method="PUT", key="probe")
        lost = [
            proxy.inject(
                faults.LoseReply(), method="PUT", key=rf"race/{number}(~claims/.*)?$", times=6
            )
            for number in range(0, ROUNDS, 5)
        ]
        place: S3Place = server.new_place().through(proxy.endpoint)
        # many at a time, because claims take seconds
        _race(Place(place.url, place.options), ROUNDS, width=10)
        assert all(rule.hits == 6 for rule in lost)


def _race(place: Place, rounds: int, width: int = 1) -> None:
    names = [f"racer {number}" for number in range(RACERS)]
    with storming.processes(RACERS) as run_all:
        won = run_all(storming.creator, [(place, name, rounds, width) for name in names])
    with opened(place) as storage:
        for number, results in enumerate(zip(*won, strict=True)):
            assert sum(results) == 1, f"round {number}: {results}"
            assert storage.get(f"race/{number}").decode() == names[results.index(True)]


def _do(name: str, place: Place, run: str, seconds: float) -> Any:
    return getattr(storming, name)(place, run, seconds)
