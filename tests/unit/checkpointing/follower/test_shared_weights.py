"""What other processes read of the weights in shared memory."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest

from checkpointing.errors import DamagedError, FormatError
from checkpointing.follower.follow_targets import SharedTarget
from checkpointing.follower.follower import Follower
from checkpointing.follower.shared_weights import (
    CURRENT,
    SharedWeights,
    folder_of,
    numpy_dtype,
)
from checkpointing.store.store import Store
from tests.unit.checkpointing.follower.followed_stores import (
    bits,
    changed,
    expected,
    follower,
    save,
    save_steps,
    weights,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


@pytest.fixture
def followed(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Follower:
    monkeypatch.setattr("checkpointing.follower.follow_targets.MEMORY", tmp_path)
    return follower(store, "shm:x")


@pytest.fixture
def shared(tmp_path: Path) -> SharedWeights:
    return SharedWeights("x", memory=tmp_path)


def test_views_are_those_of_the_step(
    store: Store, followed: Follower, shared: SharedWeights
) -> None:
    save(store, 7, weights())
    assert followed.poll()
    held = shared.latest()
    assert (held.step, held.names, held.dtype("big")) == (7, ["big", "small"], "float32")
    assert np.array_equal(held.numpy("big"), weights()["model/big"])
    assert {name: bits(t) for name, t in held.tensors().items()} == expected(weights())
    with pytest.raises(KeyError, match="step 7 has no tensor 'other'"):
        held.numpy("other")


def test_a_view_stays_as_it_is_and_an_unused_file_is_used_again(
    store: Store, followed: Follower, shared: SharedWeights, tmp_path: Path
) -> None:
    tensors = save_steps(store, 1)
    followed.poll()
    view = shared.latest().numpy("big")  # which alone keeps the step
    for step in range(2, 6):
        tensors.append(changed(tensors[-1], step))
        save(store, step, tensors[-1])
        followed.poll()
        assert np.array_equal(view, tensors[0]["model/big"])
        assert np.array_equal(shared.latest().numpy("big"), tensors[-1]["model/big"])
    files = {path.name for path in folder_of("x", tmp_path).glob("weights-*")}
    assert files == {"weights-1", "weights-2"}  # and of 0 only the memory
    del view
    inodes = {path.stat().st_ino for path in folder_of("x", tmp_path).glob("weights-*")}
    save(store, 6, weights(6))
    followed.poll()
    files_now = folder_of("x", tmp_path).glob("weights-*")
    assert {path.stat().st_ino for path in files_now} == inodes


def test_writing_to_a_view_changes_only_the_readers_copy(
    store: Store, followed: Follower, shared: SharedWeights
) -> None:
    save(store, 1, weights())
    followed.poll()
    shared.latest().torch("big").zero_()
    assert np.array_equal(shared.latest().numpy("big"), weights()["model/big"])


def test_waiting_for_a_newer_step(store: Store, followed: Follower, shared: SharedWeights) -> None:
    with pytest.raises(TimeoutError, match="no newer weights"):
        shared.wait(timeout_s=0.01)
    save(store, 1, weights())
    followed.poll()
    held = shared.wait(timeout_s=60)
    with pytest.raises(TimeoutError):
        shared.wait(after=held, timeout_s=0.01)
    save(store, 2, weights(2))
    followed.poll()
    assert shared.wait(after=held, timeout_s=60).step == 2


def test_only_this_user_can_read_and_nothing_of_others_is_used(
    store: Store, followed: Follower, shared: SharedWeights, tmp_path: Path
) -> None:
    save(store, 1, weights())
    followed.poll()
    folder = folder_of("x", tmp_path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    folder.chmod(0o755)
    with pytest.raises(PermissionError, match="not a folder of this user with mode 0700"):
        shared.latest()
    followed.close()
    with pytest.raises(PermissionError):
        SharedTarget("x", tmp_path)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"{", DamagedError),
        (b"{}", DamagedError),
        (b'{"format":"hpckit-shared-weights","version":2}', FormatError),
        (
            b'{"format":"hpckit-shared-weights","version":1,"sequence":1,"file":"../a","run":"r",'
            b'"step":1,"id":"x","committed":1.0}',
            DamagedError,
        ),
    ],
)
def test_a_damaged_file_is_refused(
    store: Store,
    followed: Follower,
    shared: SharedWeights,
    tmp_path: Path,
    content: bytes,
    error: type[Exception],
) -> None:
    with pytest.raises(FileNotFoundError, match="start `hpckit ckpt follow"):
        shared.latest()
    (folder_of("x", tmp_path) / CURRENT).write_bytes(content)
    with pytest.raises(error):
        shared.latest()


def test_numpy_has_views_of_its_dtypes_and_bits_of_others() -> None:
    assert numpy_dtype("float16") == np.float16
    assert numpy_dtype("int64") == np.int64
    assert numpy_dtype("uint8") == np.uint8
    assert numpy_dtype("bool") == np.bool_
    assert numpy_dtype("complex64") == np.complex64
    assert numpy_dtype("bfloat16") == np.uint16
    assert numpy_dtype("float8_e5m2") == np.uint8
