"""How far each source of a mixture has been read, and how its weights have changed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from data.order.mixture_blocks import PARTS
from data.order.recurring_skips import MixedSkips
from data.order.skipped_ranges import SkippedRanges
from data.read.sample_stream import MixedStream


@dataclass(frozen=True)
class SourceProgress:
    """How far all ranks together have read one dataset of a mixture."""

    name: str
    """Its name, or its number if it has none."""
    weight: float
    """Its share of the samples that come next."""
    samples: int
    """The samples that were delivered; of packed documents, an estimate within a block."""
    epochs: float
    """These samples, divided by those of the dataset."""
    tokens: int | None
    """The tokens that were delivered; None: samples are not packed documents."""


@dataclass(frozen=True)
class MixtureChange:
    """A change of weights from a position on."""

    position: int
    """The position in the stream from which on the new weights are used."""
    before: dict[str, float]
    """The share of each source before, by name."""
    after: dict[str, float]
    """The share of each source from there on."""


def source_progress(
    stream: MixedStream,
    position: int,
    skipped: SkippedRanges,
    tokens: Sequence[int],
    ended: Collection[int] = (),
) -> tuple[SourceProgress, ...]:
    """Return the progress of each source at `position`, without what was left out before it.

    Args:
        ended: the numbers of the sources of which no sample comes any more.
    """
    counted_by = skipped if isinstance(skipped, MixedSkips) else stream.mixture
    read = counted_by.consumed(position)
    parts = stream.mixture.in_force(position).parts
    live = [0 if number in ended else part for number, part in enumerate(parts)]
    whole = sum(live) if ended and any(live) else PARTS
    counted = [*tokens, *[0] * (len(stream.datasets) - len(tokens))] if tokens else None
    return tuple(
        SourceProgress(
            name,
            part / whole,
            count,
            count / len(stream.datasets[number]),
            None if counted is None else counted[number],
        )
        for number, (name, part, count) in enumerate(
            zip(
                names_of(stream),
                live,
                read.tolist(),
                strict=True,
            )
        )
    )


def change_of(stream: MixedStream) -> MixtureChange | None:
    """Return the change of weights with which `stream` continues from a state; None: it has
    none."""
    if stream.changed is None:
        return None
    before, after = stream.changed
    return MixtureChange(after.position, shares(stream, before.parts), shares(stream, after.parts))


def shares(stream: MixedStream, parts: Sequence[int]) -> dict[str, float]:
    """Return the share of each source, by name."""
    return {name: part / PARTS for name, part in zip(names_of(stream), parts, strict=True)}


def names_of(stream: MixedStream) -> Sequence[str]:
    """Return the name of each source, or its number if it has none."""
    return stream.names or [str(number) for number in range(len(stream.datasets))]
