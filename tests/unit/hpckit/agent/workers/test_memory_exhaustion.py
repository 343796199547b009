"""Workers that ran out of memory, as their agent sees them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from hpckit.agent.exit_report import WorkerError
from hpckit.agent.workers.memory_exhaustion import (
    MemoryExhaustion,
    MemoryFailure,
    is_repeated,
    memory_failure_of,
)
from hpckit.ipc.heartbeat_table import Heartbeat, WorkerPhase
from hpckit.ipc.memory_kinds import MemoryKind
from hpckit.system.atomic_files import write_json

GPU, HOST = MemoryKind.GPU, MemoryKind.HOST


def error(memory: MemoryKind | None = None, message: str = "x", pid: int = 7) -> WorkerError:
    return WorkerError(0, "RuntimeError", message, "", 1.0, memory, pid)


def slot(phase: WorkerPhase, pid: int = 7, step: int = 5, attempt: int = 0) -> Heartbeat:
    return Heartbeat(pid, phase, step, 1.0, attempt)


LOST_CHILD = error(message="DataLoader worker (pid 9) is killed by signal: Killed. ")
NO_MORE = error(message="DataLoader worker (pid(s) 9, 10) exited unexpectedly")


@pytest.mark.parametrize(
    ("phase", "said", "has_killed", "memory"),
    [
        (WorkerPhase.FAILED, error(GPU), False, GPU),
        (WorkerPhase.FAILED, error(HOST), True, HOST),
        (WorkerPhase.FAILED, error(), True, None),
        (WorkerPhase.FAILED, LOST_CHILD, True, HOST),
        (WorkerPhase.FAILED, NO_MORE, True, HOST),
        (WorkerPhase.FAILED, LOST_CHILD, False, None),
        (WorkerPhase.FAILED, None, True, None),
        (WorkerPhase.TRAINING, None, True, HOST),
        (WorkerPhase.STARTING, None, True, HOST),
        (WorkerPhase.TRAINING, None, False, None),
    ],
)
def test_what_a_worker_was_short_of(
    phase: WorkerPhase, said: WorkerError | None, has_killed: bool, memory: MemoryKind | None
) -> None:
    lack = memory_failure_of(slot(phase), said, has_killed)
    assert (lack and lack.memory) == memory
    assert lack is None or (lack.step, lack.attempt) == (5, 0)
    assert lack is None or lack.by_kernel is (said is None or said.memory is None)


def test_the_same_at_the_same_step_in_the_next_attempt_is_a_repetition() -> None:
    before, again = (
        [MemoryFailure(GPU, 5, 0, False), MemoryFailure(HOST, 9, 0, True)],
        MemoryFailure(GPU, 5, 1, False),
    )
    assert is_repeated(before, again)
    assert is_repeated(before, MemoryFailure(HOST, 9, 1, True))
    assert not is_repeated(before, MemoryFailure(GPU, 6, 1, False))
    assert not is_repeated(before, MemoryFailure(HOST, 5, 1, False))
    assert not is_repeated(before, MemoryFailure(GPU, 5, 0, False)), "of a peer"
    assert not is_repeated(before, MemoryFailure(GPU, 5, 2, False)), "not in a row"
    assert not is_repeated([], again)


def test_a_worker_that_is_gone_was_killed_if_the_count_rose_in_its_life(tmp_path: Path) -> None:
    count = 3  # of earlier steps
    watch = MemoryExhaustion(tmp_path, lambda: count)
    first, second = slot(WorkerPhase.TRAINING, 7), slot(WorkerPhase.TRAINING, 8)
    assert watch.look([first, second], []) == {}
    count = 4
    assert watch.look([first, second], [1]) == {1: MemoryFailure(HOST, 5, 0, True)}
    assert watch.look([first, second], [1]) == {}, "said once"
    assert watch.look([first, second], [0, 1]) == {}, "ended by torchrun after it"
    assert watch.is_killed(attempt=0)
    # those that come after it have nothing to do with that
    third = slot(WorkerPhase.TRAINING, 9, attempt=1)
    assert watch.look([third, third], []) == {}
    assert watch.look([third, third], [0, 1]) == {}
    assert not watch.is_killed(attempt=1)
    assert not watch.is_hopeless


def test_a_worker_that_died_before_its_first_word_counts_too(tmp_path: Path) -> None:
    count = 0
    watch = MemoryExhaustion(tmp_path, lambda: count)
    unsaid = slot(WorkerPhase.STARTING, pid=0, step=0)
    assert watch.look([unsaid], []) == {}
    count = 1
    assert watch.look([unsaid], [0]) == {0: MemoryFailure(HOST, 0, 0, True)}


def test_where_nothing_is_counted_nothing_is_concluded(tmp_path: Path) -> None:
    watch = MemoryExhaustion(tmp_path, lambda: None)
    assert watch.look([slot(WorkerPhase.TRAINING)], [0]) == {}


@pytest.mark.parametrize(("steps", "is_hopeless"), [((5, 5), True), ((5, 6), False)])
def test_twice_in_a_row_at_one_step_is_hopeless(
    tmp_path: Path, steps: tuple[int, int], is_hopeless: bool
) -> None:
    watch = MemoryExhaustion(tmp_path, lambda: 0)
    for attempt, step in enumerate(steps):
        values = asdict(error(GPU, pid=7 + attempt))
        write_json(tmp_path / f"rank0.attempt{attempt}.error.json", values)
        failed = slot(WorkerPhase.FAILED, 7 + attempt, step, attempt)
        assert watch.look([failed], []) == {0: MemoryFailure(GPU, step, attempt, False)}
    assert watch.is_hopeless is is_hopeless


def test_another_end_in_between_is_hope(tmp_path: Path) -> None:
    watch = MemoryExhaustion(tmp_path, lambda: 0)
    for attempt, memory in enumerate((GPU, None, GPU)):
        values = asdict(error(memory, pid=7 + attempt))
        write_json(tmp_path / f"rank0.attempt{attempt}.error.json", values)
        watch.look([slot(WorkerPhase.FAILED, 7 + attempt, attempt=attempt)], [])
    assert not watch.is_hopeless
