"""Lists the checkpoints of a store, what unfinished saves left, and what is damaged, from the
headers of manifests alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from checkpointing.errors import DamagedError, FormatError, StoreAccessError, StoreError
from checkpointing.format import manifest as forms
from checkpointing.format import object_keys
from checkpointing.format.manifest import ManifestDocument
from checkpointing.format.object_keys import SaveId
from checkpointing.format.replica_differences import MarkedDifferences, summary
from checkpointing.store.store import Store, StoredManifest

# threads that read headers: each read is a request, and most of its time is waiting for the reply
THREADS = 16
# Seconds of a read of a header from which on the others are read in threads. A local disk answers
# in less than a tenth of that, which is what it takes to hand a read to a thread.
_SLOW_S = 0.001

State = Literal["committed", "partial", "incomplete", "damaged", "unreadable"]


@dataclass(frozen=True)
class CheckpointInfo:
    """One checkpoint, or what an unfinished save left. "damaged" means here that damage is seen
    without reading the bytes of tensors; `verify` reads them. "unreadable": the storage refuses to
    return the manifest. "partial": a retention policy has removed items."""

    step: int
    id: str  # "<step>-<session>", unique in its run
    run: str
    created: float  # Unix time, seconds; of an unfinished or damaged one, that of its newest object
    bytes: int  # stored bytes of all that it refers to, shared or not
    raw_bytes: int  # decoded bytes
    world_size: int
    tensors: int
    items: tuple[str, ...]
    metrics: Mapping[str, float] = field(hash=False)
    state: State
    key: str  # key of the manifest, or the prefix of the keys of its part records
    problem: str | None = None
    differing: str | None = None  # the tensors of which ranks held different replicas
    is_suspect: bool = False  # so that `restore` prefers another checkpoint
    source: str = ""  # the source of an imported checkpoint
    certified: str = ""  # how its ranks' computations were compared; "": it is not certified

    @property
    def save(self) -> SaveId:
        return SaveId(self.run, self.step, self.id.rpartition("-")[2])


@dataclass(frozen=True)
class CatalogEntry:
    """A checkpoint with its last good revision."""

    stored: StoredManifest
    document: ManifestDocument

    @property
    def stored_bytes(self) -> int:
        """The stored bytes of all items, shared or not, without bases, as the manifest states
        them."""
        return sum(item.stored_bytes for item in self.document.items.values())


@dataclass(frozen=True)
class Catalog:
    """The checkpoints of a run, or of all runs, as one reading of their manifests has shown them.

    A restore reads it once and passes it on, so that all of its decisions are about the same
    checkpoints.

    Attributes:
        listed: all manifests that were listed, from the newest checkpoint's last revision down,
            including damaged ones and abandoned saves.
        entries: the readable checkpoints, newest first within each run.
        problems: what is wrong with the checkpoints that have no readable manifest.
    """

    listed: tuple[StoredManifest, ...]
    entries: tuple[CatalogEntry, ...]
    problems: Mapping[SaveId, str] = field(hash=False)

    def last_revisions(self, saves: Iterable[SaveId]) -> list[StoredManifest]:
        """Return the last listed manifest of each of these saves."""
        last = {stored.save: stored for stored in reversed(self.listed)}
        return [last[save] for save in saves]


def read_catalog(
    store: Store,
    run: str | None = None,
    *,
    refused: dict[SaveId, StoreError] | None = None,
    known: Catalog | None = None,
) -> Catalog:
    """Read which checkpoints a run has, or all runs: one listing, the headers that it names, and a
    second listing which confirms that nothing was missed.

    Args:
        refused: see `list_checkpoints`. A caller that decides what may be removed passes None.
        known: an earlier reading. It is returned, without a second listing, if the listing shows
            what it showed. This may miss a checkpoint that was committed since and for which a new
            revision is published at this very moment, so pass it only where that does no harm.

    Raises:
        StoreError: the store is out of reach; or one manifest, see `refused`.
    """
    seen: set[str] = set()
    listed = store.manifests(run)
    if known is not None and known.listed == tuple(listed):
        return known
    while True:
        entries, problems = _readable(store, listed, refused)
        shown = tuple(listed)
        seen |= {stored.key for stored in shown}
        listed = store.manifests(run)
        if seen.issuperset(stored.key for stored in listed):
            return Catalog(shown, tuple(entries), problems)
        # A new revision was published: a concurrent listing may show neither it nor the one before.


def committed(
    store: Store, run: str | None = None, refused: dict[SaveId, StoreError] | None = None
) -> tuple[list[CatalogEntry], dict[SaveId, str]]:
    """Return the entries and the problems of the catalog of a run, or of all runs; see
    `read_catalog`."""
    catalog = read_catalog(store, run, refused=refused)
    return list(catalog.entries), dict(catalog.problems)


def _readable(
    store: Store, listed: Iterable[StoredManifest], refused: dict[SaveId, StoreError] | None
) -> tuple[list[CatalogEntry], dict[SaveId, str]]:
    revisions: dict[SaveId, list[StoredManifest]] = {}
    for stored in listed:
        revisions.setdefault(stored.save, []).append(stored)
    looked = _look(partial(_last_good, store, raises=refused is None), [*revisions.values()])
    problems = {
        save: one for save, one in zip(revisions, looked, strict=True) if isinstance(one, str)
    }
    found = [one for one in looked if isinstance(one, CatalogEntry)]
    if refused is not None:
        refused.clear()
        refused |= {
            save: one
            for save, one in zip(revisions, looked, strict=True)
            if isinstance(one, StoreError)
        }
        silent = [e for e in refused.values() if not isinstance(e, StoreAccessError)]
        # the storage as a whole fails, and not one object
        if silent and not found and not problems:
            raise silent[0]
    return found, problems


def _look(
    look: Callable[[Sequence[StoredManifest]], CatalogEntry | str | StoreError | None],
    revisions: Sequence[Sequence[StoredManifest]],
) -> list[CatalogEntry | str | StoreError | None]:
    """Return what `look` returns for each, in threads as soon as one has to wait for the
    storage."""
    found, waits = list[CatalogEntry | str | StoreError | None](), False
    while len(found) < len(revisions) and not waits:
        began_s = time.monotonic()
        found.append(look(revisions[len(found)]))
        waits = time.monotonic() - began_s > _SLOW_S
    if left := revisions[len(found) :]:
        with ThreadPoolExecutor(min(THREADS, len(left)), "catalog") as pool:
            found += pool.map(look, left)
    return found


def _last_good(
    store: Store, revisions: Sequence[StoredManifest], raises: bool
) -> CatalogEntry | str | StoreError | None:
    """Return the last good revision of a checkpoint; if there is none, the problem with the last
    revision; None if nothing is left, or only an abandoned save."""
    problem: str | StoreError | None = None
    for stored in revisions:  # later ones first
        try:
            document = store.document(stored)
        except FileNotFoundError:
            continue
        except (DamagedError, FormatError) as error:
            problem = problem or str(error)
            continue
        except StoreError as error:
            if raises:
                raise
            problem = problem or error
            continue
        if document.kind == forms.MANIFEST:
            return CatalogEntry(stored, document)
    return problem


def suspected(found: Iterable[CatalogEntry]) -> dict[StoredManifest, MarkedDifferences]:
    """Return the checkpoints of which ranks held different replicas; none if this holds for all."""
    found = list(found)
    marks = {one.stored: one.document.header.marked for one in found}
    suspects = {stored: mark for stored, mark in marks.items() if mark and mark.is_suspect}
    return {} if len(suspects) == len(found) else suspects


def newest_first(store: Store, run: str) -> list[CatalogEntry]:
    """Return the readable checkpoints of a run in the order in which a restore tries them."""
    found, _ = committed(store, run)
    return sorted(
        found, key=lambda f: (f.stored.save.step, f.document.header.created), reverse=True
    )


def list_checkpoints(
    store: Store, run: str | None = None, *, refused: dict[SaveId, StoreError] | None = None
) -> list[CheckpointInfo]:
    """Return all checkpoints, unfinished saves and damaged manifests, ordered by run, step and
    time.

    Args:
        refused: receives the saves whose manifests the storage refuses to return, which are listed
            as "unreadable" then; None: the first such error is raised.

    Raises:
        StoreError: the store is out of reach; or one manifest, see `refused`.
    """
    catalog = read_catalog(store, run, refused=refused)
    infos = [info_of(entry) for entry in catalog.entries]
    infos += _damaged(catalog, catalog.problems, "damaged")
    infos += _damaged(catalog, {s: str(e) for s, e in (refused or {}).items()}, "unreadable")
    known = {(info.run, info.id) for info in infos}
    infos += [info for info in _incomplete(store, run) if (info.run, info.id) not in known]
    return sorted(infos, key=lambda info: (info.run, info.step, info.created, info.id))


def info_of(found: CatalogEntry) -> CheckpointInfo:
    """Return what the header of a manifest says."""
    header, items = found.document.header, found.document.items
    return CheckpointInfo(
        step=header.save.step,
        id=header.save.id,
        run=header.save.run,
        created=header.created,
        bytes=found.stored_bytes,
        raw_bytes=sum(item.raw_bytes for item in items.values()),
        world_size=header.world_size,
        tensors=sum(item.tensors for item in items.values()),
        items=tuple(items),
        metrics=header.metrics,
        state="partial" if header.dropped else "committed",
        key=found.stored.key,
        source=header.source,
        problem=f"without {', '.join(header.dropped)}" if header.dropped else None,
        differing=summary(header.marked) if header.marked else None,
        is_suspect=header.is_suspect,
        certified=header.certified,
    )


def _damaged(
    catalog: Catalog, problems: Mapping[SaveId, str], state: State
) -> list[CheckpointInfo]:
    return [
        _broken(at.save, at.key, at.modified, at.size, state, problems[at.save])
        for at in catalog.last_revisions(problems)
    ]


def _incomplete(store: Store, run: str | None) -> list[CheckpointInfo]:
    saves: dict[SaveId, list[tuple[float, int]]] = {}
    prefix = object_keys.RUNS if run is None else object_keys.parts(run)
    for entry in store.storage.list(prefix):
        if parsed := object_keys.parse_part(entry.key):
            saves.setdefault(parsed[0], []).append((entry.modified, entry.size))
    return [
        _broken(
            save,
            save.parts,
            max(modified for modified, _ in parts),
            sum(size for _, size in parts),
            "incomplete",
            f"no manifest: {len(parts)} ranks have finished; the save is still running or ended "
            "early",
        )
        for save, parts in saves.items()
    ]


def _broken(
    save: SaveId, key: str, created: float, size: int, state: State, problem: str
) -> CheckpointInfo:
    return CheckpointInfo(
        step=save.step,
        id=save.id,
        run=save.run,
        created=created,
        bytes=size,
        raw_bytes=0,
        world_size=0,
        tensors=0,
        items=(),
        metrics={},
        state=state,
        key=key,
        problem=problem,
    )
