"""What an agent leaves behind comes back as it was."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from hpckit.agent.exit_report import (
    HANG,
    ExitReport,
    NodeExit,
    WorkerError,
    first_error,
    load_error,
    load_report,
    write_hang,
)
from hpckit.ipc.memory_kinds import MemoryKind
from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import read_json, write_json

ERROR = WorkerError(3, "ValueError", "bad [x]\nline", "Traceback …", 12.5)
LACK = WorkerError(3, "OutOfMemoryError", "", "", 12.5, MemoryKind.GPU, 77)


@pytest.mark.parametrize("how", NodeExit)
@pytest.mark.parametrize("error", [None, ERROR, LACK])
def test_a_report_comes_back(tmp_path: Path, how: NodeExit, error: WorkerError | None) -> None:
    report = ExitReport(node=1, exit=how, step=70, attempts=2, error=error, is_oom_killed=True)
    report.write(tmp_path / "exit.json")
    assert load_report(asdict(report)) == report
    assert load_report(read_json(tmp_path / "exit.json")) == report


def test_the_earliest_error_of_the_last_attempt_is_the_first(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    folder = run.node_logs(1, 0)
    folder.mkdir(parents=True)
    assert first_error(folder) is None
    for rank, attempt, time in ((0, 0, 5.0), (1, 0, 3.0), (0, 1, 9.0), (12, 1, 8.0)):
        error = WorkerError(rank, "E", "", "", time)
        write_json(run.rank_error(1, 0, rank, attempt), asdict(error))
    (folder / "rank0.log").touch()
    for asked, time in ((None, 8.0), (1, 8.0), (0, 3.0)):
        found = first_error(folder, asked)
        assert found is not None
        assert found.time == time
    assert first_error(folder, attempt=2) is None
    write_hang(folder, 30, 2, [folder / "rank1.stacks"])
    found = first_error(folder)
    assert found is not None
    assert (found.rank, found.type) == (1, HANG)


@pytest.mark.parametrize(
    ("type_", "message", "first"),
    [
        ("OtherRankError", "rank 1: KeyError: 'x'", 1),
        ("OtherRankError", "another rank has ended: Connection closed by peer", 0),
        ("KeyError", "rank 1: ", 0),
    ],
)
def test_an_error_comes_before_its_description_by_another_rank(
    tmp_path: Path, type_: str, message: str, first: int
) -> None:
    run = RunDir(tmp_path)
    folder = run.node_logs(1, 0)
    folder.mkdir(parents=True)
    errors = (
        WorkerError(0, type_, message, "", 3.0),
        WorkerError(1, "KeyError", "'x'", "", 3.1),
        WorkerError(2, "OtherRankError", "rank 1: KeyError: 'x'", "", 3.2),
    )
    for rank, error in enumerate(errors):
        write_json(run.rank_error(1, 0, rank, 0), asdict(error))
    assert first_error(folder) == errors[first]


def test_an_error_of_an_earlier_version_is_still_read() -> None:
    known = ("rank", "type", "message", "traceback", "time")
    values = {key: value for key, value in asdict(ERROR).items() if key in known}
    assert load_error(values) == ERROR


def test_an_error_is_told_in_one_phrase() -> None:
    assert str(WorkerError(3, "ValueError", "bad", "", 0.0)) == "rank 3: ValueError: bad"
    assert str(WorkerError(3, "MemoryError", "", "", 0.0)) == "rank 3: MemoryError"


def test_attempts_fail_of_the_same_whatever_the_numbers() -> None:
    one = WorkerError(3, "E", "process 81 at 0x7fa0 of 10.0.0.1:4000", "", 0.0)
    other = WorkerError(0, "E", "process 9 at 0x55e1 of 10.0.0.2:4111", "", 9.0)
    assert one.words == other.words
    assert one.words != WorkerError(3, "E", "process 81 of 10.0.0.1:4000", "", 0.0).words
