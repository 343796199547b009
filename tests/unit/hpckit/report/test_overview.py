"""What is gathered of a run, and what is said if that is incomplete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpckit.config.spec_parser import dump_spec
from hpckit.report.overview import Queue, read_overview
from hpckit.report.run_state import RunState
from hpckit.slurm.squeue import QueueError
from tests.unit.hpckit.report.sample_runs import ran
from tests.unit.hpckit.specs_and_processes import make_spec


@pytest.mark.parametrize(
    ("kind", "problem"), [("done", None), ("crash", "Slurm does not answer: no server")]
)
def test_a_run_that_has_done_all_needs_no_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, problem: str | None
) -> None:
    """One that failed may have been resumed, and wait in the queue."""

    def silent() -> None:
        raise QueueError("no server")

    monkeypatch.setattr("hpckit.report.overview.queue", silent)
    run = ran(tmp_path / "run")
    run.spec(1).write_text(dump_spec(make_spec(cluster="slurm")))
    run.verdict.write_text(json.dumps(json.loads(run.verdict.read_text()) | {"kind": kind}))
    found = read_overview(run, Queue())
    assert (found.state, found.problem) == (RunState.ENDED, problem)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("done", "is done"),
        ("stopped", "is stopped"),
        ("crash", "has ended (crash)"),
        ("oom", "has ended (oom)"),
    ],
)
def test_a_sentence_about_a_run_says_what_it_is(tmp_path: Path, kind: str, says: str) -> None:
    run = ran(tmp_path / "run")
    run.verdict.write_text(json.dumps(json.loads(run.verdict.read_text()) | {"kind": kind}))
    assert read_overview(run, Queue()).condition == says
