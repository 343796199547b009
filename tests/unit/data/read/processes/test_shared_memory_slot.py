"""Objects through shared memory: as they were, with their arrays copied and not pickled."""

import copy
import os
import pickle
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from data.errors import DataError, FetchError, SampleError
from data.read.processes.remote_errors import rebuild_error, record_error
from data.read.processes.shared_memory_slot import PickleLayout, SharedMemorySlot

Pair = namedtuple("Pair", "left right")

LEAVES = st.one_of(
    st.binary(max_size=5000),
    st.text(max_size=20),
    st.integers(),
    arrays.arrays(
        st.sampled_from([np.uint8, np.float32, np.int64, np.bool_]),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=30),
    ),
)
THINGS = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4), max_leaves=8)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        kind = (one.dtype, one.shape)
        return kind == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@given(st.lists(THINGS, min_size=1, max_size=4))
def test_one_after_another_comes_out_as_it_went_in(things: list[Any]) -> None:
    slot, other = SharedMemorySlot.make(), None
    for thing in things:
        layout = slot.put(thing)
        other = other or SharedMemorySlot(os.dup(slot.fd))  # mapped before the slot grows
        found = other.take(pickle.loads(pickle.dumps(layout)))
        slot.put([b"\xff" * layout.end])  # what is in it next does not reach what was taken
        assert same(thing, found)


@given(st.integers(1, 10**6), st.lists(st.integers(1, 10**5), max_size=6))
def test_buffers_neither_overlap_nor_begin_anywhere(pickled: int, sizes: list[int]) -> None:
    layout = PickleLayout(pickled, tuple(sizes))
    at = pickled
    for (begin, end), size in zip(layout.spans, sizes, strict=True):
        assert begin % 64 == 0
        assert (begin - at < 64, begin >= at, end - begin) == (True, True, size)
        at = end
    assert layout.end == at


def test_bytes_of_arrays_and_tensors_are_not_pickled() -> None:
    half = torch.arange(5000, dtype=torch.bfloat16).reshape(2, -1)
    thing: dict[str, Any] = {
        "a": np.arange(30_000.0),
        "t": half,
        "p": Pair(torch.ones(3000), [half[:, ::2]]),
    }
    slot = SharedMemorySlot.make()
    layout = slot.put(thing)
    assert layout.pickled < 1500
    assert len(layout.buffers) == 4
    found = slot.take(layout)
    assert np.array_equal(found["a"], thing["a"])
    assert found["a"].flags.writeable
    assert found["t"].dtype == torch.bfloat16
    assert torch.equal(found["t"], half)
    assert type(found["p"]) is Pair
    assert torch.equal(found["p"].right[0], half[:, ::2])
    found["t"].zero_()  # it is one's own
    assert torch.equal(slot.take(layout)["t"], half)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3, requires_grad=True),
        torch.empty(0, 4),
        torch.tensor(7, dtype=torch.int16),
        torch.ones(2000, 2).to_sparse(),
        torch.ones(3000, dtype=torch.complex64).conj(),
        torch.ones(3000, dtype=torch.bool),
    ],
    ids=["grad", "empty", "scalar", "sparse", "conj", "bool"],
)
def test_unusual_tensors(tensor: torch.Tensor) -> None:
    slot = SharedMemorySlot.make()
    found = slot.take(slot.put(tensor))
    assert (found.dtype, found.shape, found.layout) == (tensor.dtype, tensor.shape, tensor.layout)
    assert found.requires_grad == tensor.requires_grad
    assert torch.equal(found.to_dense().resolve_conj(), tensor.to_dense().resolve_conj())


def test_a_slot_grows_and_says_so() -> None:
    slot = SharedMemorySlot.make()
    slot.put(np.zeros(10_000))
    assert slot.grown == 0
    big = np.arange(10**6)
    layout = slot.put(big)
    assert slot.grown == 1
    assert slot.size >= layout.end > big.nbytes
    assert np.array_equal(slot.take(layout), big)
    slot.put(big)
    assert slot.grown == 1


def test_who_borrows_writes_to_pages_of_his_own() -> None:
    slot = SharedMemorySlot.make()
    layout = slot.put({"a": np.arange(10_000), "b": b"x"})
    one, other = slot.borrow(layout), slot.borrow(layout)
    one["a"][:] = 0
    assert other["a"].tolist() == list(range(10_000))
    del slot
    assert other["b"] == b"x"


def test_a_slot_is_private_and_leaves_nothing() -> None:
    slot = SharedMemorySlot.make()
    assert os.fstat(slot.fd).st_mode & 0o777 == 0o600
    assert os.fstat(slot.fd).st_nlink == 0
    fd = slot.fd
    del slot
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


class UnmakeableError(ValueError):
    """As many are: it cannot be made of its args."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:  # noqa: BLE001
        return caught


def test_errors_keep_type_cause_and_place() -> None:
    cause = raised(KeyError("jpg"))
    error = raised(SampleError(3, "key", "shard", "KeyError: 'jpg'"), cause)
    found = rebuild_error(pickle.loads(pickle.dumps(record_error(error))), "process 7")
    assert isinstance(found, SampleError)
    assert (found.position, str(found)) == (3, str(error))
    assert isinstance(found.__cause__, KeyError)
    (note,) = found.__cause__.__notes__
    assert note.startswith("In process 7:\n")
    assert "in raised" in note


@pytest.mark.parametrize("odd", [UnmakeableError(1, 2), ValueError("1 and 2", lambda: 0)])
def test_errors_that_cannot_be_pickled_keep_their_name_and_text(odd: Exception) -> None:
    found = rebuild_error(record_error(raised(odd)), "there")
    assert isinstance(found, DataError)
    assert type(odd).__name__ in str(found)
    assert "1 and 2" in str(found)


def test_errors_of_our_own_all_come_through() -> None:
    error = FetchError("http://x", "is gone", ["first try"])
    assert rebuild_error(record_error(error), "") is not error
    assert str(rebuild_error(record_error(error), "")) == str(error)
    assert copy.copy(error).attempts == ("first try",)
