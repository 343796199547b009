"""Log files of agents, which also hold the output of the srun that starts them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hpckit.rundir.directory import RunDir

_MAX_BYTES = 4096  # bytes read from the end of a log
_MAX_CHARACTERS = 300  # characters
_EPILOGUE = re.compile(r"srun: (error: .*: task|Force Terminated|Job step aborted)")
"""Lines that srun prints about the end of a task, after the task's own output."""


class AgentLogs:
    """The agent logs of a run by node. Successive agents of a node append to the same file."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._start_offsets: dict[int, int] = {}  # bytes before the present agent, by node

    def start_log(self, node: int) -> Path:
        """Records the start of an agent and returns the path of its log."""
        path = self._run.agent_log(node)
        self._start_offsets[node] = path.stat().st_size if path.exists() else 0
        return path

    def last_line(self, node: int) -> str | None:
        """Returns the last line logged since the node's agent was started, or None if there is
        none."""
        try:
            with open(self._run.agent_log(node), "rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._start_offsets.get(node, 0), end - _MAX_BYTES))
                text = file.read(_MAX_BYTES).decode(errors="replace")
        except OSError:
            return None
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        shown = [line for line in lines if not _EPILOGUE.match(line)] or lines
        return shown[-1][:_MAX_CHARACTERS] if shown else None
