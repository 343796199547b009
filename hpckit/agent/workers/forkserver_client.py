"""The agent's client of the fork server (`hpckit.trainer.torchrun.fork_server`), which starts its
torchruns.

Importing torch takes seconds of CPU time, just when the loss of a node makes every other node start
again. The server takes some 300 MB of memory, most of which its forks share, and no CPU time. It
outlives agents. Each agent makes a connection of its own, with a pipe for orders, at whose end the
server kills what it has started for the agent, and a pipe for answers.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpckit.agent.message_channel import Channel
from hpckit.agent.workers.torchrun_command import FORKING, SERVER, torchrun_variables
from hpckit.system.child_processes import (
    Child,
    Process,
    enlarge_pipe,
    spawn,
    spawn_with_stdin,
)
from hpckit.system.forked_program import ForkedProgram, fork_program, is_forkable

log = logging.getLogger(__name__)

ANSWER_S = 5.0
"""Seconds for the server to report the end of a killed torchrun; otherwise the server is killed,
too."""
_POLL_S = 0.01
AT_ONCE = "--at-once"
"""The option of a server whose imports need not leave processor time to ranks of its node."""


def fork_first_server(
    env: Mapping[str, str],
    control: socket.socket,
    ignore: Sequence[signal.Signals],
    threads: int,
    release: Callable[[], None],
) -> Process | ForkedProgram:
    """Starts the first fork server of a node, which imports while no rank runs yet, and returns its
    process. It is a fork of this process, unless the environment has to be that of a new one.

    Args:
        env, control, ignore, threads: as in `start_server`. This process has no other threads.
        release: closes in a fork what a new process would not have.
    """
    whole = dict(env) | torchrun_variables(threads)
    if not is_forkable(whole):
        return start_server(env, control, ignore, threads, at_once=True)
    return fork_program(SERVER[-1], [AT_ONCE], whole, control.fileno(), release, ignore)


def start_server(
    env: Mapping[str, str],
    control: socket.socket,
    ignore: Sequence[signal.Signals],
    threads: int,
    *,
    at_once: bool,
) -> Process:
    """Starts a fork server and returns its process.

    Args:
        env: the known part of a torchrun's environment, above all the variables by which its
            processes are found.
        control: the server's end of a socket pair that keeps message boundaries; the holder of the
            other end may connect.
        ignore: signals to ignore, as in `spawn`.
        threads: the expected number of threads of each worker.
        at_once: whether its imports need not leave processor time to ranks of this node, as there
            are none yet.
    """
    env = dict(env) | torchrun_variables(threads)
    command = [*SERVER, AT_ONCE] if at_once else SERVER
    return spawn_with_stdin(command, env, control.fileno(), ignore)


class ForkServerClient:
    """A connection to the fork server. If the server is gone, a torchrun is started without it."""

    def __init__(self, control: socket.socket, ignore: Sequence[signal.Signals]) -> None:
        """
        Args:
            control, ignore: as in `start_server`.
        """
        self._control, self._ignore = control, tuple(ignore)
        self._read, self._write = self._connect()
        self.channel = Channel(self._read, self._write)
        self._has_begun = False  # whether the server was asked for the newest torchrun

    def begin(self, arguments: Sequence[str], env: Mapping[str, str], output: Path) -> Child:
        """Starts a torchrun with these arguments and exactly this environment, when the previous
        one has ended.

        Args:
            output: the file to which its output is appended.
        """
        self.channel.receive()
        self._has_begun = not self.channel.has_ended
        if self._has_begun:
            order = {"arguments": list(arguments), "environment": dict(env), "output": str(output)}
            self.channel.send(order)
            return ForkedTorchrun(self)
        log.warning("the fork server has ended")
        self.reconnect()
        return spawn([*FORKING, *arguments], env, output, self._ignore)

    def awaited(self) -> list[int]:
        """Returns the descriptor of answers about the newest torchrun. There is none if it was
        started without the server, or if its `poll` has read the last of them."""
        is_awaited = self._has_begun and not self.channel.has_ended
        return [self.channel.fileno()] if is_awaited else []

    def reconnect(self) -> None:
        """Connects again: pending orders are dropped, and what the server had started is killed."""
        self.end()
        self._read, self._write = self._connect()
        self.channel = Channel(self._read, self._write)

    def end(self) -> None:
        """Ends the connection as `reconnect` does, without a new one."""
        self.channel.close()
        os.close(self._read)
        os.close(self._write)

    def _connect(self) -> tuple[int, int]:
        """Hands one end of two pipes to the server, and returns the other ends, for reading its
        answers and for writing orders."""
        orders, write = _pipe()
        read, answers = _pipe()
        try:
            socket.send_fds(self._control, [b"."], [orders, answers])
        except OSError as error:
            log.warning("cannot connect to the fork server: %s", error)
        finally:
            os.close(orders)
            os.close(answers)
        return read, write


def _pipe() -> tuple[int, int]:
    read, write = os.pipe()
    enlarge_pipe(write)
    return read, write


class ForkedTorchrun:
    """A torchrun that a fork server starts. It ends with the server, whose end counts as its
    own."""

    def __init__(self, server: ForkServerClient) -> None:
        self._server, self._answers = server, server.channel
        self._pid: int | None = None  # not started yet: imports may be under way
        self._server_pid = 0
        self._killed_s: float | None = None
        self._returncode: int | None = None

    def poll(self) -> int | None:
        """Returns the exit status as subprocess does, or None; the other methods are as there,
        too."""
        if self._returncode is None:
            for message in self._answers.receive():
                self._pid = message.get("pid", self._pid)
                self._server_pid = message.get("server", self._server_pid)
                self._returncode = message.get("returncode")
        if self._returncode is None and self._answers.has_ended:
            self._returncode = -signal.SIGKILL
        elif self._returncode is None and self._is_overdue():
            log.error("the fork server does not answer and is killed")
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
