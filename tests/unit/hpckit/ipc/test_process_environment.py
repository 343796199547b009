"""What processes hand down to one another comes back as it was, or is said to be missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.ipc.process_environment import NodeEnvironment, WorkerEnvironment, worker_variables
from hpckit.rundir.directory import RunDir

AT = NodeEnvironment(RunDir(Path("/runs/a b=c")), submission=2, generation=3, node=1, nodes=4)
TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "WORLD_SIZE": "16",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
WORKER = {**AT.to_env(), **worker_variables("cuda", "/proc/1/fd/3"), **TORCHRUN}


def test_a_place_comes_back_from_its_variables() -> None:
    assert NodeEnvironment.from_env(AT.to_env()) == AT


def test_a_worker_knows_its_place_and_its_rank() -> None:
    assert WorkerEnvironment.from_env(WORKER) == WorkerEnvironment(
        at=AT,
        rank=5,
        local_rank=1,
        local_world_size=4,
        world_size=16,
        attempt=2,
        device="cuda",
        heartbeat_table="/proc/1/fd/3",
        is_memory_here=False,
    )
    again = worker_variables("cuda", "/proc/1/fd/3", is_memory_here=True)
    assert WorkerEnvironment.from_env(WORKER | again).is_memory_here


def test_a_process_started_by_hand_is_told_how_to_be_started() -> None:
    with pytest.raises(RuntimeError, match=r"HPCKIT_RUN.*hpckit launch entry=module:function"):
        WorkerEnvironment.from_env({"PATH": "/bin"})


@pytest.mark.parametrize("missing", sorted(WORKER))
def test_a_worker_that_lacks_any_variable_is_told_which(missing: str) -> None:
    rest = {key: value for key, value in WORKER.items() if key != missing}
    with pytest.raises(RuntimeError, match=missing):
        WorkerEnvironment.from_env(rest)
