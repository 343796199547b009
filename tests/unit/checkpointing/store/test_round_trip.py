"""Invariant 7: what is read is bit-identical to what was written, on any layout."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpointing.codec import Codec, EncodeBudget, WordLayout, encode
from checkpointing.codec.algorithms.constant_words import is_constant
from checkpointing.format.chunks import Chunk
from checkpointing.format.element_types import ElementType
from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.object_keys import SaveId
from checkpointing.format.tiles import Box, whole
from checkpointing.storage import Buffer
from checkpointing.store import catalog
from checkpointing.store.checkpoint import BoxRead, Checkpoint
from checkpointing.store.inspection.integrity_check import verify
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_encoding import ChunkEncoder, EncodedChunk
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, WrittenPart, write
from tests.effort import times
from tests.unit.checkpointing.store import random_boxes
from tests.unit.checkpointing.store.random_boxes import Tensor, Tensors
from tests.unit.checkpointing.store.schedules.model_storage import ModelStorage, World
from tests.unit.checkpointing.store.schedules.scheduler import Scheduler

RUN = "a"


class AnyEncoder(ChunkEncoder):
    """Takes any codec that can be taken, on bases of any depth."""

    def encode(
        self,
        raw: Buffer,
        name: str,
        element: ElementType,
        row: int,
        before: Chunk | None,
        read: Callable[[Chunk], Buffer],
        budget: EncodeBudget | None = None,
        *,
        is_allowed: bool | None = None,
    ) -> EncodedChunk:
        rng, layout = random.Random(bytes(raw)), WordLayout(element.word, element.is_float, row)
        ways = [Codec.RAW, Codec.ZSTD, Codec.PLANES, Codec.ROWS]
        if is_constant(raw, layout.word):
            ways.append(Codec.CONSTANT)
        base = read(before) if before is not None else None
        if base is not None and rng.random() < 0.7:
            codec = rng.choice([Codec.DELTA, Codec.ROWS])
            return EncodedChunk(encode(codec, raw, layout, base), codec, before)
        codec = rng.choice(ways)
        return EncodedChunk(encode(codec, raw, layout), codec)


ENCODERS = {
    "raw": ChunkEncoder(encoder=None),
    "chosen": ChunkEncoder(),
    "any": AnyEncoder(),
}
SETTINGS = settings(
    max_examples=times(20), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def _store() -> Store:
    return Store.at(ModelStorage(World(), Scheduler()), create=True)


def _write(
    store: Store,
    session: Session,
    known: Sequence[RunChunkIndex],
    step: int,
    tensors: Tensors,
    options: WriteOptions,
    rng: np.random.Generator,
    *,
    parts: int | None = None,
) -> SaveId:
    """Save one step, each tensor cut at random and its boxes dealt to the ranks at random.

    Args:
        parts: into how many; None: any number.
    """
    save, ranks = session.begin(step), len(known)
    held: list[list[TensorPiece]] = [[] for _ in range(ranks)]
    for name, tensor in tensors.items():
        for box in random_boxes.cut(
            tensor.shape, parts or int(rng.integers(1, 2 * ranks + 1)), rng
        ):
            part = tensor.data[box.slices]
            piece = TensorPiece(name, tensor.dtype, tensor.shape, box.offsets, part)
            held[int(rng.integers(ranks))].append(piece)
    written: list[WrittenPart] = []
    for rank, its in enumerate(known):
        made = write(store, save, held[rank], {f"extra/{rank}": rank}, its.index(), options)
        write_part(store, ManifestHeader(save, float(step), ranks), rank, made)
        written.append(made)
    commit(store, save, ranks, check=session.check)
    session.end(save.manifest())
    for its, one in zip(known, written, strict=True):
        its.committed(save, one.tables, one.packs)
    return save


def _check(store: Store, save: SaveId, tensors: Tensors, rng: np.random.Generator) -> None:
    found = next(f for f in catalog.committed(store, RUN)[0] if f.stored.save == save)
    checkpoint = Checkpoint(store, found.stored)
    assert checkpoint.tensors().keys() == tensors.keys()
    for name, tensor in tensors.items():
        spec = checkpoint.tensors()[name]
        assert (spec.dtype, spec.shape) == (tensor.dtype, tensor.shape)
        assert checkpoint.read(name).tobytes() == tensor.data.tobytes()
        box = random_boxes.box_in(tensor.shape, rng)
        assert checkpoint.read(name, box).tobytes() == tensor.data[box.slices].tobytes()
    # all of it once more, cut in another way and read at once
    reads, expected = [], []
    for name, tensor in tensors.items():
        for box in random_boxes.cut(tensor.shape, int(rng.integers(1, 9)), rng):
            reads.append(BoxRead(name, box, np.empty(box.sizes, tensor.data.dtype)))
            expected.append(tensor.data[box.slices])
    checkpoint.read_into(reads)
    for read, want in zip(reads, expected, strict=True):
        assert read.into.tobytes() == want.tobytes()


@SETTINGS
@given(
    tensors=random_boxes.tensors(),
    worlds=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    encoder=st.sampled_from(sorted(ENCODERS)),
    pack_bytes=st.sampled_from([1, 5000, 1 << 20, 64 << 20]),
    seed=st.integers(0, 2**32),
)
def test_any_tensors_in_any_parts_come_back(
    tensors: dict[str, Tensor], worlds: list[int], encoder: str, pack_bytes: int, seed: int
) -> None:
    rng, store = np.random.default_rng(seed), _store()
    options = WriteOptions(pack_bytes=pack_bytes, threads=2, encoder=ENCODERS[encoder])
    made: dict[SaveId, Tensors] = {}
    step = 0
    for ranks in worlds:  # the world may be another one in each session
        with Session(store, RUN) as session:
            known = [RunChunkIndex(store, RUN) for _ in range(ranks)]
            for _ in range(2):
                step += 1
                made[_write(store, session, known, step, tensors, options, rng)] = tensors
                tensors = random_boxes.changed(tensors, rng)
    for save, saved in made.items():
        _check(store, save, saved, rng)
    for found in catalog.committed(store)[0]:
        assert verify(store, found, "full") == []
        assert verify(store, found, "crc") == []
        assert verify(store, found, "quick") == []


@pytest.mark.parametrize("dtype", random_boxes.DTYPES)
def test_every_bit_pattern_of_every_dtype(dtype: str) -> None:
    rng, store = np.random.default_rng(0), _store()
    ways = ("random", "zeros", "constant", "smooth", "negative zeros", "nan payloads")
    tensors = {
        f"model/{how}": Tensor(dtype, random_boxes.fill(how, dtype, (64, 1024), rng))
        for how in ways
    }
    with Session(store, RUN) as session:
        known = [RunChunkIndex(store, RUN)]
        for step in range(3):
            save = _write(store, session, known, step, tensors, WriteOptions(), rng)
            _check(store, save, tensors, rng)
            tensors = random_boxes.changed(tensors, rng)


def test_chains_of_deltas_and_rows() -> None:
    rng, store = np.random.default_rng(0), _store()
    tensors = {
        "model/w": Tensor("bfloat16", random_boxes.fill("smooth", "bfloat16", (512, 700), rng))
    }
    options, made = WriteOptions(encoder=ENCODERS["any"]), {}
    with Session(store, RUN) as session:
        known = [RunChunkIndex(store, RUN)]
        for step in range(8):
            save = _write(store, session, known, step, tensors, options, rng, parts=1)
            made[save] = tensors
            data = tensors["model/w"].data.copy()
            data[rng.integers(0, 512, 20)] += 1
            tensors = {"model/w": Tensor("bfloat16", data)}
    for save, saved in made.items():
        _check(store, save, saved, rng)
    chunks = [
        c for f in catalog.committed(store)[0] for c in f.document.table("model").all_chunks()
    ]
    assert {Codec.DELTA, Codec.ROWS} <= {chunk.codec for chunk in chunks if chunk.base}
    assert max(chunk.depth for chunk in chunks) > 2


def test_equal_chunks_that_two_ranks_stored_in_different_ways() -> None:
    store = _store()
    half = np.zeros(1000, np.uint32)
    with Session(store, RUN) as session:
        save = session.begin(1)
        for rank, encoder in enumerate((ENCODERS["raw"], ENCODERS["chosen"])):
            piece = TensorPiece("model/w", "float32", (2000,), (1000 * rank,), half)
            options = WriteOptions(encoder=encoder)
            made = write(store, save, [piece], {}, RunChunkIndex(store, RUN).index(), options)
            write_part(store, ManifestHeader(save, 1.0, 2), rank, made)
        commit(store, save, 2, check=session.check)
    found = catalog.newest_first(store, RUN)[0]
    chunks = list(found.document.table("model").all_chunks())
    assert chunks[0].id == chunks[1].id
    assert chunks[0].codec != chunks[1].codec  # or this is a test of nothing
    assert Checkpoint(store, found.stored).read("model/w").tobytes() == bytes(8000)
    for level in ("quick", "crc", "full"):
        assert verify(store, found, level) == []


def test_a_box_outside_the_tensor_is_refused() -> None:
    rng, store = np.random.default_rng(0), _store()
    data = random_boxes.fill("random", "float32", (8, 6), rng)
    with Session(store, RUN) as session:
        known = [RunChunkIndex(store, RUN)]
        _write(store, session, known, 1, {"w/w": Tensor("float32", data)}, WriteOptions(), rng)
    checkpoint = Checkpoint(store, catalog.newest_first(store, RUN)[0].stored)
    inside = checkpoint.read("w/w", Box((1, 0), (2, 6)))
    assert inside.tobytes() == data[1:3].tobytes()
    assert checkpoint.read("w/w", Box((8, 0), (0, 6))).size == 0
    for offsets, sizes in (((1, 0), (8, 6)), ((0, -1), (2, 6)), ((7, 0), (2, 6)), ((0,), (8,))):
        with pytest.raises(ValueError, match=r"'w/w' has the shape \(8, 6\): Box.* is outside"):
            checkpoint.read("w/w", Box(offsets, sizes))


def test_what_has_not_changed_is_not_written_again() -> None:
    rng, store = np.random.default_rng(0), _store()
    tensors = {
        "model/w": Tensor("float32", random_boxes.fill("random", "float32", (700, 500), rng))
    }
    with Session(store, RUN) as session:
        known = RunChunkIndex(store, RUN)
        save = _write(store, session, [known], 1, tensors, WriteOptions(), rng)
        before = {entry.key for entry in store.storage.list("packs/")}
        table = next(iter(catalog.committed(store)[0])).document.table("model")
        for step in (2, 3):
            begun = session.begin(step)
            pieces = [
                TensorPiece(
                    "model/w",
                    "float32",
                    (700, 500),
                    box.offsets,
                    tensors["model/w"].data[box.slices],
                )
                for box in table.chunks["model/w"]
            ]
            written = write(store, begun, pieces, {}, known.index(), WriteOptions())
            assert written.new_bytes == 0
            session.end(begun.manifest())
    assert {entry.key for entry in store.storage.list("packs/")} == before
    _check(store, save, tensors, rng)
    assert whole((700, 500)).count == 350_000
