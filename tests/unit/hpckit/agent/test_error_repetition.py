"""An error that comes back at the same step and line is told from one that another attempt may not
meet."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hpckit.agent.error_repetition import (
    MOST_REPEATS,
    ErrorRepetition,
    count_repeats,
    place_of,
)
from hpckit.agent.exit_report import FAULTY_NODE, HANG, WorkerError
from hpckit.events.event_log import EventLog
from hpckit.events.schema import CheckpointReported
from hpckit.ipc.heartbeat_table import Heartbeat, WorkerPhase
from hpckit.ipc.memory_kinds import MemoryKind
from hpckit.system.atomic_files import write_json

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 7, in step\n    x[9]\n'
ERROR = WorkerError(1, "KeyError", "9", TRACEBACK, 1.0, step=40)


def test_type_step_and_lines_make_the_place() -> None:
    assert place_of(ERROR) == "KeyError after step 40 at train.py:7"
    assert place_of(replace(ERROR, message="8", rank=3, time=9.0)) == place_of(ERROR)
    others = (
        replace(ERROR, type="IndexError"),
        replace(ERROR, step=41),
        replace(ERROR, traceback=TRACEBACK.replace("7", "8")),
    )
    assert all(place_of(other) != place_of(ERROR) for other in others)


@pytest.mark.parametrize(
    "error",
    [
        None,
        replace(ERROR, step=None),
        replace(ERROR, is_before_step=True),
        replace(ERROR, is_passing=True),
        replace(ERROR, memory=MemoryKind.HOST),
        replace(ERROR, traceback=""),
        replace(ERROR, type=HANG),
        replace(ERROR, type=FAULTY_NODE),
        replace(ERROR, type="WrongComputationError"),
        replace(ERROR, type="ProgramError", message="bash exited with status 137"),
        replace(ERROR, type="DistBackendError", message="NCCL error: remote process exited"),
        replace(ERROR, type="RuntimeError", message="Watchdog caught collective: timed out"),
        replace(ERROR, type="RuntimeError", message="CUDA error: an illegal memory access"),
        replace(ERROR, type="RuntimeError", message="Connection closed by peer [10.0.0.7]:29"),
        replace(
            ERROR,
            type="RuntimeError",
            message="DataLoader worker (pid 81) is killed by signal: Killed. ",
        ),
    ],
    ids=lambda error: "nothing" if error is None else f"{error.type} {error.message[:20]}",
)
def test_what_a_node_a_peer_or_a_neighbour_may_have_caused_has_no_place(
    error: WorkerError | None,
) -> None:
    assert place_of(error) is None


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([], 0),
        ([None, "a"], 0),
        (["a"], 1),
        (["a", "a", "b", "a"], 2),
        (["a", None, "a"], 1),
        (["a", "a", "a"], 3),
    ],
)
def test_only_attempts_in_a_row_are_counted(places: list[str | None], expected: int) -> None:
    assert count_repeats(places) == expected


def failed(attempt: int) -> list[Heartbeat]:
    return [Heartbeat(7, WorkerPhase.FAILED, 40, 1.0, attempt)]


def fail(logs: Path, attempt: int, step: int = 40) -> None:
    error = replace(ERROR, step=step, time=float(attempt))
    write_json(logs / f"rank1.attempt{attempt}.error.json", asdict(error))


def test_three_attempts_that_end_at_one_place_are_enough(tmp_path: Path) -> None:
    watch = ErrorRepetition(tmp_path, tmp_path / "events.jsonl")
    watch.look([Heartbeat(7, WorkerPhase.TRAINING, 40, 1.0, 0)])
    assert watch.repeats == 0
    for attempt in range(MOST_REPEATS):
        assert not watch.is_hopeless
        fail(tmp_path, attempt)
        watch.look(failed(attempt))
        watch.look(failed(attempt))
        assert watch.repeats == attempt + 1
    assert watch.is_hopeless


def test_no_attempt_follows_on_a_faulty_node(tmp_path: Path) -> None:
    watch = ErrorRepetition(tmp_path, tmp_path / "events.jsonl")
    error = replace(ERROR, type=FAULTY_NODE, time=0.0)
    write_json(tmp_path / "rank1.attempt0.error.json", asdict(error))
    watch.look(failed(0))
    assert watch.is_hopeless


def test_an_attempt_that_gets_further_starts_the_count_again(tmp_path: Path) -> None:
    watch = ErrorRepetition(tmp_path, tmp_path / "events.jsonl")
    for attempt, step in enumerate((40, 40, 41)):
        fail(tmp_path, attempt, step)
    # torchrun has started the next attempt before the agent looked
    watch.look([Heartbeat(8, WorkerPhase.RUNNING, 0, 1.0, 3)])
    assert watch.repeats == 1


def test_a_new_checkpoint_starts_the_count_again(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    watch = ErrorRepetition(tmp_path, path)
    with EventLog(path, generation=1, attempt=0, rank=0) as events:
        events.emit(CheckpointReported(step=10))
        for attempt in range(4):
            fail(tmp_path, attempt)
            watch.look(failed(attempt))
            if attempt == 0:
                events.emit(CheckpointReported(step=30))
    assert watch.repeats == MOST_REPEATS
