"""The flight recorder's pipes and files, with a stand-in for the thread in NCCL's process group."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpckit.agent.hangs import nccl_flight_recorder
from hpckit.agent.hangs.nccl_flight_recorder import FlightRecorder


@pytest.fixture
def made(tmp_path: Path) -> Iterator[FlightRecorder]:
    found = FlightRecorder(tmp_path)
    yield found
    found.close()


def pipe_of(made: FlightRecorder, rank: int) -> Path:
    path = Path(f"{made.variables()['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe")
    os.mkfifo(path)
    return path


def rank_that_writes(made: FlightRecorder, rank: int) -> threading.Thread:
    """As ProcessGroupNCCL does it: a pipe that is read, and a file with the rank at its end."""
    listening = os.open(pipe_of(made, rank), os.O_RDONLY | os.O_NONBLOCK)

    def work() -> None:
        os.set_blocking(listening, True)
        while (said := os.read(listening, 128)) == b"":
            pass
        assert said.startswith(b"1")
        Path(f"{made.variables()['TORCH_NCCL_DEBUG_INFO_TEMP_FILE']}{rank}").write_bytes(b"trace")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_ranks_write_down_their_collectives(
    made: FlightRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_flight_recorder, "PATIENCE_S", 60.0)
    threads = [rank_that_writes(made, rank) for rank in (2, 3)]
    pipe_of(made, 4)  # of a rank that is gone
    assert made.dump([2, 3, 4, 5]) == [tmp_path / "nccl-rank2", tmp_path / "nccl-rank3"]
    for thread in threads:
        thread.join(60.0)


def test_a_rank_that_does_not_answer_is_not_waited_for_long(
    made: FlightRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_flight_recorder, "PATIENCE_S", 0.1)
    listening = os.open(pipe_of(made, 0), os.O_RDONLY | os.O_NONBLOCK)
    assert made.dump([0]) == []
    os.close(listening)


def test_pipes_are_the_users_alone_and_go(made: FlightRecorder) -> None:
    folder = Path(made.variables()["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"]).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    made.close()
    assert not folder.exists()
