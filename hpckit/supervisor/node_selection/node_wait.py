"""Waits for the nodes of a generation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from hpckit.agent.message_channel import Message
from hpckit.supervisor.node_selection.node_choice import NodeRequirement, choose_nodes

TICK_S = 0.05
HELLO_S = 120.0
"""Seconds for an agent to say hello; imports are slow on a cold file system."""
RETURN_S = 3.0
"""Seconds in which a node whose agent has ended may come back before a generation starts without
it. A node that fell silent is not waited for again."""
AGAIN_S = 30.0
"""As `RETURN_S`, where there are too few nodes without the missing one."""
PAUSE_S = 5.0
"""Seconds until agents are started again after too few said hello, as what hindered them may
pass."""
HOPELESS_S = 3.0
"""Seconds in which the other agents may still report the health of their nodes after it is clear
that there are too few nodes."""


class StartedAgents(Protocol):
    """The agents that the supervisor has started, as `wait_for_nodes` uses them."""

    def read_messages(self) -> None: ...

    def hellos(self) -> dict[int, Message]:
        """Returns the hello of each agent that is there, by node, for healthy nodes."""

    def expected(self) -> int:
        """Returns how many running agents have not yet reported the health of their nodes."""

    def may_return(self) -> bool:
        """Returns whether one of the awaited agents is on a node that did not fall silent in the
        previous generation."""

    def is_checking(self) -> bool:
        """Returns whether an agent is checking its node again, which ends soon."""


def wait_for_nodes(
    agents: StartedAgents,
    need: NodeRequirement,
    before: Sequence[int],
    is_asked: Callable[[], bool],
) -> dict[int, Message]:
    """Waits for enough healthy nodes and returns the hellos of those that take part, by node.

    The result is empty if too few nodes come or `is_asked` returns True. The function waits for all
    wanted nodes, but only for a while if fewer are enough. It ends early if there will be too few
    in any case.

    Args:
        before: nodes of the previous generation; empty if there was none.
        is_asked: whether to give up.
    """
    begun_s = hopeful_s = time.monotonic()
    while not is_asked():
        agents.read_messages()
        hellos, waited_s = agents.hellos(), time.monotonic() - begun_s
        chosen = choose_nodes(hellos, before, need)
        return_s = RETURN_S if agents.may_return() else 0.0
        patience_s = HELLO_S if not before else return_s if chosen else AGAIN_S
        if len(hellos) + agents.expected() >= need.fewest:
            hopeful_s = time.monotonic()
        is_hopeless = time.monotonic() - hopeful_s > HOPELESS_S
        is_late = waited_s >= patience_s and not agents.is_checking()
        is_over = not agents.expected() or is_late or is_hopeless
        if len(chosen) == need.wanted or is_over:
            return {node: hellos[node] for node in chosen}
        time.sleep(TICK_S)
    return {}


def pause(agents: StartedAgents, is_asked: Callable[[], bool]) -> None:
    """Waits before agents are started again, unless `is_asked` returns True."""
    until_s = time.monotonic() + PAUSE_S
    while time.monotonic() < until_s and not is_asked():
        agents.read_messages()
        time.sleep(TICK_S)
