"""The agent's side of `hpckit.trainer.torchrun.fork_server`, which begins its torchruns.

Importing torch takes seconds of processor time, just when a node that was lost has every other node
begin anew. The server takes some 300 MB of memory, most of which its forks share, and no time.

It outlives agents, and each connects to it anew: with a pipe for orders, whose end has the server
kill what it has begun, and one for answers.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpckit.agent.message_channel import Channel
from hpckit.agent.workers.torchrun_command import FORKING, SERVER, torchrun_variables
from hpckit.system.child_processes import PIPE_BYTES, Child, Process, spawn, spawn_with_stdin

log = logging.getLogger(__name__)

ANSWER_S = 5.0
"""Seconds in which a server says that a torchrun which was killed has ended; else it goes, too."""
_POLL_S = 0.01


def start_server(
    env: Mapping[str, str], control: socket.socket, ignore: Sequence[signal.Signals], threads: int
) -> Process:
    """The server's process.

    Args:
        env: what is known of a torchrun's environment from the start; that its processes are found
            by, above all.
        control: its end of a pair of sockets that keep messages apart; who holds the other end may
            connect.
        ignore: signals, as of `spawn`.
        threads: that workers will have, as far as one can tell.
    """
    env = dict(env) | torchrun_variables(threads)
    return spawn_with_stdin(SERVER, env, control.fileno(), ignore)


class ForkServerClient:
    """A connection to it. A torchrun that is wanted when it is gone is started without it."""

    def __init__(self, control: socket.socket, ignore: Sequence[signal.Signals]) -> None:
        """
        Args:
            control, ignore: as of `start_server`.
        """
        self._control, self._ignore = control, tuple(ignore)
        self._connect()

    def begin(self, arguments: Sequence[str], env: Mapping[str, str], output: Path) -> Child:
        """A torchrun with these arguments and no other environment, when the one before has ended.

        Args:
            output: the file that it appends what it says to.
        """
        self.channel.receive()
        if not self.channel.has_ended:
            order = {"arguments": list(arguments), "environment": dict(env), "output": str(output)}
            self.channel.send(order)
            return ForkedTorchrun(self)
        log.warning("the fork server is gone")
        self.reconnect()
        return spawn([*FORKING, *arguments], env, output, self._ignore)

    def reconnect(self) -> None:
        """What it was ordered, and has not begun, is not begun; what it has begun is killed."""
        self.end()
        self._connect()

    def end(self) -> None:
        """As `reconnect`, for good."""
        self.channel.close()
        os.close(self._read)
        os.close(self._write)

    def _connect(self) -> None:
        orders, self._write = _pipe()
        self._read, answers = _pipe()
        try:
            socket.send_fds(self._control, [b"."], [orders, answers])
        except OSError as error:
            log.warning("there is no fork server: %s", error)
        finally:
            os.close(orders)
            os.close(answers)
        self.channel = Channel(self._read, self._write)


def _pipe() -> tuple[int, int]:
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return read, write


class ForkedTorchrun:
    """A torchrun of a fork server. It ends with the server, whose end counts as its own."""

    def __init__(self, server: ForkServerClient) -> None:
        self._server, self._answers = server, server.channel
        self._pid: int | None = None  # not begun yet: imports may be under way
        self._server_pid = 0
        self._killed_s: float | None = None
        self._returncode: int | None = None

    def poll(self) -> int | None:
        """As of subprocess, like the rest."""
        if self._returncode is None:
            for message in self._answers.receive():
                self._pid = message.get("pid", self._pid)
                self._server_pid = message.get("server", self._server_pid)
                self._returncode = message.get("returncode")
        if self._returncode is None and self._answers.has_ended:
            self._returncode = -signal.SIGKILL
        elif self._returncode is None and self._is_overdue():
            log.error("the fork server does not answer: it is killed")
            os.kill(self._server_pid, signal.SIGKILL)
        return self._returncode

    def kill(self) -> None:
        if self.poll() is not None:
            return
        if self._pid is None:
            self._server.reconnect()
            self._returncode = -signal.SIGKILL
        else:
            self._killed_s = time.monotonic()
            os.kill(self._pid, signal.SIGKILL)

    def _is_overdue(self) -> bool:
        return self._killed_s is not None and time.monotonic() - self._killed_s > ANSWER_S

    def wait(self) -> int:
        while (returncode := self.poll()) is None:
            time.sleep(_POLL_S)
        return returncode
