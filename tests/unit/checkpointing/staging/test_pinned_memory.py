"""The order of what is asked of CUDA. That CUDA does it, only a machine with a GPU can show."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from checkpointing.errors import StageError
from checkpointing.staging.arena import Arena
from checkpointing.staging.overlap_guard import Versions
from checkpointing.staging.overlapped_copy import Overlap
from checkpointing.staging.pinned_memory import DeviceCopy, PinnedArena
from checkpointing.staging.slot_layout import PAGE, StagedSnapshot
from checkpointing.staging.tensor_copy import places_for


class FakeCuda:
    """Writes down what it is asked for; streams work at once."""

    def __init__(self, code: int = 0) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.code, self.streams = code, 0

    def cudart(self) -> Any:
        return self

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        self.calls.append(("register", address, size, flags))
        return self.code

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.calls.append(("unregister", address))
        return self.code

    def check_error(self, code: int) -> None:
        if code:
            raise RuntimeError(f"CUDA error {code}")

    def current_stream(self, device: torch.device) -> FakeStream:
        return FakeStream(self, "current")

    def Stream(self, device: torch.device) -> FakeStream:  # noqa: N802
        self.streams += 1
        return FakeStream(self, "side")

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.calls.append((stream.name, "begins"))
        yield
        self.calls.append((stream.name, "ends"))


class FakeStream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_stream(self, other: FakeStream) -> None:
        self.cuda.calls.append((self.name, "waits for", other.name))

    def wait_event(self, event: FakeStream) -> None:
        self.cuda.calls.append((self.name, "waits for", event.name))

    def record_event(self) -> FakeStream:
        self.cuda.calls.append((self.name, "records"))
        return FakeStream(self.cuda, "end")

    def synchronize(self) -> None:
        self.cuda.calls.append((self.name, "synchronized"))


def test_all_of_an_arena_is_registered_and_given_back_once() -> None:
    cuda = FakeCuda()
    with Arena.create(3 * PAGE) as arena:
        address = arena.view(0, 1).ctypes.data
        pinned = PinnedArena(arena, cuda)
        pinned.close()
        pinned.close()
    assert cuda.calls == [("register", address, 3 * PAGE, 1), ("unregister", address)]


def test_what_cuda_refuses_is_raised() -> None:
    told = r"CUDA cannot pin 0.0 MiB of host memory, .*: CUDA error 2; use fewer slots"
    with Arena.create(PAGE) as arena, pytest.raises(StageError, match=told):
        PinnedArena(arena, FakeCuda(code=2))


def test_copies_wait_for_the_work_before_them_and_the_step_for_the_copies() -> None:
    cuda = FakeCuda()
    with Arena.create(PAGE) as arena:
        sources = [torch.arange(5.0), torch.arange(7)]
        memory = arena.view(0, PAGE)
        targets = places_for(memory, range(0, 64 * len(sources), 64), sources)
        copying = DeviceCopy(targets, sources, cuda=cuda)
        assert cuda.calls == [
            ("side", "waits for", "current"),
            ("side", "begins"),
            ("side", "ends"),
            ("side", "records"),
        ]
        assert all(torch.equal(t, s) for t, s in zip(targets, sources, strict=True))
        cuda.calls.clear()
        copying.hold()
        assert cuda.calls == [("current", "waits for", "end")]
        copying.wait()
        assert cuda.calls[1:] == [("end", "synchronized")]
        del targets, memory


def test_a_step_beside_device_copies_keeps_the_cpu_going() -> None:
    """The device waits, and what the step changes after that does not spoil the snapshot."""
    cuda, source = FakeCuda(), torch.arange(5.0)
    versions = Versions([("t", source)])
    copying = DeviceCopy([torch.empty(5)], [source], cuda=cuda)
    overlap = Overlap(StagedSnapshot(1, 0, 0, (), 20), versions, None, copying)
    cuda.calls.clear()
    overlap.before_step()
    assert cuda.calls == [("current", "waits for", "end")]
    source.add_(1)
    assert overlap.result().bytes == 20
    assert ("end", "synchronized") in cuda.calls


def test_sources_are_held_until_the_copies_are_done() -> None:
    source = torch.arange(5.0)
    alive = weakref.ref(source)
    copying = DeviceCopy([torch.empty(5)], [source], cuda=FakeCuda())
    del source
    assert alive() is not None
    copying.wait()
    assert alive() is None


def test_all_copies_of_a_device_are_made_on_one_stream() -> None:
    """torch keeps the memory of fingerprints for the stream on which they were taken."""
    cuda = FakeCuda()
    for _ in range(3):
        DeviceCopy([torch.empty(5)], [torch.arange(5.0)], cuda=cuda).wait()
    assert cuda.streams == 1


def test_sources_that_change_beside_their_copy_are_named_without_asking_the_device() -> None:
    first, second = torch.arange(5.0), torch.arange(7.0)

    class Writes(FakeCuda):
        """Something writes to a source once the copy has begun."""

        @contextmanager
        def stream(self, stream: FakeStream) -> Iterator[None]:
            with super().stream(stream):
                second.add_(1)
                yield

    copying = DeviceCopy(
        [torch.empty(5), torch.empty(7)], [first, second], ["first", "second"], Writes()
    )
    copying.wait()
    with NoDeviceReads():  # type: ignore[no-untyped-call]
        assert copying.changed == ["second"]


class NoDeviceReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails if a number is read from a tensor: on a device, that waits for all work before it."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        assert func is not torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))
