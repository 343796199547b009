"""Finds the rank that computes wrongly, from fingerprints of gradients that several ranks have
computed from the same micro-batches. Pure.

The ranks with the same part of the model form a ring, in which each has a place. With shift s, the
rank at place p computes the micro-batch of place p - s: shift 0 is its own, shift 1 that of the
rank before it. So every micro-batch is computed on two ranks, and after a difference on three.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Digests = Sequence[Sequence[int]]
"""A digest of all gradients, by place and shift."""


class Computation(NamedTuple):
    """One computation of the gradients of a micro-batch."""

    place: int
    """The place of the rank that computed it."""
    shift: int
    is_repeated: bool
    """Whether it is of the second pass."""


@dataclass(frozen=True)
class Fault:
    """Ranks whose gradients were wrong."""

    places: tuple[int, ...]
    """One place; or several, if it is not known which of them was wrong."""
    is_persistent: bool
    """Whether the gradients were wrong again when they were computed once more."""
    wrong: Computation
    """A computation of wrong gradients."""
    right: Computation
    """One of the same micro-batch with other gradients."""


def differs(first: Digests) -> bool:
    """Return whether two ranks have computed different gradients from one micro-batch."""
    return any(mine[1] != first[place - 1][0] for place, mine in enumerate(first))


def is_noisy(first: Digests, again: Digests) -> bool:
    """Return whether gradients differ from one computation to the next on most ranks, so that it is
    the kernels that are not deterministic, and not a rank that is wrong."""
    return 2 * len(_unstable(first, again)) > len(first)


def find_faults(first: Digests, again: Digests) -> list[Fault]:
    """Return the faults of the ranks of one ring.

    Args:
        first: of the first pass, with the shifts 0 and 1.
        again: of the second pass, with shift 2 too if the ring has three ranks or more.
    """
    by_owner = _by_owner(first, again)
    right = {owner: _majority(found) for owner, found in by_owner.items()}
    wrong: dict[int, list[tuple[Computation, Computation]]] = defaultdict(list)
    unknown: list[dict[Computation, int]] = []
    for owner, found in by_owner.items():
        if (value := right[owner]) is None:
            unknown.append(found)
            continue
        reference = next(one for one, digest in found.items() if digest == value)
        for one, digest in found.items():
            if digest != value:
                wrong[one.place].append((one, reference))
    faults = [_fault_at(place, wrong[place]) for place in sorted(wrong)]
    unstable = _unstable(first, again)
    for found in unknown:
        places = tuple(sorted({one.place for one in found}))
        if any(fault.places[0] in places for fault in faults):
            continue  # its micro-batches that others have computed, too, have named it
        named = tuple(place for place in places if place in unstable)
        chosen = named if len(named) == 1 else places
        faults.append(Fault(chosen, True, *_unlike(found, chosen[0])))
    return faults


def find_faults_in_band(exceeds: Sequence[bool]) -> list[tuple[int, ...]]:
    """Return the places of faults, where differences are compared with a band; several places if it
    is not known which of them was wrong.

    Args:
        exceeds: for each place, whether its gradients of the micro-batch of the place before it
            differ by more than the band from those of their owner.
    """
    count = len(exceeds)
    pairs = [place for place, one in enumerate(exceeds) if one]
    if count < 3:
        return [tuple(range(count))] if pairs else []
    named = [place for place in pairs if exceeds[(place + 1) % count]]
    covered = {one % count for place in named for one in (place, place + 1)}
    others = [tuple(sorted(((p - 1) % count, p))) for p in pairs if p not in covered]
    return [*((place,) for place in named), *others]


def _by_owner(first: Digests, again: Digests) -> dict[int, dict[Computation, int]]:
    found: dict[int, dict[Computation, int]] = {owner: {} for owner in range(len(first))}
    for is_repeated, digests in ((False, first), (True, again)):
        for place, mine in enumerate(digests):
            for shift, digest in enumerate(mine):
                owner = (place - shift) % len(first)
                found[owner][Computation(place, shift, is_repeated)] = digest
    return found


def _majority(found: dict[Computation, int]) -> int | None:
    """Return the digest that more places have computed than any other one, and at least two."""
    places: dict[int, set[int]] = defaultdict(set)
    for one, digest in found.items():
        places[digest].add(one.place)
    ordered = sorted(places, key=lambda digest: -len(places[digest]))
    most = len(places[ordered[0]])
    is_equalled = len(ordered) > 1 and len(places[ordered[1]]) == most
    return None if most < 2 or is_equalled else ordered[0]


def _fault_at(place: int, wrong: Sequence[tuple[Computation, Computation]]) -> Fault:
    passes = {one.is_repeated for one, _ in wrong}
    return Fault((place,), len(passes) == 2, *wrong[0])


def _unlike(found: dict[Computation, int], place: int) -> tuple[Computation, Computation]:
    """Return a computation of `place`, and one of another place with other gradients."""
    pairs: Iterator[tuple[Computation, Computation]] = (
        (one, other)
        for one in found
        for other in found
        if one.place == place != other.place and found[one] != found[other]
    )
    return next(pairs)


def _unstable(first: Digests, again: Digests) -> set[int]:
    """Return the places with other gradients in the second pass than in the first."""
    pairs = zip(first, again, strict=True)
    return {place for place, (a, b) in enumerate(pairs) if list(a) != list(b[: len(a)])}
