"""The sentence that says what a hang comes from: who waits, in which collective, and who has not
entered it, with rank, host and line. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hpckit.hangs.culprit_search import HangCause, HangFinding
from hpckit.hangs.hang_snapshot import CollectiveCall, HangSnapshot, ProcessState
from hpckit.hangs.stack_groups import (
    RankActivity,
    StackGroup,
    hosts_in_words,
    place_of_stack,
    program_line,
    ranks_in_words,
)

MOST_GROUPS = 4
"""Groups of ranks that a sentence names."""
_STATES = {
    ProcessState.STOPPED: "stopped by a signal or a debugger",
    ProcessState.UNINTERRUPTIBLE: "in the kernel and handles no signal (state D)",
    ProcessState.ENDED: "no longer running",
    ProcessState.UNREACHABLE: "on a node that has not answered",
}


def describe_finding(finding: HangFinding) -> str:
    """Returns the sentence for a finding."""
    groups = list(finding.groups)
    named, waiting = set(finding.culprits), set(finding.waiting)
    if finding.cause is HangCause.MISMATCH:
        return _mismatch(finding)
    if finding.cause is HangCause.TRANSFER:
        return _transfer(groups[0])
    of_culprits = [part for one in groups if (part := one.among(named))]
    of_waiting = [part for one in groups if (part := one.among(waiting))]
    if finding.cause is HangCause.SLOW:
        return _slow(of_culprits)
    if not named:
        return f"{_CAUSES[finding.cause]}: {_listed(groups)}"
    if finding.cause is HangCause.CYCLE:
        return f"{_cycle(of_culprits)}: {_listed(groups)}"
    is_entered = any(one.sample.call or one.sample.pending for one in of_waiting)
    culprits = "; ".join(_culprit(one, is_entered) for one in of_culprits[:MOST_GROUPS])
    if not of_waiting:
        return f"{culprits}; no rank is known to wait for another"
    return f"{_listed(of_waiting, _waits)}; {culprits}"


def _cycle(culprits: Sequence[StackGroup]) -> str:
    who = "; ".join(f"{_who(one)}{hosts_in_words(one.hosts)}" for one in culprits)
    return f"ranks wait for each other, in another order than most: {who}"


_CAUSES = {
    HangCause.CYCLE: "ranks wait for each other, and the order of no majority is known",
    HangCause.UNKNOWN: "the rank that the others wait for is unknown",
}


def _listed(groups: Sequence[StackGroup], words: Callable[[StackGroup], str] | None = None) -> str:
    parts = [(words or _doing)(one) for one in groups[:MOST_GROUPS]]
    if len(groups) > MOST_GROUPS:
        rest = sum(len(one.ranks) for one in groups[MOST_GROUPS:])
        parts.append(f"{rest} further ranks are at {len(groups) - MOST_GROUPS} other places")
    return "; ".join(parts)


def _waits(group: StackGroup) -> str:
    """Returns what a group waits for, whose ranks wait for others."""
    sample = group.sample
    if sample.call is not None or sample.pending is None:
        return _doing(group)
    verb = "waits" if len(group.ranks) == 1 else "wait"
    place = place_of_stack(sample.frames)
    at = f" in {place}" if place else ""
    return f"{_who(group)} {verb}{at} for {_in_words(sample, sample.pending)}"


def _who(group: StackGroup) -> str:
    count = len(group.ranks)
    words = ranks_in_words(group.ranks)
    return words if count == 1 else f"{count} ranks ({words.removeprefix('ranks ')})"


def _doing(group: StackGroup) -> str:
    is_one = len(group.ranks) == 1
    sample, who = group.sample, _who(group)
    if group.activity is RankActivity.COLLECTIVE and sample.call is not None:
        verb = "waits" if is_one else "wait"
        return f"{who} {verb} in {call_in_words(sample)}{_at(sample)}"
    return f"{who}{hosts_in_words(group.hosts)} {_state(group)}"


def _state(group: StackGroup) -> str:
    sample = group.sample
    verb = "is" if len(group.ranks) == 1 else "are"
    place = place_of_stack(sample.frames)
    if sample.state is not ProcessState.ALIVE:
        return f"{verb} {_STATES[sample.state]}" + (f", in {place}" if place else "")
    if sample.call is not None:
        return f"{verb} in {call_in_words(sample)}{_at(sample)}"
    return f"{verb} in {place}" if place else f"{verb} at an unknown place"


def _culprit(group: StackGroup, is_entered_by_others: bool) -> str:
    who, state = f"{_who(group)}{hosts_in_words(group.hosts)}", _state(group)
    notes = f" ({'; '.join(group.sample.notes[:3])})" if group.sample.notes else ""
    if not is_entered_by_others:
        return f"{who} {state}{notes}"
    if len(group.ranks) == 1:
        return f"{who} has not entered it: it {state}{notes}"
    return f"{who} have not entered it: they {state}{notes}"


def call_in_words(rank: HangSnapshot) -> str:
    """Returns the collective that a rank is in, in words, such as
    `all_reduce #5123 of group tp3 (float32[4096])`."""
    assert rank.call is not None
    return _in_words(rank, rank.call)


def _in_words(rank: HangSnapshot, call: CollectiveCall) -> str:
    group = rank.group_of(call)
    number = f" #{group.sequence}" if group is not None and group.sequence is not None else ""
    if call.peer is not None:
        number = f" with rank {call.peer}"
    size = f" ({call.size})" if call.size else ""
    return f"{call.operation}{number} of group {_group_name(rank, call)}{size}"


def _group_name(rank: HangSnapshot, call: CollectiveCall) -> str:
    group = rank.group_of(call)
    return (group.description if group is not None else "") or call.group or "unknown"


def _at(rank: HangSnapshot) -> str:
    line = program_line(rank.frames)
    return f" at {line}" if line else ""


def _mismatch(finding: HangFinding) -> str:
    found = finding.mismatch
    assert found is not None
    ranks = {rank: one.sample for one in finding.groups for rank in one.ranks}
    hosts = {rank: one.hosts for one in finding.groups for rank in one.ranks}
    by_call: dict[tuple[str, str | None], list[int]] = {}
    for rank, call in found.calls.items():
        by_call.setdefault(call.identity, []).append(rank)
    parts = []
    for alike in sorted(by_call.values(), key=lambda one: (-len(one), one)):
        call = next((found.calls[r] for r in alike if found.calls[r].place), found.calls[alike[0]])
        size = f" ({call.size})" if call.size else ""
        at = f" at {call.place}" if call.place else ""
        is_odd = bool(found.odd & set(alike))
        where = hosts_in_words(hosts.get(alike[0], ())) if is_odd and len(alike) == 1 else ""
        verb = "has" if len(alike) == 1 else "have"
        parts.append(f"{ranks_in_words(alike)}{where} {verb} entered {call.operation}{size}{at}")
    name = _name_of_group(found.group, ranks)
    head = f"ranks disagree on collective #{found.sequence} of group {name}"
    tail = "" if found.odd else "; no majority shows which of them is wrong"
    return f"{head}: {'; '.join(parts[:MOST_GROUPS])}{tail}"


def _name_of_group(name: str, ranks: Mapping[int, HangSnapshot]) -> str:
    groups = (group for one in ranks.values() for group in one.groups or ())
    return next((one.description for one in groups if one.name == name and one.description), name)


def _transfer(group: StackGroup) -> str:
    notes = "; ".join(group.sample.notes[:2])
    return (
        f"all ranks have entered {call_in_words(group.sample)}{_at(group.sample)}, and it does not "
        f"end: the network between them, or the GPUs, do not transfer"
        f"{f' ({notes})' if notes else ''}"
    )


def _slow(culprits: Sequence[StackGroup]) -> str:
    text = "no rank hangs: ranks have advanced since the limit was exceeded"
    if culprits:
        text += (
            f"; the others waited for {_listed(culprits).replace(' is in', ', which was in', 1)}"
        )
    return f"{text}; a longer hang.step_s, or a faster step, avoids this"
