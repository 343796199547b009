"""Finds out what a hang comes from: when the agent of one node reports ranks that hang, the agents
of all nodes examine theirs, and their snapshots are compared."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from typing import Any

from hpckit.events.event_log import EventLog
from hpckit.events.schema import HangExplained
from hpckit.hangs.culprit_search import HangCause, HangFinding, find_culprits
from hpckit.hangs.hang_snapshot import HangSnapshot, load_snapshot
from hpckit.hangs.hang_words import describe_finding
from hpckit.rundir.directory import RunDir
from hpckit.supervisor.agents.agent_pool import AgentPool
from hpckit.system.atomic_files import write_text

log = logging.getLogger(__name__)

INQUIRY_S = 14.0
"""Seconds for all agents to examine their ranks; less than `hang_examination.DECISION_S`."""
REMEMBERED_S = 120.0
"""Seconds in which a finding serves further nodes whose ranks hang since before it."""
MOST_CULPRITS = 64
"""Ranks that the event lists."""


class HangInquiry:
    """The inquiries into hangs of one generation. `poll` has to be called often.

    Args:
        ranks_per_node: the number of ranks of each node.
    """

    def __init__(
        self, pool: AgentPool, events: EventLog, run: RunDir, generation: int, ranks_per_node: int
    ) -> None:
        self._pool, self._events, self._run = pool, events, run
        self._generation, self._ranks_per_node = generation, ranks_per_node
        self._begun_s: float | None = None
        self._attempt = 0
        self._found: dict[int, list[HangSnapshot]] = {}
        self._awaited: frozenset[int] = frozenset()
        self._last: tuple[float, str] | None = None  # time and words of a finding
        self._count = 0

    def poll(self) -> None:
        """Reads what the agents have reported, and compares it when all have answered."""
        for node, attempt, silent_s in self._pool.take_hangs():
            self._take_alarm(node, attempt, silent_s)
        for node, ranks in self._pool.take_examined():
            if self._begun_s is not None:
                self._found[node] = _loaded(ranks, node)
        if self._begun_s is None:
            return
        missing = self._awaited - self._found.keys()
        is_late = time.monotonic() > self._begun_s + INQUIRY_S
        if is_late or not missing & self._pool.active_nodes():
            self._conclude()

    def close(self) -> None:
        """Compares what the agents have answered so far, if an inquiry is under way."""
        if self._begun_s is not None:
            self._conclude()

    def _take_alarm(self, node: int, attempt: int, silent_s: float) -> None:
        if self._begun_s is not None:
            return
        now_s = time.monotonic()
        if self._last is not None:
            found_s, words = self._last
            # attempts do not tell hangs apart: a node counts those that its own ranks have ended
            if now_s - REMEMBERED_S < found_s and now_s - silent_s < found_s:
                self._pool.send_finding([node], words)
                return
        self._begun_s, self._attempt, self._found = now_s, attempt, {}
        self._awaited = self._pool.active_nodes()
        self._pool.ask_examination()

    def _conclude(self) -> None:
        assert self._begun_s is not None
        seconds = time.monotonic() - self._begun_s
        self._begun_s = None
        snapshots = [one for node in sorted(self._found) for one in self._found[node]]
        world_size = self._pool.generation_size * self._ranks_per_node
        finding = find_culprits(snapshots, world_size)
        words = describe_finding(finding)
        log.warning("hang: %s", words)
        self._count += 1
        path = self._run.generation_logs(self._generation) / f"hang{self._count}.json"
        self._events.emit(self._event(finding, words, snapshots, seconds, str(path)))
        self._pool.send_finding(self._pool.active_nodes(), words)
        # slow ranks are not ended, so a hang of theirs may have begun before this finding
        is_over = finding.cause is not HangCause.SLOW
        self._last = (time.monotonic(), words) if is_over else None
        record = {"text": words, "cause": finding.cause, "ranks": [s.record() for s in snapshots]}
        try:
            write_text(path, json.dumps(record) + "\n")  # indented, it would be many times slower
        except OSError as error:
            log.error("the snapshots of the ranks could not be written: %s", error)

    def _event(
        self,
        finding: HangFinding,
        words: str,
        snapshots: Sequence[HangSnapshot],
        seconds: float,
        path: str,
    ) -> HangExplained:
        culprits = set(finding.culprits)
        return HangExplained(
            generation=self._generation,
            attempt=self._attempt,
            step=min((one.step for one in snapshots), default=0),
            cause=finding.cause,
            text=words,
            culprits=list(finding.culprits[:MOST_CULPRITS]),
            hosts=sorted({one.host for one in snapshots if one.rank in culprits}),
            waiting=len(finding.waiting),
            examined=len(snapshots),
            seconds=round(seconds, 3),
            snapshots=path,
        )


def _loaded(ranks: Sequence[Any], node: int) -> list[HangSnapshot]:
    found = []
    for values in ranks:
        try:
            found.append(load_snapshot(values))
        except ValueError as error:
            log.warning("node %d: %s", node, error)
    return found
