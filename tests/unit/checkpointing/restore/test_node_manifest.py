"""The manifest is read and checked by one rank of each node, and mapped by the others."""

from __future__ import annotations

import itertools
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest

from checkpointing.errors import DamagedError, StageError
from checkpointing.format import item_table
from checkpointing.format.chunk_columns import ChunkColumns
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.restore import node_manifest as module
from checkpointing.restore.node_manifest import NodeManifest
from checkpointing.staging.arena import Arena
from checkpointing.store.store import Store
from tests.unit.checkpointing.store.recording_storage import Recording
from tests.unit.checkpointing.store.saves import contents, expected, save_all
from tests.unit.checkpointing.thread_ranks import ThreadRanks, on_thread_ranks

T = TypeVar("T")

VALUES = {f"model/{number:02}": number for number in range(40)}


@dataclass
class Node:
    """One rank's view: its own store and storage, and what it has opened."""

    store: Store
    storage: Recording
    manifest: NodeManifest

    def manifest_reads(self) -> int:
        return sum(key.endswith(".manifest") for key, _, _ in self.storage.reads)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with one checkpoint, whose table has many groups."""
    monkeypatch.setattr(item_table, "GROUPED", 10)
    monkeypatch.setattr(item_table, "_GROUP", 3)
    with_store = Store.open(tmp_path / "store", create=True)
    save_all(with_store, "run", {1: VALUES})
    with_store.close()
    return tmp_path / "store"


def on_ranks(root: Path, nodes: Sequence[Sequence[int]], do: Callable[[int, Node], T]) -> list[T]:
    """What `do` returns on each rank, of several nodes."""
    opened: list[NodeManifest] = []  # kept until all have ended: another may be about to map it

    def one(ranks: ThreadRanks) -> T:
        store = Store.open(root)
        storage = Recording(store.storage)
        store.storage = storage
        here = next(node for node in nodes if ranks.rank in node)
        manifest = NodeManifest(store, ranks, here)
        opened.append(manifest)
        try:
            return do(ranks.rank, Node(store, storage, manifest))
        finally:
            store.close()

    return on_thread_ranks(sum(map(len, nodes)), one)


def names_of(rank: int) -> list[str]:
    """What a rank reads: a few neighbouring tensors."""
    return list(VALUES)[5 * rank : 5 * rank + 5]


def read_own(rank: int, node: Node) -> tuple[dict[str, bytes], int, int, str | None]:
    """A rank's tensors; its reads of the manifest, and their bytes; why it read for itself."""
    (stored,) = node.store.manifests("run")
    checkpoint = node.manifest.share(stored)
    node.manifest.share_groups(checkpoint, names_of(rank))
    assert checkpoint.tensors().keys() == VALUES.keys()
    assert checkpoint.values() == {"extra/step": 1}
    found = {name: checkpoint.read(name).tobytes() for name in names_of(rank)}
    reading = node.manifest.reading(checkpoint)
    assert reading.requests == node.manifest_reads()
    return found, reading.requests, reading.bytes, reading.problem


def test_one_rank_of_each_node_reads_and_each_has_its_own_tensors(root: Path) -> None:
    answers = on_ranks(root, [[0, 1, 2], [3, 4], [5]], read_own)
    for rank, (found, _, _, problem) in enumerate(answers):
        assert found == expected({name: VALUES[name] for name in names_of(rank)})
        assert problem is None
    requests = [one[1] for one in answers]
    assert [rank for rank, count in enumerate(requests) if count] == [0, 3, 5]
    sizes = [one[2] for one in answers]
    assert (
        sizes[0] > sizes[3] > sizes[5]
    )  # a node reads the groups that its ranks need, and no more


def test_a_rank_that_cannot_map_reads_itself_and_says_why(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, wires = os.open, threading.local()

    def refused(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if str(path).startswith("/proc/") and getattr(wires, "refuses", False):
            raise PermissionError(13, "Permission denied", path)
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refused)

    def do(rank: int, node: Node) -> tuple[dict[str, bytes], int, int, str | None]:
        wires.refuses = rank == 2
        return read_own(rank, node)

    answers = on_ranks(root, [[0, 1, 2]], do)
    for rank, (found, _, _, _) in enumerate(answers):
        assert found == expected({name: VALUES[name] for name in names_of(rank)})
    assert [count > 0 for _, count, _, _ in answers] == [True, False, True]
    assert [problem for *_, problem in answers][:2] == [None, None]
    assert "rank 2 cannot map" in (answers[2][3] or "")
    assert "Permission denied" in (answers[2][3] or "")


def test_other_memory_is_not_taken_for_the_manifest(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count()
    monkeypatch.setattr(secrets, "token_bytes", lambda n: bytes([next(numbers)]) * n)
    received = RankGroup.receive

    def other(self: RankGroup, rank: int) -> Any:
        shared = received(self, rank)
        if isinstance(shared, module._SharedSections):
            return replace(shared, nonce=b"x" * 16)
        return shared

    monkeypatch.setattr(RankGroup, "receive", other)
    answers = on_ranks(root, [[0, 1]], read_own)
    assert answers[1][0] == expected({name: VALUES[name] for name in names_of(1)})
    assert "it is other memory" in (answers[1][3] or "")


def test_a_file_of_another_process_is_not_opened(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the reader has its number in another PID namespace."""
    opened: list[Path] = []
    open_file = os.open

    def noted(path: Any, *more: Any, **named: Any) -> int:
        opened.append(Path(path))
        return open_file(path, *more, **named)

    (manifest,) = root.glob("runs/run/steps/*.manifest")
    node = NodeManifest(Store.open(root), RankGroup(), [0, 1])
    with manifest.open("rb") as file:
        path = f"/proc/self/fd/{file.fileno()}"
        monkeypatch.setattr(os, "open", noted)
        assert node._mapped(module._SharedSections(b"", path, b"", {})) == {}
    assert Path(path) not in opened


def test_ranks_read_it_themselves_where_there_is_no_shared_memory(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(size: int, name: str) -> Any:
        raise StageError("no shared memory here")

    monkeypatch.setattr(Arena, "create", refused)
    answers = on_ranks(root, [[0, 1]], read_own)
    for rank, (found, count, _, _) in enumerate(answers):
        assert found == expected({name: VALUES[name] for name in names_of(rank)})
        assert count > 0
    assert "no shared memory here" in (answers[0][3] or "")


@pytest.mark.parametrize("share", ["outline", "groups"])
def test_damage_is_found_by_every_rank(root: Path, share: str) -> None:
    (path,) = root.glob("runs/run/steps/*.manifest")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # of the last section: the last group
    if share == "outline":
        document = Store.open(root).document(Store.open(root).manifests("run")[0])
        data[-1] ^= 1
        data[len(document.container.head) + 30] ^= 1  # of the list of packs, or the first table
    path.chmod(0o600)
    path.write_bytes(data)

    def do(rank: int, node: Node) -> str:
        (stored,) = node.store.manifests("run")
        try:
            checkpoint = node.manifest.share(stored)
            if share == "groups":
                node.manifest.share_groups(checkpoint, VALUES)
            contents(checkpoint)
        except DamagedError as error:
            return str(error)
        return ""

    assert all("does not match its hash" in text for text in on_ranks(root, [[0, 1, 2]], do))


def test_a_manifest_without_groups_is_read_once_too(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    save_all(store, "run", {1: VALUES})
    store.close()

    def do(rank: int, node: Node) -> tuple[bool, int]:
        (stored,) = node.store.manifests("run")
        opened = node.manifest.open(stored) if rank == 0 else None
        checkpoint = node.manifest.share(stored, opened)
        node.manifest.share_groups(checkpoint, VALUES)
        return contents(checkpoint) == expected(VALUES), node.manifest_reads()

    answers = on_ranks(tmp_path / "store", [[0, 1, 2, 3]], do)
    assert [is_same for is_same, _ in answers] == [True] * 4
    assert [count for _, count in answers[1:]] == [0, 0, 0]


def test_memory_is_checked_once_by_its_reader(root: Path) -> None:
    checked: list[int] = []
    check = ChunkColumns.check
    local = threading.local()

    def counted(self: Any, where: str) -> None:
        checked.append(local.rank)
        check(self, where)

    def do(rank: int, node: Node) -> None:
        local.rank = rank
        read_own(rank, node)

    with mock.patch.object(ChunkColumns, "check", counted):
        on_ranks(root, [[0, 1, 2]], do)
    assert set(checked) == {0}
