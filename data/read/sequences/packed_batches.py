"""Documents of tokens packed into sequences of equal length and delivered in batches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from data.errors import DataError, FingerprintError
from data.order.balanced_packs import attention_cost, balanced_order
from data.order.document_boundaries import boundaries
from data.order.keyed_permutation import Ints
from data.order.rank_shares import RankShare, take, take_weighted
from data.order.sequence_packing import PACK, SPAN, Long, PackStep, SequencePack, SequencePacker
from data.order.skipped_ranges import NOTHING_SKIPPED, SkippedRanges
from data.read.batches.batch_fetcher import BatchFetcher, BatchRows, BatchWork
from data.read.batches.batch_plan import Topology
from data.read.sample_stream import MixedStream, SampleStream
from data.read.sequences.packed_sequences import PackedSequence, sequences
from data.read.sequences.position_token_counts import TokenCounts
from data.read.sequences.stored_tokens import StoredTokens, stored_tokens


@dataclass(frozen=True)
class Packing:
    """The settings of packing documents into sequences of `length` tokens; see
    `data.order.sequence_packing` for the method.

    The transform returns a document's tokens, shape (tokens,), for a sample; without one they are
    read in the way that they were counted ("npy", "bin:uint16"). There must be as many as the index
    says.

    Args:
        block: documents that are packed together; the more, the less padding.
        long: how longer documents are handled: they are "split", "cut" or "skip"ped.
        pad: the token that fills a sequence up.
        dtype: of the sequences.
        vocab: the size of the vocabulary, which tokens must be below; None: not checked.
        balance: which rank takes which sequences of a global step. "attention": each rank, and each
            micro-batch, gets equally much to compute where documents do not attend to each other,
            see `data.order.balanced_packs`; the step has the same sequences, and so has the state.
            None: ranks take neighbouring streams, so that a node reads few of the shards.
        micro_batch: the sequences of a micro-batch, which are balanced, too; None: those of a rank
            are computed together.
    """

    length: int
    block: int = 32768
    long: Long = "split"
    pad: int = 0
    dtype: str = "int64"
    vocab: int | None = None
    balance: Literal["attention"] | None = None
    micro_batch: int | None = None

    @classmethod
    def of_state(cls, name: str) -> "Packing":
        """Return the packing of a state's field `pack`. Raises DataError if it is invalid."""
        made, *fields = name.split()
        settings = dict(field.partition("=")[::2] for field in fields)
        if made != PACK or not {"length", "block", "long"} <= settings.keys():
            raise DataError(f"the state was saved with the packing {name!r}, not {PACK}")
        try:
            return cls(
                int(settings["length"]), int(settings["block"]), cast("Long", settings["long"])
            )
        except ValueError as error:
            raise DataError(f"not a loader's state: pack is {name!r}") from error


class PackedPieces(NamedTuple):
    """The pieces of the sequences of a batch; columns of shape (pieces,), in the order of
    sequences."""

    packs: int
    """The number of sequences."""
    pack: list[int]
    row: list[int]
    """The document of the batch that each piece belongs to."""
    start: list[int]
    length: list[int]
    tokens: list[int]
    """The tokens of each document, as the index says; shape (documents,)."""
    step_tokens: tuple[int, ...] = ()
    """As of `Batch`."""


@dataclass(frozen=True)
class PackFetcher(BatchFetcher):
    """Makes a batch of sequences. Each document is read and transformed once per batch."""

    packing: Packing
    stored: tuple[StoredTokens, ...] = ()
    """What reads the tokens of each dataset, where there is no transform."""

    def _transform(self, rows: BatchRows) -> None:
        if self.transform is not None:
            super()._transform(rows)
        else:
            self._apply(rows, [self.stored[dataset] for dataset in rows.datasets])

    def _check(self, rows: BatchRows, work: BatchWork) -> None:
        assert isinstance(work.extra, PackedPieces)
        _, shards, samples = work.places
        for row, (document, tokens) in enumerate(zip(rows.samples, work.extra.tokens, strict=True)):
            if row in rows.errors:
                continue
            found = np.asarray(document)
            if problem := self._problem(found, tokens):
                place = (rows.datasets[row], int(shards[row]), int(samples[row]))
                error = self._sample_error(rows.positions[row], *place, DataError(problem))
                rows.errors[row] = error
            rows.samples[row] = found

    def _problem(self, found: npt.NDArray[Any], tokens: int) -> str | None:
        """Return why an array is not the document's tokens."""
        if found.shape != (tokens,):
            return (
                f"{tokens} tokens by the index, but an array of shape {found.shape}: index the "
                "dataset again, and count what the transform returns"
            )
        if found.dtype.kind not in "iu":
            return f"its tokens are of type {found.dtype}, not whole numbers"
        room = np.iinfo(self.packing.dtype)
        if found.size and not room.min <= int(found.min()) <= int(found.max()) <= room.max:
            return f"tokens {found.min()}..{found.max()} do not fit {self.packing.dtype}"
        vocab = self.packing.vocab
        if found.size and vocab is not None and not 0 <= int(found.min()) <= found.max() < vocab:
            return f"tokens {found.min()}..{found.max()} are not of a vocabulary of {vocab}"
        return None

    def _items(self, rows: BatchRows, work: BatchWork, kept: list[int] | None) -> list[Any]:
        assert isinstance(work.extra, PackedPieces)
        pieces, packing = work.extra, self.packing
        documents = dict(zip(kept or range(len(rows.samples)), rows.samples, strict=True))
        tokens = np.full((pieces.packs, packing.length), packing.pad, packing.dtype)
        lengths: list[list[int]] = [[] for _ in range(pieces.packs)]
        owners: list[list[int]] = [[] for _ in range(pieces.packs)]
        datasets = work.places.datasets.tolist()
        columns = (pieces.pack, pieces.row, pieces.start, pieces.length)
        for pack, row, start, length in zip(*columns, strict=True):
            if (document := documents.get(row)) is not None:
                at = sum(lengths[pack])
                tokens[pack, at : at + length] = document[start : start + length]
                lengths[pack].append(length)
                owners[pack].append(datasets[row])
        return [
            PackedSequence(line, boundaries(of, packing.length), tuple(by))
            for line, of, by in zip(tokens, lengths, owners, strict=True)
        ]

    def _step_tokens(self, work: BatchWork) -> tuple[int, ...]:
        assert isinstance(work.extra, PackedPieces)
        return work.extra.step_tokens

    def _mask(self, work: BatchWork, kept: list[int] | None) -> npt.NDArray[np.bool_]:
        return work.share.mask  # of sequences, which are kept when they lose a document


@dataclass(frozen=True)
class PackPlan:
    """Batches of sequences in the order of their packs: a position is a cursor of
    `SequencePacker`."""

    stream: SampleStream
    topology: Topology
    packing: Packing
    packer: SequencePacker
    counts: TokenCounts
    skipped: SkippedRanges = NOTHING_SKIPPED

    @classmethod
    def of(cls, stream: SampleStream, topology: Topology, packing: Packing) -> "PackPlan":
        """Create the plan. Raises DataError for invalid arguments and for documents without token
        counts."""
        counts = TokenCounts(stream)
        fewest = 1 if packing.micro_batch is None else packing.micro_batch
        if packing.balance not in ("attention", None) or fewest < 1:
            raise DataError(
                'balance must be "attention" or None, and micro_batch at least 1 or None; got '
                f"{packing.balance!r}, {packing.micro_batch}"
            )
        try:
            packer = _packer(stream, counts, packing)
            for size in topology.least_sizes:
                nothing = np.zeros(size, np.int64)
                take(nothing, topology.rank, topology.world, topology.uneven)
            np.full(1, packing.pad, np.iinfo(np.dtype(packing.dtype)).dtype)
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(str(error)) from error
        return cls(stream, topology, packing, packer, counts)

    @property
    def identity(self) -> dict[str, Any]:
        return {**self.stream.identity, "pack": self.packer.identity}

    @property
    def streams(self) -> Sequence[range]:
        if self.packing.balance is None:
            return self.topology.streams(self.stream)
        return self.stream.streams_of(0, 1, self.topology.batch)

    def seen(self, position: int) -> int | None:
        return None if position else 0  # how many sequences a block has is known when it is planned

    def work(self, position: int, seen: int = 0) -> Iterator[BatchWork]:
        epochs = self.topology.epochs
        end = None if epochs is None else self.packer.cursor_of_epoch(epochs)
        while end is None or position < end:
            size = self.topology.size_at(seen)
            step = self._step(position, size, self.skipped)
            if end is not None and all(of.positions[0] >= self._end for of in step.packs):
                return
            yield self._work(step)._replace(seen=seen, step_samples=size)
            position, seen = step.after, seen + size

    def steps(self, position: int, end: int) -> int:
        raise TypeError("the number of packed sequences is known only when they are planned")

    def fetcher(self, fetcher: BatchFetcher) -> BatchFetcher:
        return PackFetcher(
            fetcher.stream,
            fetcher.transform,
            fetcher.collate or sequences,
            fetcher.faults,
            self.packing,
            () if fetcher.transform else stored_tokens(self.stream),
        )

    def stream_position(self, position: int) -> int:
        return self.packer.reached(position)

    def skipping(self, skipped: SkippedRanges) -> "PackPlan":
        """Return the plan that leaves out the sequences at these cursors, and in later epochs all
        documents of which they have a part."""
        plan = replace(self, skipped=skipped, counts=TokenCounts(self.stream))
        plan = replace(plan, packer=_packer(self.stream, plan.counts, self.packing))
        for first, end in skipped.ranges:  # earlier ones decide about the sequences of later ones
            # the rest of the last block keeps its sequences, as it was packed when they were chosen
            block = (end - 1) // SPAN
            plan.counts.leave_out(plan._positions_of(first, end), plan.packer.border(end - 1))
            plan.packer.forget_after(block)
        if skipped and set(plan.ended) >= set(_lasting(self.stream)):
            raise DataError(
                f"all {sum(map(len, self.stream.datasets))} documents were left out, and none "
                "would be left: of a mixture, those of the datasets that have a weight at its end"
            )
        return plan

    @cached_property
    def ended(self) -> list[int]:
        return self.counts.ended

    def _positions_of(self, first: int, end: int) -> Ints:
        """Return the positions of the documents of the sequences at these cursors."""
        found, cursor = [np.empty(0, np.int64)], first
        while cursor < end:
            step = self._step(cursor, 1, NOTHING_SKIPPED)
            if step.after > end:
                break
            found += [pack.positions for pack in step.packs]
            cursor = step.after
        return np.unique(_joined(found))

    def resumed(self, state: Mapping[str, Any], position: int) -> "PackPlan":
        """Return the plan that continues from `state`. New weights of a mixture, and new shards,
        apply from the next block on, and the present block, if any sequence of it was delivered, is
        packed with the old ones."""
        saved = dict(state)
        name = saved.pop("pack", None)
        if name != self.packer.identity:
            raise FingerprintError({"pack": (name, self.packer.identity)})
        was = PackPlan.of(self.stream.restored(saved), self.topology, self.packing)
        is_begun = position % SPAN != 0
        packed = was.packer.border(position) if is_begun else was.packer.reached(position)
        stream = self.stream.resumed(saved, packed)
        return PackPlan.of(stream, self.topology, self.packing).skipping(self.skipped)

    @property
    def _end(self) -> int:
        end = self.topology.end(self.stream)
        assert end is not None
        return end

    def _step(self, position: int, size: int, skipped: SkippedRanges) -> PackStep:
        try:
            return self.packer.step(position, size, self.topology.tail, skipped)
        except ValueError as error:
            left_out = f"; sequences that are left out: {self.skipped}" if self.skipped else ""
            raise DataError(f"{error}{left_out}") from error

    def _work(self, step: PackStep) -> BatchWork:
        of = self.topology
        sorted_by = self._sorted_by(step)
        taken, mask, weight = take_weighted(sorted_by, step.mask, of.rank, of.world, of.uneven)
        packs = [step.packs[number] for number in taken.tolist()]
        positions, rows = _documents(packs)
        places = self.stream.locate(positions)
        pieces = _pieces(packs, rows, self.counts.at(places))
        if isinstance(self.stream, MixedStream):  # of one dataset, too: others may be added
            pieces = pieces._replace(step_tokens=self._tokens_by_dataset(step))
        return BatchWork(RankShare(positions, mask, float(weight), step.after), places, pieces)

    def _sorted_by(self, step: PackStep) -> Ints:
        """Return the numbers by which the packs of a step are sorted before ranks take them."""
        packing = self.packing
        if packing.balance is None:
            return np.array([pack.stream for pack in step.packs])
        costs = np.array([attention_cost(pack.lengths, packing.length) for pack in step.packs])
        return np.argsort(balanced_order(costs, self.topology.world, packing.micro_batch))

    def _tokens_by_dataset(self, step: PackStep) -> tuple[int, ...]:
        """Return the tokens of a step of each dataset, over all ranks."""
        real = [pack for pack, is_real in zip(step.packs, step.mask, strict=True) if is_real]
        datasets = self.stream.locate(_joined([pack.positions for pack in real])).datasets
        tokens = np.zeros(len(self.stream.datasets), np.int64)
        np.add.at(tokens, datasets, _joined([pack.lengths for pack in real]))
        return tuple(tokens.tolist())


def _lasting(stream: SampleStream) -> list[int]:
    """Return the numbers of the datasets that have a weight at the end of a stream."""
    if not isinstance(stream, MixedStream):
        return list(range(len(stream.datasets)))
    return [number for number, part in enumerate(stream.mixture.segments[-1].parts) if part]


def _packer(stream: SampleStream, counts: TokenCounts, packing: Packing) -> SequencePacker:
    manifest = stream.datasets[0].manifest
    return SequencePacker(
        stream,
        counts,
        length=packing.length,
        block=packing.block,
        long=packing.long,
        borders=stream.borders,
        versions=[
            (one.begin, one.epoch, int(manifest.samples[: one.shards].sum()))
            for one in stream.versions
        ],
    )


def _documents(packs: list[SequencePack]) -> tuple[Ints, Ints]:
    """Return (positions of the documents, each once, in order of appearance; the document of each
    piece)."""
    every = _joined([pack.positions for pack in packs])
    distinct, first, which = np.unique(every, return_index=True, return_inverse=True)
    come = np.argsort(first)
    return distinct[come], np.argsort(come)[which]


def _pieces(packs: list[SequencePack], rows: Ints, tokens: Ints) -> PackedPieces:
    return PackedPieces(
        packs=len(packs),
        pack=np.repeat(np.arange(len(packs)), [pack.positions.size for pack in packs]).tolist(),
        row=rows.tolist(),
        start=_joined([pack.starts for pack in packs]).tolist(),
        length=_joined([pack.lengths for pack in packs]).tolist(),
        tokens=tokens.tolist(),
    )


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
