"""Groups ranks by the likeness of their stacks, and says in words where a group is. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

from hpckit.hangs.hang_snapshot import (
    HangSnapshot,
    ProcessState,
    StackFrame,
    compressed,
)

MOST_RANGES = 6
"""Ranges of ranks, or hosts, that a sentence names."""
_LIBRARY = re.compile(
    r"/site-packages/|/dist-packages/|/lib/python3|^<|/hpckit/|/checkpointing/(?:ranks/|authent)"
)
_DISTRIBUTED = re.compile(r"/torch/distributed/(?!checkpoint/)")
_WRAPPER = "/torch/distributed/c10d_logger.py"


class RankActivity(StrEnum):
    """What a rank does, as far as its state and its stack show it."""

    COLLECTIVE = "collective"
    """It is in a collective."""
    WAITING = "waiting"
    """It is in another function of torch.distributed, which waits for other ranks."""
    ELSEWHERE = "elsewhere"
    """It is in code that waits for no rank, as far as is known."""
    STUCK = "stuck"
    """Its process is stopped, waits in the kernel, has ended or does not answer from its node."""
    UNKNOWN = "unknown"
    """Nothing is known of its stack."""


def activity_of(rank: HangSnapshot) -> RankActivity:
    """Returns what a rank does."""
    if rank.state is not ProcessState.ALIVE:
        return RankActivity.STUCK
    if rank.call is not None:
        return RankActivity.COLLECTIVE
    if not rank.frames:
        return RankActivity.UNKNOWN
    inner = next((one for one in rank.frames if not one.file.endswith(_WRAPPER)), rank.frames[0])
    is_of_torch = _DISTRIBUTED.search(inner.file) is not None
    return RankActivity.WAITING if is_of_torch else RankActivity.ELSEWHERE


@dataclass(frozen=True)
class StackGroup:
    """Ranks that do the same at the same place."""

    members: tuple[HangSnapshot, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(one.rank for one in self.members)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted({one.host for one in self.members if one.host}))

    @property
    def sample(self) -> HangSnapshot:
        """One of these ranks."""
        return self.members[0]

    @property
    def activity(self) -> RankActivity:
        return activity_of(self.sample)

    def among(self, ranks: Collection[int]) -> StackGroup | None:
        """Returns the members that are in `ranks`; None: there is none."""
        members = tuple(one for one in self.members if one.rank in ranks)
        return StackGroup(members) if members else None


def group_ranks(ranks: Iterable[HangSnapshot]) -> list[StackGroup]:
    """Returns the ranks by likeness, the largest group first. Ranks are alike if they have the same
    state and their stacks have the same functions, and the same lines in the program."""
    found: dict[object, list[HangSnapshot]] = {}
    for rank in ranks:
        found.setdefault(_likeness(rank), []).append(rank)
    groups = [
        StackGroup(tuple(sorted(alike, key=lambda one: one.rank))) for alike in found.values()
    ]
    return sorted(groups, key=lambda one: (-len(one.members), one.ranks))


def _likeness(rank: HangSnapshot) -> object:
    call = (rank.call.operation, rank.call.group, rank.call.peer) if rank.call else None
    frames = tuple(
        (one.file, one.function, 0 if is_library(one) else one.line) for one in rank.frames
    )
    pending = (rank.pending.operation, rank.pending.group) if rank.pending else None
    return rank.state, call, pending, frames


def is_library(frame: StackFrame) -> bool:
    """Returns whether a frame belongs to Python, an installed package or hpckit, and not to the
    program."""
    return _LIBRARY.search(frame.file) is not None


def place_of_stack(frames: Sequence[StackFrame]) -> str | None:
    """Returns where a stack is, in words: the innermost line of the program, and the functions of
    libraries that it has called; None for an empty stack."""
    if not frames:
        return None
    inner = frames[0]
    number = next((n for n, one in enumerate(frames) if not is_library(one)), None)
    if number is None:
        return f"{inner.function}, {_name(inner)}"
    own = frames[number]
    text = f"{own.function}, {_name(own)}"
    if number == 0:
        return text
    called = frames[number - 1]
    chain = "" if called is inner else f"{called.function}, in it "
    return f"{text} ({chain}{inner.function}, {_name(inner)})"


def program_line(frames: Sequence[StackFrame]) -> str | None:
    """Returns the innermost line of the program in a stack, such as `train.py:31`; of a stack
    without one, the innermost line outside of torch.distributed."""
    own = next((one for one in frames if not is_library(one)), None)
    if own is None:
        own = next((one for one in frames if not _DISTRIBUTED.search(one.file)), None)
    return None if own is None else _name(own)


def _name(frame: StackFrame) -> str:
    return f"{PurePath(frame.file).name}:{frame.line}"


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Returns ranks in words, such as `rank 3` or `ranks 0-2, 4`."""
    parts = []
    for start, stop, step in compressed(ranks):
        last = stop - step
        if start == last:
            parts.append(str(start))
        elif last == start + step:
            parts += [str(start), str(last)]
        else:
            parts.append(f"{start}-{last}" + (f" by {step}" if step > 1 else ""))
    shown = ", ".join(parts[:MOST_RANGES]) + (", ..." if len(parts) > MOST_RANGES else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def hosts_in_words(hosts: Sequence[str]) -> str:
    """Returns hosts in words, with a space before them; empty if none is known."""
    if not hosts:
        return ""
    if len(hosts) > MOST_RANGES:
        return f" on {len(hosts)} hosts"
    return f" on {', '.join(hosts)}"
