"""Decides which chunks of a step a follower has, and which it fetches: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from checkpointing.format.chunks import Chunk
from checkpointing.format.tiles import Box

Slot = tuple[str, Box]  # full name of a tensor, and a box of it
ChunkIds = Mapping[Slot, bytes]  # the id of the content that an image has in each slot


@dataclass(frozen=True)
class WantedChunk:
    """A chunk of the step that is taken."""

    name: str  # full name of its tensor
    box: Box
    chunk: Chunk
    dtype: str  # as stored

    @property
    def slot(self) -> Slot:
        return self.name, self.box


@dataclass
class ChunkPlan:
    """What is done for each chunk of a step."""

    kept: list[WantedChunk] = field(default_factory=list)  # the new image has it already
    # the slot of the held image from which it is copied
    copied: list[tuple[WantedChunk, Slot]] = field(default_factory=list)
    raw: list[WantedChunk] = field(default_factory=list)  # copied from its slot of a raw image
    fetched: list[WantedChunk] = field(default_factory=list)


def plan_chunks(
    wanted: Iterable[WantedChunk],
    *,
    target: ChunkIds,
    held: ChunkIds,
    raw: Sequence[ChunkIds] = (),
) -> ChunkPlan:
    """Divide the chunks of a step by where their content comes from.

    Args:
        target: what the image that is made contains.
        held: what the image of the step before contains. Content is found there wherever it is,
            since a tensor may have been renamed or be stored under two names.
        raw: what other images contain, of which only the same slot is looked at: they are changed
            while the step is made.
    """
    plan = ChunkPlan()
    where: dict[bytes, Slot] = {id_: slot for slot, id_ in held.items()}
    for want in wanted:
        id_ = want.chunk.id
        if target.get(want.slot) == id_:
            plan.kept.append(want)
        elif held.get(want.slot) == id_:
            plan.copied.append((want, want.slot))
        elif id_ in where:
            plan.copied.append((want, where[id_]))
        elif any(ids.get(want.slot) == id_ for ids in raw):
            plan.raw.append(want)
        else:
            plan.fetched.append(want)
    return plan


def missing_bases(fetched: Iterable[WantedChunk], bases: ChunkIds) -> list[WantedChunk]:
    """Return the bases that the chunks need and that are not among `bases`, each in the slot of the
    chunk that needs it."""
    found = []
    for want in fetched:
        base = want.chunk.base
        if base is not None and bases.get(want.slot) != base.id:
            found.append(WantedChunk(want.name, want.box, base, want.dtype))
    return found


def changed_names(wanted: Iterable[WantedChunk], before: ChunkIds) -> list[str]:
    """Return the tensors of which a chunk differs from what `before` has in its slot, in order."""
    changed = {want.name: None for want in wanted if before.get(want.slot) != want.chunk.id}
    return list(changed)
