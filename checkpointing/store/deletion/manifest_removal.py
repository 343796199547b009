"""Removes manifests: first marks them for deletion, then looks for sessions that need them, then
deletes them.

A session that pins or reads a checkpoint first writes its pin or lease and then looks whether the
manifest is marked for deletion, so one of the two sees the other.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from checkpointing.errors import DamagedError, FormatError, StoreError
from checkpointing.format import manifest as forms
from checkpointing.format.object_keys import SaveId, parse_manifest
from checkpointing.store.deletion import deletion_marks
from checkpointing.store.sessions import session_leases
from checkpointing.store.sessions.session_leases import SessionLease
from checkpointing.store.store import Store

# seconds after which a deletion mark of manifests counts as that of a crashed prune
MARKED_S = 86400.0


@dataclass
class ManifestRemoval:
    """The right to remove some manifests, for a limited time. Created by `marking_for_deletion`."""

    store: Store
    keys: frozenset[str]  # keys marked for deletion
    until_s: float  # monotonic time
    needed: dict[SaveId, str]  # the saves that leases name, and why they have to stay
    unknown: str | None  # why it is not known which saves are needed

    def why_needed(self, save: SaveId) -> str | None:
        """Return why the manifests of a save have to stay; None if no lease names any of them."""
        return self.unknown or self.needed.get(save)

    def remove(self, save: SaveId) -> None:
        """Remove the marked manifests of a save, the last revision first.

        Raises:
            StoreError: too late; other sessions may rely on them again.
        """
        mine = [
            parsed[1] for key in self.keys if (parsed := parse_manifest(key)) and parsed[0] == save
        ]
        for key in map(save.manifest, sorted(mine, reverse=True)):
            if time.monotonic() > self.until_s:
                raise StoreError(f"{key}: this prune was suspended for too long; run it again")
            self.store.storage.delete([key])
            self.store.forget(key)


@contextmanager
def marking_for_deletion(
    store: Store, keys: Collection[str], *, by: str | None = None
) -> Iterator[ManifestRemoval]:
    """Mark manifests for deletion while the block runs, and read the leases of sessions that need
    them.

    Args:
        by: the caller's session, whose own needs do not count.
    """
    until_s = time.monotonic() + MARKED_S / 2
    mark = deletion_marks.write(store, manifests=sorted(keys))
    try:
        held = session_leases.leases(store, session_leases.storage_time(store))
        others = [h for h in held if h.is_alive and h.session != by]
        yield ManifestRemoval(store, frozenset(keys), until_s, *_needed(others))
    finally:
        store.storage.delete([mark])


def _needed(held: Iterable[SessionLease]) -> tuple[dict[SaveId, str], str | None]:
    needed: dict[SaveId, str] = {}
    for other in held:
        if other.lease is None:
            return {}, f"the lease of session {other.session} cannot be read"
        for keys, what in ((other.lease.saving, "making"), (other.lease.reading, "reading")):
            for parsed in filter(None, map(parse_manifest, keys)):
                needed[parsed[0]] = f"{other.lease.owner} is {what} it"
    return needed, None


def revisions(store: Store, saves: Collection[SaveId]) -> dict[SaveId, list[str]]:
    """Return the keys of all manifests of these saves, including damaged ones."""
    found: dict[SaveId, list[str]] = {save: [] for save in saves}
    for stored in (s for run in {save.run for save in saves} for s in store.manifests(run)):
        if stored.save not in found:
            continue
        try:
            if store.document(stored).kind == forms.ABANDONED:
                continue
        except FileNotFoundError:
            continue
        except (DamagedError, FormatError):
            pass  # it is removed with the others
        found[stored.save].append(stored.key)
    return found


def superseded(store: Store) -> dict[SaveId, list[str]]:
    """Return the keys of manifests, including damaged ones, that a later revision has replaced."""
    found: dict[SaveId, list[str]] = {}
    last: set[SaveId] = set()
    for stored in store.manifests():  # later revisions first
        try:
            if store.document(stored).kind != forms.MANIFEST:
                continue
        except (FileNotFoundError, FormatError):
            continue  # an abandoned save replaces nothing
        except DamagedError:
            if stored.save not in last:
                continue
        if stored.save in last:
            found.setdefault(stored.save, []).append(stored.key)
        last.add(stored.save)
    return found
