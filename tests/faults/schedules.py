"""Schedules by chance of what happens to a store: saves, prunes, take-overs and maintenance, some
at the same time, of which some die before or after a change, or have one refused.

    .venv/bin/python -m tests.faults.schedules --count 10000

plays them in memory. Same seed, same acts; which of two at the same time comes first is for the
machine to say.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Literal, NoReturn
from unittest import mock

from checkpointing.errors import CheckpointError, StoreAccessError
from checkpointing.format.names import Save
from checkpointing.retention import Last
from checkpointing.storage import Storage
from checkpointing.storage.memory import MemoryStorage
from checkpointing.store import catalog
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.compact import compact
from checkpointing.store.flatten import flatten
from checkpointing.store.index import Known
from checkpointing.store.prune import prune
from checkpointing.store.session import Session
from checkpointing.store.store import Store
from checkpointing.store.takeover import take_over
from tests.faults.crashing import age, leaks
from tests.faults.storming import values_of
from tests.services.crash_storage import CrashStorage
from tests.unit.checkpointing.store import saves

RUNS = ("a", "b")
KEEP = 2
TTL_S = 600.0
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
        self._told: dict[str, set[Save]] = {run: set() for run in RUNS}
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
            known = [Known(store, run) for _ in range(2)]
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
        for name in ("prune", "compact", "flatten"):
            module = import_module(f"checkpointing.store.{name}")
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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    given = parser.parse_args(arguments)
    failed = 0
    with leases_of(TTL_S):
        for seed in range(given.seed, given.seed + given.count):
            try:
                play_in_memory(seed)
            except (AssertionError, CheckpointError, OSError) as error:
                failed += 1
                print(f"seed {seed}: {type(error).__name__}: {error}")
                print(*(f"    {one}" for one in make_schedule(seed)), sep="\n")
    print(f"{given.count} schedules, {failed} of them with a violation")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
