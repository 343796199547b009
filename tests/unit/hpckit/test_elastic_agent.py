"""An agent without workers: it says that it is there, passes signals up, and is not left behind.
What it does with workers is tested with real runs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpckit.elastic.channel import Channel, Message
from hpckit.run.directory import RunDir
from hpckit.run.environment import agent_variables
from hpckit.run.parse import dump_spec
from hpckit.run.processes import Process, kill_all, spawn_piped
from tests.unit.hpckit.hpckit_parts import make_spec, until


class Told:
    """An agent and the other side of its channel."""

    def __init__(self, run: RunDir, code: str) -> None:
        env = os.environ | agent_variables(run, 1, 0)
        command = [sys.executable, *(["-c", code] if code else ["-m", "hpckit.elastic.agent"])]
        self.process: Process = spawn_piped(command, env, run.agent_log(0), is_written_to=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.channel = Channel(self.process.stdout.fileno(), self.process.stdin.fileno())
        self.heard: list[Message] = []

    def hears(self, kind: str) -> Message:
        def look() -> bool:
            self.channel.beat()
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
    run.spec(1).write_text(dump_spec(make_spec()))
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


def test_it_is_there_until_it_is_told_to_quit(start: Callable[..., Told]) -> None:
    told = start()
    assert told.hears("hello")["pid"] == told.process.pid
    told.channel.send({"kind": "ask", "request": "PREEMPT"})  # there is nobody to be asked
    told.channel.send({"kind": "end"})
    told.channel.send({"kind": "quit", "drain_s": 5.0})
    until(told.has_ended)
    assert told.process.returncode == 0


def test_it_says_how_its_node_is_each_time_that_it_is_asked(start: Callable[..., Told]) -> None:
    told = start()
    (problem,) = told.hears("hello")["problems"]
    assert problem.startswith("read /data/shards: ")
    told.heard.clear()
    told.channel.send({"kind": "look"})
    again = told.hears("hello")
    assert again["problems"] == [problem]
    assert again["pid"] == told.process.pid


def test_it_ends_with_its_supervisor(start: Callable[..., Told]) -> None:
    told = start()
    told.hears("hello")
    assert told.process.stdin is not None
    told.channel.close()
    told.process.stdin.close()
    until(told.has_ended)


def test_it_ends_when_its_supervisor_is_silent(start: Callable[..., Told]) -> None:
    told = start(
        "import hpckit.elastic.channel as c; c.SILENT_S = 0.5; "
        "from hpckit.elastic.agent import main; main()"
    )
    told.hears("hello")
    until(told.has_ended)  # nothing is said meanwhile


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_signals_are_passed_up_and_obeyed_by_nobody(
    start: Callable[..., Told], number: signal.Signals
) -> None:
    told = start()
    told.hears("hello")
    told.process.send_signal(number)
    assert told.hears("signal")["name"] == number.name
    assert not told.has_ended()


def test_what_is_printed_on_a_node_is_no_message(start: Callable[..., Told]) -> None:
    told = start(
        "from hpckit.elastic import agent; import os; "
        "serve = agent.Agent.serve; "
        "agent.Agent.serve = lambda self: (os.system('echo printed'), serve(self)); agent.main()"
    )
    assert [told.hears("hello")["kind"], len(told.heard)] == ["hello", 1]
