"""Fingerprints: equal where the bits are, and different after any single change."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from checkpointing.staging import fingerprints
from checkpointing.staging.fingerprints import (
    PIECE,
    WHOLE,
    SampleMemory,
    TensorSample,
    combine_fingerprints,
    device_fingerprint,
    fingerprint,
)

PATIENCE_S = 30.0  # before a test that hangs fails
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8]


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point:
        return torch.randint(0, 99, shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def by_device(cells: Tensor) -> int:
    """As a device that is no CPU computes it."""
    return combine_fingerprints([device_fingerprint(cells)])


@pytest.mark.parametrize("take", [lambda cells: fingerprint([cells]), by_device])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (4, 1000)])
def test_it_is_of_the_bits_alone(take, dtype: torch.dtype, shape: tuple[int, ...]) -> None:  # type: ignore[no-untyped-def]
    cells = random(shape, dtype)
    found = take(cells)
    assert found == take(cells.clone())
    assert 0 < found < 1 << 64
    bits = cells.clone().view(-1).view(torch.uint8)
    for byte in {0, bits.numel() // 2, bits.numel() - 1}:
        changed = bits.clone()
        changed[byte] ^= 1
        assert take(changed.view(dtype).view(shape)) != found


@pytest.mark.parametrize("take", [lambda cells: fingerprint([cells]), by_device])
def test_it_does_not_depend_on_strides(take) -> None:  # type: ignore[no-untyped-def]
    cells = random((600, 700), torch.float32)
    assert take(cells.t()) == take(cells.t().contiguous())
    assert take(cells[:, ::2]) == take(cells[:, ::2].clone())
    complexes = torch.randn(5, dtype=torch.complex64)
    assert take(complexes.conj()) == take(complexes.conj().resolve_conj())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("size", [8, 9])
def test_a_device_takes_that_of_a_part_of_a_larger_tensor(dtype: torch.dtype, size: int) -> None:
    cells = random((size + 1,), dtype)[1:]
    assert by_device(cells) == by_device(cells.clone())


def test_a_device_takes_little_memory_beside_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory is the training's: at most two numbers of 8 bytes for each word of a piece."""
    monkeypatch.setattr(fingerprints, "_WORDS", 1 << 16)
    cells = torch.arange(1 << 20, dtype=torch.int32)
    with PeakOfTensors() as peak:
        by_device(cells)
    assert peak.bytes <= 2 * 8 * (1 << 16) + 1024


class PeakOfTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that operations make and that are alive at a time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self._now = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        known = {one.untyped_storage().data_ptr() for one in args if isinstance(one, Tensor)}
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.untyped_storage().data_ptr() not in known:
            self._now += made.nbytes
            self.bytes = max(self.bytes, self._now)
            weakref.finalize(made, self._free, made.nbytes)
        return made

    def _free(self, nbytes: int) -> None:
        self._now -= nbytes


@given(st.integers(0, 999), st.integers(0, 999), st.integers(0, 31), st.integers(0, 31))
def test_a_device_tells_places_and_bits_apart(i: int, j: int, bit: int, other: int) -> None:
    """Two bits that are flipped do not undo each other."""
    words = torch.arange(1000, dtype=torch.int32)
    changed = words.clone()
    changed[i] ^= -(1 << 31) if bit == 31 else 1 << bit
    changed[j] ^= -(1 << 31) if other == 31 else 1 << other
    assert (by_device(changed) == by_device(words)) == torch.equal(changed, words)


def test_a_device_tells_an_order_apart() -> None:
    words = torch.randperm(5000).to(torch.int32)
    swapped = words.clone()
    swapped[[17, 4711]] = words[[4711, 17]]
    assert by_device(swapped) != by_device(words)
    assert by_device(words.flip(0)) != by_device(words)


def test_several_tensors_are_in_order() -> None:
    one, other = torch.ones(3), torch.zeros(3)
    assert fingerprint([one, other]) != fingerprint([other, one])
    assert combine_fingerprints(
        [device_fingerprint(one), device_fingerprint(other)]
    ) != combine_fingerprints([device_fingerprint(other), device_fingerprint(one)])


def test_large_and_not_contiguous_is_as_if_it_were() -> None:
    cells = torch.arange(12 << 20, dtype=torch.int32).view(3 << 10, 4 << 10).t()
    assert fingerprint([cells]) == fingerprint([cells.contiguous()])


# --- samples --------------------------------------------------------------------------------------

LENGTHS = [0, 1, PIECE, WHOLE, WHOLE + 1, 3 * WHOLE, 7 * WHOLE - 5, 40 << 20]


@pytest.mark.parametrize("stride", [1, 2, 33, 65, 265])
@pytest.mark.parametrize("phase", [0, 1, 5])
def test_a_change_of_everything_is_seen(stride: int, phase: int) -> None:
    tensors = [torch.zeros(length, dtype=torch.uint8) for length in LENGTHS]
    sample = TensorSample(tensors, stride, phase)
    assert sample.changed(tensors) == []
    for number, tensor in enumerate(tensors):
        tensor += 1
        assert sample.changed(tensors) == ([number] if tensor.numel() else [])
        tensor -= 1


@pytest.mark.parametrize("stride", [1, 2, 3, 17])
def test_a_change_of_one_byte_is_seen_in_its_turn(stride: int) -> None:
    tensor = torch.zeros(WHOLE + 7 * PIECE + 11, dtype=torch.uint8)
    rest = tensor.numel() // (stride * PIECE) * stride * PIECE
    for at in range(PIECE // 2, tensor.numel(), PIECE):
        seen = 0
        for phase in range(stride):
            sample = TensorSample([tensor], stride, phase)
            tensor[at] = 1
            seen += sample.changed([tensor]) == [0]
            tensor[at] = 0
        assert seen == (stride if at < PIECE or at >= rest else 1)


@given(st.integers(2, 64), st.integers(0, 99), st.integers(0, 500), st.integers(0, PIECE - 1))
def test_a_change_of_a_block_in_a_row_is_seen(
    stride: int, phase: int, piece: int, byte: int
) -> None:
    tensor = torch.zeros(1 << 20, dtype=torch.uint8)
    sample = TensorSample([tensor], stride, phase)
    start = piece * PIECE + byte
    tensor[start : start + (stride + 1) * PIECE] = 1
    assert sample.changed([tensor]) == [0]


def test_a_change_of_a_column_is_seen() -> None:
    """Rows are 128 pieces each."""
    matrix = torch.zeros(512, 4096)
    for phase in range(17):
        sample = TensorSample([matrix], 17, phase)
        matrix[:, 3333] = 1
        assert sample.changed([matrix]) == [0]
        matrix[:, 3333] = 0


def test_what_a_helper_reads_is_the_same() -> None:
    tensors = [torch.zeros(length, dtype=torch.uint8) for length in (30 << 20, 13 << 20, 1 << 20)]
    with ThreadPoolExecutor(1) as helper:
        sample = TensorSample(tensors, 2, 1, helper)
    assert sample.changed(tensors) == []
    tensors[0][-1], tensors[2][0] = 1, 1
    assert sample.changed(tensors) == [0, 2]


def test_a_helper_that_is_busy_is_not_waited_for() -> None:
    tensors = [torch.zeros(9 << 20, dtype=torch.uint8)]
    go_on = threading.Event()
    with ThreadPoolExecutor(1) as helper:
        helper.submit(go_on.wait)
        sample = TensorSample(tensors, 2, 1, helper)
        go_on.set()
    tensors[0] += 1
    assert sample.changed(tensors) == [0]


def test_what_a_helper_reads_after_the_sample_is_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has begun to read a tensor, and goes on when the tensor was written to."""
    has_begun, go_on = threading.Event(), threading.Event()
    trainer, keep = threading.current_thread(), TensorSample._keep

    def slow(sample: TensorSample, *unit: Any) -> Any:
        if threading.current_thread() is trainer:
            assert has_begun.wait(PATIENCE_S)
        else:
            has_begun.set()
            assert go_on.wait(PATIENCE_S)
        return keep(sample, *unit)

    monkeypatch.setattr(TensorSample, "_keep", slow)
    tensors = [torch.zeros(1 << 20, dtype=torch.uint8) for _ in range(2)]
    with ThreadPoolExecutor(1) as helper:
        sample = TensorSample(tensors, 3, 1, helper)
        for tensor in tensors:
            tensor += 1
        go_on.set()
    assert sample.changed(tensors) == [0, 1]


def test_memory_is_used_again() -> None:
    tensors = [random((1 << 20,), torch.bfloat16), random((300_000,), torch.float32)]
    memory = SampleMemory()
    (before,) = memory.take([16_384])
    for phase in range(4):
        sample = TensorSample(tensors, 3, phase, memory=memory)
        assert sample.changed(tensors) == []
        assert np.shares_memory(memory.take([1])[0], before)
        tensors[phase % 2] += 1
        assert sample.changed(tensors) == [phase % 2]


def test_memory_is_used_again_once_an_interrupted_sample_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its helper goes on when the trainer's thread has left."""
    has_begun, go_on = threading.Event(), threading.Event()
    trainer, keep = threading.current_thread(), TensorSample._keep

    def interrupted(sample: TensorSample, *unit: Any) -> Any:
        if threading.current_thread() is trainer:
            assert has_begun.wait(PATIENCE_S)
            raise KeyboardInterrupt
        has_begun.set()
        assert go_on.wait(PATIENCE_S)
        return keep(sample, *unit)

    def wait_for_it(futures: list[Future[Any]]) -> object:
        go_on.set()
        return wait(futures)

    tensors, memory = [random((1 << 20,), torch.uint8) for _ in range(2)], SampleMemory()
    with ThreadPoolExecutor(1) as helper:
        with monkeypatch.context() as patch:
            patch.setattr(TensorSample, "_keep", interrupted)
            with pytest.raises(KeyboardInterrupt):
                TensorSample(tensors, 3, 1, helper, memory)
        monkeypatch.setattr(fingerprints, "wait", wait_for_it)
        sample = TensorSample(tensors, 3, 2, memory=memory)
        assert go_on.is_set()
    assert sample.changed(tensors) == []


def test_what_is_small_is_sampled_whole() -> None:
    tensors = [torch.zeros(WHOLE, dtype=torch.uint8) for _ in range(3)]
    sample = TensorSample(tensors, 64, 17)
    tensors[1][-1] = 1
    assert sample.changed(tensors) == [1]
