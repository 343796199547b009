"""The small JSON records of a store: its own, leases, run owners, deletion marks and checkpoint
marks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.canonical_json import JsonReader, check_version, dump, load

VERSION = 1
FEATURES: frozenset[str] = frozenset()
HASH = "blake3-256"


@dataclass(frozen=True)
class StoreRecord:
    """The content of `hpckit.json`, which describes the store. Written once, when the store is
    created."""

    uuid: str  # 32 hex digits
    created: float  # Unix time, seconds


@dataclass(frozen=True)
class Lease:
    """What a session is saving or reading, which keeps a prune and a sweep away from it. Renewed
    only by its owner."""

    session: str
    run: str
    owner: str  # host and process, for display
    ttl_s: float  # seconds without a renewal after which the owner counts as dead
    renewals: int = 0
    # key of a manifest to be committed -> the deletion marks that existed before the save looked
    # for known chunks
    saving: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reading: tuple[str, ...] = ()  # keys of manifests


@dataclass(frozen=True)
class RunOwner:
    """Who took a run over, and when. The number of the takeover is in the key."""

    nonce: str  # distinguishes two processes that take over at the same moment
    host: str  # host and process, for display
    created: float  # Unix time by the owner's clock, seconds; for display


@dataclass(frozen=True)
class DeletionMark:
    """The first phase of a deletion: what is to be deleted."""

    packs: tuple[str, ...] = ()  # keys
    manifests: tuple[str, ...] = ()  # keys


@dataclass(frozen=True)
class CheckpointMark:
    """A name for a checkpoint. Pins are marks that every prune respects."""

    id: str  # "<step>-<session>"
    pinned: bool
    why: str
    created: float  # Unix time, seconds
    # metrics of the checkpoint that were measured after its commit, finite numbers by name
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)


def dump_store(record: StoreRecord) -> bytes:
    return dump({"format": "hpckit-store", **_envelope(), "hash": HASH, **asdict(record)})


def load_store(data: bytes, where: str) -> StoreRecord:
    """Raises:
    DamagedError: the record is not whole. FormatError: it has a version, hash or feature that is
    unknown to this version.
    """
    read = _open(data, "hpckit-store", where)
    if read.text("hash") != HASH:
        raise FormatError(f"{where}: its hash {read.text('hash')!r} is unknown to this version")
    return StoreRecord(read.text("uuid"), read.number("created"))


def dump_lease(lease: Lease) -> bytes:
    body = {**asdict(lease), "saving": {k: list(v) for k, v in lease.saving.items()}}
    return dump({"format": "hpckit-lease", **_envelope(), **body})


def load_lease(data: bytes, where: str) -> Lease:
    read = _open(data, "hpckit-lease", where)
    saving = read.child("saving")
    return Lease(
        session=read.text("session"),
        run=read.text("run"),
        owner=read.text("owner"),
        ttl_s=read.number("ttl_s"),
        renewals=read.count("renewals"),
        saving={name: tuple(saving.texts(name)) for name in read.object("saving")},
        reading=tuple(read.texts("reading")),
    )


def dump_owner(owner: RunOwner) -> bytes:
    return dump({"format": "hpckit-owner", **_envelope(), **asdict(owner)})


def load_owner(data: bytes, where: str) -> RunOwner:
    read = _open(data, "hpckit-owner", where)
    return RunOwner(read.text("nonce"), read.text("host"), read.number("created"))


def dump_deletion_mark(mark: DeletionMark) -> bytes:
    return dump({"format": "hpckit-tomb", **_envelope(), **asdict(mark)})


def load_deletion_mark(data: bytes, where: str) -> DeletionMark:
    read = _open(data, "hpckit-tomb", where)
    return DeletionMark(tuple(read.texts("packs")), tuple(read.texts("manifests")))


def dump_mark(mark: CheckpointMark) -> bytes:
    body = {"format": "hpckit-mark", **_envelope(), **asdict(mark)}
    if not mark.metrics:
        del body["metrics"]  # as marks of earlier releases
    return dump(body)


def load_mark(data: bytes, where: str) -> CheckpointMark:
    read = _open(data, "hpckit-mark", where)
    values = read.child("metrics") if read.has("metrics") else None
    return CheckpointMark(
        read.text("id"),
        read.flag("pinned"),
        read.text("why"),
        read.number("created"),
        {} if values is None else {name: values.number(name) for name in read.object("metrics")},
    )


def _envelope() -> dict[str, Any]:
    return {"version": VERSION, "features": []}


def _open(data: bytes, kind: str, where: str) -> JsonReader:
    body, is_intact = load(data, where)
    read = JsonReader(body, where)
    if read.text("format") != kind:
        raise DamagedError(f"{where}: its format is {read.text('format')!r}, not {kind!r}")
    check_version(read, VERSION, FEATURES, is_intact=is_intact)
    return read
