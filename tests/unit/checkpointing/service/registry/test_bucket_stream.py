"""A state that comes in buckets: read in order, each bucket given back, or lost as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from checkpointing.errors import ServiceError
from checkpointing.format.element_types import element
from checkpointing.format.tiles import Box
from checkpointing.service.registry import bucket_stream
from checkpointing.service.registry.bucket_stream import BucketStream
from checkpointing.service.save_errors import ImpossibleSaveError
from checkpointing.service.snapshots import Generation, RankSnapshot, SlotBox, SnapshotLayout
from checkpointing.staging.bucket_stager import BucketStager
from checkpointing.staging.buckets import Bucket
from checkpointing.staging.stager import StagePiece

WHOLE = (3000, 1000)


def wanted() -> bool:
    return False


class Both:
    """A trainer's side and the service's side of the same buckets."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.live = torch.randn(2000, 1000)
        self.flags = torch.randn(700_000) > 0
        self.pieces = [
            StagePiece("w", self.live, Box((500, 0), (1500, 1000)), WHOLE, (1000, 0)),
            StagePiece("step", torch.tensor(3.0), None, (), ()),
            StagePiece("none", torch.empty(0, 4), None, (0, 4), (0, 0)),
            StagePiece("flags", self.flags, None, (700_000,), (0,)),
        ]
        places = (
            SlotBox("w", "float32", WHOLE, (1000, 0), (1500, 1000), 0),
            SlotBox("step", "float32", (), (), (), 0),
            SlotBox("none", "float32", (0, 4), (0, 0), (0, 4), 0),
            SlotBox("flags", "bool", (700_000,), (0,), (700_000,), 0),
        )
        self.snapshot = RankSnapshot(
            Generation("aaaaaaaa", 1), 0, 7, 0, SnapshotLayout("d", places)
        )
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.stager = BucketStager(1 << 20, 2)
        self.stager.prepare(self.pieces)
        self.free = list(range(self.stager.buckets))
        self.stream = BucketStream(
            self.snapshot, self.stager.arena.view(0, self.stager.arena.size), 1 << 20, self.tell
        )
        self.coming = self.stream.pieces(wanted)
        self.cells: dict[str, NDArray[Any]] = {
            p.name: np.full(p.shape, 0, element(p.dtype).bits) for p in places
        }
        self.times = {p.name: np.zeros(p.shape, np.int64) for p in places}

    def tell(self, kind: str, **fields: Any) -> None:
        self.told.append((kind, fields))
        if kind == "emptied":
            self.free.append(fields["bucket"])

    def send(self, bucket: Bucket) -> None:
        self.stream.fill(bucket.number, bucket.content.slot, bucket.content.bytes)

    def next_free(self) -> int:
        if not self.free:
            self.read()
        return self.free.pop(0)

    def read(self) -> None:
        """All that is here, to where it belongs."""
        for piece in self.coming:
            if piece is None:
                return
            self.cells[piece.name][piece.box.slices] = piece.data
            self.times[piece.name][piece.box.slices] += 1
            self.stream.done(piece.data.nbytes)


@pytest.fixture
def both() -> Both:
    return Both()


def test_every_cell_arrives_once_and_where_it_belongs(both: Both) -> None:
    total = both.stager.stage_bucketed(both.pieces, both.send, both.next_free)
    assert both.stager.arena.size < 0.5 * total
    assert both.stream.is_whole
    both.read()
    assert np.array_equal(both.cells["w"][1000:2500].view(np.float32), both.live[500:].numpy())
    assert both.cells["step"].view(np.float32) == 3.0
    assert np.array_equal(both.cells["flags"], both.flags.numpy().view(np.uint8))
    assert (both.times["w"][1000:2500] == 1).all()
    assert both.times["w"].sum() == 1500 * 1000
    assert (both.times["flags"] == 1).all()
    assert sorted(both.free) == [0, 1]
    assert {kind for kind, _ in both.told} == {"emptied"}
    both.stream.end("too late to matter")
    assert {kind for kind, _ in both.told} == {"emptied"}


def test_a_bucket_is_given_back_when_its_last_byte_is_done(both: Both) -> None:
    sent: list[Bucket] = []
    with pytest.raises(IndexError):
        both.stager.stage_bucketed(both.pieces, sent.append, lambda: both.free.pop(0))
    both.send(sent[0])
    pieces = []
    while (piece := next(both.coming)) is not None:
        pieces.append(piece.data.nbytes)
    assert sum(pieces) == sent[0].content.bytes
    both.stream.done(sum(pieces) - 1)
    assert both.told == []
    both.stream.done(1)
    assert both.told == [("emptied", {"step": 7, "of": 0, "bucket": sent[0].content.slot})]


def test_what_cannot_be_is_refused(both: Both) -> None:
    sent: list[Bucket] = []
    with pytest.raises(IndexError):
        both.stager.stage_bucketed(both.pieces, sent.append, lambda: both.free.pop(0))
    size = sent[0].content.bytes
    for number, bucket, length in ((1, 0, size), (0, 2, size), (0, -1, size), (0, 0, size - 1)):
        with pytest.raises(ServiceError, match=r"cannot hold part"):
            both.stream.fill(number, bucket, length)
    both.stream.fill(0, 0, size)
    with pytest.raises(ServiceError, match="bucket 0 cannot hold part 1"):
        both.stream.fill(1, 0, sent[1].content.bytes)


def test_one_that_ends_half_way_is_lost_and_its_trainer_is_told(both: Both) -> None:
    assert next(both.coming) is None
    both.stream.end("its trainer has ended")
    assert both.told == [("unread", {"rank": 0, "step": 7, "error": "its trainer has ended"})]
    with pytest.raises(ImpossibleSaveError, match="lost completely: its trainer has ended"):
        list(both.coming)
    with pytest.raises(ServiceError, match="its trainer has ended"):
        both.stream.fill(0, 0, 1)
    assert not both.stream.is_whole


def test_what_was_begun_cannot_be_read_again(both: Both) -> None:
    assert next(both.coming) is None
    with pytest.raises(ImpossibleSaveError, match="it has already been read"):
        next(both.stream.pieces(wanted))


def test_nobody_waits_for_a_silent_trainer_for_ever(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_stream, "BUCKET_TIMEOUT_S", 0.0)
    with pytest.raises(ImpossibleSaveError, match="has sent nothing for"):
        list(both.coming)


def test_nor_once_nobody_wants_it(both: Both) -> None:
    with pytest.raises(ImpossibleSaveError, match="no process waits for it any longer"):
        list(both.stream.pieces(lambda: True))


def test_one_that_another_service_had_is_gone() -> None:
    snapshot = RankSnapshot(Generation("aaaaaaaa", 1), 0, 7, 0, SnapshotLayout("d", ()))
    stream = BucketStream.gone(snapshot, lambda kind, **fields: None)
    assert not stream.is_whole
    with pytest.raises(ImpossibleSaveError, match="the service that was reading it died"):
        list(stream.pieces(wanted))


def test_a_rank_without_any_part_has_nothing_to_wait_for() -> None:
    snapshot = RankSnapshot(Generation("aaaaaaaa", 1), 0, 7, 0, SnapshotLayout("d", ()))
    stream = BucketStream(
        snapshot, np.empty(1 << 20, np.uint8), 1 << 19, lambda kind, **fields: None
    )
    assert stream.is_whole
    assert list(stream.pieces(wanted)) == []
