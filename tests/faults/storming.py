"""What several processes do with one store at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.context import BaseContext
from multiprocessing.synchronize import Barrier
from typing import Any

from checkpointing.errors import CheckpointError, SaveError
from checkpointing.format.object_keys import SaveId
from checkpointing.retention import Last
from checkpointing.store import catalog, pins_and_labels
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.deletion.pack_compaction import compact
from checkpointing.store.repair.base_removal import flatten
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit
from tests.faults.crashing import Place, opened
from tests.forkserver import fork_server
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.saves import Values

KEEP = 3
_SAVES_PER_SESSION = 4
_LATE_S = 400.0  # the disk of a busy machine may hold all of them up for minutes
_barrier: Barrier | None = None


def values_of(step: int) -> Values:
    """The content of a step, of whatever run: neighbours share some, and so do runs."""
    return {f"model/{i}": step // (i + 1) % 5 + 10 * i for i in range(4)}


@contextmanager
def processes(
    count: int, context: BaseContext | None = None
) -> Iterator[Callable[[Callable[..., Any], Sequence[Any]], list[Any]]]:
    """Processes that do one thing at the same moment, each with an argument of its own.

    Args:
        context: that starts them, where it is not the fork server of the suite.
    """
    context = context or fork_server()
    barrier = context.Barrier(count)
    with ProcessPoolExecutor(count, context, _enter, (barrier,)) as pool:

        def run(function: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
            assert len(arguments) == count
            return [f.result() for f in [pool.submit(function, *a) for a in arguments]]

        yield run


def _enter(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def together() -> None:
    """Wait for all others."""
    assert _barrier is not None
    _barrier.wait(timeout=120)


def saver(place: Place, run: str, seconds: float) -> list[SaveId]:
    """Save step after step; what was committed."""
    made: list[SaveId] = []
    with opened(place) as storage:
        together()
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            store = Store.at(storage)
            with Session(store, run) as session:
                known = [RunChunkIndex(store, run) for _ in range(2)]
                for _ in range(_SAVES_PER_SESSION):
                    step = made[-1].step + 1 if made else 1
                    made.append(saves.save(session, known, step, values_of(step)))
    return made


def reader(place: Place, run: str, seconds: float) -> int:
    """Read checkpoints under a lease; how many."""
    count = 0
    with opened(place) as storage:
        together()
        end_s = time.monotonic() + seconds
        while _goes_on(end_s, count):
            store = Store.at(storage)
            for found in catalog.newest_first(store, run)[:2]:
                count += _read(store, found)
    return count


def _goes_on(end_s: float, count: int) -> bool:
    """Until then; on a busy machine, until something was done at all."""
    return time.monotonic() < (end_s if count else end_s + _LATE_S)


def _read(store: Store, found: catalog.CatalogEntry) -> int:
    key, step = found.stored.key, found.stored.save.step
    with Session(store, found.stored.save.run) as session, ExitStack() as stack:
        try:
            stack.enter_context(session.reading(key))
        except FileNotFoundError:
            return 0  # gone before the lease came; afterwards nothing may go
        read = saves.contents(Checkpoint(store, found.stored))
    assert read == saves.expected(values_of(step))
    return 1


def pruner(place: Place, run: str, seconds: float) -> int:
    """Prune, and pin and unpin; how many checkpoints went."""
    count = 0
    with opened(place) as storage:
        together()
        end_s = time.monotonic() + seconds
        while _goes_on(end_s, count):
            store = Store.at(storage)
            count += len(prune(store, run, [Last(KEEP)], grace_s=0).removed)
            _pin_for_a_moment(store, run)
    return count


def maintainer(place: Place, run: str, seconds: float) -> int:
    """Flatten checkpoints, and rewrite packs; how many revisions were made."""
    count = 0
    with opened(place) as storage:
        together()
        end_s = time.monotonic() + seconds
        while _goes_on(end_s, count):
            store = Store.at(storage)
            count += len(compact(store, run, threshold=0.0).revisions)
            for found in catalog.newest_first(store, run)[-1:]:
                with suppress(SaveError, FileNotFoundError):  # pruned or revised meanwhile
                    count += flatten(store, run, found) != found.stored.key
    return count


def _pin_for_a_moment(store: Store, run: str) -> None:
    found = catalog.newest_first(store, run)
    if not found:
        return
    save = found[-1].stored.save
    try:
        pins_and_labels.pin(store, save, "")
        there = {f.stored.save for f in catalog.newest_first(store, run)}
        assert save in there, f"{save} was pinned and is gone"
    except CheckpointError:
        pass  # prune was there first
    finally:
        pins_and_labels.unpin(store, save)


def committer(place: Place, save: SaveId, ranks: int) -> int:
    """Commit a save whose parts are there; the packs that it refers to."""
    with opened(place) as storage:
        store = Store.at(storage)
        together()
        return len(commit(store, save, ranks).packs)


def creator(place: Place, name: str, rounds: int, width: int) -> list[bool]:
    """Make the same objects as everybody else, `width` at a time, with a content of its own."""
    made: list[bool] = []
    with opened(place) as storage, ThreadPoolExecutor(width) as pool:
        for start in range(0, rounds, width):
            keys = [f"race/{number}" for number in range(start, min(start + width, rounds))]
            together()
            made += pool.map(lambda key: storage.create(key, name.encode()), keys)
    return made
