"""Getting together the nodes of a generation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from hpckit.agent.message_channel import Message
from hpckit.supervisor.node_selection.node_choice import NodeRequirement, choose_nodes

TICK_S = 0.05
HELLO_S = 120.0
"""Seconds for an agent to say that it is there: a cold file system makes imports slow."""
RETURN_S = 3.0
"""Seconds in which a node may come back before a generation begins without it: where its agent had
ended. Where it fell silent, it was waited for already."""
AGAIN_S = 30.0
"""The same where there are too few without it."""
PAUSE_S = 5.0
"""Seconds until agents are called again of which too few came: what hindered them may pass."""
HOPELESS_S = 3.0
"""Seconds in which the others may still say how they are, once there cannot be enough."""


class StartedAgents(Protocol):
    """Agents that were started."""

    def tick(self) -> None: ...

    def hellos(self) -> dict[int, Message]:
        """What each agent that is there has said of itself, by node, if the node is healthy."""

    def expected(self) -> int:
        """How many agents are there that have not said yet how their nodes are."""

    def may_return(self) -> bool:
        """Whether one of these is on a node that had not just fallen silent."""

    def is_looking(self) -> bool:
        """Whether an agent looks at its node once more: that is soon over."""


def wait_for_nodes(
    crew: StartedAgents, need: NodeRequirement, before: Sequence[int], is_asked: Callable[[], bool]
) -> dict[int, Message]:
    """Wait for enough healthy nodes: what the agents of those that take part say of themselves;
    empty if too few come, or there is something else to do first.

    As many nodes as are wanted are waited for, and for a while only if fewer will do. If there will
    be too few in any case, that is soon over.

    Args:
        before: the nodes of the generation before; empty: there was none.
        is_asked: whether to give up.
    """
    begun_s = hopeful_s = time.monotonic()
    while not is_asked():
        crew.tick()
        there, waited_s = crew.hellos(), time.monotonic() - begun_s
        chosen = choose_nodes(there, before, need)
        return_s = RETURN_S if crew.may_return() else 0.0
        patience_s = HELLO_S if not before else return_s if chosen else AGAIN_S
        if len(there) + crew.expected() >= need.fewest:
            hopeful_s = time.monotonic()
        is_hopeless = time.monotonic() - hopeful_s > HOPELESS_S
        is_late = waited_s >= patience_s and not crew.is_looking()
        is_over = not crew.expected() or is_late or is_hopeless
        if len(chosen) == need.wanted or is_over:
            return {node: there[node] for node in chosen}
        time.sleep(TICK_S)
    return {}


def pause(crew: StartedAgents, is_asked: Callable[[], bool]) -> None:
    """Let some time pass before agents are called again, unless there is something else to do."""
    until_s = time.monotonic() + PAUSE_S
    while time.monotonic() < until_s and not is_asked():
        crew.tick()
        time.sleep(TICK_S)
