"""Finds the first collective of a process group in which ranks disagree, by what torch has recorded
of each rank and by the calls that they are in. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from hpckit.hangs.hang_snapshot import GroupKey, HangSnapshot
from hpckit.hangs.stack_groups import program_line

_SAME_SIZE = frozenset(
    (
        *("all_reduce", "broadcast", "reduce", "all_gather_into_tensor"),
        *("reduce_scatter_tensor", "_allgather_base", "_reduce_scatter_base"),
    )
)
"""Collectives in which all ranks have tensors of one size."""


@dataclass(frozen=True)
class EnteredCall:
    """The collective that a rank has entered with a number in a group."""

    operation: str
    size: str | None
    place: str | None
    """The line of the program; None: unknown, as it has returned from it."""

    @property
    def identity(self) -> tuple[str, str | None]:
        """What has to be equal on all ranks."""
        return self.operation, self.size if self.operation in _SAME_SIZE else None


@dataclass(frozen=True)
class CollectiveMismatch:
    """A collective in which ranks of a group disagree."""

    group: str
    sequence: int
    calls: Mapping[int, EnteredCall]
    """What each rank has entered, by rank."""
    odd: frozenset[int]
    """The ranks that differ from most others; empty: there is no majority."""


def find_mismatch(ranks: Iterable[HangSnapshot]) -> CollectiveMismatch | None:
    """Returns the first collective, by its number, in which ranks disagree; None: they agree as far
    as is known."""
    entered: dict[tuple[GroupKey, int], dict[int, EnteredCall]] = {}
    steps = {}
    for rank in ranks:
        steps[rank.rank] = rank.step
        for key, call in entered_calls(rank).items():
            entered.setdefault(key, {})[rank.rank] = call
    for (group, sequence), calls in sorted(entered.items(), key=lambda one: one[0][1]):
        if len({call.identity for call in calls.values()}) > 1:
            odd = _odd({rank: call.identity for rank, call in calls.items()}, steps)
            return CollectiveMismatch(group[0], sequence, calls, odd)
    return None


def entered_calls(rank: HangSnapshot) -> dict[tuple[GroupKey, int], EnteredCall]:
    """Returns the collectives that a rank is known to have entered, by group and number."""
    found = {
        (group.key, one.sequence): EnteredCall(one.operation, one.size, None)
        for group in rank.groups or ()
        for one in group.records
    }
    group, call = rank.group_of_call, rank.call
    if call is None or group is None or group.sequence is None or call.peer is not None:
        return found
    recorded = found.get((group.key, group.sequence))
    place = program_line(rank.frames)
    if recorded is not None:  # its names are those of the backend, on all ranks
        found[group.key, group.sequence] = replace(recorded, place=place)
    else:
        found[group.key, group.sequence] = EnteredCall(call.operation, call.size, place)
    return found


def _odd(identities: Mapping[int, object], steps: Mapping[int, int]) -> frozenset[int]:
    """Returns the ranks without the identity that more than half of them have; without such a
    majority, those that are ahead of all others by whole steps."""
    most, count = Counter(identities.values()).most_common(1)[0]
    if 2 * count > len(identities):
        return frozenset(rank for rank, one in identities.items() if one != most)
    last = max(steps[rank] for rank in identities)
    ahead = {rank for rank in identities if steps[rank] == last}
    values = {identities[rank] for rank in ahead}
    others = {identities[rank] for rank in identities.keys() - ahead}
    return frozenset(ahead) if others and len(values) == 1 and not values & others else frozenset()
