"""Saves on NFS, for the scenarios of a store there: what they hold, and what must hold after."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from checkpointing.format.object_keys import SaveId
from checkpointing.storage.posix.posix_storage import PosixStorage
from checkpointing.store import catalog
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.saves import Values

RUN = "a"
KEPT = (1, 2)  # steps that are there before anything goes wrong
_BIG = 1 << 16  # elements of a tensor


def values(step: int) -> Values:
    """The content of a step; neighbours share some."""
    return {"model/shared": 1, "model/w": 10 + step, "optim/m": 100 + step}


@contextmanager
def big_tensors() -> Iterator[None]:
    """Tensors of 256 KiB instead of some bytes: of many pages."""
    with mock.patch.object(saves, "SIZE", _BIG):
        yield


def populate(root: Path) -> None:
    """A store with the steps `KEPT`."""
    store = Store.at(PosixStorage(str(root)), create=True)
    for step in KEPT:
        save(store, step)


def save(store: Store, step: int) -> SaveId:
    """Save one step as a process does that has just come to the run."""
    with Session(store, RUN) as session:
        return saves.save(session, [RunChunkIndex(store, RUN)], step, values(step))


def check(root: Path, *steps: int, perhaps: int | None = None) -> bool:
    """A new look at a store: the checkpoints are those of `steps`, whole and as they were written.

    Args:
        perhaps: a step that may be there too.

    Returns:
        Whether it is.
    """
    store = Store.at(PosixStorage(str(root)))
    wrong = saves.problems(store)
    assert not wrong, wrong
    found = catalog.committed(store, RUN)[0]
    for one in found:
        read = saves.contents(Checkpoint(store, one.stored))
        assert read == saves.expected(values(one.stored.save.step)), one.stored.key
    there = {one.stored.save.step for one in found}
    assert len(found) == len(there), [one.stored.key for one in found]
    assert there - {perhaps} == set(steps), f"{there} are there"
    return perhaps in there


def run_forked(job: Callable[[], None]) -> int:
    """Run a job in a process of its own; its exit code."""
    process = multiprocessing.get_context("fork").Process(target=job)
    process.start()
    process.join()
    return process.exitcode or 0
