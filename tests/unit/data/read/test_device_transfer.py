"""Batches on a device: all their tensors, and no state that is ahead of the consumer."""

import threading
from collections import namedtuple
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data import Batch, DataError, Loader, open_dataset, pack_folder
from data.read.device_transfer import _TransferIterator, moved, to_device

Pair = namedtuple("Pair", "left right")
N = 40


@pytest.fixture
def loader(tmp_path: Path) -> Loader:
    (tmp_path / "src").mkdir()
    for i in range(N):
        (tmp_path / "src" / f"{i:03d}.txt").write_bytes(str(i).encode())
    pack_folder(tmp_path / "src", tmp_path / "out", samples_per_shard=10)
    return Loader(open_dataset(tmp_path / "out"), global_batch=8, epochs=1, collate=collate)


def collate(items: list[dict[str, Any]]) -> dict[str, Any]:
    numbers = np.array([int(item["txt"]) for item in items])
    if 1000 in numbers:
        raise ValueError
    return {"x": numbers, "names": [item["__key__"] for item in items]}


class Copies:
    """In the place of those to a CUDA device: says what was begun and ended."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.changed = threading.Condition()

    def begin(self, batch: Any) -> Any:
        with self.changed:
            self.begun.append(batch)
            self.changed.notify_all()
        return batch

    def end(self, copied: Any) -> Any:
        return copied

    def wait(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.begun) >= count, 20)


def test_all_tensors_and_arrays_are_found() -> None:
    batch = Batch(
        data={"a": np.ones(3, np.float32), "b": [torch.zeros(2), ("x", torch.ones(1))]},
        keys=("k",),
        indices=(0,),
        datasets=(0,),
        positions=(0,),
        mask=np.ones(1, bool),
        weight=1.0,
        epoch=0,
        errors=0,
        bytes=3,
    )
    thing = {"p": Pair(np.int64(3), np.arange(4)), "batch": batch, "s": np.array(["a"]), "n": None}
    meta = moved(thing, lambda tensor: tensor.to("meta"))
    assert type(meta["p"]) is Pair
    assert meta["p"].left == 3
    found = [meta["p"].right, meta["batch"].data["a"], *meta["batch"].data["b"][:1]]
    found.append(meta["batch"].data["b"][1][1])
    assert [tensor.device.type for tensor in found] == ["meta"] * 4
    assert [tensor.dtype for tensor in found[:2]] == [torch.int64, torch.float32]
    assert meta["batch"].mask is batch.mask
    assert (meta["s"] is thing["s"], meta["n"]) == (True, None)


def test_the_cpu_copies_nothing() -> None:
    array, frozen = np.arange(5), np.arange(5)
    frozen.flags.writeable = False
    tensor = torch.ones(4)
    (found,) = to_device([[array, tensor, frozen]], "cpu")
    assert found[1] is tensor
    assert found[0].data_ptr() == array.ctypes.data  # type: ignore[attr-defined]
    found[2].zero_()  # type: ignore[attr-defined]
    assert frozen.tolist() == list(range(5))


def test_a_loader_on_a_device_is_one_loader(loader: Loader) -> None:
    device = to_device(loader, "meta")
    batches = iter(device)
    assert next(batches).data["x"].device.type == "meta"
    assert device.state_dict() == loader.state_dict()
    assert device.state_dict()["position"] == 8
    assert device.usage.batches == 1
    state = device.state_dict()
    device.close()
    again = to_device(loader, "cpu")
    with pytest.raises(DataError, match="after iteration began"):
        again.load_state_dict(state)
    assert [min(batch.positions) for batch in again] == [8, 16, 24, 32]


def test_what_is_ahead_is_not_in_a_loaders_state(loader: Loader) -> None:
    device, copies = to_device(loader, "cpu"), Copies()
    batches: _TransferIterator[Batch] = _TransferIterator(device, iter(loader), copies)  # type: ignore[arg-type]
    for count in range(1, 6):
        assert min(next(batches).positions) == 8 * (count - 1)
        copies.wait(min(count + 1, 5))  # the next one is on its way, or there
        assert device.state_dict()["position"] == loader.state_dict()["position"] == 8 * count
        assert loader.usage.batches == count
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(batches)
    assert len(copies.begun) == 5


class Source:
    """Some iterable of somebody's, with a state."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> Iterator[int]:
        while self.given < 9:
            self.given += 1
            yield self.given

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


def test_what_is_ahead_is_not_in_anybodys_state() -> None:
    source = Source()
    device, copies = to_device(source, "cpu"), Copies()
    device.load_state_dict({"given": 2})
    batches: _TransferIterator[int] = _TransferIterator(device, iter(source), copies)  # type: ignore[arg-type]
    copies.wait(1)
    assert (device.state_dict(), source.given) == ({"given": 2}, 3)
    assert list(islice(batches, 3)) == [3, 4, 5]
    copies.wait(4)
    assert (device.state_dict(), source.given) == ({"given": 5}, 6)
    assert list(batches) == [6, 7, 8, 9]


def test_an_error_comes_on_its_batch(loader: Loader) -> None:
    def batches() -> Iterator[int]:
        yield 1
        raise KeyError("x")

    device = to_device(batches(), "cpu")
    ahead: _TransferIterator[int] = _TransferIterator(device, batches(), Copies())  # type: ignore[arg-type]
    assert next(ahead) == 1
    with pytest.raises(KeyError):
        next(ahead)
    with pytest.raises(DataError, match="ended with an error"):
        next(ahead)
    with pytest.raises(DataError, match="no state"):
        device.state_dict()


def test_cuda(loader: Loader) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(DataError, match="not find a CUDA device"):
            to_device(loader, "cuda")
        return
    for count, batch in enumerate(to_device(loader, "cuda"), 1):
        assert batch.data["x"].device.type == "cuda"
        assert batch.data["x"].tolist() == list(batch.indices)
        assert loader.state_dict()["position"] == 8 * count
