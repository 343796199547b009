"""The last error in what a torchrun has written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.agent.exit_report import WorkerError
from hpckit.agent.workers.launcher_error import LOG, LoggedError, last_error, launcher_error

USAGE = """usage: forking.py [-h] [--nnodes NNODES]
                  training_script ...
forking.py: error: unrecognized arguments: --signals-to-handle=SIGINT
"""
LOGGER = "E1125 17:55:35.244000 12294 torch/distributed/elastic/multiprocessing/api.py:836] "
EXIT = LOGGER + "failed (exitcode: {}) local_rank: {} (pid: 8194) of binary: /usr/bin/python3\n"
IMPORT = """Traceback (most recent call last):
  File "/x/imp.py", line 1, in <module>
    import no_such_library
ModuleNotFoundError: No module named 'no_such_library'
"""
ACCOUNT = """Traceback (most recent call last):
  File "/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\x20
====================
x.py FAILED
--------------------
Root Cause (first observed failure):
[0]:
  exitcode  : 1 (pid: 8247)
  traceback : Traceback (most recent call last):
    File "x.py", line 3, in f
  ValueError: of the account
====================
"""
FORKED = "".join(
    f"{LOGGER}{line}\n"
    for line in (
        "failed (exitcode: 1) local_rank: 0 (pid: 13078) of fn: begin (start_method: fork)",
        "Traceback (most recent call last):",
        '  File "/torch/multiprocessing/spawn.py", line 211, in join',
        "    raise ProcessRaisedException(msg, error_index, failed_process.pid)",
        "torch.multiprocessing.spawn.ProcessRaisedException: ",
        "",
        "-- Process 0 terminated with the following error:",
        "Traceback (most recent call last):",
        '  File "/hpckit/ipc/process_environment.py", line 94, in __call__',
        "    raise RuntimeError(",
        "RuntimeError: HPCKIT_RUN is not set: start it by `hpckit launch`",
    )
)
RENDEZVOUS = """Traceback (most recent call last):
  File "/hpckit/trainer/torchrun/rendezvous_handler.py", line 80, in next_rendezvous
torch.distributed.DistStoreError: wait timeout after 600000ms

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/torch/distributed/elastic/agent/server/api.py", line 516, in _rendezvous
torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: round 1: wait timeout
"""
NO_LICENSE = "I give up: no license\n"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (USAGE, "ArgumentError", "unrecognized arguments: --signals-to-handle=SIGINT"),
        (
            IMPORT + IMPORT + EXIT.format(1, 0) + ACCOUNT,
            "ModuleNotFoundError",
            "No module named 'no_such_library'",
        ),
        (FORKED + ACCOUNT, "RuntimeError", "HPCKIT_RUN is not set: start it by `hpckit launch`"),
        (
            EXIT.format(-11, 1) + ACCOUNT,
            "SIGSEGV",
            "the process of local rank 1 was ended by SIGSEGV; its own log may say more",
        ),
        (
            NO_LICENSE + EXIT.format(3, 0) + ACCOUNT,
            "SystemExit",
            "the process of local rank 0 ended with status 3; it printed: I give up: no license",
        ),
        (EXIT.format(3, 0), "SystemExit", "the process of local rank 0 ended with status 3"),
        (
            RENDEZVOUS,
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError",
            "round 1: wait timeout",
        ),
        ("/usr/bin/python3: No module named hpckit\n\n", "Error", "No module named hpckit"),
    ],
)
def test_the_last_error_is_found(text: str, kind: str, message: str) -> None:
    found = last_error(text)
    assert found is not None
    assert (found.type, found.message.rpartition("python3: ")[2]) == (kind, message)


def test_lines_of_two_processes_are_told_apart() -> None:
    first, rest = IMPORT.splitlines(keepends=True)[:2], IMPORT
    found = last_error("".join(first) + rest + "".join(IMPORT.splitlines(keepends=True)[2:]))
    assert found == LoggedError(
        "ModuleNotFoundError", "No module named 'no_such_library'", IMPORT.rstrip()
    )


@pytest.mark.parametrize("status", [-9, -15])
def test_that_somebody_has_killed_a_worker_is_no_error_of_its_own(status: int) -> None:
    assert last_error(EXIT.format(status, 0) + ACCOUNT) is None


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_of_nothing_nothing_is_told(text: str, tmp_path: Path) -> None:
    assert last_error(text) is None
    assert launcher_error(tmp_path) is None


@given(st.text())
def test_any_text_may_stand_in_a_log(text: str) -> None:
    for one in (text, IMPORT + text, EXIT.format(-11, 0) + text, "Traceback" + text):
        last_error(one)


@pytest.mark.parametrize(
    ("kind", "is_passing"),
    [
        ("torch.distributed.DistNetworkError", True),
        ("ConnectionRefusedError", True),
        ("OSError", True),
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", True),
        ("ModuleNotFoundError", False),
        ("SIGSEGV", False),
        ("ArgumentError", False),
    ],
)
def test_what_another_attempt_may_not_meet(kind: str, is_passing: bool) -> None:
    assert LoggedError(kind, "").is_passing == is_passing


def test_the_file_is_told(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text(USAGE)
    error = launcher_error(tmp_path)
    assert error is not None
    assert str(error) == (
        "torchrun: ArgumentError: unrecognized arguments: --signals-to-handle=SIGINT "
        f"({tmp_path / LOG})"
    )


def test_of_forked_workers_the_files_of_the_last_attempt_count(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text(FORKED)
    for attempt, rank, text in ((0, 0, "old"), (1, 1, "new"), (1, 0, "a\nb"), (10, 3, "newest")):
        path = tmp_path / f"torchrun/x_1/attempt_{attempt}/{rank}/error.json"
        path.parent.mkdir(parents=True)
        extra = {"py_callstack": "Traceback …\n", "timestamp": "1"}
        message = {"message": f"ValueError: {text}", "extraInfo": extra}
        path.write_text(json.dumps({"message": message}))
    error = launcher_error(tmp_path)
    assert error is not None
    assert str(error).startswith("local rank 3: ValueError: newest (")
    assert error.file.endswith("attempt_10/3/error.json")
    assert error.traceback == "Traceback …"


@pytest.mark.parametrize("values", [None, [], {}, {"message": 3}, {"message": {}}, "x"])
def test_a_file_of_another_form_is_passed_by(tmp_path: Path, values: object) -> None:
    path = tmp_path / "torchrun/x_1/attempt_0/0/error.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(values))
    (tmp_path / LOG).write_text(IMPORT)
    error = launcher_error(tmp_path)
    assert isinstance(error, WorkerError)


def test_what_this_version_of_torchrun_says_of_wrong_arguments_is_read(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "hpckit.trainer.torchrun.spawned_workers",
        "--no-such-option",
        "x",
    ]
    with open(tmp_path / LOG, "wb") as log:
        assert subprocess.run(command, stdout=log, stderr=log).returncode == 2
    error = launcher_error(tmp_path)
    assert error is not None
    assert (error.type, error.message) == (
        "ArgumentError",
        "unrecognized arguments: --no-such-option",
    )
