"""Ways to damage an object, and a store to do it to."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.object_keys import SaveId
from checkpointing.store import catalog
from checkpointing.store.catalog import CatalogEntry
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.inspection.integrity_check import IntegrityProblem, Level, verify
from checkpointing.store.store import Store
from tests.effort import times
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.saves import Values
from tests.unit.checkpointing.store.schedules.model_storage import ModelStorage, World
from tests.unit.checkpointing.store.schedules.scheduler import Scheduler

PLACES = times(40)  # bytes of an object that are damaged one at a time, spread over all of it
Objects = dict[str, bytes]


@dataclass(frozen=True)
class Harm:
    """One way to damage one object."""

    name: str
    key: str
    do: Callable[[bytes], bytes | None]  # the new content; None: it is gone
    start: int  # the bytes that are not as they were
    end: int


def store_of(objects: Objects) -> Store:
    """A store that a process opens for the first time."""
    return Store.at(storage_of(objects))


def storage_of(objects: Objects) -> ModelStorage:
    world = World()
    world.objects = {key: (data, world.now) for key, data in objects.items()}
    return ModelStorage(world, Scheduler())


def snapshot(storage: ModelStorage) -> Objects:
    return {key: data for key, (data, _) in storage.world.objects.items()}


def harms(key: str, data: bytes) -> Iterator[Harm]:
    """Flips, zeros, cuts, additions and the loss of an object, all over it."""
    rng, size = random.Random(key), len(data)
    for at in sorted(rng.sample(range(size), min(size, PLACES))):
        bit = 1 << rng.randrange(8)
        yield Harm(f"bit {bit} of byte {at}", key, _flip(at, bit), at, at + 1)
    for _ in range(20):
        start = rng.randrange(size)
        end = min(size, start + rng.choice((2, 16, 200)))
        yield Harm(f"zeros in {start}:{end}", key, _zero(start, end), start, end)
    for at in {0, 1, size - 1, size // 2, *rng.sample(range(size), min(size, 10))}:
        yield Harm(f"cut at {at}", key, _cut(at), at, size)
    for at in {0, size // 2, *rng.sample(range(size), min(size, 5))}:
        yield Harm(f"a byte more at {at}", key, _insert(at), at, size)
    yield Harm("more at its end", key, lambda data: data + b"more", size, size)
    yield Harm("gone", key, lambda data: None, 0, size)


def _flip(at: int, bit: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def _zero(start: int, end: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:start] + bytes(end - start) + data[end:]


def _cut(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at]


def _insert(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + b"x" + data[at:]


def harmed(objects: Objects, harm: Harm) -> Objects:
    """The store with one object damaged."""
    after = dict(objects)
    content = harm.do(objects[harm.key])
    if content is None:
        del after[harm.key]
    else:
        after[harm.key] = content
    return after


@dataclass(frozen=True)
class Seen:
    """What a process sees of one checkpoint."""

    found: CatalogEntry | None  # None: it is not in the list, or damaged there
    wrong: frozenset[str]  # tensors that could not be read
    problems: dict[Level, list[IntegrityProblem]]


def look(objects: Objects, save: SaveId, values: Values) -> Seen:
    """Read all of a checkpoint and verify it. What can be read has to be right."""
    store = store_of(objects)
    found, damaged = catalog.committed(store, save.run)
    mine = [one for one in found if one.stored.save == save]
    if not mine:
        there = any(stored.save == save for stored in store.manifests(save.run))
        assert (save in damaged) == there, f"{save} is neither there nor damaged"
        return Seen(None, frozenset(values), {})
    wrong = set()
    for name, content in saves.expected(values).items():
        try:
            read = Checkpoint(store, mine[0].stored).read(name)
        except (DamagedError, FormatError):
            wrong.add(name)
        else:
            assert read.tobytes() == content, f"{name} was read wrong"
    levels: tuple[Level, ...] = ("quick", "crc", "full")
    return Seen(
        mine[0], frozenset(wrong), {level: verify(store, mine[0], level) for level in levels}
    )
