"""An agent without workers, and its watchdog: it says that it is there, passes signals up, has a
successor if it is killed, and is not left behind.
What it does with workers is tested with real runs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from hpckit.agent.message_channel import Channel, Message
from hpckit.config.spec_parser import dump_spec
from hpckit.ipc.process_environment import agent_variables
from hpckit.rundir.directory import RunDir
from hpckit.system.child_processes import AGENT_NAME, Process, kill_all, spawn_piped
from tests.startup.fork_request import ADDRESS
from tests.unit.hpckit.specs_and_processes import is_gone, make_spec, until


class Told:
    """An agent and the other side of its channel."""

    def __init__(self, run: RunDir, code: str) -> None:
        env = os.environ | agent_variables(run, 1, 0)
        command = [sys.executable, *(["-c", code] if code else ["-m", "hpckit.agent.watchdog"])]
        self.process: Process = spawn_piped(command, env, run.agent_log(0), is_written_to=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.channel = Channel(self.process.stdout.fileno(), self.process.stdin.fileno())
        self.heard: list[Message] = []

    def hears(self, kind: str) -> Message:
        def look() -> bool:
            self.channel.send_heartbeat()
            self.heard += self.channel.receive()
            return any(message["kind"] == kind for message in self.heard)

        until(look)
        return next(message for message in self.heard if message["kind"] == kind)

    def has_ended(self) -> bool:
        return self.process.poll() is not None


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Told]]:
    run = RunDir(tmp_path / "run")
    run.submission(1).mkdir(parents=True)
    run.logs.mkdir()
    run.spec(1).write_text(dump_spec(make_spec({"launch.preload": False})))
    found: list[Told] = []

    def start(code: str = "") -> Told:
        found.append(Told(run, code))
        return found[-1]

    yield start
    for told in found:
        kill_all([told.process])
        told.channel.close()
        for pipe in (told.process.stdin, told.process.stdout):
            if pipe is not None:
                pipe.close()


def test_it_is_there_until_it_is_told_to_quit(
    start: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does its imports by itself, as outside of the tests."""
    monkeypatch.setenv(ADDRESS, "0")
    told = start()
    agent = told.hears("hello")["pid"]
    (child,) = psutil.Process(told.process.pid).children()
    assert child.pid == agent
    assert child.name() == AGENT_NAME
    told.channel.send({"kind": "ask", "request": "PREEMPT"})  # there is nobody to be asked
    told.channel.send({"kind": "end"})
    told.channel.send({"kind": "quit", "drain_s": 5.0})
    until(told.has_ended)
    assert told.process.returncode == 0


def test_it_says_how_its_node_is_each_time_that_it_is_asked(start: Callable[..., Told]) -> None:
    told = start()
    hello = told.hears("hello")
    (problem,) = hello["problems"]
    assert problem.startswith("read /data/shards: ")
    told.heard.clear()
    told.channel.send({"kind": "look"})
    again = told.hears("hello")
    assert again["problems"] == [problem]
    assert again["pid"] == hello["pid"]


def test_it_ends_with_its_supervisor(start: Callable[..., Told]) -> None:
    told = start()
    told.hears("hello")
    assert told.process.stdin is not None
    told.channel.close()
    told.process.stdin.close()
    until(told.has_ended)


def test_it_ends_when_its_supervisor_is_silent(start: Callable[..., Told]) -> None:
    told = start(
        "import hpckit.agent.message_channel as c; c.SILENT_S = 2.0; "
        "from hpckit.agent.watchdog import main; main()"
    )
    told.hears("hello")
    until(told.has_ended)  # nothing is said meanwhile


def test_one_that_gives_its_supervisor_up_is_silent_itself(start: Callable[..., Told]) -> None:
    """A supervisor that was only frozen has lost it then, and waits for nothing."""
    told = start(
        "import time; from hpckit.agent import agent, message_channel, watchdog; "
        "message_channel.SILENT_S = 1.5; "
        "agent.Agent._end_without_supervisor = lambda self: time.sleep(3600); watchdog.main()"
    )
    told.hears("hello")
    told.channel.is_suspect = True

    def is_given_up() -> bool:
        told.channel.receive()
        return told.channel.is_over

    until(is_given_up)
    assert not told.channel.has_ended, "it makes durable what is in its node's memory"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_signals_are_passed_up_and_obeyed_by_nobody(
    start: Callable[..., Told], number: signal.Signals
) -> None:
    told = start()
    agent = told.hears("hello")["pid"]
    told.process.send_signal(number)  # to a step's first process alone, where cgroups track them
    assert told.hears("signal")["name"] == number.name
    told.heard.clear()
    os.kill(agent, number)
    assert told.hears("signal")["name"] == number.name
    assert not told.has_ended()


def test_a_signal_that_comes_when_no_agent_is_there_is_the_next_ones(
    start: Callable[..., Told],
) -> None:
    told = start(
        "import os, signal; from hpckit.agent import watchdog; fork = os.fork; "
        "os.fork = lambda: (os.kill(os.getpid(), signal.SIGTERM), fork())[1]; watchdog.main()"
    )
    assert told.hears("signal")["name"] == "SIGTERM"
    assert told.hears("hello")


def test_what_is_printed_on_a_node_is_no_message(start: Callable[..., Told]) -> None:
    told = start(
        "from hpckit.agent import agent, watchdog; import os; "
        "serve = agent.Agent.serve; "
        "agent.Agent.serve = lambda self: (os.system('echo printed'), serve(self)); watchdog.main()"
    )
    assert [told.hears("hello")["kind"], len(told.heard)] == ["hello", 1]


SOON = (
    "import sys; from hpckit.agent import watchdog; "
    "watchdog.TOO_SOON_S = {}; sys.exit(watchdog.main())"
)


def test_one_that_is_killed_has_a_successor_at_once(start: Callable[..., Told]) -> None:
    told = start(SOON.format(0.0))
    agents = []
    for _ in range(3):
        agents.append(told.hears("hello")["pid"])
        told.heard.clear()
        os.kill(agents[-1], signal.SIGKILL)
        told.hears("agent_killed")
    agents.append(told.hears("hello")["pid"])
    assert len(set(agents)) == 4
    told.channel.send({"kind": "quit", "drain_s": None})
    until(told.has_ended)
    assert told.process.returncode == 0


def test_one_that_is_killed_as_soon_as_it_begins_has_none(start: Callable[..., Told]) -> None:
    told = start(SOON.format(600.0))
    os.kill(told.hears("hello")["pid"], signal.SIGKILL)
    until(told.has_ended)
    assert told.process.returncode == 128 + signal.SIGKILL


def test_one_that_fails_is_not_tried_again(start: Callable[..., Told]) -> None:
    told = start(
        "from hpckit.agent import agent; agent.Agent.serve = lambda self: 1 / 0; "
        + SOON.format(0.0)
    )
    until(told.has_ended)
    assert told.process.returncode == 1
    assert told.channel.receive() == []


def test_it_does_not_outlive_its_keeper(start: Callable[..., Told]) -> None:
    told = start()
    agent = told.hears("hello")["pid"]
    told.process.kill()
    until(lambda: is_gone(agent))


def server_of(told: Told) -> psutil.Process | None:
    """The watchdog's other child."""
    agent = told.hears("hello")["pid"]
    found = psutil.Process(told.process.pid).children()
    return next((process for process in found if process.pid != agent), None)


@pytest.fixture
def preloaded(start: Callable[..., Told], tmp_path: Path) -> Callable[..., Told]:
    """As `start`, with a fork server."""
    RunDir(tmp_path / "run").spec(1).write_text(dump_spec(make_spec()))
    return start


def test_a_fork_server_that_ends_is_replaced(preloaded: Callable[..., Told]) -> None:
    told = preloaded(SOON.format(0.0))
    first = server_of(told)
    assert first is not None
    first.kill()
    until(lambda: (now := server_of(told)) is not None and now.pid != first.pid)
    told.channel.send({"kind": "quit", "drain_s": None})
    until(told.has_ended)
    assert told.process.returncode == 0


def test_one_that_ends_as_soon_as_it_begins_is_done_without(
    preloaded: Callable[..., Told],
) -> None:
    told = preloaded(SOON.format(600.0))
    first = server_of(told)
    assert first is not None
    first.kill()
    until(lambda: server_of(told) is None)
    assert not told.has_ended()
    told.channel.send({"kind": "quit", "drain_s": None})
    until(told.has_ended)
    assert told.process.returncode == 0
