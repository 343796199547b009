"""The errors of a save attempt that no retry of the same attempt can overcome."""

from __future__ import annotations

from checkpointing.errors import SaveError


class ImpossibleSaveError(SaveError):
    """A save that can never be complete, because a rank does not have its step."""


class LeaderMovedError(SaveError):
    """A save that continues under another name, because another node leads it now."""


class RunTakenOverError(SaveError):
    """Another process owns the run now, so that this generation can commit nothing any more."""
