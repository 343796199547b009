"""The delivery of alerts to one target, by a bounded queue and a thread that empties it. Whoever
queues an alert never waits."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from hpckit.alerts.alert_errors import AlertRejectedError, AlertUnavailableError
from hpckit.alerts.alert_limits import AlertLimits, SentAlerts
from hpckit.alerts.alert_message import AlertMessage
from hpckit.alerts.alert_occasions import AlertOccasion
from hpckit.alerts.alert_targets import AlertTarget
from hpckit.events.event_log import EventLog
from hpckit.events.schema import AlertSent, AlertUndelivered

log = logging.getLogger(__name__)

LIMIT = 50
"""Most alerts that wait for one target."""
PAUSES_S = (2.0, 5.0, 15.0, 60.0, 300.0)
"""Seconds before each new try; the last number holds for all later tries."""
GIVE_UP_S = 3600.0
"""Seconds after which an alert is no news any more and is dropped."""


class AlertDelivery:
    """The delivery of alerts to one target."""

    def __init__(
        self,
        target: AlertTarget,
        compose: Callable[[AlertOccasion, int], AlertMessage],
        limits: AlertLimits,
        sent: SentAlerts,
        events: EventLog,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        """
        Args:
            compose: returns the message about an occasion, given the number of alerts that were
                withheld. The thread calls it for those alone that are sent.
            sent: what former supervisors of the run have sent.
            pauses_s: seconds before each new try.
        """
        self.target = target
        self._compose, self._limits, self._events = compose, limits, events
        self._pauses_s = pauses_s
        self._sent = sent
        self._changed = threading.Condition()
        self._waiting: deque[AlertOccasion] = deque()
        self._current: AlertOccasion | None = None
        self._is_ending = False
        self._thread = threading.Thread(
            target=self._serve, name=f"alerts-{target.name}", daemon=True
        )
        self._thread.start()

    @property
    def sent(self) -> SentAlerts:
        """What was sent so far."""
        with self._changed:
            return self._sent

    def put(self, occasion: AlertOccasion) -> None:
        """Queues an alert. If too many wait, the oldest is dropped."""
        if occasion.kind not in self.target.kinds:
            return
        dropped = None
        with self._changed:
            known = (self._current, *self._waiting)
            if any(one is not None and one.key == occasion.key for one in known):
                self._sent = self._sent.after_withheld()
                return
            if len(self._waiting) >= LIMIT:
                dropped = self._waiting.popleft()
            self._waiting.append(occasion)
            self._changed.notify_all()
        if dropped is not None:
            self._report_undelivered([dropped], f"more than {LIMIT} messages wait")

    def waiting(self) -> list[AlertOccasion]:
        """Returns the alerts that are neither sent nor dropped, oldest first."""
        with self._changed:
            current = [] if self._current is None else [self._current]
            return [*current, *self._waiting]

    def end(self) -> None:
        """Announces that no more alerts come: each that waits is tried only once more."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()

    def join(self, until_s: float) -> list[AlertOccasion]:
        """Waits until `until_s` by the monotonic clock at most, and returns what is not sent."""
        self._thread.join(max(0.0, until_s - time.monotonic()))
        return self.waiting()

    def _serve(self) -> None:
        while (occasion := self._next()) is not None:
            try:
                is_settled = self._deliver(occasion)
            except Exception as error:
                # its text may have a secret
                log.error("an alert to %s failed: %s", self.target.name, type(error).__name__)
                log.debug("of the alert", exc_info=True)
                self._report_undelivered([occasion], f"of an error: {type(error).__name__}")
                is_settled = True
            if not is_settled:
                return
            with self._changed:
                self._current = None

    def _next(self) -> AlertOccasion | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_ending)
            self._current = self._waiting.popleft() if self._waiting else None
            return self._current

    def _deliver(self, occasion: AlertOccasion) -> bool:
        """Returns whether the alert was sent, withheld or dropped; else the delivery ends."""
        tries, begun_s = 0, time.monotonic()
        if not self._may_send(occasion):
            return True
        message = self._compose(occasion, self.sent.withheld)
        while True:
            is_last_try = self._is_ending
            tries += 1
            try:
                self.target.send(message)
            except AlertRejectedError as error:
                self._report_undelivered([occasion], str(error))
                return True
            except AlertUnavailableError as error:
                name = self.target.name
                log.warning("an alert was not sent to %s, try %d: %s", name, tries, error)
                if time.monotonic() - begun_s > GIVE_UP_S:
                    self._report_undelivered([occasion], str(error))
                    return True
                if is_last_try:
                    return False
                self._pause(tries, error.after_s)
                continue
            self._note_sent(occasion, tries)
            return True

    def _may_send(self, occasion: AlertOccasion) -> bool:
        with self._changed:
            if self._sent.may_send(occasion, time.time(), self._limits):
                return True
            self._sent = self._sent.after_withheld()
        log.info("an alert to %s is withheld: %s", self.target.name, occasion.headline)
        return False

    def _note_sent(self, occasion: AlertOccasion, tries: int) -> None:
        with self._changed:
            self._sent = self._sent.after(occasion, time.time(), self._limits)
        log.info("sent an alert to %s: %s", self.target.name, occasion.headline)
        self._events.emit(AlertSent(target=self.target.name, alert=occasion.kind, tries=tries))

    def _pause(self, tries: int, after_s: float | None) -> None:
        """Waits until the next try; the end of the supervisor ends the wait, for a last try."""
        pause_s = self._pauses_s[min(tries, len(self._pauses_s)) - 1]
        with self._changed:
            self._changed.wait_for(lambda: self._is_ending, max(pause_s, after_s or 0.0))

    def _report_undelivered(self, occasions: Sequence[AlertOccasion], why: str) -> None:
        report_undelivered(self._events, self.target.name, occasions, why)


def report_undelivered(
    events: EventLog, target: str, occasions: Sequence[AlertOccasion], why: str
) -> None:
    """Says in the log and in an event that alerts will not be sent."""
    what = "; ".join(one.headline for one in occasions)
    log.error("alerts will not be sent to %s (%s): %s", target, what, why)
    events.emit(AlertUndelivered(target=target, alerts=[one.kind for one in occasions], why=why))
