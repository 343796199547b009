"""A torchrun that stands by: it has imported torch before there is a generation to begin.

Importing takes seconds of processor time, just when a node that was lost has every other node begin
anew. What stands by takes some 300 MB of memory, and no time.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import Signals

from hpckit.elastic.torchrun import FORKING, GENTLE, THREADS, torchrun_variables
from hpckit.run.processes import Process, kill_all, spawn, spawn_waiting

log = logging.getLogger(__name__)

BEGUN_S = 30.0
"""Seconds that a generation is left alone with its cores before another torchrun stands by."""


class Standby:
    """At most one at a time. What is not there when it is wanted is started then."""

    def __init__(
        self, env: Mapping[str, str], ignore: Sequence[Signals], threads: int, *, again: bool
    ) -> None:
        """
        Args:
            env: what is known of the torchrun's environment from the start; that its processes are
                found by, above all.
            ignore: signals, as of `spawn`.
            threads: that workers will have, as far as one can tell.
            again: whether another one stands by during each generation, and not for the first one
                alone.
        """
        self._env, self._ignore, self._threads = dict(env), tuple(ignore), threads
        self._again = again
        self._waiting: Process | None = None
        self._since: float | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """The process that stands by, if there is one."""
        return () if self._waiting is None else (self._waiting.pid,)

    def look(self) -> None:
        """To be called often: has one stand by as soon as that takes nothing from a beginning."""
        if self._waiting is not None:
            return
        env = self._env | torchrun_variables(self._threads)
        if self._since is None:  # nothing trains yet, and it is wanted soon
            self._waiting = spawn_waiting(FORKING, env, self._ignore)
        elif self._again and time.monotonic() - self._since >= BEGUN_S:
            self._waiting = spawn_waiting(GENTLE, env, self._ignore)

    def become(self, arguments: Sequence[str], env: Mapping[str, str], output: Path) -> Process:
        """A torchrun with these arguments and no other environment.

        Args:
            output: the file that it appends what it says to.
        """
        self._since, self._threads = time.monotonic(), int(env[THREADS])
        process, self._waiting = self._waiting, None
        if process is not None:
            if _tell(process, arguments, env, output):
                return process
            log.warning("the torchrun that stood by has ended (%s)", process.wait())
        return spawn([*FORKING, *arguments], env, output, self._ignore)

    def end(self) -> None:
        """Nobody needs it any more."""
        kill_all([] if self._waiting is None else [self._waiting])
        self._waiting = None


def _tell(process: Process, arguments: Sequence[str], env: Mapping[str, str], output: Path) -> bool:
    """Whether it is there to hear it."""
    assert process.stdin is not None
    orders = {"arguments": list(arguments), "environment": dict(env), "output": str(output)}
    with suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(json.dumps(orders).encode())
        return process.poll() is None
    return False
