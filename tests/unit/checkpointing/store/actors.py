"""What the processes of the model do, and what they were promised."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from checkpointing.errors import CheckpointError, DamagedError, SaveError
from checkpointing.format.chunks import Chunk
from checkpointing.format.manifest import Content
from checkpointing.format.names import Save
from checkpointing.retention import KeepPolicy, Last, Only
from checkpointing.store import catalog, marks, revise, takeover
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.fetch import Fetcher
from checkpointing.store.index import Known
from checkpointing.store.packer import Packer
from checkpointing.store.prune import prune
from checkpointing.store.session import Session
from checkpointing.store.store import Store
from checkpointing.store.sweep import sweep
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.model_storage import ModelStorage
from tests.unit.checkpointing.store.saves import Values

NAMES = ("model/a", "optim/a")
KINDS = 3  # contents that a tensor may have: few, so that steps and runs share chunks
KEEP = 1  # what every prune leaves of a run
OPTIONS = replace(saves.PLAIN, pack_bytes=1)  # every chunk is a pack, so that much becomes garbage


@dataclass
class Facts:
    """What the store has promised, and to whom."""

    begun: dict[Save, Values] = field(default_factory=dict)
    committed: list[Save] = field(default_factory=list)
    pinned: set[Save] = field(default_factory=set)
    partial: set[Save] = field(default_factory=set)  # pinned when items had gone already
    refused: list[str] = field(default_factory=list)  # errors that are allowed
    broken: list[str] = field(default_factory=list)  # promises that were seen to be broken


def change(before: Values, rng: random.Random) -> Values:
    """The next step's content: most tensors have changed, some into what they were before."""
    return {n: v if rng.random() < 0.4 else rng.randrange(KINDS) for n, v in before.items()}


def fresh(rng: random.Random) -> Values:
    return {name: rng.randrange(KINDS) for name in NAMES}


def saver(
    store: Callable[[], Store], facts: Facts, run: str, steps: Sequence[int], seed: int, ranks: int
) -> None:
    """Saves some steps of a run, after taking it over or beside others."""
    rng = random.Random(seed)
    here, values = store(), fresh(rng)
    with _session(here, run) as session:
        known = [Known(here, run) for _ in range(ranks)]
        for step in steps:
            values = change(values, rng)
            facts.begun[Save(run, step, session.id)] = values
            try:
                facts.committed.append(saves.save(session, known, step, values, OPTIONS))
            except SaveError as error:
                facts.refused.append(str(error))
                return


def taker(
    store: Callable[[], Store], facts: Facts, run: str, steps: Sequence[int], seed: int
) -> None:
    takeover.take_over(store(), run)
    saver(store, facts, run, steps, seed, ranks=1)


def pruner(store: Callable[[], Store], facts: Facts, run: str, *, reduces: bool) -> None:
    policies: list[KeepPolicy] = [Last(KEEP)]
    if reduces:
        policies += [Only(("model",), Last(9))]
    here = store()
    for _ in range(2):
        prune(here, run, policies, grace_s=0)


def sweeper(store: Callable[[], Store], facts: Facts) -> None:
    here = store()
    for _ in range(2):
        sweep(here, grace_s=0)


def pinner(store: Callable[[], Store], facts: Facts, run: str, seed: int) -> None:
    """Pins one checkpoint, perhaps twice, and perhaps takes the pin back."""
    rng, here = random.Random(seed), store()
    found = catalog.committed(here, run)[0]
    if not found:
        return
    chosen = rng.choice(found).stored.save
    for _ in range(rng.randint(1, 2)):
        try:
            marks.pin(here, chosen, "of the model")
        except CheckpointError as error:
            facts.refused.append(str(error))
        else:
            facts.pinned.add(chosen)
            at = [f for f in catalog.committed(here, run)[0] if f.stored.save == chosen]
            if at and at[0].document.header.dropped:
                facts.partial.add(chosen)
    if rng.random() < 0.3:
        facts.pinned.discard(chosen)
        marks.unpin(here, chosen)


def reader(
    store: Callable[[], Store],
    facts: Facts,
    run: str,
    seed: int,
    slept: Callable[[], bool],
) -> None:
    """Reads one checkpoint under a lease; once it is found there, all of it has to be readable."""
    rng, here = random.Random(seed), store()
    found = catalog.committed(here, run)[0]
    if not found:
        return
    stored = rng.choice(found).stored
    with _session(here, run) as session, ExitStack() as stack:
        try:
            stack.enter_context(session.reading(stored.key))
        except FileNotFoundError as error:
            facts.refused.append(str(error))
            return
        try:
            read = saves.contents(Checkpoint(here, stored))
        except (FileNotFoundError, DamagedError) as error:
            if not slept():
                facts.broken.append(f"{session.id} could not read {stored.key}: {error}")
            return
        if not read.items() <= saves.expected(facts.begun[stored.save]).items():
            facts.broken.append(f"{stored.key} was read wrong")


def compactor(store: Callable[[], Store], facts: Facts, run: str, seed: int) -> None:
    """Moves the chunks of one pack of a checkpoint into a new one."""
    rng, here = random.Random(seed), store()
    found = catalog.committed(here, run)[0]
    if not found:
        return
    chosen = rng.choice(found)
    with _session(here, run) as session:
        try:
            revise.publish(here, session, chosen, lambda c: _compacted(here, session, c))
        except (SaveError, FileNotFoundError) as error:
            facts.refused.append(str(error))


@contextmanager
def _session(store: Store, run: str) -> Iterator[Session]:
    """A session that renews its lease now and then, between any two operations of its actor."""
    storage = store.storage
    assert isinstance(storage, ModelStorage)
    with Session(store, run) as session:
        storage.renew = session.renew
        try:
            yield session
        finally:
            storage.renew = None


def _compacted(store: Store, session: Session, content: Content) -> Content:
    old = min(content.packs)
    moved: dict[bytes, Chunk] = {}
    chunks = {c.id: c for t in content.items.values() for c in t.all_chunks() if c.pack == old}
    with Packer(store.storage, session.id) as packer:
        for id_, chunk in chunks.items():
            raw = Fetcher(store.storage, threads=1).one(chunk, "float32", "moved")
            moved[id_] = packer.add(id_, raw, len(raw), chunk.codec, None)
        packer.finish()
    return revise.replace_chunks(content, lambda c: moved.get(c.id, c), packer.packs)
