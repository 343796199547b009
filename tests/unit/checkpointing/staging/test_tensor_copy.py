"""Copies by several threads: every bit arrives, in any layout, and torch knows of the change."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest
import torch

from checkpointing.format.torch_dtypes import as_bytes
from checkpointing.staging import tensor_copy
from checkpointing.staging.tensor_copy import apart, cells_of, copy_quickly, in_threads, places_for
from tests.unit.checkpointing.staging.test_stager import KNOWN, random_bits

KIB = 1 << 10
PATIENCE_S = 30.0  # before a test that hangs fails


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_copy, "PIECE", 32 * KIB)


@pytest.mark.parametrize("dtype", KNOWN)
@pytest.mark.parametrize("shape", [(), (3, 0), (7,), (100 * KIB,), (3, 70_001), (1, 1, 64 * KIB)])
def test_every_bit_arrives(dtype: str, shape: tuple[int, ...]) -> None:
    source, target = random_bits(dtype, shape, seed=1), random_bits(dtype, shape, seed=2)
    copy_quickly([cells_of(target)], [cells_of(source)])
    assert bytes(as_bytes(target)) == bytes(as_bytes(source))


def test_layouts_may_differ() -> None:
    source = torch.randn(300, 400)
    target = torch.zeros(400, 300).t()
    rows = torch.zeros(300, 900)
    lazy = torch.randn(200, 200, dtype=torch.complex64).conj()
    other = torch.zeros(200, 200, dtype=torch.complex64)
    copy_quickly([target, rows[:, 100:500], other], [source, source, lazy])
    assert torch.equal(target, source)
    assert torch.equal(rows[:, 100:500], source)
    assert not rows[:, :100].any()
    assert not rows[:, 500:].any()
    assert torch.equal(other, lazy)


def test_of_targets_that_share_memory_the_last_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Untied weights may be loaded into tied ones, and no thread is surely the last."""
    monkeypatch.setattr(tensor_copy, "in_threads", lambda copies: [one() for one in copies[::-1]])
    tied, alone = torch.zeros(300, 400), torch.zeros(300, 400)
    first, second, third = (torch.full((300, 400), number) for number in (1.0, 2.0, 3.0))
    copy_quickly([tied, alone, tied.t(), tied[:2]], [first, third, second.t(), first[:2]])
    assert torch.equal(tied, torch.cat([first[:2], second[2:]]))
    assert torch.equal(alone, third)


def test_neighbours_in_memory_share_none() -> None:
    memory = torch.zeros(1000)
    parts = [memory[:500], memory[500:900].view(20, 20), memory[900:900], memory[900:]]
    assert apart([*reversed(parts), torch.zeros(())]) == [True] * 5
    assert apart([memory[:501], *parts]) == [False, False, False, True, True]
    assert apart([memory, *parts[:2]]) == [False] * 3


def test_a_target_whose_elements_share_memory_is_refused() -> None:
    expanded = torch.zeros(400).expand(300, 400)
    with pytest.raises(RuntimeError, match="single memory location"):
        copy_quickly([expanded], [torch.randn(300, 400)])


def test_tensors_of_inference_mode_are_written_to_and_others_still_count_their_changes() -> None:
    with torch.inference_mode():
        average = torch.zeros(2)
    weight = torch.nn.Parameter(torch.zeros(2))
    version = weight._version
    copy_quickly([average, weight], [torch.ones(2), torch.ones(2)])
    assert average.tolist() == weight.tolist() == [1, 1]
    assert weight._version > version


def test_a_backward_pass_that_needs_the_old_content_fails() -> None:
    weight = torch.nn.Parameter(torch.randn(200, 200))
    loss = (weight * weight).sum()
    copy_quickly([cells_of(weight)], [torch.zeros(200, 200)])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]


def test_a_copy_that_fails_in_any_thread_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_copy, "THREADS", 3)
    done: list[int] = []

    def fail() -> None:
        raise ValueError("it is outside")

    in_threads([partial(done.append, number) for number in range(100)])
    assert sorted(done) == [*range(100)]
    with pytest.raises(ValueError, match="it is outside"):
        in_threads([fail, *(partial(done.append, number) for number in range(100))])


def test_an_interrupt_is_raised_when_the_other_threads_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They write to memory that the program may release then."""
    has_begun, go_on, done = threading.Event(), threading.Event(), list[str]()

    class Thread(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            if not go_on.is_set():
                go_on.set()
                raise KeyboardInterrupt
            super().join(timeout)

    def copy() -> None:
        if not isinstance(threading.current_thread(), Thread):
            assert has_begun.wait(PATIENCE_S)
            return
        has_begun.set()
        assert go_on.wait(PATIENCE_S)
        done.append("copied")

    monkeypatch.setattr(tensor_copy, "Thread", Thread)
    monkeypatch.setattr(tensor_copy, "THREADS", 2)
    with pytest.raises(KeyboardInterrupt):
        in_threads([copy, copy])
    assert done == ["copied"]


def test_places_are_in_c_order_at_any_offset() -> None:
    memory = np.arange(256, dtype=np.uint8)
    cells = [
        torch.zeros(2, 3, dtype=torch.int16),
        torch.zeros(3, 2, dtype=torch.int16).t(),
        torch.zeros((), dtype=torch.float64),
        torch.zeros(4, 0),
        torch.zeros(2, dtype=torch.int16),
    ]
    offsets = [0, 64, 128, 192, 251]
    places = places_for(memory, offsets, cells)
    for offset, one, place in zip(offsets, cells, places, strict=True):
        assert (place.shape, place.dtype) == (one.shape, one.dtype)
        assert place.is_contiguous()
        assert as_bytes(place).tobytes() == memory[offset : offset + one.nbytes].tobytes()
    with pytest.raises(RuntimeError):
        places_for(memory, [256 - 8], [torch.zeros(2, 3, dtype=torch.int16)])
