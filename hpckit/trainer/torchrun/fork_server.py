"""The fork server, which starts the torchrun of each generation on its node by a fork that has all
imports done.

`python -m hpckit.trainer.torchrun.fork_server` is a child of the node's watchdog. It imports torch
once, with `--at-once` as fast as it can, since no rank runs on the node yet, and otherwise while
processors are idle. Then it serves one agent after the other. Each agent connects by
the server's standard input and passes two pipes. From the first one the server reads orders, each a
line of JSON. To the second one it writes which process it has started and how that process ended,
one process at a time. A torchrun ends with the agent that ordered it.

The server calls nothing of what it imports, so a fork of it is like a new process.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from hpckit.system.child_processes import die_with_parent, name_process, redirect_output
from hpckit.system.process_end import end_process
from hpckit.trainer.torchrun.background_imports import BackgroundImportFinder
from hpckit.trainer.torchrun.frame_lookup import quick_frame_lookup

AT_ONCE = "--at-once"
_TICK_MS = 20


@dataclass(frozen=True)
class ForkServerConnection:
    """The descriptors of the connection to an agent."""

    orders: int
    answers: int

    def is_over(self, within_ms: int = 0) -> bool:
        """Whether the agent has closed its end of the orders, of which some may still be unread."""
        poll = select.poll()
        poll.register(self.orders, 0)  # POLLHUP is always reported
        return bool(poll.poll(within_ms))

    def answer(self, **message: Any) -> None:
        """Send a message to the agent, unless the agent is gone."""
        with suppress(BrokenPipeError):
            os.write(self.answers, json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        os.close(self.orders)
        os.close(self.answers)


def main() -> None:
    """Import torch and serve agents; in a fork, run the torchrun that was ordered."""
    name_process("fork server")  # its command line may be that of the watchdog that it is a fork of
    gc.disable()  # imports create 300,000 objects, none of which is garbage
    control = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    _redirect_stdin()
    connection = accept(control)
    if connection is None:
        return
    finders = [] if AT_ONCE in sys.argv else [BackgroundImportFinder(connection.orders)]
    sys.meta_path[:0] = finders
    with quick_frame_lookup():
        from hpckit.trainer.torchrun import forked_workers
        from hpckit.trainer.torchrun.first_device_use import FIRST_USE
    del sys.meta_path[: len(finders)]
    FIRST_USE.check_driver()  # a fork could not detect it
    gc.freeze()  # so that garbage collection does not write to the pages that all forks share
    while connection is not None:
        arguments = serve(connection, control)
        if arguments is not None:
            _run_torchrun(partial(forked_workers.main, arguments))
        connection = accept(control)


def _run_torchrun(run: Callable[[], None]) -> NoReturn:
    """Run torchrun in this fork, and end the fork as a program would end."""
    try:
        run()
    except Exception:  # noqa: BLE001 - whatever it is: it is printed, as by an interpreter
        traceback.print_exc()
        end_process(1)
    end_process(0)


def accept(control: socket.socket) -> ForkServerConnection | None:
    """Return the connection of the next agent; None if no other agent can connect."""
    _, descriptors, _, _ = socket.recv_fds(control, 1, 2)
    return ForkServerConnection(*descriptors) if descriptors else None


def serve(connection: ForkServerConnection, control: socket.socket) -> list[str] | None:
    """Serve one agent. Return None when it gives no more orders and, in a fork, the arguments of
    the torchrun that the fork has to run.

    A torchrun that has ended is reaped at the next order. Until then no other process has its
    process id, so a kill by that id cannot hit another process.
    """
    server, ended = os.getpid(), 0
    with os.fdopen(os.dup(connection.orders), "rb") as orders:
        while line := orders.readline():
            if ended:
                os.waitpid(ended, 0)
            if connection.is_over():
                ended = 0
                break
            ended = os.fork()
            if not ended:
                die_with_parent(server)
                control.close()
                connection.close()
                gc.enable()
                return _become_torchrun(**json.loads(line))
            connection.answer(kind="begun", pid=ended, server=server)
            connection.answer(kind="ended", returncode=_wait(ended, connection))
    if ended:
        os.waitpid(ended, 0)
    connection.close()
    return None


def _become_torchrun(arguments: list[str], environment: dict[str, str], output: str) -> list[str]:
    """Set up this fork like a process that `hpckit.system.child_processes.spawn` has started."""
    os.setsid()
    redirect_output(Path(output))
    threads = os.environ["OMP_NUM_THREADS"]
    os.environ.clear()
    os.environ.update(environment)
    if os.environ["OMP_NUM_THREADS"] != threads:  # libraries read it when they are loaded
        program = [sys.executable, "-m", "hpckit.trainer.torchrun.forked_workers"]
        os.execv(program[0], [*program, *arguments])
    return arguments


def _redirect_stdin() -> None:
    """Replace standard input by /dev/null, which forks inherit, as `spawn` does for a program."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)


def _wait(pid: int, connection: ForkServerConnection) -> int:
    """Wait for the process, and return its exit status, or minus the signal that ended it, as
    subprocess does. The process is not reaped. It is killed if the agent is gone."""
    while (found := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)) is None:
        if connection.is_over(_TICK_MS):  # kernels before 5.3 cannot poll a process
            os.kill(pid, signal.SIGKILL)
            time.sleep(_TICK_MS / 1000)
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


if __name__ == "__main__":
    main()
