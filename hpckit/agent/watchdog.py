"""The watchdog: the first process on a node, with whose end Slurm ends all processes of the node's
step. It starts the agent and replaces it if it is killed.

`python -m hpckit.agent.watchdog` takes its place from the environment. It forks the fork server and
the agent, and waits, so that little can make it fail. An agent that is killed is replaced
within milliseconds. All that it had started ends with it, but the node's checkpoint service stays,
with the snapshots in its memory, and so does the fork server, with its imports done.

Where Slurm tracks processes by cgroups, only the watchdog receives Slurm's signals, and it forwards
them to the agent.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from types import FrameType

from hpckit.agent.agent import Agent
from hpckit.agent.device_assignment import even_share
from hpckit.agent.message_channel import Channel, HeartbeatThread
from hpckit.agent.workers.forkserver_client import (
    ForkServerClient,
    fork_first_server,
    start_server,
)
from hpckit.agent.workers.worker_environment import variables_of
from hpckit.agent.workers.worker_processes import STEP_SIGNALS
from hpckit.config.rules.violations import most_nodes
from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import read_spec
from hpckit.ipc.process_environment import agent_place
from hpckit.system.child_processes import (
    AGENT_NAME,
    Process,
    die_with_parent,
    kill_all,
    name_process,
)
from hpckit.system.forked_program import ForkedProgram
from hpckit.system.process_end import end_process

log = logging.getLogger(__name__)

TOO_SOON_S = 5.0
"""A process that ends so soon after its start is not started again, as it would end again."""


class NodeWatchdog:
    """Starts the agent of one node and replaces it, for the duration of the submission."""

    def __init__(self, spec: RunSpec, read_fd: int, write_fd: int) -> None:
        """
        Args:
            read_fd, write_fd: descriptors of the agent's channel, for reading and writing, as in
                `Channel`.
        """
        self._spec, self._read_fd, self._write_fd = spec, read_fd, write_fd
        self._client_socket, self._server_socket = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET
        )
        self._server = self._fork_server() if spec.launch.preload else None
        self._server_begun_s = time.monotonic()
        self._agent = 0  # process id; 0: there is no agent, or this process is the agent
        self._pending_signals: list[str] = []  # names of signals that no agent was sent yet

    def run(self) -> int:
        """Runs until the last agent ends and returns its exit status."""
        watchdog = os.getpid()
        for number in STEP_SIGNALS:
            signal.signal(number, self._forward_signal)
        while True:
            begun_s, agent = time.monotonic(), os.fork()
            if not agent:
                die_with_parent(watchdog)
                end_process(self._run_agent())
            self._agent = agent
            while self._pending_signals:
                os.kill(agent, signal.Signals[self._pending_signals.pop(0)])
            status = self._wait_for(agent)
            if status >= 0 or time.monotonic() - begun_s < TOO_SOON_S:
                break
            log.error("the agent was killed (%s) and is restarted", signal.Signals(-status).name)
            self._report_killed()
        kill_all([] if self._server is None else [self._server])
        return status if status >= 0 else 128 - status  # as a shell reports it

    def _run_agent(self) -> int:
        name_process(AGENT_NAME)
        self._server_socket.close()
        server = (
            None if self._server is None else ForkServerClient(self._client_socket, STEP_SIGNALS)
        )
        channel, heartbeats = Channel(self._read_fd, self._write_fd), HeartbeatThread()
        heartbeats.start()
        heartbeats.add(channel)
        try:
            Agent(*agent_place(), self._spec, channel, server, self._pending_signals).serve()
        finally:
            heartbeats.close()
            channel.close()
        return 0

    def _wait_for(self, agent: int) -> int:
        """Waits for the agent and returns its exit status as subprocess does. Restarts the fork
        server if that ends meanwhile."""
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            assert ended is not None  # waitid blocks until there is one
            if self._server is not None and ended.si_pid == self._server.pid:
                self._replace_server(self._server)
                continue
            if ended.si_pid == agent:
                self._agent = 0  # its number may soon be reused
            _, status = os.waitpid(ended.si_pid, 0)
            if ended.si_pid == agent:
                return os.waitstatus_to_exitcode(status)

    def _forward_signal(self, number: int, frame: FrameType | None) -> None:
        if self._agent:
            os.kill(self._agent, number)
        else:
            self._pending_signals.append(signal.Signals(number).name)

    def _fork_server(self) -> Process | ForkedProgram:
        """Starts the first fork server, while this process has done nothing but imports."""

        def release() -> None:
            os.close(self._read_fd)
            os.close(self._write_fd)
            self._client_socket.close()
            self._server_socket.close()

        env, threads = self._server_environment()
        return fork_first_server(env, self._server_socket, STEP_SIGNALS, threads, release)

    def _start_server(self) -> Process:
        env, threads = self._server_environment()
        return start_server(env, self._server_socket, STEP_SIGNALS, threads, at_once=False)

    def _server_environment(self) -> tuple[dict[str, str], int]:
        """Returns the variables of the fork server, and the number of threads of a worker."""
        launch = self._spec.launch
        here = 1 if self._spec.cluster.address is None else most_nodes(self._spec)
        threads = launch.threads_per_worker or even_share(here * launch.nproc_per_node)
        return os.environ | variables_of(self._spec.cluster.slurm), threads

    def _replace_server(self, server: Process | ForkedProgram) -> None:
        """Starts the fork server again, unless it ended soon after its start: then torchrun is
        started without a fork server."""
        lived_s = time.monotonic() - self._server_begun_s
        log.error("the fork server ended with exit code %d after %.0f s", server.wait(), lived_s)
        if lived_s < TOO_SOON_S:
            self._server = None
            self._server_socket.close()  # agents see the end of the connection
        else:
            self._server = self._start_server()
            self._server_begun_s = time.monotonic()

    def _report_killed(self) -> None:
        """Reports the killed agent to the supervisor in its place. The data in the pipe may end in
        the middle of a line."""
        with suppress(OSError):  # the pipe is full or unread; the next hello says it, too
            os.write(self._write_fd, b"\n" + json.dumps({"kind": "agent_killed"}).encode() + b"\n")


def main() -> int:
    """Runs the watchdog and returns the exit status of the agent."""
    read_fd, write_fd = os.dup(sys.stdin.fileno()), os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # other output must not mix with messages
    run, submission, _ = agent_place()
    watchdog = NodeWatchdog(read_spec(run.spec(submission)), read_fd, write_fd)
    # after the fork server is forked, which sets up its own
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    return watchdog.run()


if __name__ == "__main__":
    end_process(main())
