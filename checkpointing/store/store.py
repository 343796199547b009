"""Opens a store, and lists and reads its manifests."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from checkpointing.errors import DamagedError
from checkpointing.format import manifest as forms
from checkpointing.format import object_keys
from checkpointing.format.document_container import HEAD, DocumentContainer, ReadRange
from checkpointing.format.manifest import ManifestDocument
from checkpointing.format.store_records import StoreRecord, dump_store, load_store
from checkpointing.storage import ObjectInfo, Storage, open_storage


@dataclass(frozen=True, order=True)
class StoredManifest:
    """The place of a manifest in a store. In the order of one run, newer checkpoints and revisions
    come later."""

    save: object_keys.SaveId
    revision: int
    key: str
    size: int  # bytes of the manifest
    modified: float  # Unix time in seconds, by the storage's clock


class Store:
    """A store of checkpoints. Thread-safe."""

    def __init__(self, storage: Storage, record: StoreRecord) -> None:
        self.storage, self.record = storage, record
        # by run: the takeover that saves belong to, see run_ownership.py
        self.owners: dict[str, int] = {}
        self._documents: dict[str, tuple[StoredManifest, ManifestDocument]] = {}  # by key
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str],
        *,
        options: Mapping[str, Any] | None = None,
        create: bool = False,
    ) -> Self:
        """Open the store at `url`: a path, file://, s3:// or any other URL that fsspec supports.

        Args:
            options: for the storage, see `open_storage`.
            create: create a store there if there is none.

        Raises:
            FileNotFoundError: there is no store, and `create` is False.
            StoreError: it is out of reach.
            FormatError: the store has a version or a feature that is not known here.
        """
        return cls.at(open_storage(os.fspath(url), options=options), create=create)

    @classmethod
    def at(cls, storage: Storage, *, create: bool = False) -> Self:
        """Open the store in `storage`."""
        try:
            return cls(storage, _record(storage))
        except FileNotFoundError:
            if not create:
                raise FileNotFoundError(
                    f"no checkpoint store at {storage.url}: it has no {object_keys.STORE}"
                ) from None
        record = StoreRecord(uuid=secrets.token_hex(16), created=time.time())
        # which process creates it does not matter
        storage.create(object_keys.STORE, dump_store(record))
        return cls(storage, _record(storage))

    @property
    def url(self) -> str:
        return self.storage.url

    def manifests(self, run: str | None = None) -> list[StoredManifest]:
        """Return all manifests of one run or of all runs, from the newest checkpoint's last
        revision down, including abandoned saves."""
        found = self.storage.list(object_keys.RUNS if run is None else object_keys.steps(run))
        known = [stored for entry in found if (stored := _stored(entry))]
        return sorted(known, reverse=True)

    def document(self, stored: StoredManifest) -> ManifestDocument:
        """Return the manifest; its tables are not read yet.

        Raises:
            FileNotFoundError: it was removed meanwhile.
            DamagedError, FormatError: it cannot be used.
        """
        with self._lock:
            known = self._documents.get(stored.key)
        if known is not None and known[0] == stored:  # the key of a revision may be used again
            return known[1]
        document = ManifestDocument(self._container(stored))
        if document.save != stored.save:
            raise DamagedError(f"{stored.key}: it is the manifest of {document.save.id}")
        with self._lock:
            self._documents[stored.key] = (stored, document)
        return document

    def shared_document(self, stored: StoredManifest, head: bytes) -> ManifestDocument:
        """Return a manifest of which another process has read and checked `head`, and will share
        the sections; raises as `document`."""
        return ManifestDocument(self._container(stored, head), is_checked=True)

    def part(self, entry: ObjectInfo) -> ManifestDocument:
        """Return a part record; raises as `document`. A small one takes one request, because a
        commit reads one of each rank."""
        if entry.size > HEAD:
            kinds = (forms.PART,)
            return ManifestDocument(
                DocumentContainer(self._reader(entry.key), entry.size, kinds, entry.key)
            )
        data = self.storage.get(entry.key)

        def read(start: int, length: int) -> bytes:
            return data[start : start + length]

        return ManifestDocument(DocumentContainer(read, len(data), (forms.PART,), entry.key))

    def forget(self, key: str) -> None:
        """Drop what is cached of a manifest, because it was removed or may be damaged."""
        with self._lock:
            self._documents.pop(key, None)

    def close(self) -> None:
        self.storage.close()

    def _container(self, stored: StoredManifest, head: bytes | None = None) -> DocumentContainer:
        kinds = (forms.MANIFEST, forms.ABANDONED)
        return DocumentContainer(self._reader(stored.key), stored.size, kinds, stored.key, head)

    def _reader(self, key: str) -> ReadRange:
        def read(start: int, length: int) -> bytes:
            return bytes(self.storage.get_range(key, start, length))

        return read


def _record(storage: Storage) -> StoreRecord:
    return load_store(storage.get(object_keys.STORE), f"{storage.url}/{object_keys.STORE}")


def _stored(entry: ObjectInfo) -> StoredManifest | None:
    parsed = object_keys.parse_manifest(entry.key)
    if parsed is None:
        return None
    save, revision = parsed
    return StoredManifest(save, revision, entry.key, entry.size, entry.modified)
