"""What a worker calls, and which of its errors no further attempt can mend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed

from checkpointing import DamagedError, SaveError, ServiceError, StoreFullError
from data import DataError
from hpckit.config.spec_parser import SpecError
from hpckit.ipc.heartbeat_table import HeartbeatTable, WorkerPhase
from hpckit.ipc.process_environment import NodeEnvironment, worker_variables
from hpckit.rundir.directory import RunDir
from hpckit.trainer.worker import find_entry, is_passing, is_permanent


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


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


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (SpecError(["x"]), True),
        (DataError("x"), True),
        (DamagedError("x"), True),
        (ImportError("x"), True),
        (SyntaxError("x"), True),
        (RuntimeError("x"), False),
        (OSError("x"), False),
        (SaveError("x"), False),
        (StoreFullError("x"), False),
        (ServiceError("x"), False),
        (KeyboardInterrupt(), False),
        (caused(DataError("x"), OSError("stale handle")), False),
        (caused(DamagedError("x"), caused(ValueError("x"), OSError("i/o"))), False),
        (caused(DataError("x"), ValueError("bad header")), True),
        (caused(DataError("x"), MemoryError()), False),
    ],
)
def test_errors_in_the_input_are_permanent_and_errors_of_storage_are_not(
    error: BaseException, permanent: bool
) -> None:
    assert is_permanent(error) is permanent


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer"), True),
        (torch.distributed.DistNetworkError("the server is not there"), True),
        (caused(RuntimeError("x"), OSError("stale handle")), True),
        (StoreFullError("x"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ImportError("x"), False),
    ],
)
def test_what_the_network_or_storage_has_caused_may_pass(
    error: BaseException, passing: bool
) -> None:
    assert is_passing(error) is passing


def test_an_attempt_after_a_permanent_failure_ends_before_it_starts(tmp_path: Path) -> None:
    """torchrun may start it before the agent has read the heartbeat table."""
    table, path = HeartbeatTable.create(2)
    run = RunDir(tmp_path)
    run.node_logs(1, 0).mkdir(parents=True)
    at = NodeEnvironment(run, submission=1, generation=1, node=0, nodes=1)
    env = {**os.environ, **at.to_env(), **worker_variables("cpu", path, is_memory_here=True)}
    env |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    env |= {"TORCHELASTIC_RESTART_COUNT": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    table.report(1, WorkerPhase.REFUSED, 7, 0)
    ended = subprocess.run([sys.executable, "-m", "hpckit.trainer.worker"], env=env)
    assert ended.returncode == 1
    assert "failed permanently" in run.rank_log(1, 0, 0).read_text()
    assert not run.events.exists()
    assert table.slots()[1].phase is WorkerPhase.REFUSED
