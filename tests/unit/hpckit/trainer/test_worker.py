"""What a worker calls, and what it reports of a function that does not train."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpckit.agent.exit_report import errors_in
from hpckit.config.spec_parser import dump_spec
from hpckit.ipc.heartbeat_table import HeartbeatTable, WorkerPhase
from hpckit.ipc.process_environment import NodeEnvironment, worker_variables
from hpckit.rundir.directory import RunDir
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.permanent_errors import is_permanent
from hpckit.trainer.worker import find_entry, require_end
from tests.unit.hpckit.specs_and_processes import make_spec


def test_the_entry_is_imported_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "entry_of_a_test.py").write_text("def main(cfg): return cfg\nother = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    main: object = find_entry("entry_of_a_test:main")
    assert callable(main)
    assert main("x") == "x"
    for missing in ("entry_of_a_test:none", "entry_of_a_test:other"):
        with pytest.raises(ImportError, match="entry: entry_of_a_test has no function"):
            find_entry(missing)
    with pytest.raises(ImportError):
        find_entry("no_such_module_at_all:main")


@pytest.mark.parametrize("text", ["def main(): ...", "def main(cfg, run): ...", "class main: ..."])
def test_an_entry_that_cannot_take_the_config_is_a_permanent_error(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"entry_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TrainingError, match="cannot be called with one argument, the config"):
        find_entry(f"{name}:main")
    find_entry("builtins:print")


@pytest.mark.parametrize("phase", [WorkerPhase.DONE, WorkerPhase.LEFT])
def test_a_training_function_that_came_to_its_end_may_return(phase: WorkerPhase) -> None:
    require_end("mine:main", phase)


def test_a_training_function_that_begins_no_run_is_told_so_for_good() -> None:
    with pytest.raises(TrainingError) as told:
        require_end("mine:main", None)
    assert str(told.value).startswith(
        "the training function mine:main returned without `with training_run(cfg)`; "
    )
    assert is_permanent(told.value)


@pytest.mark.parametrize("phase", [WorkerPhase.STARTING, WorkerPhase.TRAINING, WorkerPhase.SAVING])
def test_a_training_function_that_leaves_its_run_may_be_tried_again(phase: WorkerPhase) -> None:
    with pytest.raises(RuntimeError, match=f"in phase {phase.name.lower()}") as told:
        require_end("mine:main", phase)
    assert not is_permanent(told.value)


def started(run: RunDir, heartbeats: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    """Rank 0 of two ranks of one node, without a torchrun."""
    run.node_logs(1, 0).mkdir(parents=True)
    at = NodeEnvironment(run, submission=1, generation=1, node=0, nodes=1)
    env = {**os.environ, **at.to_env(), **worker_variables("cpu", heartbeats, is_memory_here=True)}
    env |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", **more}
    return subprocess.run([sys.executable, "-m", "hpckit.trainer.worker"], env=env, check=False)


def test_an_attempt_after_a_permanent_failure_ends_before_it_starts(tmp_path: Path) -> None:
    """torchrun may start it before the agent has read the heartbeat table."""
    table, path = HeartbeatTable.create(2)
    run = RunDir(tmp_path)
    table.report(1, WorkerPhase.REFUSED, 7, 0)
    path_of_here = os.pathsep.join(sys.path)
    ended = started(run, path, TORCHELASTIC_RESTART_COUNT="1", PYTHONPATH=path_of_here)
    assert ended.returncode == 1
    assert "failed permanently" in run.rank_log(1, 0, 0).read_text()
    assert not run.events.exists()
    assert table.slots()[1].phase is WorkerPhase.REFUSED


def test_a_worker_reports_a_training_function_that_began_no_run(tmp_path: Path) -> None:
    """Another process reported in this row before, as the worker of an earlier attempt does."""
    table, path = HeartbeatTable.create(2)
    table.report(0, WorkerPhase.TRAINING, 3, 0)
    run = RunDir(tmp_path / "run")
    (tmp_path / "outside.py").write_text("def main(cfg):\n    print('trained', flush=True)\n")
    run.submission(1).mkdir(parents=True)
    run.spec(1).write_text(dump_spec(make_spec({"entry": "outside:main"})))
    path_of_here = os.pathsep.join([str(tmp_path), *sys.path])
    ended = started(run, path, TORCHELASTIC_RESTART_COUNT="0", PYTHONPATH=path_of_here)
    assert ended.returncode == 1
    assert "trained" in run.rank_log(1, 0, 0).read_text()
    (error,) = errors_in(run.node_logs(1, 0))
    assert error.type == "TrainingError"
    assert error.message.startswith("the training function outside:main returned without `with ")
    assert table.slots()[0].phase is WorkerPhase.REFUSED


ODD = """
class Odd(Exception):
    def __str__(self):
        raise ValueError
def main(cfg):
    raise {error}
"""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("ValueError('caf\\udce9')", "caf\\udce9"),
        ("Odd()", "its message cannot be read (ValueError)"),
        ("ValueError('a' + 20_000 * 'b')", "a" + 8191 * "b" + "\n[3,617 characters are left"),
    ],
)
def test_any_message_of_an_error_is_recorded(tmp_path: Path, error: str, message: str) -> None:
    """One of some megabytes would be too long for what the agent sends to the supervisor."""
    table, path = HeartbeatTable.create(2)
    run = RunDir(tmp_path / "run")
    (tmp_path / "outside.py").write_text(ODD.format(error=error))
    run.submission(1).mkdir(parents=True)
    run.spec(1).write_text(dump_spec(make_spec({"entry": "outside:main"})))
    path_of_here = os.pathsep.join([str(tmp_path), *sys.path])
    started(run, path, TORCHELASTIC_RESTART_COUNT="0", PYTHONPATH=path_of_here)
    (found,) = errors_in(run.node_logs(1, 0))
    assert found.message.startswith(message)
    assert table.slots()[0].phase is WorkerPhase.FAILED


LOGGING = """
import logging, sys
from hpckit.trainer import worker
worker._set_up_logging()
own, other = logging.getLogger("hpckit.one"), logging.getLogger("data")
own.info("first"), other.info("of the program"), other.warning("warned")
logging.getLogger().addHandler(logging.FileHandler("mine.txt"))
own.info("second")
logging.getLogger().addHandler(logging.StreamHandler())
own.info("third")
"""


def test_own_records_are_printed_once_whatever_a_program_does_to_logging(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOGGING]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    first, warned, second, third = done.stderr.splitlines()
    assert first.endswith(" INFO first")
    assert warned == "warned", "as Python prints it"
    assert second.endswith(" INFO second")
    assert third == "third"
    assert (tmp_path / "mine.txt").read_text() == "second\nthird\n"
