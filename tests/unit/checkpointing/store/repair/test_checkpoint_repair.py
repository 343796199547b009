"""Repair heals what has a copy somewhere, says what has none, and adopts what lacks its commit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from checkpointing import DamagedError, FormatError, SaveError
from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.object_keys import SaveId, pack_key
from checkpointing.store.deletion import deletion_marks
from checkpointing.store.deletion.pack_sweep import sweep
from checkpointing.store.repair.checkpoint_repair import commit_orphaned_saves, repair
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, part_entries, write_part
from checkpointing.store.write.part_writer import TensorPiece, write
from tests.unit.checkpointing.store import delta_stores as r

STATE = {"model/a": r.tensor(1), "model/b": r.tensor(2), "optimizer/a": r.tensor(3)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> Store:
    return Store.open(folder, create=True)


def a_pack(store: Store, made: SaveId) -> Path:
    return Path(store.url) / r.packs(store, made)[0]


@pytest.mark.parametrize(
    ("damage", "healed"),
    [
        (lambda path: r.flip(path, 20), 1),
        (lambda path: r.cut(path, path.stat().st_size // 2), 2),
        (lambda path: path.unlink(), 3),
    ],
)
def test_a_mirror_heals(
    store: Store, folder: Path, tmp_path: Path, damage: Callable[[Path], None], healed: int
) -> None:
    made = r.save(store, "run", 5, STATE)
    other = r.mirror(store, folder, tmp_path / "mirror")
    damage(a_pack(store, made))
    assert r.problems(folder)
    done = repair(store, "run", r.find(store, made), [other])
    assert len(done.healed) == healed
    assert all("packs/" in text and str(tmp_path / "mirror") in text for text in done.healed)
    assert done.lost == []
    assert done.key == made.manifest(1)
    assert r.problems(folder) == []
    assert r.holds(folder, made, STATE)
    assert store.storage.list("leases/") == []
    sweep(store, grace_s=0)
    assert r.holds(folder, made, STATE)


def test_another_pack_of_the_store_heals(store: Store, folder: Path) -> None:
    made = r.save(store, "run", 5, {"model/a": STATE["model/a"]})
    index = folder / made.manifest()
    hidden = index.read_bytes()
    index.unlink()  # so that the next save writes the same chunk again
    r.save(Store.open(folder), "run", 6, {"model/x": STATE["model/a"]})
    index.write_bytes(hidden)
    r.flip(a_pack(store, made), 100)
    done = repair(store, "run", r.find(store, made))
    assert len(done.healed) == 1
    assert "'model/a'" in done.healed[0]
    assert r.problems(folder) == []
    assert r.holds(folder, made, {"model/a": STATE["model/a"]})


def test_what_is_lost_is_said_and_nothing_made(store: Store, folder: Path) -> None:
    made = r.save(store, "run", 5, STATE)
    r.flip(a_pack(store, made), 20)
    done = repair(store, "run", r.find(store, made))
    assert (done.healed, done.key) == ([], None)
    assert [problem.tensor for problem in done.lost] == ["model/a"]
    assert "packs/" in done.lost[0].text
    assert r.find(store, made).stored.revision == 0


def test_a_part_is_healed_and_the_rest_is_said(store: Store, folder: Path, tmp_path: Path) -> None:
    made = r.save(store, "run", 5, STATE)
    other = r.mirror(store, folder, tmp_path / "mirror")
    a_pack(store, made).unlink()
    r.flip(a_pack(other, made), 20)
    done = repair(store, "run", r.find(store, made), [other])
    assert len(done.healed) == 2
    assert [problem.tensor for problem in done.lost] == ["model/a"]
    assert done.key == made.manifest(1)
    assert {problem.tensor for problem in r.problems(folder)} == {"model/a"}


def test_a_whole_checkpoint_is_left_alone(store: Store) -> None:
    made = r.save(store, "run", 5, STATE)
    before = [entry.key for entry in store.storage.list("")]
    told: list[int] = []
    done = repair(store, "run", r.find(store, made), [], told.append)
    assert (done.healed, done.lost, done.key) == ([], [], None)
    assert sum(told) == sum(array.nbytes for array in STATE.values())
    assert [entry.key for entry in store.storage.list("")] == before


@pytest.mark.parametrize("depth", [0, 1])
def test_a_delta_heals_with_the_base_of_an_older_mirror(
    store: Store, folder: Path, tmp_path: Path, depth: int
) -> None:
    r.save(store, "run", 1, {"model/a": r.tensor(1)}, r.DELTAS)
    other = r.mirror(store, folder, tmp_path / "mirror")
    state = {"model/a": r.tensor(9)}
    made = r.save(store, "run", 2, state, r.DELTAS)
    chunk = next(c for c in r.chunks(store, made) if c.depth == depth)
    (folder / pack_key(chunk.pack)).unlink()
    done = repair(store, "run", r.find(store, made), [other])
    if depth == 0:  # the base is in the mirror, the delta here
        assert (len(done.healed), done.lost) == (1, [])
        assert r.holds(folder, made, state)
    else:  # the delta is nowhere
        assert (done.healed, len(done.lost)) == ([], 1)


@pytest.mark.parametrize("at", [3, 60, -20])
def test_a_damaged_manifest_heals(store: Store, folder: Path, tmp_path: Path, at: int) -> None:
    made = r.save(store, "run", 5, STATE)
    other = r.mirror(store, folder, tmp_path / "mirror")
    r.flip(folder / made.manifest(), at)
    again = Store.open(folder)
    done = repair(again, "run", made, [other])
    assert done.key == made.manifest(1)
    assert len(done.healed) == 1
    assert made.manifest() in done.healed[0]
    assert not (folder / made.manifest()).exists()
    assert r.problems(folder) == []
    assert r.holds(folder, made, STATE)
    assert sweep(again, grace_s=0).unreadable == []


def test_a_manifest_that_is_gone_heals_with_its_packs(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    made = r.save(store, "run", 5, STATE)
    other = r.mirror(store, folder, tmp_path / "mirror")
    (folder / made.manifest()).unlink()
    again = Store.open(folder)
    sweep(again, grace_s=3600.0)  # the packs are condemned and there still
    done = repair(again, "run", made, [other])
    assert done.key == made.manifest(1)
    assert sum("marked for deletion" in text for text in done.healed) == 3
    sweep(again, grace_s=0)
    assert r.problems(folder) == []
    assert r.holds(folder, made, STATE)


def test_a_manifest_that_nobody_has_is_lost(store: Store, folder: Path, tmp_path: Path) -> None:
    made = r.save(store, "run", 5, STATE)
    other = Store.open(tmp_path / "mirror", create=True)
    r.flip(folder / made.manifest(), 60)
    done = repair(Store.open(folder), "run", made, [other])
    assert (done.healed, done.key) == ([], None)
    assert made.manifest() in done.lost[0].text
    assert (folder / made.manifest()).exists()


def test_a_manifest_of_another_version_is_no_damage(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    made = r.save(store, "run", 5, STATE)
    other = r.mirror(store, folder, tmp_path / "mirror")
    path = folder / made.manifest()
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":7'))
    with pytest.raises(FormatError, match="version 7"):
        repair(Store.open(folder), "run", made, [other])
    assert path.exists()


def test_one_content_stored_in_two_ways_is_no_damage(store: Store, folder: Path) -> None:
    zeros = np.zeros((64, 48), np.float32)
    with Session(store, "run") as session:
        made = session.begin(1)
        for rank, (name, chosen) in enumerate([("model/a", r.PLAIN), ("model/b", r.PLANES)]):
            piece = TensorPiece(name, "float32", zeros.shape, (0, 0), zeros)
            written = write(store, made, [piece], {}, RunChunkIndex(store, "run").index(), chosen)
            write_part(store, ManifestHeader(made, 1.0, 2), rank, written)
        commit(store, made, 2, check=session.check)
        session.end(made.manifest())
    assert len({chunk.codec for chunk in r.chunks(store, made)}) == 2
    assert len({chunk.id for chunk in r.chunks(store, made)}) == 1
    assert r.problems(folder) == []
    assert r.holds(folder, made, {"model/a": zeros, "model/b": zeros})


def unfinished(store: Store, ranks: int = 1) -> SaveId:
    """A save whose session ended before the commit."""
    with Session(store, "run") as session:
        made = r.begin_save(session, 5, STATE, r.PLAIN, ranks=ranks)
        session.end(made.manifest())
    return made


def test_a_complete_save_is_adopted(store: Store, folder: Path) -> None:
    made = unfinished(store)
    assert commit_orphaned_saves(store, "run") == [made]
    assert r.problems(folder) == []
    assert r.holds(folder, made, STATE)
    assert part_entries(store, made) == []
    assert store.storage.list("leases/") == []
    assert commit_orphaned_saves(store, "run") == []


def test_an_incomplete_save_is_not_adopted(store: Store) -> None:
    made = unfinished(store, ranks=2)
    assert commit_orphaned_saves(store, "run") == []
    assert len(part_entries(store, made)) == 1


def test_what_a_live_session_saves_is_not_adopted(store: Store) -> None:
    with Session(store, "run") as session:
        made = r.begin_save(session, 5, STATE, r.PLAIN)
        assert commit_orphaned_saves(store, "run") == []
        assert store.manifests("run") == []
        session.end(made.manifest())


def test_nothing_is_adopted_beside_a_lease_that_cannot_be_read(store: Store, folder: Path) -> None:
    made = unfinished(store)
    (folder / "leases" / "00000000.lease").write_bytes(b"{")
    with pytest.raises(DamagedError, match="lease of session 00000000 cannot be read"):
        commit_orphaned_saves(store, "run")
    assert len(part_entries(store, made)) == 1


def test_a_save_whose_packs_are_condemned_is_not_adopted(store: Store) -> None:
    made = unfinished(store)
    deletion_marks.write(store, packs=[entry.key for entry in store.storage.list("packs/")])
    assert commit_orphaned_saves(store, "run") == []
    assert [s for s in store.manifests("run") if s.save == made] == []


def test_a_save_that_was_declared_dead_is_not_adopted(store: Store) -> None:
    unfinished(store)
    sweep(store, grace_s=0)
    assert commit_orphaned_saves(store, "run") == []
    assert [store.document(s).kind for s in store.manifests("run")] == ["hpckit-abandoned"]


def test_a_save_that_was_declared_dead_is_not_repaired(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    made = unfinished(store)
    other = r.mirror(store, folder, tmp_path / "mirror")
    sweep(store, grace_s=0)
    assert commit_orphaned_saves(other, "run") == [made]
    with pytest.raises(SaveError, match="never committed"):
        repair(store, "run", made, [other])
