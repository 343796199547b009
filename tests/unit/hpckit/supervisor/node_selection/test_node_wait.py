"""Waiting for nodes: how long, and for which."""

from __future__ import annotations

import pytest

from hpckit.agent.message_channel import Message
from hpckit.supervisor.node_selection import node_wait
from hpckit.supervisor.node_selection.node_choice import NodeRequirement
from hpckit.supervisor.node_selection.node_wait import (
    AGAIN_S,
    HELLO_S,
    HOPELESS_S,
    PAUSE_S,
    RETURN_S,
    pause,
    wait_for_nodes,
)


class Clock:
    """Time that passes with every look at it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += 0.5


class Agents:
    """Each answers at its second, or never: it is gone at once (None), or silent (infinity). Those
    whose node is not healthy answer so from the first moment on."""

    def __init__(self, clock: Clock, *answers: float | None, looking_s: float = 0.0) -> None:
        self._clock, self._answers, self._looking_s = clock, answers, looking_s
        self.was_silent = False

    def read_messages(self) -> None: ...

    def hellos(self) -> dict[int, Message]:
        now = self._clock.now_s
        said = [n for n, at in enumerate(self._answers) if at is not None and at <= now]
        return {node: {"node": node} for node in said}

    def expected(self) -> int:
        return sum(at is not None and at > self._clock.now_s for at in self._answers)

    def may_return(self) -> bool:
        return not self.was_silent and self.expected() > 0

    def is_checking(self) -> bool:
        return self._clock.now_s < self._looking_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(node_wait, "time", found)
    return found


NEVER = float("inf")
TWO, ONE_OR_TWO = (
    NodeRequirement(2, 2, lambda count: True),
    NodeRequirement(2, 1, lambda count: True),
)


@pytest.mark.parametrize(
    ("need", "before", "answers", "chosen", "after_s"),
    [
        (TWO, (), (1.0, 2.0), {0, 1}, 2.0),
        (TWO, (), (1.0, NEVER, 3.0), {0, 2}, 3.0),  # a spare is as good
        (TWO, (), (1.0, NEVER), set(), HELLO_S),
        (TWO, (), (None, NEVER), set(), HOPELESS_S),  # one is not healthy, or gone
        (TWO, (), (None, 2.0, NEVER), set(), HELLO_S),  # the last one would do
        (TWO, (0, 1), (0.0, NEVER), set(), AGAIN_S),
        (TWO, (0, 1), (0.0, None), set(), 0.0),
        (ONE_OR_TWO, (), (1.0, 5.0), {0, 1}, 5.0),
        (ONE_OR_TWO, (), (1.0, NEVER), {0}, HELLO_S),
        (ONE_OR_TWO, (0, 1), (0.0, NEVER), {0}, RETURN_S),
        (ONE_OR_TWO, (0, 1), (0.0, 2.0), {0, 1}, 2.0),
        (ONE_OR_TWO, (0, 1), (0.0, None), {0}, 0.0),
    ],
)
def test_for_whom_and_how_long(
    clock: Clock,
    need: NodeRequirement,
    before: tuple[int, ...],
    answers: tuple[float | None, ...],
    chosen: set[int],
    after_s: float,
) -> None:
    there = wait_for_nodes(Agents(clock, *answers), need, before, lambda: False)
    assert there.keys() == chosen
    assert after_s <= clock.now_s <= after_s + 1.0


def test_a_node_that_fell_silent_has_been_waited_for(clock: Clock) -> None:
    agents = Agents(clock, 0.0, 2.0)
    agents.was_silent = True
    assert wait_for_nodes(agents, ONE_OR_TWO, (0, 1), lambda: False).keys() == {0}
    assert clock.now_s == 0.0
    assert wait_for_nodes(agents, TWO, (0, 1), lambda: False).keys() == {
        0,
        1,
    }  # one alone is too few


def test_who_is_asked_to_leave_waits_no_longer(clock: Clock) -> None:
    agents = Agents(clock, NEVER, NEVER)
    assert wait_for_nodes(agents, TWO, (), lambda: clock.now_s >= 2.0) == {}
    assert clock.now_s == 2.0


def test_who_looks_at_its_node_again_is_waited_for(clock: Clock) -> None:
    agents = Agents(clock, 0.0, RETURN_S + 5.0, looking_s=RETURN_S + 5.0)
    assert wait_for_nodes(agents, ONE_OR_TWO, (0, 1), lambda: False).keys() == {0, 1}


def test_a_pause_ends_by_itself_or_when_something_is_asked(clock: Clock) -> None:
    pause(Agents(clock), lambda: False)
    assert PAUSE_S <= clock.now_s <= PAUSE_S + 1.0
    pause(Agents(clock), lambda: True)
    assert clock.now_s <= PAUSE_S + 1.0
