"""What an agent does between the alarm of the watch and the end of the ranks that hang: it collects
the snapshots of its ranks, sends them to the supervisor, and waits for the supervisor's finding.

All nodes are examined before the first rank is killed, as the end of one rank ends the collectives
of the others, and then nothing shows any more who was waiting for whom.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from hpckit.hangs.hang_snapshot import HangSnapshot

log = logging.getLogger(__name__)

DECISION_S = 20.0
"""Seconds after the alarm when an agent ends its ranks without a finding of the supervisor."""

Collected = tuple[Sequence[HangSnapshot], Sequence[Path]]


class HangExamination:
    """The examination of the ranks of one node in one generation.

    Args:
        collect: returns the snapshots of the node's ranks and the files with stacks, given the
            processes that are overdue and those that may be sent a signal for their stacks. Both
            sets grow if the watch finds ranks that hang during an examination for another node. It
            is called in a thread, as it may wait for a disk that hangs.
    """

    def __init__(self, collect: Callable[[Collection[int], Collection[int]], Collected]) -> None:
        self._collect = collect
        self._thread: threading.Thread | None = None
        self._overdue: set[int] = set()
        self._signalled: set[int] = set()
        self._collected: Collected | None = None
        self._is_sent = False
        self._alarm_s: float | None = None
        self._finding: str | None = None
        self._messages: list[dict[str, Any]] = []

    @property
    def has_alarm(self) -> bool:
        """Whether the watch has found ranks that hang, which were not ended yet."""
        return self._alarm_s is not None

    @property
    def finding(self) -> str | None:
        """The supervisor's finding in words; None: there is none yet."""
        return self._finding

    @property
    def files(self) -> list[Path]:
        """The files with stacks that were written so far."""
        return list(self._collected[1]) if self._collected is not None else []

    def raise_alarm(
        self, overdue: Collection[int], signalled: Collection[int], attempt: int, silent_s: float
    ) -> None:
        """Starts the examination after the watch has found ranks that hang.

        Args:
            silent_s: seconds since the newest heartbeat of one of them.
        """
        self._alarm_s, self._finding = time.monotonic(), None
        self._messages.append({"kind": "hang", "attempt": attempt, "silent_s": silent_s})
        self._start(overdue, signalled)

    def examine(self) -> None:
        """Starts the examination on request of the supervisor, as ranks of another node hang."""
        self._start((), ())

    def conclude(self, finding: str) -> None:
        """Takes the finding of the supervisor."""
        self._finding = finding

    def messages(self) -> list[dict[str, Any]]:
        """Returns the messages to the supervisor since the last call."""
        if self._collected is not None and not self._is_sent:
            self._is_sent = True
            ranks = [one.record() for one in self._collected[0]]
            self._messages.append({"kind": "examined", "ranks": ranks})
        found, self._messages = self._messages, []
        return found

    def is_decided(self) -> bool:
        """Returns whether the ranks that hang may be ended: the finding is known, or is late."""
        if self._alarm_s is None:
            return False
        is_late = time.monotonic() > self._alarm_s + DECISION_S
        return is_late or (self._finding is not None and self._collected is not None)

    def reset(self) -> None:
        """Ends the examination."""
        self._alarm_s = self._finding = None
        if self._collected is not None:
            self._thread = self._collected = None

    def _start(self, overdue: Collection[int], signalled: Collection[int]) -> None:
        is_running = self._thread is not None and self._thread.is_alive()
        if is_running:  # what it finds serves both
            self._overdue |= set(overdue)
            self._signalled |= set(signalled)
            return
        self._overdue, self._signalled = set(overdue), set(signalled)
        self._collected, self._is_sent = None, False
        sets = (self._overdue, self._signalled)
        self._thread = threading.Thread(
            target=self._run, args=sets, name="hang examination", daemon=True
        )
        self._thread.start()

    def _run(self, overdue: Collection[int], signalled: Collection[int]) -> None:
        try:
            self._collected = self._collect(overdue, signalled)
        except OSError as error:
            log.error("the ranks of this node could not be examined: %s", error)
        finally:
            if self._collected is None:  # nobody waits for an examination that has failed
                self._collected = ([], [])
