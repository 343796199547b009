"""Which chunks of a step are fetched."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checkpointing.codec import Codec
from checkpointing.follower.chunk_plan import (
    Slot,
    WantedChunk,
    changed_names,
    missing_bases,
    plan_chunks,
)
from checkpointing.format.chunks import Chunk
from checkpointing.format.tiles import Box

BOX = Box((0,), (4,))


def chunk(number: int, base: Chunk | None = None) -> Chunk:
    return Chunk(bytes([number]) * 32, bytes(16), number, 4, 16, Codec.RAW, 0, base)


def want(name: str, number: int, base: Chunk | None = None) -> WantedChunk:
    return WantedChunk(name, BOX, chunk(number, base), "float32")


def slots(**ids: int) -> dict[Slot, bytes]:
    return {(name, BOX): bytes([number]) * 32 for name, number in ids.items()}


def test_each_chunk_comes_from_the_nearest_place() -> None:
    wanted = [want("a", 1), want("b", 2), want("c", 3), want("d", 4), want("e", 5)]
    plan = plan_chunks(
        wanted,
        target=slots(a=1, b=9),
        held=slots(a=1, b=2, x=3),
        raw=[slots(c=4), slots(d=4, e=4)],
    )
    assert [one.name for one in plan.kept] == ["a"]
    assert [(one.name, slot[0]) for one, slot in plan.copied] == [("b", "b"), ("c", "x")]
    assert [one.name for one in plan.raw] == ["d"]
    assert [one.name for one in plan.fetched] == ["e"]


def test_bases_are_missing_unless_they_are_in_the_same_slot() -> None:
    base = chunk(7)
    fetched = [want("a", 1, base), want("b", 2, base), want("c", 3)]
    missing = missing_bases(fetched, slots(a=7, c=7))
    assert [(one.name, one.chunk) for one in missing] == [("b", base)]


def test_changed_are_tensors_of_which_a_chunk_differs() -> None:
    wanted = [want("a", 1), want("b", 2), want("c", 3)]
    assert changed_names(wanted, slots(a=1, b=9)) == ["b", "c"]
    assert changed_names(wanted, {}) == ["a", "b", "c"]


NUMBERS = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 5))


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_every_chunk_is_planned_once_and_nothing_held_is_fetched(
    wanted: dict[str, int], target: dict[str, int], held: dict[str, int], raw: dict[str, int]
) -> None:
    plan = plan_chunks(
        [want(name, number) for name, number in wanted.items()],
        target=slots(**target),
        held=slots(**held),
        raw=[slots(**raw)],
    )
    planned = [*plan.kept, *(one for one, _ in plan.copied), *plan.raw, *plan.fetched]
    assert sorted(one.name for one in planned) == sorted(wanted)
    for one in plan.fetched:
        number = wanted[one.name]
        assert number not in held.values()
        assert number not in (target.get(one.name), raw.get(one.name))
