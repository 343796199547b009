"""The first process on a node, for whose end Slurm ends all that is there: it keeps the agent.

`python -m hpckit.agent.watchdog`, its place in the environment. It starts the fork server, forks
the agent, and waits; there is little that it could die of. An agent that is killed has a successor
within milliseconds: what it had begun dies with it, but the node's checkpoint service stays, with
what is in its memory, and so does the fork server, with all its imports done.

Where Slurm tracks processes by cgroups, this one alone gets its signals: the agent is sent them.
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

from hpckit.agent.agent import Agent, even_share
from hpckit.agent.message_channel import Channel, HeartbeatThread
from hpckit.agent.workers.forkserver_client import ForkServerClient, start_server
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

log = logging.getLogger(__name__)

TOO_SOON_S = 5.0
"""Who dies so soon after it was started would do so again."""


class NodeWatchdog:
    """Of one node, for as long as the submission has it."""

    def __init__(self, spec: RunSpec, come: int, go: int) -> None:
        """
        Args:
            come, go: descriptors by which the agent hears and answers, as of `Channel`.
        """
        self._spec, self._come, self._go = spec, come, go
        self._ours, self._servers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server = self._start_server() if spec.launch.preload else None
        self._server_begun_s = time.monotonic()
        self._agent = 0  # 0: there is none, or this is it
        self._heard: list[str] = []  # names of signals that no agent was sent

    def keep(self) -> int:
        """Exit status of the last agent, and in the fork that is an agent, its own."""
        keeper = os.getpid()
        for number in STEP_SIGNALS:
            signal.signal(number, self._hear)
        while True:
            begun_s, agent = time.monotonic(), os.fork()
            if not agent:
                die_with_parent(keeper)
                return self._be_agent()
            self._agent = agent
            while self._heard:
                os.kill(agent, signal.Signals[self._heard.pop(0)])
            status = self._wait_for(agent)
            if status >= 0 or time.monotonic() - begun_s < TOO_SOON_S:
                break
            log.error("the agent was killed (%s): another begins", signal.Signals(-status).name)
            self._say_killed()
        kill_all([] if self._server is None else [self._server])
        return status if status >= 0 else 128 - status  # as a shell would put it

    def _be_agent(self) -> int:
        name_process(AGENT_NAME)
        self._servers.close()
        server = None if self._server is None else ForkServerClient(self._ours, STEP_SIGNALS)
        channel, pulse = Channel(self._come, self._go), HeartbeatThread()
        pulse.of([channel])
        try:
            Agent(*agent_place(), self._spec, channel, server, self._heard).serve()
        finally:
            pulse.close()
            channel.close()
        return 0

    def _wait_for(self, agent: int) -> int:
        """How it ended, as of subprocess. Its fork server is started again meanwhile."""
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            assert ended is not None  # it waits until there is one
            if self._server is not None and ended.si_pid == self._server.pid:
                self._replace_server(self._server)
                continue
            if ended.si_pid == agent:
                self._agent = 0  # soon another process may have its number
            _, status = os.waitpid(ended.si_pid, 0)
            if ended.si_pid == agent:
                return os.waitstatus_to_exitcode(status)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._agent:
            os.kill(self._agent, number)
        else:
            self._heard.append(signal.Signals(number).name)

    def _start_server(self) -> Process:
        launch = self._spec.launch
        env = os.environ | variables_of(self._spec.cluster.slurm)
        here = 1 if self._spec.cluster.address is None else most_nodes(self._spec)
        threads = launch.threads_per_worker or even_share(here * launch.gpus_per_node)
        return start_server(env, self._servers, STEP_SIGNALS, threads)

    def _replace_server(self, server: Process) -> None:
        """Unless it has just begun: then torchruns are started without one."""
        lived_s = time.monotonic() - self._server_begun_s
        log.error("the fork server has ended (%d) after %.0f s", server.wait(), lived_s)
        if lived_s < TOO_SOON_S:
            self._server = None
            self._servers.close()  # which agents hear of
        else:
            self._server, self._server_begun_s = self._start_server(), time.monotonic()

    def _say_killed(self) -> None:
        """For the agent, which cannot. What is in the pipe may end in the middle of a line."""
        with suppress(OSError):  # full, or nobody reads it: the next hello says as much
            os.write(self._go, b"\n" + json.dumps({"kind": "agent_killed"}).encode() + b"\n")


def main() -> int:
    """Exit status of the agent."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    come, go = os.dup(sys.stdin.fileno()), os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what else is printed is no message
    run, submission, _ = agent_place()
    return NodeWatchdog(read_spec(run.spec(submission)), come, go).keep()


if __name__ == "__main__":
    sys.exit(main())
