"""What a person who follows a run reads of it."""

from __future__ import annotations

import fcntl
import io
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from hpckit.events.event_log import EventLog, EventTail
from hpckit.events.schema import event_of
from hpckit.rundir.directory import RunDir
from hpckit.submit.run_follower import RunFollower, describe
from tests.unit.hpckit.specs_and_processes import line_of, python

OTHERS = ("step", "run_started", "run_ended", "agent_started", "worker_started", "node_ended")
ENDED = {"generation": 2, "verdict": "crash", "reason": "rank 0: ValueError: x"}


def shown(kind: str, **fields: Any) -> str:
    """The line as it stands on the terminal, without its colours."""
    line = describe(event_of(0.0, kind, fields))
    assert line is not None
    return Text.from_markup(line).plain


@pytest.mark.parametrize(
    ("kind", "fields", "line"),
    [
        ("generation_started", {"generation": 3, "nodes": 1}, "generation 3 starts on 1 node"),
        ("generation_started", {"generation": 3, "nodes": 2}, "generation 3 starts on 2 nodes"),
        ("training_started", {"world_size": 1, "step": 0}, "training on 1 rank from step 0"),
        ("training_started", {"world_size": 8, "step": 9}, "training on 8 ranks from step 9"),
        ("asked", {"request": "preempt"}, "preempt: all ranks are asked to save and exit"),
        ("worker_lost", {"node": 1, "step": 7}, "worker lost on node 1 at step 7"),
        (
            "hang",
            {"node": 1, "step": 7, "stacks": ["/r/a", "/r/b"]},
            "hang on node 1 after step 7: stacks in /r/a /r/b",
        ),
        (
            "hang",
            {"node": 0, "step": 7, "stacks": []},
            "hang on node 0 after step 7: stacks in none",
        ),
        ("nodes_chosen", {"nodes": [0, 2], "wanted": 3}, "continuing with 2 nodes of 3"),
        (
            "checkpoint_committed",
            {"step": 50, "bytes": 3 << 19, "seconds": 0.26},
            "checkpoint 50 committed, 1.5 MiB in 0.3 s",
        ),
        ("checkpoint_failed", {"step": 5, "error": "disk full"}, "checkpoint 5 failed: disk full"),
        ("checkpoint_skipped", {"step": 5, "reason": "damaged"}, "checkpoint 5 skipped: damaged"),
        (
            "replicas_differ",
            {"step": 5, "summary": "tensor w: rank 1 differs"},
            "replicas differ at step 5: tensor w: rank 1 differs",
        ),
        ("degraded", {"what": "on the CPU"}, "degraded: on the CPU"),
        (
            "straggler",
            {"step": 9, "rank": 3, "host": "n7", "excess": 0.4, "z": 9.0},
            "straggler at step 9: rank 3 on n7 takes 40% longer than ranks with the same work",
        ),
        (
            "straggler_over",
            {"step": 9, "rank": 3, "host": "n7"},
            "straggler at step 9: rank 3 on n7 keeps up again",
        ),
        ("generation_ended", ENDED, "generation 2 ended: crash, rank 0: ValueError: x"),
    ],
)
def test_each_event_of_interest_is_told(kind: str, fields: dict[str, Any], line: str) -> None:
    assert shown(kind, **fields) == line


@pytest.mark.parametrize("kind", OTHERS)
def test_other_events_are_passed_over(kind: str) -> None:
    assert describe(event_of(0.0, kind, {"step": 1, "status": 0})) is None
    assert describe(event_of(0.0, "nodes_chosen", {"nodes": [0, 2], "wanted": 2})) is None


@pytest.mark.parametrize("reason", ["cannot open [/data/x]", "index [i] is out of bounds"])
@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("generation_ended", "reason"),
        ("checkpoint_failed", "error"),
        ("checkpoint_skipped", "reason"),
        ("replicas_differ", "summary"),
        ("degraded", "what"),
    ],
)
def test_an_error_with_brackets_is_shown_as_it_is(kind: str, field: str, reason: str) -> None:
    assert shown(kind, **{field: reason}).endswith(reason)


def follow(run: RunDir, alive: bool) -> tuple[int, str]:
    console = Console(file=io.StringIO(), width=200)
    follower = RunFollower(run, 1, 10, console, EventTail(run.events))
    status = follower.follow(lambda: alive)
    assert isinstance(console.file, io.StringIO)
    return status, console.file.getvalue()


def test_following_ends_with_the_runs_own_status(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with EventLog(run.events, generation=1) as log:
        log.emit_kind("generation_started", nodes=2)
        log.emit_kind("training_started", step=0, world_size=2)
        log.emit_kind("step", step=1, loss=2.5, tokens_per_s=1234.0)
        log.emit_kind("run_ended", submission=2, status=0)
        log.emit_kind("run_ended", submission=1, status=70)
    status, text = follow(run, alive=True)
    assert status == 70
    assert "generation 1 starts on 2 nodes" in text
    assert "step 1/10  loss 2.500 1,234 tok/s" in text


@pytest.mark.parametrize(("kind", "status"), [("run_refused", 2), ("run_failed", 75)])
def test_what_kept_the_supervisor_from_its_work_is_told(
    tmp_path: Path, kind: str, status: int
) -> None:
    run = RunDir(tmp_path)
    with EventLog(run.events, submission=1) as log:
        log.emit_kind(kind, error="in use by [somebody]")
    told, text = follow(run, alive=True)
    assert told == status
    assert "in use by [somebody]" in text


def test_what_no_terminal_can_print_is_escaped(tmp_path: Path) -> None:
    """As in the name of a file that is not UTF-8."""
    run = RunDir(tmp_path)
    with EventLog(run.events, generation=1) as log:
        log.emit_kind("generation_ended", verdict="crash", reason="no file caf\udce9", final=True)
        log.emit_kind("run_ended", submission=1, status=70)
    status, text = follow(run, alive=True)
    assert status == 70
    assert "no file caf\\udce9" in text


def test_a_supervisor_that_ends_without_a_word_is_told_apart(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    status, text = follow(run, alive=False)
    assert status == 75
    assert "ended without recording why" in text
    assert f"hpckit resume {run.path}" in text.replace("\n", "")


def test_ctrl_c_asks_the_holder_of_the_run_to_stop_and_again_leaves_it(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    code = """
import signal, sys; from pathlib import Path; from hpckit.rundir.lock import RunLock
signal.signal(signal.SIGINT, lambda *_: print("asked to stop", flush=True))
with RunLock(Path(sys.argv[1]), "supervisor"):
    print("held", flush=True); sys.stdin.readline(); sys.stdin.readline()
"""

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with python(code, run.lock) as supervisor:
        assert line_of(supervisor) == "held"
        console = Console(file=io.StringIO())
        assert RunFollower(run, 1, 10, console, EventTail(run.events)).follow(interrupt) == 75
        assert line_of(supervisor) == "asked to stop"
        assert supervisor.poll() is None


def test_ctrl_c_before_anything_is_followed_is_obeyed_then(tmp_path: Path) -> None:
    file = io.StringIO()
    run = RunDir(tmp_path)
    follower = RunFollower(run, 1, 10, Console(file=file, width=200), EventTail(run.events))
    with follower.noting_signals():
        signal.raise_signal(signal.SIGINT)
        alive = iter([True, False])
        assert follower.follow(lambda: next(alive)) == 75
    assert "stopping after a save" in file.getvalue()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_supervisor_that_has_not_said_who_it_is_is_asked_later(tmp_path: Path) -> None:
    """Between its lock and its name: nobody else is interrupted, least of all who follows."""
    run = RunDir(tmp_path)
    with run.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        follower = RunFollower(run, 1, 10, Console(file=io.StringIO()), EventTail(run.events))
        follower._ask_to_stop()


_SUPERVISOR = """
import os, signal, sys, time
from pathlib import Path
from hpckit.events.event_log import EventLog
from hpckit.events.schema import RunEnded, RunStarted
from hpckit.rundir.lock import RunLock
path = Path(sys.argv[1])
heard = []
for number in signal.SIGUSR2, signal.SIGTERM, signal.SIGINT:
    signal.signal(number, lambda number, frame: heard.append(signal.Signals(number).name))
print("ready", flush=True)
sys.stdin.readline()
with RunLock(path / "lock", "supervisor"), EventLog(path / "events.jsonl", submission=1) as log:
    log.emit(RunStarted(pid=os.getpid(), steps=10, job=None, hosts=None))
    told = []
    while "SIGINT" not in told:
        time.sleep(0.01)
        for name in heard[len(told):]:
            print(name, flush=True)
            told.append(name)
    log.emit(RunEnded(verdict="stopped", status=130))
"""
_FOLLOWER = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # below nohup, it is ignored
from pathlib import Path
from rich.console import Console
from hpckit.events.event_log import EventTail
from hpckit.rundir.directory import RunDir
from hpckit.submit.run_follower import RunFollower
run = RunDir(Path(sys.argv[1]))
tail = EventTail(run.events)
follower = RunFollower(run, 1, 10, Console(width=200), tail, is_outlived=sys.argv[2] == "True")
with follower.noting_signals():
    print("follows", flush=True)
    sys.exit(follower.follow(lambda: True))
"""


def test_signals_reach_the_supervisor_though_they_come_before_it(tmp_path: Path) -> None:
    with (
        python(_SUPERVISOR, tmp_path) as supervisor,
        python(_FOLLOWER, tmp_path, True) as follower,
    ):
        assert line_of(supervisor) == "ready"
        assert line_of(follower) == "follows"
        follower.send_signal(signal.SIGUSR2)
        assert supervisor.stdin is not None
        supervisor.stdin.write("go on\n")
        supervisor.stdin.flush()
        told = line_of(follower)
        assert told.startswith(f"the supervisor is process {supervisor.pid}: SIGUSR2 ")
        assert line_of(supervisor) == "SIGUSR2"
        assert line_of(follower).startswith("SIGUSR2: ")
        follower.send_signal(signal.SIGTERM)
        assert line_of(follower).startswith("SIGTERM or SIGHUP: stopping after a save")
        assert line_of(supervisor) == "SIGINT", "and no second preemption"
        assert follower.wait(180) == 130


def test_a_terminal_that_closes_ends_the_following_alone(tmp_path: Path) -> None:
    with (
        python(_SUPERVISOR, tmp_path) as supervisor,
        python(_FOLLOWER, tmp_path, True) as follower,
    ):
        assert supervisor.stdin is not None
        supervisor.stdin.write("go on\n")
        supervisor.stdin.flush()
        assert line_of(follower) == "follows"
        assert line_of(follower).startswith("the supervisor is process ")
        follower.send_signal(signal.SIGHUP)
        assert line_of(follower).startswith("SIGHUP: no longer followed; it still runs: ")
        assert follower.wait(180) == -signal.SIGHUP
        assert supervisor.poll() is None
        supervisor.send_signal(signal.SIGUSR2)
        assert [line_of(supervisor), line_of(supervisor)] == ["ready", "SIGUSR2"]


def test_a_terminal_that_closes_stops_a_run_that_would_be_killed(tmp_path: Path) -> None:
    with (
        python(_SUPERVISOR, tmp_path) as supervisor,
        python(_FOLLOWER, tmp_path, False) as follower,
    ):
        assert supervisor.stdin is not None
        supervisor.stdin.write("go on\n")
        supervisor.stdin.flush()
        assert line_of(follower) == "follows"
        assert line_of(follower).startswith("the supervisor is process ")
        follower.send_signal(signal.SIGHUP)
        assert [line_of(supervisor), line_of(supervisor)] == ["ready", "SIGINT"]
        assert follower.wait(180) == 130
