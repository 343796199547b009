"""Collects the snapshots of a node's ranks within a bounded time, also of those that cannot answer.

Each rank is asked twice, so that what moves differs from what does not. A rank that does not answer
writes its stacks by faulthandler or py-spy; one that cannot do that either, such as a stopped one,
is described by what the kernel says about it.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpckit.agent.hangs import process_facts as facts
from hpckit.agent.hangs import stack_dumps
from hpckit.agent.hangs.process_facts import ProcessFacts
from hpckit.hangs import hang_snapshot, stack_text
from hpckit.hangs.hang_snapshot import HangSnapshot, ProcessState, StackFrame
from hpckit.ipc.heartbeat_table import Heartbeat
from hpckit.ipc.snapshot_exchange import SnapshotExchange

log = logging.getLogger(__name__)

ANSWER_S = 3.0
"""Seconds for ranks to answer a question."""
SECOND_LOOK_S = 2.0
"""Seconds between two looks."""
_POLL_S = 0.02
_MOST_TEXT = 200_000
"""Characters of written stacks that are read."""
_CHILD_PROGRAM = ("hpckit/trainer/user_program.py", "_run_child")
"""File and function in which a worker waits for a program that is a child process."""
_BUSY = 0.8
"""Share of the time from which on a thread counts as one that computes."""


@dataclass(frozen=True)
class _Look:
    """What is known of a rank at one moment."""

    at_s: float
    facts: ProcessFacts
    answer: Mapping[str, Any] | None
    """What the rank has answered; None: nothing that can be read."""

    @property
    def frames(self) -> tuple[StackFrame, ...]:
        threads = (self.answer or {}).get("threads", ())
        main = next((one["frames"] for one in threads if one["is_main"]), ())
        return hang_snapshot.load_frames(main)

    @property
    def entered(self) -> dict[str, int]:
        """The number of collectives that torch has counted by process group."""
        groups = (self.answer or {}).get("groups") or ()
        return {one["name"]: one["entered"] for one in groups if one["entered"] is not None}


class SnapshotCollector:
    """Collects the snapshots of the workers of one node.

    Args:
        first_rank: the rank of the node's first worker.
        logs: where workers write their stacks: the logs of the generation on this node.
        slots: returns the last heartbeats by local rank.
    """

    def __init__(
        self,
        exchange: SnapshotExchange,
        first_rank: int,
        logs: Path,
        slots: Callable[[], Sequence[Heartbeat]],
    ) -> None:
        self._exchange, self._first_rank, self._logs = exchange, first_rank, logs
        self._slots = slots

    def collect(
        self, overdue: Collection[int], signalled: Collection[int]
    ) -> tuple[list[HangSnapshot], list[Path]]:
        """Returns the snapshots of all workers that have begun, and the files with the stacks of
        those in `signalled`.

        Args:
            overdue: the processes that have finished no step for too long.
            signalled: the processes that may be sent a signal to write their stacks, if they do not
                answer. A program may handle that signal in its own way, so only ranks that hang are
                sent one. Both sets may grow during the call, by ranks that are overdue only then.
        """
        slots = self._slots()
        pids = {rank: slot.pid for rank, slot in enumerate(slots) if slot.pid}
        first = self._look(pids)
        silent = [pids[rank] for rank, look in first.items() if look.answer is None]
        offsets = {pid: _size(self._path(pid, -1)) for pid in silent}
        early = set(signalled)
        files = self._write_stacks(first, pids, early)
        time.sleep(max(0.0, SECOND_LOOK_S - (time.monotonic() - min_time(first.values()))))
        second = self._look(pids)
        if late := set(signalled) - early:
            files += self._write_stacks(second, pids, late)
        children = facts.children_by_parent()
        later = self._slots()
        snapshots = []
        for rank, pid in pids.items():
            slot = slots[rank]
            written = self._written_stack(pid, offsets[pid]) if pid in offsets else ()
            looks = (first[rank], second[rank])
            is_further = later[rank].pid == pid and later[rank].step > slot.step
            has_advanced = is_further or _has_entered_more(*looks)
            snapshot = self._snapshot(rank, pid, looks, children, written, has_advanced)
            snapshots.append(
                replace(
                    snapshot,
                    step=slot.step,
                    is_overdue=pid in overdue,
                    has_advanced=has_advanced,
                )
            )
        return snapshots, files

    def _look(self, pids: Mapping[int, int]) -> dict[int, _Look]:
        at_s = time.monotonic()
        number = self._exchange.ask()
        states = {rank: facts.process_facts(pid) for rank, pid in pids.items()}
        waiting = {rank for rank, it in states.items() if it.state is not ProcessState.STOPPED}
        answers: dict[int, bytes] = {}
        while waiting - answers.keys() and time.monotonic() < at_s + ANSWER_S:
            for rank in waiting - answers.keys():
                if (answer := self._exchange.answer(rank, number)) is not None:
                    answers[rank] = answer
            time.sleep(_POLL_S)
        return {
            rank: _Look(at_s, it, _parsed(answers.get(rank), rank)) for rank, it in states.items()
        }

    def _path(self, pid: int, rank: int) -> Path:
        return stack_dumps.stacks_path(self._logs, pid) or self._logs / f"rank{rank}.stacks"

    def _write_stacks(
        self, looks: Mapping[int, _Look], pids: Mapping[int, int], signalled: Collection[int]
    ) -> list[Path]:
        """Writes the stacks of the ranks in `signalled`, or has them written, and returns the
        files."""
        silent = [pids[rank] for rank, look in looks.items() if look.answer is None]
        files = self._write_answered(looks, pids, signalled)
        return files + stack_dumps.write_stacks([p for p in silent if p in signalled], self._logs)

    def _write_answered(
        self, looks: Mapping[int, _Look], pids: Mapping[int, int], signalled: Collection[int]
    ) -> list[Path]:
        """Writes the stacks of ranks that have answered to their files, and returns these."""
        files = []
        for rank, look in looks.items():
            if look.answer is None or pids[rank] not in signalled:
                continue
            threads = [
                (str(one["name"]), hang_snapshot.load_frames(one["frames"]))
                for one in look.answer.get("threads", ())
            ]
            path = self._path(pids[rank], self._first_rank + rank)
            with path.open("a") as file:
                file.write(f"process {pids[rank]}\n{stack_text.render_threads(threads)}\n")
            files.append(path)
        return files

    def _snapshot(
        self,
        local_rank: int,
        pid: int,
        looks: tuple[_Look, _Look],
        children: Mapping[int, list[int]],
        written: tuple[StackFrame, ...],
        is_first: bool,
    ) -> HangSnapshot:
        first, second = looks
        rank = stack_dumps.rank_of(pid)
        rank = self._first_rank + local_rank if rank is None else rank
        # a rank that has advanced was slow at the first look
        newest = second if second.answer is not None and not is_first else first
        answer, frames = newest.answer or {}, newest.frames or written
        state = _state_of(first.facts, second.facts)
        below = list(facts.descendants(pid, children))
        notes = facts.child_notes(below) + facts.connection_notes(pid)
        if _is_child_program(frames):
            frames, state, notes = _of_child_program(below, state, notes)
        notes = _notes_of(first, second, state) + notes
        return HangSnapshot(
            rank=rank,
            host=socket.gethostname(),
            state=state,
            frames=frames,
            call=hang_snapshot.load_call(answer.get("call")),
            pending=hang_snapshot.load_call(answer.get("pending")),
            groups=hang_snapshot.load_groups(answer.get("groups")),
            is_moving=_is_moving(first, second),
            notes=tuple(notes),
        )

    def _written_stack(self, pid: int, offset: int) -> tuple[StackFrame, ...]:
        """Returns the stack that this process has written after `offset`; empty if it has written
        none."""
        try:
            with self._path(pid, -1).open(errors="replace") as file:
                file.seek(offset)
                return stack_text.main_stack(file.read(_MOST_TEXT))
        except OSError:
            return ()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def min_time(looks: Iterable[_Look]) -> float:
    """Returns when the first of the looks was, in CLOCK_MONOTONIC seconds."""
    return min((look.at_s for look in looks), default=time.monotonic())


def _parsed(answer: bytes | None, rank: int) -> Mapping[str, Any] | None:
    if answer is None:
        return None
    try:
        found = json.loads(answer)
        hang_snapshot.load_call(found["call"])
        hang_snapshot.load_call(found["pending"])
        hang_snapshot.load_groups(found["groups"])
        for one in found["threads"]:
            hang_snapshot.load_frames(one["frames"])
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        log.warning("local rank %d described itself in a way that is not known: %r", rank, error)
        return None
    if found.get("error"):
        log.warning("local rank %d does not know its collectives: %s", rank, found["error"])
    return dict(found)


def _state_of(first: ProcessFacts, second: ProcessFacts) -> ProcessState:
    """Returns the state of a process from two looks: it waits in the kernel if it did both
    times."""
    if first.state is second.state or second.state is not ProcessState.UNINTERRUPTIBLE:
        return second.state
    return ProcessState.ALIVE


def _is_moving(first: _Look, second: _Look) -> bool:
    if first.answer is None or second.answer is None:
        return False
    return _sites(first.frames) != _sites(second.frames)


def _has_entered_more(first: _Look, second: _Look) -> bool:
    """Returns whether a rank was at another place at the second look, with further collectives
    entered in between."""
    before, after = first.entered, second.entered
    is_more = any(count > before.get(name, count) for name, count in after.items())
    return is_more and first.frames != second.frames


def _sites(frames: Sequence[StackFrame]) -> list[tuple[str, str]]:
    return [(one.file, one.function) for one in frames]


def _notes_of(first: _Look, second: _Look, state: ProcessState) -> list[str]:
    found = []
    if state is ProcessState.UNINTERRUPTIBLE and second.facts.waits_in:
        found.append(f"the kernel function is {second.facts.waits_in}")
    if state is ProcessState.ALIVE:
        if first.answer is None and second.answer is None:
            found.append("its interpreter answers nothing: native code may hold the GIL")
        share = (second.facts.cpu_s - first.facts.cpu_s) / max(1e-3, second.at_s - first.at_s)
        if share >= _BUSY:
            found.append(f"its main thread uses {min(1.0, share):.0%} of a CPU")
    before, after = ((look.answer or {}).get("collections") for look in (first, second))
    if isinstance(before, int) and isinstance(after, int) and after > before:
        found.append(f"it has collected all garbage {after - before} times in two seconds")
    return found


def _is_child_program(frames: Sequence[StackFrame]) -> bool:
    file, function = _CHILD_PROGRAM
    return any(one.file.endswith(file) and one.function == function for one in frames)


def _of_child_program(
    below: Sequence[int], state: ProcessState, notes: list[str]
) -> tuple[tuple[StackFrame, ...], ProcessState, list[str]]:
    """Returns stack, state and notes of a rank whose program is a child process of its worker."""
    for pid in reversed(below):
        if frames := stack_text.main_stack(stack_dumps.py_spy_dump(pid) or ""):
            return frames, state, notes
    states = {facts.process_facts(pid).state for pid in below}
    for worst in (ProcessState.STOPPED, ProcessState.UNINTERRUPTIBLE):
        if worst in states:
            return (), worst, notes
    return (), state, [*notes, "its program is a child process, whose stack only py-spy can read"]
