"""Schedules by chance of what happens to a store: saves, prunes, take-overs and maintenance, some
at the same time, of which some die before or after a change, or have one refused.

    .venv/bin/python -m tests.faults.schedules --count 10000 --where memory

plays them in memory; or on a disk, or in a real S3 server that it starts. Same seed, same acts;
which of two at the same time comes first is for the machine to say.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NoReturn
from unittest import mock

from checkpointing.errors import CheckpointError, StoreAccessError
from checkpointing.format.object_keys import SaveId
from checkpointing.retention import Last
from checkpointing.storage import Storage
from checkpointing.storage.memory_storage import MemoryStorage
from checkpointing.store import catalog
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.deletion import checkpoint_prune, pack_compaction
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.deletion.pack_compaction import compact
from checkpointing.store.repair import base_removal
from checkpointing.store.repair.base_removal import flatten
from checkpointing.store.sessions.run_takeover import take_over
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex
from tests.faults.crashing import Place, age, leaks, opened
from tests.faults.storming import values_of
from tests.services.ceph import ceph
from tests.services.crash_storage import CrashStorage
from tests.services.fixtures import chosen_server
from tests.services.ministack import ministack
from tests.services.s3 import S3Server
from tests.unit.checkpointing.store import saves

RUNS = ("a", "b")
KEEP = 2
TTL_S = 600.0
_REAL_TTL_S = 30.0  # where the clock is a server's
_PARALLEL, _BATCH = 4, 200
_ROUNDS, _TOGETHER, _MOST_CHANGES = (3, 7), (1, 1, 1, 2, 3), 40
_WHAT = {"save": 5, "resume": 2, "prune": 4, "flatten": 1, "compact": 1}
Fate = Literal["lives", "before", "after", "refused"]
_FATES: Mapping[Fate, int] = {"lives": 4, "before": 2, "after": 2, "refused": 2}


@dataclass(frozen=True)
class Act:
    """What one process does, and what becomes of it at its change number `at`."""

    what: str
    run: str
    fate: Fate
    at: int


@dataclass(frozen=True)
class Round:
    """What happens at the same time, and whether all leases have run out before it."""

    acts: tuple[Act, ...]
    is_late: bool


def make_schedule(seed: int) -> tuple[Round, ...]:
    chance = random.Random(seed)

    def act() -> Act:
        (what,) = chance.choices(list(_WHAT), list(_WHAT.values()))
        (fate,) = chance.choices(list(_FATES), list(_FATES.values()))
        return Act(what, chance.choice(RUNS), fate, chance.randrange(_MOST_CHANGES))

    def one() -> Round:
        acts = tuple(act() for _ in range(chance.choice(_TOGETHER)))
        return Round(acts, is_late=chance.random() < 0.3)

    return tuple(one() for _ in range(chance.randint(*_ROUNDS)))


class World:
    """A store, and what it has acknowledged."""

    def __init__(self, storage: Storage, ttl_s: float) -> None:
        self._storage, self._ttl_s = storage, ttl_s
        self._told: dict[str, set[SaveId]] = {run: set() for run in RUNS}
        Store.at(storage, create=True)
        for run in RUNS:
            for _ in range(KEEP):
                self._save(storage, run)

    def play(self, acts: tuple[Act, ...]) -> None:
        """All at the same time."""
        with ThreadPoolExecutor(len(acts)) as pool:
            for done in [pool.submit(self._act, act) for act in acts]:
                done.result()

    def check(self) -> None:
        """What must hold at any moment: all that is there is whole, and all that was told is there,
        but for what is old enough to be pruned."""
        store = Store.at(self._storage)
        assert saves.problems(store) == []
        for run in RUNS:
            there = {found.stored.save for found in catalog.committed(store, run)[0]}
            for gone in self._told[run] - there:
                newer = [save for save in there if save.step >= gone.step]
                assert len(newer) >= KEEP, f"{gone} was committed, and is gone"
        for found in catalog.committed(store)[0]:
            values = values_of(found.stored.save.step)
            assert saves.contents(Checkpoint(store, found.stored)) == saves.expected(values)

    def check_end(self) -> None:
        """What must hold when successors have come and pruned, all leases run out."""
        store = Store.at(self._storage)
        for run in RUNS:
            take_over(store, run)
        for _ in range(2):
            for run in RUNS:
                assert prune(store, run, [Last(KEEP)], grace_s=0).spared == {}
        self.check()
        assert leaks(store) == []

    def _act(self, act: Act) -> None:
        do: dict[str, Callable[[Storage, str], object]] = {
            "save": self._save,
            "resume": self._resume,
            "prune": _prune,
            "flatten": _flatten,
            "compact": _compact,
        }
        # what fails says so by one of these; anything else is a defect
        try:
            do[act.what](_spoiled(self._storage, act), act.run)
        except (CheckpointError, FileNotFoundError, SystemExit):
            assert act.fate != "lives" or act.what != "prune", "nothing keeps a prune from ending"

    def _resume(self, storage: Storage, run: str) -> None:
        take_over(Store.at(storage), run)
        self._save(storage, run)

    def _save(self, storage: Storage, run: str) -> None:
        store = Store.at(storage)
        steps = [found.stored.save.step for found in catalog.committed(store, run)[0]]
        with Session(store, run, ttl_s=self._ttl_s) as session:
            step = max(steps, default=0) + 1
            known = [RunChunkIndex(store, run) for _ in range(2)]
            self._told[run].add(saves.save(session, known, step, values_of(step)))


def _prune(storage: Storage, run: str) -> None:
    prune(Store.at(storage), run, [Last(KEEP)], grace_s=0)


def _flatten(storage: Storage, run: str) -> None:
    store = Store.at(storage)
    for found in catalog.newest_first(store, run)[-1:]:
        flatten(store, run, found)


def _compact(storage: Storage, run: str) -> None:
    compact(Store.at(storage), run, threshold=0.0)


def _spoiled(storage: Storage, act: Act) -> Storage:
    if act.fate == "lives":
        return storage
    if act.fate == "refused":
        return _Refusing(storage, act.at, "before", _refuse)
    return CrashStorage(storage, act.at, act.fate, _die)


class _Refusing(CrashStorage):
    """One change is refused; later ones are not."""

    def _check(self) -> None:
        pass


def _die() -> NoReturn:
    raise SystemExit(9)


def _refuse() -> NoReturn:
    raise StoreAccessError("refused")


@contextmanager
def leases_of(ttl_s: float) -> Iterator[None]:
    """Those of prunes and maintenance, too."""
    with ExitStack() as stack:
        for module in (checkpoint_prune, pack_compaction, base_removal):
            stack.enter_context(mock.patch.object(module, "Session", partial(Session, ttl_s=ttl_s)))
        yield


def play(storage: Storage, seed: int, ttl_s: float, wait: Callable[[], object]) -> World:
    """All of a schedule in a new store; what is to be checked when all leases have run out.

    Args:
        ttl_s: seconds that a lease lasts.
        wait: lets all of them run out.

    Raises:
        AssertionError: something was lost or torn.
    """
    world = World(storage, ttl_s)
    for one in make_schedule(seed):
        if one.is_late:
            wait()
        world.play(one.acts)
        world.check()
    return world


def play_in_memory(seed: int) -> None:
    """A whole schedule, and its end.

    Raises:
        AssertionError: something was lost, torn, or left.
    """
    storage = MemoryStorage(f"memory://schedule-{seed}")
    try:
        world = play(storage, seed, TTL_S, partial(age, storage, 2 * TTL_S))
        age(storage, 2 * TTL_S)
        world.check_end()
    finally:
        storage._place.objects.clear()


def play_all(places: Mapping[int, Place], ttl_s: float, where: str) -> dict[int, Exception]:
    """The schedules of these seeds, each in its place, some at a time, with leases of `ttl_s`; at
    the end of all, those run out: on a disk they are made older, a server's clock is waited for.
    What was wrong, by seed."""
    failed: dict[int, Exception] = {}

    def trying(seed: int, do: Callable[[], World | None]) -> World | None:
        try:
            return do()
        except (AssertionError, CheckpointError, OSError) as error:
            failed[seed] = error
            return None

    with ExitStack() as stack:
        storages = {seed: stack.enter_context(opened(place)) for seed, place in places.items()}

        def one(seed: int) -> World | None:
            return trying(seed, lambda: play(storages[seed], seed, ttl_s, lambda: None))

        def end(seed: int, world: World | None) -> None:
            if world is not None:
                trying(seed, world.check_end)

        with ThreadPoolExecutor(_PARALLEL) as pool:
            worlds = list(pool.map(one, places))
            if where == "disk":
                for place in places.values():
                    _age_on_disk(Path(place.url), 2 * ttl_s)
            else:
                time.sleep(ttl_s + 1)
            list(pool.map(end, places, worlds))
    return failed


def _age_on_disk(root: Path, seconds: float) -> None:
    """As `age`, of files."""
    for lease in (root / "leases").glob("*.lease"):
        long_ago = lease.stat().st_mtime - seconds
        os.utime(lease, (long_ago, long_ago))


def play_all_in_memory(seeds: Sequence[int]) -> dict[int, Exception]:
    """As `play_all`, one after the other."""
    failed: dict[int, Exception] = {}
    for seed in seeds:
        try:
            play_in_memory(seed)
        except (AssertionError, CheckpointError, OSError) as error:
            failed[seed] = error
    return failed


@contextmanager
def new_places(where: str) -> Iterator[Callable[[Sequence[int]], dict[int, Place]]]:
    """A function that makes places for stores, on a disk or in a real server; gone at the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if where == "disk":
            yield lambda seeds: {seed: Place(str(folder / str(seed)), {}) for seed in seeds}
            return
        start = ceph if chosen_server(os.environ) == "ceph" else ministack
        server: S3Server = stack.enter_context(start(folder))

        def in_bucket(seeds: Sequence[int]) -> dict[int, Place]:
            bucket = server.new_place()
            return {seed: Place(f"{bucket.url}/{seed}", bucket.options) for seed in seeds}

        yield in_bucket


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    parser.add_argument("--where", choices=("memory", "disk", "s3"), default="memory")
    given = parser.parse_args(arguments)
    done = failures = 0
    with ExitStack() as stack:
        ttl_s = _REAL_TTL_S if given.where == "s3" else TTL_S
        stack.enter_context(leases_of(ttl_s))
        make = None if given.where == "memory" else stack.enter_context(new_places(given.where))
        while done < given.count:
            first = given.seed + done
            seeds = range(first, first + min(_BATCH, given.count - done))
            if make:
                failed = play_all(make(seeds), ttl_s, given.where)
            else:
                failed = play_all_in_memory(seeds)
            done, failures = done + len(seeds), failures + len(failed)
            for seed, error in failed.items():
                print(f"seed {seed}: {type(error).__name__}: {error}")
                print(*(f"    {one}" for one in make_schedule(seed)), sep="\n")
            print(f"{done} schedules, {failures} of them with a violation", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
