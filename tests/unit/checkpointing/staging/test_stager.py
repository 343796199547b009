"""What is staged is what the tensors held, bit for bit, wherever memory comes from."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from checkpointing.errors import StageError
from checkpointing.format.element_types import element
from checkpointing.format.tiles import Box
from checkpointing.staging.arena import Arena
from checkpointing.staging.slot_layout import SlotEntry, StagedSnapshot
from checkpointing.staging.stager import StagePiece, Stager
from tests.effort import times
from tests.unit.checkpointing.silent_process_group import silent_world

DTYPES = sorted(name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype))
_ALL = [
    *("float64", "float32", "float16", "bfloat16", "bool", "int8", "uint8", "int16", "uint16"),
    *("int32", "uint32", "int64", "uint64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    "float4_e2m1fn_x2",
]
KNOWN = [name for name in _ALL if name in DTYPES or name != "float4_e2m1fn_x2"]
"""Those that this torch has: torch 2.7 has no float4."""


@pytest.fixture
def stager() -> Iterator[Stager]:
    made = Stager(2)
    yield made
    made.close()


def random_bits(dtype: str, shape: Sequence[int], seed: int = 0) -> Tensor:
    """Any bits: NaNs with payloads, -0.0, bools that are neither 0 nor 1."""
    count = int(np.prod(shape)) * element(dtype).itemsize
    drawn = np.random.default_rng(seed).integers(0, 256, count, np.uint8)
    if not count:
        return torch.empty(tuple(shape), dtype=getattr(torch, dtype))
    return torch.from_numpy(drawn).view(getattr(torch, dtype)).reshape(tuple(shape))


def content(arena: Arena, staged: StagedSnapshot, entry: SlotEntry) -> NDArray[np.generic]:
    kind = element(entry.dtype)
    length = int(np.prod(entry.shape)) * kind.itemsize
    cells = arena.view(staged.start + entry.offset, length)
    return cells.view(kind.bits).reshape(entry.shape)


def bits(tensor: Tensor) -> NDArray[np.generic]:
    kind = element(str(tensor.dtype).removeprefix("torch."))
    # a copy of bools makes ones of other bytes than 0
    held = tensor.view(torch.uint8) if tensor.dtype is torch.bool else tensor
    held = held.detach().resolve_conj().resolve_neg().contiguous()
    if not held.numel():
        return np.empty(tuple(held.shape), kind.bits)
    return held.view(-1).view(torch.uint8).numpy().view(kind.bits).reshape(tuple(held.shape))


def assert_staged(stager: Stager, staged: StagedSnapshot, pieces: Sequence[StagePiece]) -> None:
    assert [entry.name for entry in staged.entries] == [piece.name for piece in pieces]
    for entry, piece in zip(staged.entries, pieces, strict=True):
        tensor = piece.tensor if piece.box is None else piece.tensor[piece.box.slices]
        assert entry.dtype == str(tensor.dtype).removeprefix("torch.")
        assert content(stager.arena, staged, entry).tobytes() == bits(tensor).tobytes(), entry.name
    assert staged.bytes == sum(entry_bytes(entry) for entry in staged.entries)


def entry_bytes(entry: SlotEntry) -> int:
    return int(np.prod(entry.shape)) * element(entry.dtype).itemsize


def test_no_dtype_is_forgotten() -> None:
    """All that torch names and the format knows are in the list of these tests."""
    assert set(KNOWN) <= set(DTYPES)
    assert len({element(name).name for name in _ALL}) == len(_ALL) == 22


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("dtype", KNOWN)
def test_every_dtype_bit_for_bit(stager: Stager, dtype: str, overlapped: bool) -> None:
    """Small and large ones: they are copied in different ways."""
    shapes = [(0,), (), (1,), (7,), (3, 0, 2), (5, 3), (100_003,), (130, 1025)]
    pieces = [
        StagePiece(f"t{i}", random_bits(dtype, shape, seed=i)) for i, shape in enumerate(shapes)
    ]
    stage = stage_beside if overlapped else stage_blocking
    assert_staged(stager, stage(stager, pieces), pieces)


def stage_blocking(stager: Stager, pieces: Sequence[StagePiece]) -> StagedSnapshot:
    return stager.stage(pieces, 1)


def stage_beside(stager: Stager, pieces: Sequence[StagePiece]) -> StagedSnapshot:
    overlap = stager.stage_overlapped([], pieces, 1)
    stager.settle()
    return overlap.result()


@pytest.mark.parametrize("stage", [stage_blocking, stage_beside])
@pytest.mark.parametrize("rows", [6, 600])
def test_cells_that_do_not_lie_together(stager: Stager, rows: int, stage: object) -> None:
    whole = random_bits("float32", (rows, 8, 70))
    lazy = torch.view_as_complex(torch.randn(rows, 99, 2))
    tensors = {
        "transposed": whole.transpose(0, 2),
        "last dim strided": whole[..., ::3],
        "rows strided": whole[::2],
        "expanded": whole[:1].expand(4, 8, 70),
        "offset": whole.view(-1)[3:],
        "parameter": nn.Parameter(whole[1:]),
        "bool": (whole > 0).transpose(0, 1),
        "conjugate": lazy.conj(),
        "negative": lazy.conj().imag,
    }
    pieces = [StagePiece(name, tensor) for name, tensor in tensors.items()]
    assert_staged(stager, stage(stager, pieces), pieces)  # type: ignore[operator]


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    shape = tuple(draw(st.lists(st.integers(1, 9), max_size=3)))
    found = []
    for _ in range(draw(st.integers(1, 4))):
        starts = tuple(draw(st.integers(0, size)) for size in shape)
        ends = zip(starts, shape, strict=True)
        found.append(Box(starts, tuple(draw(st.integers(0, n - start)) for start, n in ends)))
    return shape, found


@settings(max_examples=times(20))
@given(boxes(), st.sampled_from(KNOWN))
def test_exactly_the_cells_of_the_boxes(
    drawn: tuple[tuple[int, ...], list[Box]], dtype: str
) -> None:
    shape, found = drawn
    tensor = random_bits(dtype, shape)
    pieces = [StagePiece("t", tensor, box) for box in found]
    stager = Stager(1)
    assert_staged(stager, stager.stage(pieces), pieces)
    stager.close()


def test_of_a_dtensor_this_ranks_part() -> None:
    stager = Stager(1)
    with silent_world(2, 1) as mesh:
        local = random_bits("float32", (3, 4))
        whole = DTensor.from_local(local, mesh, run_check=False)
        piece = StagePiece("w", whole)
        staged = stager.stage([piece, StagePiece("w", whole, Box((1, 0), (2, 3)))])
    parts = [content(stager.arena, staged, entry).tobytes() for entry in staged.entries]
    assert parts == [bits(local).tobytes(), bits(local[1:, :3]).tobytes()]
    stager.close()


# --- slots and memory ---------------------------------------------------------------------------


def some(*sizes: int) -> list[StagePiece]:
    return [
        StagePiece(f"t{i}", random_bits("float32", (size,), seed=size + i))
        for i, size in enumerate(sizes)
    ]


def test_slots_do_not_touch_each_other(stager: Stager) -> None:
    pieces = some(10, 300_000)
    first = stager.stage(pieces, 0)
    held = stager.arena.view(first.start, stager.slot_bytes).copy()
    for piece in pieces:
        piece.tensor.add_(1)
    second = stager.stage(pieces, 1)
    assert (first.slot, second.slot) == (0, 1)
    assert second.start == first.start + stager.slot_bytes
    assert np.array_equal(stager.arena.view(first.start, stager.slot_bytes), held)
    assert_staged(stager, second, pieces)


def test_entries_lie_where_caches_and_pages_begin(stager: Stager) -> None:
    staged = stager.stage(some(1, 3, 300_000, 2))
    offsets = [entry.offset for entry in staged.entries]
    assert offsets == [0, 64, 4096, -(-(4096 + 1_200_000) // 64) * 64]
    assert stager.slot_bytes % 4096 == 0


def test_the_same_structure_is_prepared_once(stager: Stager) -> None:
    assert stager.prepare(some(5, 7))
    arena = stager.arena
    assert not stager.prepare(some(5, 7))
    stager.stage(some(5, 7), 1)
    assert stager.arena is arena
    assert stager.arenas == 1


def test_memory_is_there_before_the_first_snapshot(stager: Stager) -> None:
    stager.prepare(some(300_000))
    stager.await_memory()
    assert os.fstat(stager.arena.fd).st_blocks * 512 >= stager.slot_bytes
    stager.await_memory(1)
    given_bytes = os.fstat(stager.arena.fd).st_blocks * 512
    assert given_bytes == stager.arena.size == 2 * stager.slot_bytes
    stager.stage(some(300_000))
    assert os.fstat(stager.arena.fd).st_blocks * 512 == given_bytes


def test_what_fits_changes_places_and_not_the_arena(stager: Stager) -> None:
    stager.prepare(some(5000))
    arena = stager.arena
    smaller = some(40, 70)
    staged = stager.stage(smaller, 1)
    assert stager.arena is arena
    assert_staged(stager, staged, smaller)


@pytest.mark.parametrize("other", [some(5), some(5, 9), some(5, 7, 1)])
def test_another_structure_is_staged_as_it_is(stager: Stager, other: list[StagePiece]) -> None:
    stager.stage(some(5, 7))
    assert_staged(stager, stager.stage(other), other)


def test_what_does_not_fit_gets_a_new_arena_and_the_old_content_stays_with_its_reader(
    stager: Stager,
) -> None:
    old = stager.stage(some(50))
    reader = Arena.attach(os.dup(stager.arena.fd))
    before = reader.view(0, 200).copy()
    large = some(500_000)
    new = stager.stage(large)
    assert (old.arena, new.arena) == (1, 2)
    assert_staged(stager, new, large)
    assert np.array_equal(reader.view(0, 200), before)
    reader.close()


def arenas() -> set[str]:
    """The inodes of what is mapped of them in this process, those of tests before this one too."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "memfd:hpckit-" in line}


def test_nothing_is_left_of_a_closed_stager() -> None:
    others = arenas()
    stager = Stager(2)
    stager.stage(some(5, 300_000))
    assert (mine := arenas() - others)
    stager.close()
    stager.close()
    gc.collect()
    assert not arenas() & mine
    with pytest.raises(StageError, match="call prepare"):
        _ = stager.arena


def test_memory_is_asked_for_before_it_is_taken() -> None:
    asked: list[tuple[int, int]] = []

    def refuse(slot_bytes: int, slots: int) -> None:
        asked.append((slot_bytes, slots))
        if slot_bytes > 4096:
            raise StageError("too much")

    stager = Stager(3, require=refuse)
    stager.stage(some(10))
    with pytest.raises(StageError, match="too much"):
        stager.stage(some(10, 3000))
    assert asked == [(4096, 3), (64 + 12_000 + 4096 - (64 + 12_000) % 4096, 3)]
    pieces = some(12)
    assert_staged(stager, stager.stage(pieces), pieces)  # it can be used again
    assert stager.arenas == 2
    stager.close()


def test_nothing_to_stage(stager: Stager) -> None:
    assert stager.stage([]) == StagedSnapshot(1, 0, 0, (), 0)
    assert stager.stage_overlapped([], []).result().entries == ()


@pytest.mark.parametrize("slot", [-1, 2])
def test_no_other_slots(stager: Stager, slot: int) -> None:
    with pytest.raises(ValueError, match=rf"no slot {slot}: they are 0 to 1"):
        stager.stage(some(1), slot)


def test_at_least_one_slot() -> None:
    with pytest.raises(ValueError, match="slots="):
        Stager(0)
