"""A follower takes each step whole, and reads only what it does not hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from checkpointing.errors import (
    CheckpointError,
    StoreAccessError,
    StoreError,
    StructureError,
)
from checkpointing.follower import follower as module
from checkpointing.follower.follower import Follower
from checkpointing.format.object_keys import pack_key
from checkpointing.retention import Last, Only
from checkpointing.runs import fork_run, rename_run
from checkpointing.storage import Buffer, ObjectInfo, Storage, open_storage
from checkpointing.storage.forwarding_storage import ForwardingStorage
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_encoding import ChunkEncoder
from checkpointing.store.write.part_writer import WriteOptions
from tests.unit.checkpointing.follower.followed_stores import (
    RUN,
    SeenSteps,
    bits,
    changed,
    expected,
    follower,
    save,
    save_steps,
    weights,
    written,
)
from tests.unit.checkpointing.store import delta_stores, tensor_checkpoints
from tests.unit.checkpointing.store.delta_stores import DELTAS, PLAIN, PLANES

CODED = WriteOptions(threads=1, encoder=ChunkEncoder())
DEEP = WriteOptions(threads=1, encoder=ChunkEncoder(depth=3))


class BrokenStorage(ForwardingStorage):
    """Does something before each read of a pack, and can be out of reach or read-only."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.is_out, self.is_read_only = False, False
        self.before_reads: list[object] = []

    def list(self, prefix: str) -> list[ObjectInfo]:
        if self.is_out:
            raise StoreError("no answer")
        return super().list(prefix)

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        if self.is_read_only:
            raise StoreAccessError("read-only")
        super().put(key, parts)

    def delete(self, keys: Iterable[str]) -> None:
        super().delete(keys)

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        if key.startswith("packs/") and self.before_reads:
            call = self.before_reads.pop(0)
            assert callable(call)
            call()
        return super().get_range(key, start, length)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> list[BrokenStorage]:
    """The storages of the followers that are made."""
    made: list[BrokenStorage] = []

    def opened(url: str, options: object) -> Storage:
        made.append(BrokenStorage(open_storage(url)))
        return made[-1]

    monkeypatch.setattr(module, "open_storage", opened)
    return made


@pytest.mark.parametrize("options", [PLAIN, PLANES, DELTAS, CODED, DEEP], ids=range(5))
def test_each_step_is_whole_and_only_changes_are_read(store: Store, options: WriteOptions) -> None:
    now, seen = weights(), SeenSteps()
    with follower(store, seen) as followed:
        assert followed.poll() is None
        for step in range(1, 7):
            now = changed(now, step * 37) if step > 1 else now
            save(store, step, now, options)
            taken = followed.poll()
            assert taken is not None
            assert (taken.step, followed.step) == (step, step)
            assert seen.tensors[-1] == expected(now)
            if step > 1:
                assert seen.changed[-1] == ["big"]
                assert taken.fetched == 1
                assert taken.bytes < 0.6 * taken.full_bytes
        assert followed.poll() is None
    assert seen.steps == [1, 2, 3, 4, 5, 6]
    assert sorted(seen.changed[0]) == ["big", "small"]


def test_a_difference_costs_its_own_bytes_and_its_base_nothing(store: Store) -> None:
    now = weights()
    save(store, 1, now, PLAIN)
    with follower(store, SeenSteps()) as followed:
        followed.poll()
        for step in (2, 3, 4):
            now = changed(now, step)
            made = save(store, step, now, DELTAS)
            chunks = delta_stores.chunks(store, made)
            last = max(chunks, key=lambda chunk: chunk.depth)
            assert last.depth == step - 1
            taken = followed.poll()
            assert taken is not None
            tables = taken.bytes - last.length
            assert 0 < tables < 4000


def test_a_follower_that_starts_late_reads_bases_too(store: Store) -> None:
    tensors = save_steps(store, 4)
    seen = SeenSteps()
    with follower(store, seen) as followed:
        followed.poll()
        assert seen.tensors == [expected(tensors[-1])]
        save(store, 5, changed(tensors[-1], 9), DELTAS)
        taken = followed.poll()
    assert taken is not None
    assert taken.bytes < 0.1 * taken.full_bytes
    assert seen.tensors[-1] == expected(changed(tensors[-1], 9))


def test_of_several_steps_the_newest_is_taken_or_each(store: Store) -> None:
    save(store, 1, weights())
    newest, each = SeenSteps(), SeenSteps()
    with (
        follower(store, newest, every=2) as one,
        follower(store, each, order="each", every=2) as other,
    ):
        one.poll(), other.poll()
        for step in range(2, 8):
            save(store, step, weights(step))
        while one.poll() or other.poll():
            pass
    assert newest.steps == [1, 7]
    assert each.steps == [1, 3, 5, 7]


def test_every_dtype_and_shape_is_followed(store: Store, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "model/half": ("bfloat16", rng.integers(0, 1 << 16, (70, 9), "u2")),
        "model/scalar": ("int64", np.array(7, "u8")),
        "model/empty": ("float32", np.empty((0, 3), "u4")),
        "model/flags": ("bool", rng.integers(0, 2, 11, "u1")),
        "model/eighth": ("float8_e4m3fn", rng.integers(0, 255, 13, "u1")),
        "model/complex": ("complex64", rng.integers(0, 99, (5, 2), "u8")),
    }
    tensor_checkpoints.make(store, 1, tensors, run=RUN, ranks=3)
    seen = SeenSteps()
    with follower(store, seen) as one, follower(store, tmp_path / "into") as other:
        one.poll(), other.poll()
    names = {name.removeprefix("model/"): a.tobytes() for name, (_, a) in tensors.items()}
    assert seen.tensors == [names]
    assert written(tmp_path / "into") == names


def test_boxes_of_another_number_of_ranks_are_the_same_tensors(store: Store) -> None:
    seen, now = SeenSteps(), weights()
    with follower(store, seen) as followed:
        for step, ranks in ((1, 3), (2, 4), (3, 1), (4, 3)):
            now = changed(now, step)
            tensors = {name: ("float32", array) for name, array in now.items()}
            tensor_checkpoints.make(store, step, tensors, run=RUN, ranks=ranks)
            assert followed.poll()
            assert seen.tensors[-1] == expected(now)


@pytest.mark.parametrize("options", [PLAIN, DELTAS, DEEP], ids=range(3))
def test_a_cast_is_made_of_whole_steps_and_is_no_more_bytes(
    store: Store, tmp_path: Path, options: WriteOptions
) -> None:
    into, now = tmp_path / "into", weights()
    for step in range(1, 6):
        now = changed(now, step)
        save(store, step, now, options)
        # restarted after each step
        with follower(store, into, dtype="bfloat16") as followed:
            taken = followed.poll()
        assert taken is not None
        as_torch = {n: torch.from_numpy(a).bfloat16() for n, a in now.items() if "model" in n}
        halves = {n.removeprefix("model/"): t.view(torch.uint8) for n, t in as_torch.items()}
        assert written(into) == {n: t.numpy().tobytes() for n, t in halves.items()}
        if step > 1:
            assert taken.fetched == 1
            assert taken.bytes < 0.6 * taken.full_bytes


def test_names_select_tensors_of_any_item(store: Store) -> None:
    save(store, 1, weights())
    seen = SeenSteps()
    with follower(store, seen, names=["model/sm*", "optimizer/*"]) as followed:
        followed.poll()
    assert sorted(seen.tensors[0]) == ["model.small", "optimizer.state"]
    with (
        follower(store, seen, names=["modle/*"]) as followed,
        pytest.raises(StructureError, match=r"no tensor that matches 'modle/\*'.*model, optimizer"),
    ):
        followed.poll()


def test_other_tensors_are_all_read_and_said(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    into = tmp_path / "into"
    save(store, 1, weights())
    with follower(store, into) as followed:
        followed.poll()
        more = {**weights(), "model/more": np.ones(5, np.float32)}
        save(store, 2, more)
        assert followed.poll()
        assert written(into) == expected(more)
    assert "the tensors of run r have changed" in caplog.text


# faults


def test_a_damaged_step_is_skipped_with_a_message_and_the_next_is_taken(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    tensors, seen = save_steps(store, 2), SeenSteps()
    with follower(store, seen) as followed:
        followed.poll()
        bad = save(store, 3, weights(3))
        packs = [Path(store.url) / key for key in delta_stores.packs(store, bad)]
        for path in packs:
            delta_stores.flip(path, 100)
        assert followed.poll() is None
        assert "step 3 is skipped" in caplog.text
        assert "model/big" in caplog.text
        caplog.clear()
        assert followed.poll() is None
        assert not caplog.records
        save(store, 4, changed(tensors[-1], 5))
        assert followed.poll()
    assert seen.steps == [2, 4]
    assert seen.tensors[-1] == expected(changed(tensors[-1], 5))


def test_a_damaged_manifest_is_skipped(store: Store) -> None:
    save(store, 1, weights())
    bad = save(store, 2, weights(2))
    delta_stores.flip(Path(store.url) / bad.manifest(), 200)
    with follower(store, SeenSteps()) as followed:
        taken = followed.poll()
    assert taken is not None
    assert taken.step == 1


def test_a_step_is_kept_from_a_prune_while_it_is_read(
    store: Store, broken: list[BrokenStorage]
) -> None:
    save(store, 1, weights(1))
    spared: list[object] = []

    def prune_now() -> None:
        save(store, 2, weights(2))
        result = prune(Store.open(store.url), RUN, [Last(1)], grace_s=0)
        spared.extend(result.spared)

    seen = SeenSteps()
    with follower(store, seen) as followed:
        broken[0].before_reads = [prune_now]
        taken = followed.poll()
        assert taken is not None
        assert taken.step == 1
        assert len(spared) == 1
        assert followed.poll()
    assert seen.tensors == [expected(weights(1)), expected(weights(2))]
    prune(store, RUN, [Last(1)], grace_s=0)
    assert not list((Path(store.url) / "leases").glob("*"))


def test_without_a_lease_a_step_that_is_pruned_is_replaced_by_a_newer_one(
    store: Store, broken: list[BrokenStorage], caplog: pytest.LogCaptureFixture
) -> None:
    first = save(store, 1, weights(1))
    packs = [Path(store.url) / key for key in delta_stores.packs(store, first)]

    def prune_now() -> None:
        save(store, 2, weights(2))
        for path in [Path(store.url) / first.manifest(), *packs]:
            path.unlink()

    seen = SeenSteps()
    with follower(store, seen) as followed:
        broken[0].is_read_only, broken[0].before_reads = True, [prune_now]
        taken = followed.poll()
    assert taken is not None
    assert taken.step == 2
    assert seen.tensors == [expected(weights(2))]
    assert "without a lease" in caplog.text
    assert f"{first.id} was removed before it was read" in caplog.text


def test_an_outage_is_said_once_and_ends(
    store: Store, broken: list[BrokenStorage], caplog: pytest.LogCaptureFixture
) -> None:
    save(store, 1, weights(1))
    seen = SeenSteps()
    with follower(store, seen, interval_s=0.001) as followed:
        steps = followed.steps()
        next(steps)
        broken[0].is_out = True
        tries = 0

        def listed(prefix: str) -> list[ObjectInfo]:
            nonlocal tries
            tries += 1
            if tries == 4:
                save(store, 2, weights(2))
                broken[0].is_out = False
            return BrokenStorage.list(broken[0], prefix)

        broken[0].list = listed  # type: ignore[method-assign]
        assert next(steps).step == 2
    texts = [each.message for each in caplog.records]
    assert sum("is out of reach, and is tried again for 3600 s" in text for text in texts) == 1
    assert sum("answers again" in text for text in texts) == 1


def test_an_outage_that_lasts_is_an_error(store: Store, broken: list[BrokenStorage]) -> None:
    with follower(store, SeenSteps(), interval_s=0.001, give_up_s=0.01) as followed:
        broken[0].is_out = True
        with pytest.raises(StoreError, match="no answer"):
            next(followed.steps())


def test_a_step_that_fails_leaves_no_open_file(
    store: Store, tmp_path: Path, broken: list[BrokenStorage]
) -> None:
    def fail() -> None:
        raise StoreError("no answer")

    into, tensors = tmp_path / "into", save_steps(store, 1)
    with follower(store, into) as followed:
        for _ in range(2):
            broken[0].before_reads.append(fail)
            with pytest.raises(StoreError, match="no answer"):
                followed.poll()
        assert not [path for path in _open_files() if "step-1" in path]
        assert followed.poll() is not None
    assert written(into) == expected(tensors[-1])


def test_after_an_error_of_the_function_the_next_step_is_whole(store: Store) -> None:
    """The weights that are held stay as they are: numbers that are cast cannot be compared."""
    seen, failing = SeenSteps(), [2]

    def given(step: int, tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> None:
        seen(step, tensors, names)
        if step in failing:
            raise ValueError(step)

    one, other = np.full((300, 400), 1.0, np.float32), np.full((300, 400), 2.0, np.float32)
    with follower(store, given, dtype="bfloat16") as followed:
        save(store, 1, {"model/a": one, "model/b": other})
        followed.poll()
        save(store, 2, {"model/a": one + 2, "model/b": other + 2})
        with pytest.raises(ValueError, match="2"):
            followed.poll()
        save(store, 3, {"model/a": other, "model/b": one})
        followed.poll()
    assert seen.steps == [1, 2, 3]
    bits_of = {name: bits(torch.from_numpy(a).bfloat16()) for name, a in (("a", other), ("b", one))}
    assert seen.tensors[-1] == bits_of


def test_a_run_that_begins_again_is_followed(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    save(store, 500, weights(1))
    seen = SeenSteps()
    with follower(store, seen) as followed:
        followed.poll()
        rename_run(store.url, RUN, "former")
        assert followed.poll() is None
        save(store, 501, weights(2))  # its clock is the step
        delta_stores.save(store, "other", 3, weights(3))
        assert followed.poll()
    assert seen.steps == [500, 501]


def test_a_fork_is_followed_into_the_same_place_without_a_chunk(
    store: Store, tmp_path: Path
) -> None:
    into = tmp_path / "into"
    tensors = save_steps(store, 3)
    with follower(store, into) as followed:
        followed.poll()
    fork_run(store.url, RUN, "fork")
    with Follower(store.url, run="fork", into=into) as followed:
        taken = followed.poll()
        assert taken is not None
        assert (taken.run, taken.fetched) == ("fork", 0)
        delta_stores.save(store, "fork", 4, changed(tensors[-1], 8), PLAIN)
        assert followed.poll()
    assert written(into) == expected(changed(tensors[-1], 8))


def test_items_that_retention_removed_make_a_step_useless(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    save(store, 1, weights(1))
    newest = save(store, 2, weights(2))
    prune(store, RUN, [Only(("optimizer",), Last(2))], grace_s=0)
    for key in delta_stores.packs(store, newest):
        delta_stores.flip(Path(store.url) / key, 100)
    with follower(store, SeenSteps()) as followed:
        assert followed.poll() is None
    assert "step 2 is skipped" in caplog.text
    assert "step 1 is skipped" in caplog.text


# restarts


@pytest.mark.parametrize("kind", ["folder", "shm"])
def test_a_restart_reads_nothing_that_is_held(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    into: object = tmp_path / "into"
    if kind == "shm":
        monkeypatch.setattr("checkpointing.follower.follow_targets.MEMORY", tmp_path)
        into = "shm:x"
    tensors = save_steps(store, 3)
    with follower(store, into) as followed:
        followed.poll()
    with follower(store, into) as followed:
        assert followed.step == 3
        assert followed.poll() is None
        save(store, 4, changed(tensors[-1], 7), DELTAS)
        taken = followed.poll()
    assert taken is not None
    assert taken.bytes < 0.1 * taken.full_bytes
    assert taken.changed == ("big",)
    assert taken.file is not None
    assert written(taken.file.parent, taken.file.name) == expected(changed(tensors[-1], 7))


def test_what_was_damaged_meanwhile_is_read_again(store: Store, tmp_path: Path) -> None:
    into, tensors = tmp_path / "into", save_steps(store, 3)
    with follower(store, into) as followed:
        followed.poll()
    for path in (into / "step-3.safetensors", into / ".follower/bases"):
        delta_stores.flip(path, path.stat().st_size - 50_000)
    with follower(store, into) as followed:
        assert followed.step is None
        taken = followed.poll()
    assert taken is not None
    assert 0 < taken.fetched < taken.chunks
    assert written(into) == expected(tensors[-1])


def test_what_is_damaged_while_it_follows_is_read_again(store: Store, tmp_path: Path) -> None:
    into, tensors = tmp_path / "into", save_steps(store, 3)
    with follower(store, into) as followed:
        followed.poll()
        for path in (into / "step-3.safetensors", into / ".follower/bases"):
            delta_stores.flip(path, path.stat().st_size - 50_000)
        now = changed(tensors[-1], 8)
        save(store, 4, now, DELTAS)
        assert followed.poll()
    assert written(into) == expected(now)


def test_what_a_killed_follower_was_writing_is_removed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checkpointing.follower.follow_targets.MEMORY", tmp_path)
    folder = tmp_path / "hpckit-x"
    follower(store, "shm:x").close()
    left = [folder / ".current.0123abcd.tmp", folder / "state/.record.0123abcd.tmp"]
    for path in left:
        path.write_bytes(b"{")
    follower(store, "shm:x").close()
    assert not [path for path in left if path.exists()]


def test_one_follower_at_a_time(store: Store, tmp_path: Path) -> None:
    with (
        follower(store, tmp_path / "into"),
        pytest.raises(CheckpointError, match="another process follows a run into"),
    ):
        follower(store, tmp_path / "into")
    follower(store, tmp_path / "into").close()


def test_so_many_files_are_kept(store: Store, tmp_path: Path) -> None:
    into = tmp_path / "into"
    with follower(store, into, keep=2) as followed:
        (into / "step-mine.safetensors").write_bytes(b"")
        for step in (1, 2, 3, 4):
            save(store, step, weights(step))
            followed.poll()
    names = sorted(path.name for path in into.glob("*.safetensors"))
    assert names == [
        "latest.safetensors",
        "step-3.safetensors",
        "step-4.safetensors",
        "step-mine.safetensors",
    ]
    assert (into / "latest.safetensors").resolve().name == "step-4.safetensors"


def test_a_pack_that_is_missing_is_damage(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    made = save(store, 1, weights())
    chunk = delta_stores.chunks(store, made)[0]
    (Path(store.url) / pack_key(chunk.pack)).unlink()
    with follower(store, SeenSteps()) as followed:
        assert followed.poll() is None
    assert "the pack does not exist" in caplog.text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"every": 0}, "every must be at least 1"),
        ({"keep": 0}, "keep must be at least 1"),
        ({"interval_s": 0.0}, "interval_s must be above 0"),
        ({"order": "last"}, "order must be"),
        ({"dtype": "int8"}, "dtype 'int8'"),
        ({"names": "model/*"}, "names must be a list"),
        ({"run": "a/b"}, "run name"),
        ({"into": ""}, "is empty"),
        ({"into": "shm:../x"}, "name '../x'"),
    ],
)
def test_wrong_options_are_refused(store: Store, options: dict[str, object], text: str) -> None:
    given = {"run": RUN, "into": SeenSteps(), **options}
    with pytest.raises(ValueError, match=text):
        Follower(store.url, **given)  # type: ignore[call-overload]


def _open_files() -> list[str]:
    """The paths of the files that this process has open; that of a descriptor which another thread
    closes meanwhile is left out."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return found
