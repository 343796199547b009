"""Runs that are only made to be measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from hpckit.cli.bench import measured_runs
from hpckit.cli.bench.measured_runs import carry_out
from hpckit.cli.common.command_errors import CommandError
from hpckit.rundir.code_snapshot.snapshot import find_project
from hpckit.submit.preparation import CommandOptions
from tests.unit.hpckit.report.sample_runs import submitted, write
from tests.unit.hpckit.specs_and_processes import make_spec


def test_a_ctrl_c_while_a_run_is_started_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held back until the run has started."""
    run, cancelled = submitted(tmp_path / "run"), list[Path]()

    def start(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(measured_runs, "request", lambda *_: SimpleNamespace(run=run))
    monkeypatch.setattr(measured_runs, "prepare", lambda *_: [1])
    monkeypatch.setattr(measured_runs, "start_silently", start)
    monkeypatch.setattr(measured_runs, "cancel_run", lambda it, **_: cancelled.append(it.run.path))
    with pytest.raises(KeyboardInterrupt):
        carry_out(make_spec(), [], find_project(Path.cwd()), CommandOptions("test"))
    assert cancelled == [run.path]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "run: dead: its supervisor has ended without a verdict"),
        ([{"time": 1.0, "kind": "run_failed", "error": "no space"}], "run: failed: no space"),
    ],
)
def test_a_run_that_did_not_reach_its_end_says_why(
    lines: list[dict[str, object]], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted(tmp_path / "run")
    write(run, *lines)
    monkeypatch.setattr(measured_runs, "_DEAD_S", 0.0)
    monkeypatch.setattr(measured_runs, "request", lambda *_: SimpleNamespace(run=run))
    monkeypatch.setattr(measured_runs, "prepare", lambda *_: [None])
    with pytest.raises(CommandError, match=said):
        carry_out(make_spec(), [], find_project(Path.cwd()), CommandOptions("test"))
