"""This process as one that hpckit has launched: with a real heartbeat table and event log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from checkpointing import event_file
from hpckit import client
from hpckit.events.event_log import Event, read_events
from hpckit.ipc.heartbeat_table import Heartbeat, HeartbeatTable, WorkerRequest
from hpckit.ipc.process_environment import NodeEnvironment, WorkerEnvironment
from hpckit.ipc.program_session import ProgramSession
from hpckit.rundir.directory import RunDir


@dataclass(frozen=True)
class LaunchedProcess:
    """What the agent of this process has of it."""

    table: HeartbeatTable
    run: RunDir

    def preempt(self) -> None:
        """Ask the process to leave."""
        self.table.ask(WorkerRequest.PREEMPT, within_s=1000)

    def heartbeat(self) -> Heartbeat:
        return self.table.slots()[0]

    def events(self, kind: str) -> list[Event]:
        return [event for event in read_events(self.run.events) if event.kind == kind]

    def checkpoints(self) -> list[int]:
        """Steps of the checkpoints that the program, or its Checkpointer, has reported."""
        kinds = ("checkpoint_reported", "checkpoint_committed")
        return [event["step"] for kind in kinds for event in self.events(kind)]


@contextmanager
def launched(folder: Path) -> Iterator[LaunchedProcess]:
    """The only rank of a run in `folder`, during the block."""
    run = RunDir(folder)
    folder.mkdir(parents=True, exist_ok=True)
    table, path = HeartbeatTable.create(1)
    at = NodeEnvironment(run, 1, 1, 0, 1)
    env = WorkerEnvironment(at, 0, 0, 1, 1, 0, "cpu", path, True)
    assert client._sessions.get(os.getpid()) is None
    session = client._sessions[os.getpid()] = ProgramSession(env, 0)
    os.environ[event_file.FILE] = str(run.events)
    try:
        yield LaunchedProcess(table, run)
    finally:
        del os.environ[event_file.FILE]
        session.close()
        del client._sessions[os.getpid()]
