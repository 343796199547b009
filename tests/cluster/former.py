"""A writer of a run's first generation, as one is on a node that was cut off: it has announced a
save, and goes on with it while others train in its place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from checkpointing import SaveError, Store
from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.object_keys import SaveId
from checkpointing.store.sessions import run_ownership
from checkpointing.store.sessions.session import Session
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import WrittenPart
from hpckit.config.spec_parser import read_spec
from hpckit.rundir.directory import RunDir, store_and_name


@dataclass(frozen=True)
class Former:
    """Two sessions, by the take-over that was the newest when they began."""

    store: Store
    saving: Session
    save: SaveId
    """That the one has announced."""
    idle: Session
    """The other one, which has none under way."""

    def finish(self, check: Callable[[], None]) -> None:
        """Commit the save, of one rank that has nothing; raises as `commit`."""
        commit(self.store, self.save, 1, check=check)

    def assert_refused(self) -> None:
        """Whatever it tries, the store says no: also if it does not look first who has the run."""
        write_part(
            self.store, ManifestHeader(self.save, time.time(), 1), 0, WrittenPart({}, {}, 0, 0)
        )
        with pytest.raises(SaveError, match="another process took over the run"):
            self.finish(self.saving.check)
        with pytest.raises(SaveError, match="cannot be committed: it was declared dead"):
            self.finish(lambda: None)
        with pytest.raises(SaveError, match="another process took over the run"):
            self.idle.begin(self.save.step + 1)


@contextmanager
def former(run: RunDir, step: int) -> Iterator[Former]:
    """It has announced a save of that step."""
    url, name = store_and_name(read_spec(run.spec(1)), run)
    store = Store.open(url)
    owner = run_ownership.newest(store, name)
    with Session(store, name, owner=owner) as saving, Session(store, name, owner=owner) as idle:
        yield Former(store, saving, saving.begin(step), idle)
