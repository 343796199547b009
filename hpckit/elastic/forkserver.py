"""The agent's side of `hpckit.training.forkserver`, which begins its torchruns.

Importing torch takes seconds of processor time, just when a node that was lost has every other node
begin anew. The server takes some 300 MB of memory, most of which its forks share, and no time.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpckit.elastic.channel import Channel
from hpckit.elastic.torchrun import FORKING, SERVER, torchrun_variables
from hpckit.run.processes import Child, Process, kill_all, spawn, spawn_serving

log = logging.getLogger(__name__)

ANSWER_S = 5.0
"""Seconds in which a server says that a torchrun which was killed has ended; else it goes, too."""
_POLL_S = 0.01


class ForkServer:
    """One per agent. A torchrun that is wanted when it is gone is started without it."""

    def __init__(
        self, env: Mapping[str, str], ignore: Sequence[signal.Signals], threads: int
    ) -> None:
        """
        Args:
            env: what is known of a torchrun's environment from the start; that its processes are
                found by, above all.
            ignore: signals, as of `spawn`.
            threads: that workers will have, as far as one can tell.
        """
        self._env = dict(env) | torchrun_variables(threads)
        self._ignore = tuple(ignore)
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, arguments: Sequence[str], env: Mapping[str, str], output: Path) -> Child:
        """A torchrun with these arguments and no other environment, when the one before has ended.

        Args:
            output: the file that it appends what it says to.
        """
        if self._process.poll() is None:
            order = {"arguments": list(arguments), "environment": dict(env), "output": str(output)}
            self._channel.send(order)
            return Fork(self._process, self._channel)
        log.warning("the fork server has ended (%d)", self._process.returncode)
        self.end()
        self._start()
        return spawn([*FORKING, *arguments], env, output, self._ignore)

    def end(self) -> None:
        """And of the torchrun that it has begun, if that has not ended."""
        kill_all([self._process])
        self._channel.close()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _start(self) -> None:
        self._process = spawn_serving(SERVER, self._env, self._ignore)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._channel = Channel(self._process.stdout.fileno(), self._process.stdin.fileno())


class Fork:
    """A torchrun of a fork server. It ends with the server, whose end counts as its own."""

    def __init__(self, server: Process, answers: Channel) -> None:
        self._server, self._answers = server, answers
        self._pid: int | None = None  # not begun yet: imports may be under way
        self._killed_s: float | None = None
        self._returncode: int | None = None

    def poll(self) -> int | None:
        """As of subprocess, like the rest."""
        if self._returncode is None:
            for message in self._answers.receive():
                self._pid = message.get("pid", self._pid)
                self._returncode = message.get("returncode")
        if self._returncode is None and self._answers.has_ended:
            self._returncode = self._server.wait()
        elif self._returncode is None and self._is_overdue():
            log.error("the fork server does not answer: it is killed")
            self._server.kill()
        return self._returncode

    def kill(self) -> None:
        if self.poll() is None:
            self._killed_s = time.monotonic()
            os.kill(self._server.pid if self._pid is None else self._pid, signal.SIGKILL)

    def _is_overdue(self) -> bool:
        return self._killed_s is not None and time.monotonic() - self._killed_s > ANSWER_S

    def wait(self) -> int:
        while (returncode := self.poll()) is None:
            time.sleep(_POLL_S)
        return returncode
