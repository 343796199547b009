"""The supervisor's handle on the agent of one node."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from hpckit.agent.exit_report import ExitReport, load_report
from hpckit.agent.message_channel import Channel, Message
from hpckit.agent.node_health.health_rules import clock_problem, skew_s
from hpckit.config.spec import HealthSpec
from hpckit.system.child_processes import Process, kill_all


class AgentHandle:
    """The agent of one node, with its process, its message channel and what it has reported."""

    def __init__(self, node: int, process: Process, health: HealthSpec | None) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.node, self.process = node, process
        self._health = health
        self._check_requested_s = time.time()  # of the last request to check its node
        self._started_s, self.has_said_hello = time.monotonic(), False
        self.problems: list[str] = []  # reasons to leave its node out
        self.is_checking = False  # it is checking its node again and will say hello after that
        self.was_replaced = False  # it was killed, and another agent has replaced it
        self.channel = Channel(process.stdout.fileno(), process.stdin.fileno())
        self.hello: Message | None = None
        self.report: ExitReport | None = None  # of the present generation
        self.signals: list[str] = []  # received by the agent and not read yet
        self.hangs: list[tuple[int, float]] = []  # attempt and silence of hangs, not read yet
        self.examined: list[list[Any]] = []  # snapshots of its ranks, not read yet

    @property
    def is_there(self) -> bool:
        """Whether the agent has said hello and is not lost."""
        return self.hello is not None and not self.is_lost()

    def is_lost(self) -> bool:
        """Returns whether the agent's process is known to have ended, or the agent fell silent for
        too long after its hello."""
        channel = self.channel
        is_silent = channel.has_ended if self.hello is None else channel.is_over
        return is_silent or self.process.returncode is not None

    def is_absent(self, within_s: float) -> bool:
        """Returns whether the agent has never said hello, and has ended or has had `within_s`
        seconds to do so."""
        is_late = time.monotonic() - self._started_s >= within_s
        return not self.has_said_hello and (is_late or self.is_lost())

    def read_messages(self, generation: int, *, is_readable: bool) -> None:
        """Reads what the agent reports of this generation; `is_readable` as in `Channel`."""
        for message in self.channel.receive(is_readable=is_readable):
            match message.get("kind"):
                case "agent_killed":
                    self._mark_killed()
                case "hello":
                    if self.hello is not None and self.hello["pid"] != message["pid"]:
                        self._mark_killed()
                    self.hello, self.is_checking, self.has_said_hello = message, False, True
                    self.problems = [*message.get("problems", ()), *self._clock_problems(message)]
                case "signal":
                    self.signals.append(str(message["name"]))
                case "hang" if message["generation"] == generation:
                    self.hangs.append((int(message["attempt"]), float(message["silent_s"])))
                case "examined" if message["generation"] == generation:
                    self.examined.append(list(message["ranks"]))
                case "ended" if message["generation"] == generation:
                    self.report = load_report(message["report"])

    def _mark_killed(self) -> None:
        """Records that the agent was killed, which ended everything that it had started."""
        self.was_replaced, self.is_checking, self.hello = True, False, None

    def check_again(self) -> None:
        """Asks the agent to check its node again and to say hello after that."""
        if self.hello is not None:
            self.is_checking, self._check_requested_s = True, time.time()
            self.channel.send({"kind": "look"})

    def _clock_problems(self, hello: Message) -> list[str]:
        """Returns the problem of the node's clock, if it has one. The agent wrote the time of its
        hello between the request and now, however long that took."""
        if self._health is None or "time" not in hello:
            return []
        skew = skew_s(float(hello["time"]), self._check_requested_s, time.time())
        problem = clock_problem(skew, self._health)
        return [problem] if problem else []

    def close(self) -> None:
        """Kills the agent and closes its pipes."""
        kill_all([self.process])
        self.channel.close()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
