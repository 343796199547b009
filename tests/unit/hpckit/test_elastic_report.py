"""What an agent leaves behind comes back as it was."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from hpckit.elastic.report import ExitReport, NodeExit, WorkerError, first_error, load_report
from hpckit.run.directory import RunDir
from hpckit.run.durable import read_json, write_json

ERROR = WorkerError(3, "ValueError", "bad [x]\nline", "Traceback …", 12.5)


@pytest.mark.parametrize("how", NodeExit)
@pytest.mark.parametrize("error", [None, ERROR])
def test_a_report_comes_back(tmp_path: Path, how: NodeExit, error: WorkerError | None) -> None:
    report = ExitReport(node=1, exit=how, step=70, attempts=2, error=error)
    report.write(tmp_path / "exit.json")
    assert load_report(asdict(report)) == report
    assert load_report(read_json(tmp_path / "exit.json")) == report


def test_the_earliest_error_is_the_first(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    folder = run.node_logs(1, 0)
    folder.mkdir(parents=True)
    assert first_error(folder) is None
    for rank, attempt, time in ((0, 0, 5.0), (1, 0, 3.0), (0, 1, 9.0), (12, 0, 4.0)):
        error = WorkerError(rank, "E", "", "", time)
        write_json(run.rank_error(1, 0, rank, attempt), asdict(error))
    (folder / "rank0.log").touch()
    found = first_error(folder)
    assert found is not None
    assert (found.rank, found.time) == (1, 3.0)


def test_an_error_is_told_in_one_phrase() -> None:
    assert str(WorkerError(3, "ValueError", "bad", "", 0.0)) == "rank 3: ValueError: bad"
