"""What the processes of the model do, and what they were promised."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, cast

from checkpointing.errors import CheckpointError, DamagedError, SaveError
from checkpointing.format.object_keys import SaveId
from checkpointing.retention import KeepPolicy, Last, Only
from checkpointing.store import catalog, pins_and_labels
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.deletion.pack_sweep import sweep
from checkpointing.store.sessions import run_takeover
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_encoding import ChunkEncoder, EncodedChunk
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.part_writer import WriteOptions
from tests.unit.checkpointing.store import delta_stores, saves
from tests.unit.checkpointing.store.saves import Values
from tests.unit.checkpointing.store.schedules.model_storage import ModelStorage

NAMES = ("model/a", "optim/a")
KINDS = 3  # contents that a tensor may have: few, so that steps and runs share chunks
KEEP = 1  # what every prune leaves of a run


class _Deltas(delta_stores.Deltas):
    """As the store's own encoder, goes without a base that is damaged."""

    def encode(
        self, raw: Any, element: Any, before: Any, read: Any, **rest: object
    ) -> EncodedChunk:
        try:
            return super().encode(raw, element, before, read, **rest)
        except DamagedError:
            return super().encode(raw, element, None, read, **rest)


def options(rng: random.Random) -> WriteOptions:
    """How a world's savers write: packs of one chunk, so that much becomes garbage, or of several,
    so that some become half garbage; with bases or without."""
    chosen = replace(saves.PLAIN, pack_bytes=rng.choice((1, 1, 250, 1 << 20)))
    if rng.random() < 0.5:
        chosen = replace(chosen, encoder=cast(ChunkEncoder, _Deltas()))
    return chosen


@dataclass
class Facts:
    """What the store has promised, and to whom."""

    options: WriteOptions = saves.PLAIN  # of all savers
    mirror: Store | None = None  # a copy from before the damage; None: nothing was damaged
    gone: list[SaveId] = field(default_factory=list)  # whose manifests the damage has taken
    goes_by: dict[str, int] = field(default_factory=dict)  # session -> owner, see owners.py
    # run, owner, and how many objects had been made when the take-over was over
    taken: list[tuple[str, int, int]] = field(default_factory=list)
    begun: dict[SaveId, Values] = field(default_factory=dict)
    committed: list[SaveId] = field(default_factory=list)
    pinned: set[SaveId] = field(default_factory=set)
    partial: set[SaveId] = field(default_factory=set)  # pinned when items had gone already
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
    _save(store(), facts, run, steps, seed, ranks)


def _save(here: Store, facts: Facts, run: str, steps: Sequence[int], seed: int, ranks: int) -> None:
    rng = random.Random(seed)
    values = fresh(rng)
    with Session(here, run) as session:
        known = [RunChunkIndex(here, run) for _ in range(ranks)]
        for step in steps:
            values = change(values, rng)
            facts.begun[SaveId(run, step, session.id)] = values
            try:
                facts.committed.append(saves.save(session, known, step, values, facts.options))
            except SaveError as error:
                facts.refused.append(str(error))
                return


def taker(
    store: Callable[[], Store], facts: Facts, run: str, steps: Sequence[int], seed: int
) -> None:
    """Takes a run over, and saves it."""
    here = store()
    found = run_takeover.take_over(here, run)
    assert isinstance(here.storage, ModelStorage)
    facts.taken.append((run, found.owner, len(here.storage.world.made)))
    for step, _, session in (id_.partition("-") for id_ in found.committed):
        facts.committed.append(SaveId(run, int(step), session))
    _save(here, facts, run, steps, seed, ranks=1)


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
            pins_and_labels.pin(here, chosen, "of the model")
        except CheckpointError as error:
            facts.refused.append(str(error))
        else:
            facts.pinned.add(chosen)
            at = [f for f in catalog.committed(here, run)[0] if f.stored.save == chosen]
            if at and at[0].document.header.dropped:
                facts.partial.add(chosen)
    if rng.random() < 0.3:
        facts.pinned.discard(chosen)
        pins_and_labels.unpin(here, chosen)


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
    with Session(here, run) as session, ExitStack() as stack:
        try:
            stack.enter_context(session.reading(stored.key))
        except FileNotFoundError as error:
            facts.refused.append(str(error))
            return
        try:
            read = saves.contents(Checkpoint(here, stored))
        except (FileNotFoundError, DamagedError) as error:
            if not slept() and facts.mirror is None:
                facts.broken.append(f"{session.id} could not read {stored.key}: {error}")
            return
        if not read.items() <= saves.expected(facts.begun[stored.save]).items():
            facts.broken.append(f"{stored.key} was read wrong")
