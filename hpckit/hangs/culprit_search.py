"""Decides which ranks the others wait for at a hang, from the snapshots of all ranks. Pure.

A rank waits for the members of its process group that have entered fewer collectives of it. The
ranks that are waited for and wait for nobody are the culprits. A rank is named only if the
snapshots show it; else the cause is unknown, and the groups of ranks are all that is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from hpckit.hangs.collective_mismatch import CollectiveMismatch, find_mismatch
from hpckit.hangs.hang_snapshot import (
    GroupKey,
    HangSnapshot,
    ProcessGroupState,
    ProcessState,
    expanded,
)
from hpckit.hangs.stack_groups import RankActivity, StackGroup, activity_of, group_ranks

_WAITS = (RankActivity.COLLECTIVE, RankActivity.WAITING)


class HangCause(StrEnum):
    """What a hang comes from."""

    STUCK = "stuck"
    """Ranks are stuck, and the others wait for them in a collective."""
    MISMATCH = "mismatch"
    """Ranks have entered different collectives of one group under the same number."""
    CYCLE = "cycle"
    """Ranks wait for each other in different groups."""
    TRANSFER = "transfer"
    """All ranks have entered the same collective, which does not end."""
    SLOW = "slow"
    """Ranks advance: none of them hangs."""
    UNKNOWN = "unknown"
    """What is known does not show it."""


@dataclass(frozen=True)
class HangFinding:
    """What a hang comes from, as far as the snapshots show it."""

    cause: HangCause
    culprits: tuple[int, ...]
    """The ranks that the others wait for; empty: unknown, or none."""
    waiting: tuple[int, ...]
    """The ranks that wait for others."""
    groups: tuple[StackGroup, ...]
    """All ranks by the likeness of their stacks."""
    mismatch: CollectiveMismatch | None = None


def find_culprits(snapshots: Sequence[HangSnapshot], world_size: int) -> HangFinding:
    """Returns what a hang comes from.

    Args:
        snapshots: those of the ranks whose nodes have answered.
        world_size: the number of ranks of the generation.
    """
    ranks = {one.rank: one for one in snapshots}
    for rank in range(world_size):
        ranks.setdefault(rank, HangSnapshot(rank, "", ProcessState.UNREACHABLE))
    search = _CulpritSearch(ranks)
    found = search.find()
    return replace(found, groups=tuple(group_ranks(ranks[one] for one in sorted(ranks))))


class _CulpritSearch:
    def __init__(self, ranks: Mapping[int, HangSnapshot]) -> None:
        self._ranks = ranks
        self._activity = {rank: activity_of(one) for rank, one in ranks.items()}
        self._groups = _states_by_group(ranks.values())
        self._last = {
            key: max((one.sequence or 0 for one in states.values()), default=0)
            for key, states in self._groups.items()
        }
        self._late = {key: frozenset(self._late_of(key)) for key in self._groups}
        self._in_torch = frozenset(
            rank for rank, activity in self._activity.items() if activity in _WAITS
        )
        self._outside = frozenset(ranks.keys() - self._in_torch)
        self._later: dict[tuple[GroupKey, int], frozenset[int]] = {}  # by a number of collectives
        self._awaited = {rank: self._awaited_by(rank) for rank in ranks}

    def find(self) -> HangFinding:
        if self._is_advancing():
            return self._finding(HangCause.SLOW, self._roots())
        culprits = self._strongest(self._roots())
        mismatch = find_mismatch(self._ranks.values())
        if mismatch is not None and not self._are_stuck(culprits):
            return replace(self._finding(HangCause.MISMATCH, mismatch.odd), mismatch=mismatch)
        if culprits:
            return self._finding(HangCause.STUCK, culprits)
        waiting = {rank for rank, awaited in self._awaited.items() if awaited}
        if waiting and all(self._awaited[rank] for one in waiting for rank in self._awaited[one]):
            return self._finding(HangCause.CYCLE, self._minority(waiting))
        if not self._in_torch:
            return self._nobody_waits()
        if self._in_torch == self._ranks.keys() and self._is_one_call():
            return self._finding(HangCause.TRANSFER, ())
        return self._finding(HangCause.UNKNOWN, ())

    def _finding(self, cause: HangCause, culprits: Iterable[int]) -> HangFinding:
        named = frozenset(culprits)
        waiting = {rank for rank, awaited in self._awaited.items() if awaited}
        others = (waiting | self._in_torch) - named
        return HangFinding(cause, tuple(sorted(named)), tuple(sorted(others)), ())

    def _is_advancing(self) -> bool:
        """Returns whether ranks that were overdue have advanced, and each of the others waits for
        ranks."""
        overdue = {rank for rank, one in self._ranks.items() if one.is_overdue}
        advanced = {rank for rank in overdue if self._ranks[rank].has_advanced}
        is_stuck = self._are_stuck(self._ranks)
        return bool(advanced) and not is_stuck and overdue - advanced <= self._in_torch

    def _late_of(self, key: GroupKey) -> Iterator[int]:
        """Yields the members of a group that have not entered its newest collective, or are not
        known to have."""
        states = self._groups[key]
        if all(one.sequence is None for one in states.values()):
            return
        for rank in expanded(key[1]) & self._ranks.keys():
            state = states.get(rank)
            if state is None or _is_below(state, self._last[key]):
                yield rank

    def _awaited_by(self, rank: int) -> frozenset[int]:
        """Returns the ranks that this one waits for."""
        snapshot, activity = self._ranks[rank], self._activity[rank]
        if activity in (RankActivity.STUCK, RankActivity.UNKNOWN):
            return frozenset()
        if snapshot.call is not None:
            if snapshot.call.peer is not None:
                return frozenset({snapshot.call.peer} & self._ranks.keys())
            if (group := snapshot.group_of_call) is not None:
                return self._later_than(rank, group.key)
        if activity is RankActivity.ELSEWHERE and not self._is_ahead(rank):
            return frozenset()
        if activity in _WAITS and not self._groups:
            return self._outside
        parts = {self._later_than(rank, group.key) for group in snapshot.groups or ()}
        return parts.pop() if len(parts) == 1 else frozenset().union(*parts)

    def _later_than(self, rank: int, key: GroupKey) -> frozenset[int]:
        """Returns the members of a group that have entered fewer of its collectives than `rank`, or
        are not known to have entered as many."""
        states = self._groups[key]
        state = states.get(rank)
        if state is None or state.sequence is None:
            return frozenset()
        sequence = state.sequence
        if sequence == self._last[key]:
            return self._late[key]
        if (key, sequence) not in self._later:  # once for all ranks, of which there are thousands
            self._later[key, sequence] = frozenset(
                one
                for one in self._late[key]
                if one not in states or _is_below(states[one], sequence)
            )
        return self._later[key, sequence]

    def _is_ahead(self, rank: int) -> bool:
        """Returns whether a rank that is in no function of torch.distributed waits nevertheless, as
        one that synchronizes with its GPU or computes gradients does: others are late in its
        groups, and it is late in none."""
        own = [late for g in self._ranks[rank].groups or () if (late := self._late[g.key])]
        return bool(own) and not any(rank in late for late in own)

    def _roots(self) -> set[int]:
        """Returns the ranks that others wait for and that wait for none, without those that wait
        for what is not known."""
        awaited = frozenset().union(*set(self._awaited.values()))
        return {rank for rank in awaited - self._in_torch if not self._awaited[rank]}

    def _strongest(self, roots: set[int]) -> set[int]:
        """Returns the ranks with the strongest sign of being stuck: those whose process is, then
        those that do not move."""
        stuck = {rank for rank in roots if self._activity[rank] is RankActivity.STUCK}
        if stuck:
            return stuck
        return {rank for rank in roots if not self._ranks[rank].is_moving} or roots

    def _are_stuck(self, ranks: Iterable[int]) -> bool:
        return any(self._activity[rank] is RankActivity.STUCK for rank in ranks)

    def _minority(self, waiting: set[int]) -> set[int]:
        """Returns the ranks that are not in the call that more than half of the waiting ones are
        in; empty if there is no such call."""
        calls: dict[object, set[int]] = {}
        for rank in waiting:
            call = self._ranks[rank].call
            key = (call.group, call.operation) if call is not None else None
            calls.setdefault(key, set()).add(rank)
        most = max(calls.values(), key=len)
        return waiting - most if 2 * len(most) > len(waiting) else set()

    def _nobody_waits(self) -> HangFinding:
        """Returns the finding if no rank is known to wait for another: ranks whose processes are
        stuck are named, and ranks that are all at the same place."""
        stuck = [rank for rank in self._ranks if self._activity[rank] is RankActivity.STUCK]
        if stuck:
            return self._finding(HangCause.STUCK, stuck)
        is_known = RankActivity.UNKNOWN not in self._activity.values()
        if is_known and len(group_ranks(self._ranks.values())) == 1:
            return self._finding(HangCause.STUCK, self._ranks)
        return self._finding(HangCause.UNKNOWN, ())

    def _is_one_call(self) -> bool:
        calls = {
            (c.group, c.operation) if (c := one.call) else None for one in self._ranks.values()
        }
        return len(calls) == 1 and None not in calls


def _is_below(state: ProcessGroupState, sequence: int) -> bool:
    return state.sequence is not None and state.sequence < sequence


def _states_by_group(
    ranks: Iterable[HangSnapshot],
) -> dict[GroupKey, dict[int, ProcessGroupState]]:
    found: dict[GroupKey, dict[int, ProcessGroupState]] = {}
    for rank in ranks:
        for group in rank.groups or ():
            found.setdefault(group.key, {})[rank.rank] = group
    return found
