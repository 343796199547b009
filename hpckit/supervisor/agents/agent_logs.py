"""What agents, and srun in their place, have said in their logs."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hpckit.rundir.directory import RunDir

_MOST = 4096  # bytes of the log's end that are looked at
_MOST_SHOWN = 300  # characters
_EPILOGUE = re.compile(r"srun: (error: .*: task|Force Terminated|Job step aborted)")
"""What srun says of the end of a task, after the task's own words."""


class AgentLogs:
    """Those of a run's nodes. Each is appended to, by one agent after the other."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._begun: dict[int, int] = {}  # bytes that were there before the agent, by node

    def begin(self, node: int) -> Path:
        """An agent begins; its log."""
        path = self._run.agent_log(node)
        self._begun[node] = path.stat().st_size if path.exists() else 0
        return path

    def last_words(self, node: int) -> str | None:
        """The last line that was said since the node's agent began, if anything was."""
        try:
            with open(self._run.agent_log(node), "rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._begun.get(node, 0), end - _MOST))
                text = file.read(_MOST).decode(errors="replace")
        except OSError:
            return None
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        told = [line for line in lines if not _EPILOGUE.match(line)] or lines
        return told[-1][:_MOST_SHOWN] if told else None
