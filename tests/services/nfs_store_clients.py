"""Two NFS clients that use one store at the same time."""

from __future__ import annotations

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from checkpointing.errors import SaveError
from checkpointing.format.manifest import ABANDONED, MANIFEST, ManifestHeader
from checkpointing.format.object_keys import SaveId
from checkpointing.retention import Last
from checkpointing.storage import Storage
from checkpointing.storage.posix.posix_storage import PosixStorage
from checkpointing.store import catalog
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.sessions import session_leases
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store, StoredManifest
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import write
from tests.effort import times
from tests.faults import crashing, storming
from tests.faults.crashing import Place
from tests.services.nfs_control import NFS, SECOND
from tests.services.nfs_store_saves import RUN, save, values
from tests.unit.checkpointing.store import saves

SCENARIOS = ("seen_at_once", "saves_seen_at_once", "ranks_on_two", "races", "ends", "storm")
_FORK = multiprocessing.get_context("fork")  # a scenario has no threads; a fork server imports all
_ROUNDS = times(10)
_RACERS = 4
_WIDTH = 3  # objects that each of them makes at a time
_STORM_S = times(5)
_APART_S = 0.004  # between two who race, times 0 to 5


def seen_at_once() -> dict[str, int]:
    """Objects that one client changes just after the other one has looked; how many were missed."""
    writer = PosixStorage(str(NFS / "seen"))
    reader = PosixStorage(str(SECOND / "seen"))
    writer.create("first", b"")
    assert _names(reader, "") == ["first"]
    missed = dict.fromkeys(("new folder", "new", "again", "replaced", "removed"), 0)
    for number in range(_ROUNDS):
        folder = f"d{number}/e/"
        a, b = f"{folder}a", f"{folder}b"

        def look(folder: str = folder) -> tuple[list[str], bytes | None, bytes | None]:
            names = _names(reader, folder)
            return names, _content(reader, f"{folder}a"), _content(reader, f"{folder}b")

        assert look() == ([], None, None)
        writer.create(a, b"1")
        missed["new folder"] += look() != ([a], b"1", None)
        writer.create(b, b"2")
        missed["new"] += look() != ([a, b], b"1", b"2")
        reader.delete([b])
        writer.create(b, b"3")
        missed["again"] += look() != ([a, b], b"1", b"3")
        writer.replace(b, b"longer")
        missed["replaced"] += [e.size for e in reader.list(folder)] != [1, 6]
        missed["replaced"] += look() != ([a, b], b"1", b"longer")
        writer.delete([a])
        missed["removed"] += look() != ([b], None, b"longer")
    return missed


def saves_seen_at_once() -> int:
    """Clients save in turns, and each reads at once what the other one saved."""
    stores = _stores("turns")
    for step in range(1, _ROUNDS + 1):
        writer, reader = stores[step % 2], stores[1 - step % 2]
        before = [found.stored.save.step for found in catalog.newest_first(reader, RUN)]
        save(writer, step)
        found = catalog.newest_first(reader, RUN)
        assert [f.stored.save.step for f in found] == [step, *before]
        assert saves.contents(Checkpoint(reader, found[0].stored)) == saves.expected(values(step))
    return len(catalog.committed(stores[0], RUN)[0])


def ranks_on_two() -> int:
    """Ranks of one save on two clients; one waits for the part of the other one and commits."""
    first, second = _stores("ranks")
    for step in range(1, _ROUNDS // 2 + 1):
        with Session(first, RUN) as session:
            made = session.begin(step)
            _write_rank(first, made, 0, 2)
            other = threading.Thread(target=_write_rank, args=(second, made, 1, 2))
            other.start()
            commit(first, made, 2, check=session.check, wait_s=180)
            other.join()
            session.end(made.manifest())
        found = catalog.newest_first(second, RUN)[0]
        assert found.stored.save == made
        assert saves.contents(Checkpoint(second, found.stored)) == saves.expected(values(step))
    return len(catalog.committed(first, RUN)[0])


def races() -> int:
    """All clients make the same objects with contents of their own: one makes each."""
    names = [f"racer {number}" for number in range(_RACERS)]
    roots = [(NFS, SECOND)[number % 2] / "races" for number in range(_RACERS)]
    jobs = [(Place(str(r), {}), n, _ROUNDS, _WIDTH) for r, n in zip(roots, names, strict=True)]
    with storming.processes(_RACERS, _FORK) as run_all:
        won = run_all(storming.creator, jobs)
    for number, results in enumerate(zip(*won, strict=True)):
        assert sum(results) == 1, f"round {number}: {results}"
        for root in roots[:2]:
            held = PosixStorage(str(root)).get(f"race/{number}").decode()
            assert held == names[results.index(True)], f"round {number}: {held}, {results}"
    return len(won[0])


def ends() -> dict[str, int]:
    """One client commits a save while the other one declares it dead: one of the two happens."""
    first, second = _stores("ends")
    outcomes = {MANIFEST: 0, ABANDONED: 0}
    for step in range(1, _ROUNDS + 1):
        with Session(first, RUN) as session:
            made = session.begin(step)
            _write_rank(first, made, 0, 1)
            committed, abandoned = _commit_and_end(first, second, made, session, step)
        kinds = {store.document(_stored(store, made)).kind for store in (first, second)}
        assert kinds == {MANIFEST if committed else ABANDONED}, f"{made}: {committed}, {kinds}"
        assert abandoned is not committed, f"{made}: {abandoned}"
        outcomes[kinds.pop()] += 1
    wrong = saves.problems(second)
    assert not wrong, wrong
    return outcomes


def storm() -> dict[str, int]:
    """Both clients save, one prunes both runs, the other one reads."""
    roots = [root / "storm" for root in (NFS, SECOND)]
    places = [Place(str(root), {}) for root in roots]
    Store.at(PosixStorage(str(roots[0])), create=True)
    jobs = [
        ("saver", places[0], "a"),
        ("saver", places[1], "b"),
        ("pruner", places[0], "b"),
        ("pruner", places[1], "a"),
        ("reader", places[1], "a"),
    ]
    with storming.processes(len(jobs), _FORK) as run_all:
        results = run_all(_do, [(*job, _STORM_S) for job in jobs])
    assert all(results), f"somebody did nothing: {results}"
    for root in roots:
        store = Store.at(PosixStorage(str(root)))
        wrong = saves.problems(store)
        assert not wrong, wrong
        for made, run in zip(results, ("a", "b"), strict=False):
            there = {found.stored.save for found in catalog.committed(store, run)[0]}
            assert set(made[-storming.KEEP :]) <= there, f"{made[-storming.KEEP :]}: {there}"
    for _ in range(2):
        for run in ("a", "b"):
            prune(store, run, [Last(storming.KEEP)], grace_s=0)
    left = saves.problems(store) + crashing.leaks(store)
    assert not left, left
    saved, pruned = len(results[0]) + len(results[1]), results[2] + results[3]
    return {"saved": saved, "pruned": pruned, "read": results[4]}


def _do(name: str, place: Place, run: str, seconds: float) -> object:
    result: object = getattr(storming, name)(place, run, seconds)
    return result


def _stores(name: str) -> tuple[Store, Store]:
    first = Store.at(PosixStorage(str(NFS / name)), create=True)
    return first, Store.at(PosixStorage(str(SECOND / name)))


def _names(storage: Storage, folder: str) -> list[str]:
    return [entry.key for entry in storage.list(folder)]


def _content(storage: Storage, key: str) -> bytes | None:
    with suppress(FileNotFoundError):
        return storage.get(key)
    return None


def _write_rank(store: Store, made: SaveId, rank: int, ranks: int) -> None:
    pieces = saves.pieces(values(made.step), rank, ranks)
    written = write(store, made, pieces, {}, RunChunkIndex(store, RUN).index(), saves.PLAIN)
    write_part(store, ManifestHeader(made, 1.0, ranks), rank, written)


def _commit_and_end(
    first: Store, second: Store, made: SaveId, session: Session, number: int
) -> tuple[bool, bool]:
    """Whether the first client committed, and whether the second one abandoned the save. One after
    the other in rounds 1 and 2, then at the same time, more or less."""

    def commits() -> bool:
        time.sleep(max(0, number % 10 - 5) * _APART_S)
        try:
            commit(first, made, 1, check=session.check)
        except SaveError:
            return False
        return True

    def abandons() -> bool:
        time.sleep(max(0, 5 - number % 10) * _APART_S)
        return bool(session_leases.fence(second, session.id))

    with ThreadPoolExecutor(2) as pool:
        if number == 1:
            return commits(), abandons()
        if number == 2:
            abandoned = abandons()
            return commits(), abandoned
        jobs = pool.submit(commits), pool.submit(abandons)
        return jobs[0].result(), jobs[1].result()


def _stored(store: Store, made: SaveId) -> StoredManifest:
    return next(stored for stored in store.manifests(RUN) if stored.save == made)
