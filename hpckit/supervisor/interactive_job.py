"""A run in an interactive allocation: the supervisor runs beside a view of the run's events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from hpckit.events.event_log import EventTail
from hpckit.rundir.directory import RunDir
from hpckit.submit.run_follower import Follower
from hpckit.system.child_processes import spawn


def follow(
    run: RunDir, number: int, steps: int, supervisor: tuple[Sequence[str], Mapping[str, str]]
) -> int:
    """Shows the run until it ends and returns its exit status. Ctrl-C saves and stops it, as with
    `launch.py`."""
    command, env = supervisor
    run.logs.mkdir(exist_ok=True)
    follower = Follower(run, number, steps, Console(), EventTail(run.events, from_end=True))
    process = spawn(command, env, run.logs / "interactive.log")
    return follower.follow(lambda: process.poll() is None)
