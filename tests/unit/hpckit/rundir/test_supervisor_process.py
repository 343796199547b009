"""Which process of this machine is that of a run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import psutil
import pytest

from hpckit.report import overview
from hpckit.report.overview import Queue, read_overview
from hpckit.report.run_state import RunState
from hpckit.rundir.directory import RunDir
from hpckit.rundir.supervisor_process import starting_since
from tests.unit.hpckit.report.sample_runs import submitted


def test_a_process_whose_program_is_being_loaded_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after its start it has no command line."""
    run = submitted(tmp_path / "run")
    run.submitit.mkdir()
    (run.submitit / f"{os.getpid()}_submitted.pkl").touch()
    shown = iter([[], [], ["python", "-m", "submitit.local._local", str(run.submitit)]])
    monkeypatch.setattr(psutil.Process, "cmdline", lambda self: next(shown))
    began = starting_since(run)
    assert began is not None
    assert began < time.time()
    monkeypatch.setattr(psutil.Process, "cmdline", lambda self: ["another"])
    assert starting_since(run) is None


def test_a_run_that_ends_while_it_is_looked_at_is_not_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted(tmp_path / "run")

    def gone(asked: RunDir) -> None:
        verdict = {"kind": "done", "final": True, "reason": "", "time": time.time()}
        asked.verdict.write_text(json.dumps(verdict))

    monkeypatch.setattr(overview, "starting_since", gone)
    assert read_overview(run, Queue()).state is RunState.ENDED
