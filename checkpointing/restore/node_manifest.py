"""Reads the manifest of a checkpoint once on each node: one rank reads and checks it, and the other
ranks of the node map the memory in which it lies.

The memory is anonymous. The other ranks open its descriptor in /proc, which needs the same user and
the same PID namespace. A rank that cannot map it reads the manifest itself.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from checkpointing.errors import CheckpointError, StageError
from checkpointing.format.manifest import ManifestDocument, group_section
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.staging.arena import Arena
from checkpointing.storage import Buffer
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.store import Store, StoredManifest

logger = logging.getLogger("checkpointing")

_NAME = "manifest"  # of the memory, in the links of /proc
_NONCE = 16  # random bytes at the beginning of the memory, by which a rank recognises it


@dataclass(frozen=True)
class ManifestReading:
    """What one rank has read of a manifest from the store. Plain data, which is sent between ranks.

    Attributes:
        requests: the number of ranges of the manifest that were read.
        bytes: the bytes of these ranges.
        problem: why this rank could not share what it had read, or could not use what another rank
            of its node had read; None: it could.
    """

    requests: int
    bytes: int
    problem: str | None


@dataclass(frozen=True)
class _SharedSections:
    """Sections of a manifest in shared memory. Plain data, which is sent between ranks of a node.

    Attributes:
        head: the manifest up to its first section.
        path: the path of the memory's descriptor.
        nonce: the first bytes of the memory.
        places: offset and length of the content of each section, by name.
    """

    head: bytes
    path: str
    nonce: bytes
    places: Mapping[str, tuple[int, int]]


class NodeManifest:
    """Opens manifests for one rank of a node. `share` and `share_groups` are collectives of the
    ranks of the node, which call them for the same checkpoint; they raise OtherRankError if one of
    these has ended."""

    def __init__(self, store: Store, ranks: RankGroup, here: Collection[int]) -> None:
        """
        Args:
            here: the ranks of this node.
        """
        self._store, self._ranks = store, ranks
        self._reader = min(here)  # the rank that reads for the others
        self._others = sorted({*here} - {self._reader})
        # what this rank has read for the others, and the memory in which it lies
        self._shared: tuple[_SharedSections, Arena] | None = None
        self._problem: str | None = None

    def open(self, stored: StoredManifest) -> Checkpoint:
        """Open a checkpoint on this rank alone. If this rank reads for others, they can map what it
        has read after the next `share`.

        Raises:
            FileNotFoundError, DamagedError, FormatError, SaveError: as `Checkpoint`.
        """
        self.close()
        self._problem = None
        if not self._others or self._ranks.rank != self._reader:
            return Checkpoint(self._store, stored)
        document = ManifestDocument(self._store.document(stored).container)
        checkpoint = Checkpoint(self._store, stored, document)
        self._read_shared(checkpoint, document.sections)
        return checkpoint

    def share(self, stored: StoredManifest, opened: Checkpoint | None = None) -> Checkpoint:
        """Returns a checkpoint whose tables are known, except those of groups of tensors.

        Args:
            opened: what `open` has returned for it on this rank; it was the last call.

        Raises:
            FileNotFoundError, DamagedError, FormatError, SaveError: as `Checkpoint`.
        """
        if not self._others:
            return opened or self.open(stored)
        if self._ranks.rank != self._reader:
            self._problem = None
            return self._received(stored)
        is_whole = False
        try:
            checkpoint = opened or self.open(stored)
            checkpoint.tensors()  # checks all that the others use without checking it again
            checkpoint.document.packs()
            is_whole = True
        finally:
            self._send(self._shared[0] if is_whole and self._shared else None)
        return checkpoint

    def share_groups(self, checkpoint: Checkpoint, tensors: Iterable[str]) -> None:
        """Read the groups of tensors that any rank of the node needs. What cannot be read is read
        again, and raises, when it is used.

        Args:
            checkpoint: as `share` has returned it.
            tensors: the tensors of which this rank needs chunks.
        """
        document = checkpoint.document
        if not self._others or not any(map(document.is_grouped, checkpoint.items)):
            return
        mine = checkpoint.groups_with(tensors)
        if self._ranks.rank != self._reader:
            self._ranks.send(mine, self._reader)
            if (shared := self._ranks.receive(self._reader)) is not None:
                document.hold(self._mapped(shared))
            return
        wanted = {*mine, *(group for rank in self._others for group in self._ranks.receive(rank))}
        is_whole = False
        try:
            self._read_shared(checkpoint, [group_section(*group) for group in sorted(wanted)])
            for group in wanted:
                checkpoint.group(*group)
            is_whole = True
        except (CheckpointError, OSError) as error:
            self._cannot_share(checkpoint, error)
        finally:
            self._send(self._shared[0] if is_whole and self._shared else None)

    def reading(self, checkpoint: Checkpoint) -> ManifestReading:
        """Returns what this rank has read of the manifest."""
        container = checkpoint.document.container
        return ManifestReading(container.requests, container.bytes_read, self._problem)

    def close(self) -> None:
        """Release the descriptor of what was shared. The other ranks must have received it."""
        if self._shared is not None:
            self._shared[1].close()
            self._shared = None

    def _read_shared(self, checkpoint: Checkpoint, names: Iterable[str]) -> None:
        """Read sections into memory that the other ranks of the node can map."""
        self.close()
        document = checkpoint.document
        contents: dict[str, Buffer] = {name: document.read_section(name) for name in names}
        places, at = {}, _NONCE
        for name, content in contents.items():
            places[name] = (at, len(content))
            at += len(content)
        try:
            arena = Arena.create(at, _NAME)
        except StageError as error:
            self._cannot_share(checkpoint, error)
            document.hold(contents)
            return
        nonce = secrets.token_bytes(_NONCE)
        arena.view(0, _NONCE)[:] = np.frombuffer(nonce, np.uint8)
        for name in list(contents):
            arena.view(*places[name])[:] = np.frombuffer(contents.pop(name), np.uint8)
        document.hold(_contents(arena, places))
        path = f"/proc/{os.getpid()}/fd/{arena.fd}"
        self._shared = (_SharedSections(document.container.head, path, nonce, places), arena)

    def _received(self, stored: StoredManifest) -> Checkpoint:
        """Returns the checkpoint that the reading rank shares, or that this rank reads itself."""
        shared: _SharedSections | None = self._ranks.receive(self._reader)
        contents = {} if shared is None else self._mapped(shared)
        if shared is None or not contents:
            return Checkpoint(self._store, stored)
        document = self._store.shared_document(stored, shared.head)
        document.hold(contents)
        return Checkpoint(self._store, stored, document)

    def _mapped(self, shared: _SharedSections) -> dict[str, Buffer]:
        """Returns the contents of the sections in the memory of the reading rank."""
        fd = -1
        try:
            # In another PID namespace, this is a file of another process. That is not opened: it
            # may be a pipe or a file on a file system that does not answer.
            if f"hpckit-{_NAME}" not in str(Path(shared.path).readlink()):
                return self._cannot_map(shared, "it is other memory")
            fd = os.open(shared.path, os.O_RDONLY | os.O_CLOEXEC)
            arena, fd = Arena.attach(fd, writable=False), -1
        except (OSError, StageError) as error:
            return self._cannot_map(shared, str(error))
        finally:
            if fd >= 0:
                os.close(fd)
        if arena.view(0, _NONCE).tobytes() != shared.nonce:
            arena.close()
            return self._cannot_map(shared, "it is other memory")
        contents = _contents(arena, shared.places)
        arena.close()
        return contents

    def _cannot_share(self, checkpoint: Checkpoint, error: Exception) -> None:
        self._problem = f"rank {self._ranks.rank} cannot share the manifest: {error}"
        logger.warning("%s: each rank of this node reads it: %s", checkpoint.id, self._problem)

    def _cannot_map(self, shared: _SharedSections, reason: str) -> dict[str, Buffer]:
        rank, reader = self._ranks.rank, self._reader
        self._problem = f"rank {rank} cannot map {shared.path} of rank {reader}: {reason}"
        logger.warning("the manifest is read again: %s", self._problem)
        return {}

    def _send(self, shared: _SharedSections | None) -> None:
        for rank in self._others:
            self._ranks.send(shared, rank)


def _contents(arena: Arena, places: Mapping[str, tuple[int, int]]) -> dict[str, Buffer]:
    return {name: arena.view(*place).data for name, place in places.items()}
