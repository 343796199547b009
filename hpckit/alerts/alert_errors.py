"""Errors of sending an alert. Their texts have no secrets."""

from __future__ import annotations


class AlertError(Exception):
    """Base class: an alert was not sent."""


class AlertUnavailableError(AlertError):
    """The target cannot be reached now, and another try may succeed."""

    def __init__(self, what: str, after_s: float | None = None) -> None:
        """Args:
        after_s: seconds after which the target asks to be tried again; None: it has not.
        """
        super().__init__(what)
        self.after_s = after_s


class AlertRejectedError(AlertError):
    """The target is configured wrongly or refuses the alert; another try would fail, too."""
