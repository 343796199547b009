"""Documents of tokens packed into sequences of equal length, and delivered batch by batch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from data.errors import DataError, FingerprintError
from data.ordering.packing import PACK, Long, Pack, Packer, PackStep
from data.ordering.placement import Share, take
from data.ordering.sequences import Boundaries, boundaries
from data.reader.batch import SampleContext
from data.reader.counts import TokenCounts
from data.reader.fetch import Fetcher, Rows, Work
from data.reader.opened import Sample
from data.reader.plan import Topology
from data.reader.stream import Stream

Tokens: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class Packing:
    """How documents become sequences of `length` tokens; `data.ordering.packing` has the method.

    The transform makes a document's tokens, shape (tokens,), of a sample; without one they are read
    the way that they were counted ("npy", "bin:uint16"). There must be as many as the index says.

    Args:
        block: documents that are packed at a time; the more, the less padding.
        long: what becomes of documents that are longer: they are "split", "cut" or "skip"ped.
        pad: the token that fills a sequence up.
        dtype: of the sequences.
    """

    length: int
    block: int = 32768
    long: Long = "split"
    pad: int = 0
    dtype: str = "int64"

    @classmethod
    def of_state(cls, name: str) -> "Packing":
        """That of a state's field `pack`. Raises DataError if it is none."""
        made, *fields = name.split()
        said = dict(field.partition("=")[::2] for field in fields)
        if made != PACK or not {"length", "block", "long"} <= said.keys():
            raise DataError(f"the state is of the packing {name!r}, not {PACK}")
        try:
            return cls(int(said["length"]), int(said["block"]), cast("Long", said["long"]))
        except ValueError as error:
            raise DataError(f"not a loader's state: pack is {name!r}") from error


class PackedSequence(NamedTuple):
    """One sequence: what `collate` is given a list of."""

    tokens: Tokens
    """Shape (length,)."""
    boundaries: Boundaries


class Sequences(NamedTuple):
    """A batch of B sequences of L tokens, made by the default `collate`."""

    tokens: Tokens
    """Shape (B, L)."""
    document_ids: npt.NDArray[np.int32]
    """Shape (B, L): tokens attend to equal ids of their sequence only; -1 is padding."""
    position_ids: npt.NDArray[np.int32]
    """Shape (B, L): each document counts from 0."""
    cu_seqlens: npt.NDArray[np.int32]
    """Where each document begins in the B * L tokens end to end, then B * L; padding counts as a
    document."""
    max_seqlen: int
    """Of all documents, in tokens."""


def sequences(packed: list[PackedSequence]) -> Sequences:
    """The default `collate`. All must be of one length."""
    lines = [one.boundaries for one in packed]
    length = len(packed[0].tokens)
    begins = [line.cu_seqlens[:-1] + number * length for number, line in enumerate(lines)]
    return Sequences(
        tokens=np.stack([one.tokens for one in packed]),
        document_ids=np.stack([line.document_ids for line in lines]),
        position_ids=np.stack([line.position_ids for line in lines]),
        cu_seqlens=np.append(np.concatenate(begins), len(packed) * length).astype(np.int32),
        max_seqlen=max(line.max_seqlen for line in lines),
    )


class Pieces(NamedTuple):
    """What the sequences of a batch are made of; columns of shape (pieces,), by sequence."""

    packs: int
    """Sequences."""
    pack: list[int]
    row: list[int]
    """Which document of the batch."""
    start: list[int]
    length: list[int]
    tokens: list[int]
    """Of each document, as the index says; shape (documents,)."""


@dataclass(frozen=True)
class PackFetcher(Fetcher):
    """Makes a batch of sequences. Each document is read and transformed once per batch."""

    packing: Packing = Packing(1)

    def _check(self, rows: Rows, work: Work) -> None:
        assert isinstance(work.extra, Pieces)
        _, shards, samples = work.places
        for row, (document, tokens) in enumerate(zip(rows.samples, work.extra.tokens, strict=True)):
            if row in rows.errors:
                continue
            found = np.asarray(document)
            if found.shape != (tokens,):
                error = DataError(
                    f"{tokens} tokens by the index, and an array of shape {found.shape}: index the"
                    " dataset again, and count what the transform gives"
                )
                place = (rows.datasets[row], int(shards[row]), int(samples[row]))
                rows.errors[row] = self._said(rows.positions[row], *place, error)
            rows.samples[row] = found

    def _items(self, rows: Rows, work: Work, kept: list[int] | None) -> list[Any]:
        assert isinstance(work.extra, Pieces)
        pieces, packing = work.extra, self.packing
        documents = dict(zip(kept or range(len(rows.samples)), rows.samples, strict=True))
        tokens = np.full((pieces.packs, packing.length), packing.pad, packing.dtype)
        lengths: list[list[int]] = [[] for _ in range(pieces.packs)]
        columns = (pieces.pack, pieces.row, pieces.start, pieces.length)
        for pack, row, start, length in zip(*columns, strict=True):
            if (document := documents.get(row)) is not None:
                at = sum(lengths[pack])
                tokens[pack, at : at + length] = document[start : start + length]
                lengths[pack].append(length)
        return [
            PackedSequence(line, boundaries(of, packing.length))
            for line, of in zip(tokens, lengths, strict=True)
        ]

    def _mask(self, work: Work, kept: list[int] | None) -> npt.NDArray[np.bool_]:
        return work.share.mask  # of sequences, which stay when they lose a document


@dataclass(frozen=True)
class PackPlan:
    """Sequences in the order of their packs: a position is a cursor of `Packer`."""

    stream: Stream
    topology: Topology
    packing: Packing
    packer: Packer
    counts: TokenCounts

    @classmethod
    def of(cls, stream: Stream, topology: Topology, packing: Packing) -> "PackPlan":
        """Raises DataError for what makes no sense, and for documents without token counts."""
        counts = TokenCounts(stream)
        try:
            packer = Packer(
                stream, counts, length=packing.length, block=packing.block, long=packing.long
            )
            nothing = np.zeros(topology.batch, np.int64)
            take(nothing, topology.rank, topology.world, topology.uneven)
            np.full(1, packing.pad, packing.dtype)
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(str(error)) from error
        return cls(stream, topology, packing, packer, counts)

    @property
    def identity(self) -> dict[str, Any]:
        return {**self.stream.identity, "pack": self.packer.identity}

    def work(self, position: int) -> Iterator[Work]:
        epochs = self.topology.epochs
        end = None if epochs is None else self.packer.cursor_of_epoch(epochs)
        while end is None or position < end:
            step = self._step(position)
            if end is not None and all(of.positions[0] >= self._end for of in step.packs):
                return
            yield self._work(step)
            position = step.after

    def fetcher(self, fetcher: Fetcher) -> Fetcher:
        return PackFetcher(
            fetcher.stream,
            fetcher.transform or stored_tokens(self.stream),
            fetcher.collate or sequences,
            fetcher.faults,
            self.packing,
        )

    def reading(self, position: int) -> int:
        return self.packer.reached(position)

    def resumed(self, state: Mapping[str, Any], position: int) -> "PackPlan":
        """New weights of a mixture count from the next block on: this one is packed."""
        told = dict(state)
        name = told.pop("pack", None)
        if name != self.packer.identity:
            raise FingerprintError({"pack": (name, self.packer.identity)})
        stream = self.stream.resumed(told, self.packer.border(position))
        return PackPlan.of(stream, self.topology, self.packing)

    @property
    def _end(self) -> int:
        end = self.topology.end(self.stream)
        assert end is not None
        return end

    def _step(self, position: int) -> PackStep:
        try:
            return self.packer.step(position, self.topology.batch, self.topology.tail)
        except ValueError as error:
            raise DataError(str(error)) from error

    def _work(self, step: PackStep) -> Work:
        of = self.topology
        streams = np.array([pack.stream for pack in step.packs])
        taken, real = take(streams, of.rank, of.world, of.uneven)
        mask = step.mask[taken] & real
        weight = float(mask.sum()) * of.world / float(step.mask.sum())
        positions, pieces = _pieces([step.packs[number] for number in taken.tolist()], self.counts)
        share = Share(positions, mask, weight, step.after)
        return Work(share, self.stream.locate(positions), pieces)


def _pieces(packs: list[Pack], counts: TokenCounts) -> tuple[npt.NDArray[np.int64], Pieces]:
    """(position of each document, each once, as they come first; what is taken of them)."""
    nothing = [np.empty(0, np.int64)]
    every = np.concatenate([pack.positions for pack in packs] or nothing)
    distinct, first, which = np.unique(every, return_index=True, return_inverse=True)
    come = np.argsort(first)
    rows = np.argsort(come)[which]
    positions = distinct[come]
    return positions, Pieces(
        packs=len(packs),
        pack=np.repeat(np.arange(len(packs)), [pack.positions.size for pack in packs]).tolist(),
        row=rows.tolist(),
        start=np.concatenate([pack.starts for pack in packs] or nothing).tolist(),
        length=np.concatenate([pack.lengths for pack in packs] or nothing).tolist(),
        tokens=counts(positions).tolist() if positions.size else [],
    )


@dataclass(frozen=True)
class StoredTokens:
    """A transform: the numbers of a sample's member `extension`, "npy" or raw ones of a type."""

    extension: str
    dtype: str | None

    def __call__(self, sample: Sample, context: SampleContext) -> Tokens:
        if self.dtype is None:
            return np.asarray(np.load(BytesIO(sample[self.extension]), allow_pickle=False)).ravel()
        return np.frombuffer(sample[self.extension], np.dtype(self.dtype).newbyteorder("<"))


def stored_tokens(stream: Stream) -> StoredTokens:
    """What reads tokens the way that the stream's datasets count them. Raises DataError."""
    ways = {dataset.manifest.tokens for dataset in stream.datasets}
    (way,) = ways if len(ways) == 1 else ("",)
    extension, _, detail = (way or "").partition(":")
    if way == "npy" or (extension != "json" and detail):
        return StoredTokens(extension, detail or None)
    raise DataError(
        f"tokens are counted by {sorted(map(str, ways))}, which does not say where they lie:"
        " packing needs a transform that makes them"
    )
