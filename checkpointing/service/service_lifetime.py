"""Decides when a service ends on its own: a pure rule."""

from __future__ import annotations

from dataclasses import dataclass

UNUSED_S = 60.0  # seconds after which a service that nobody has joined ends
# seconds without anything saved, after which snapshots that nobody waits for are given up
HOPELESS_S = 3600.0


@dataclass(frozen=True)
class ServiceSituation:
    """What the decision whether a service ends depends on. All times are in seconds."""

    was_joined: bool  # whether any trainer has ever joined
    is_empty: bool  # no trainer is connected, and none has left anything
    is_alone: bool  # no trainer is connected
    is_idle: bool  # nothing is being saved or waits for it
    up_s: float
    alone_s: float  # since a trainer was connected
    unmoved_s: float  # since anything was saved or staged


def why_to_end(now: ServiceSituation, linger_s: float) -> str | None:
    """Return why the service ends now, in words for the log; None if it continues.

    Args:
        linger_s: how long it holds what trainers left that have not said goodbye.
    """
    if not now.is_alone:
        return None
    if now.is_empty and now.is_idle:
        if now.was_joined:
            return "all trainers have left"
        return f"no trainer has joined for {now.up_s:.0f} s" if now.up_s > UNUSED_S else None
    if now.alone_s <= linger_s:
        return None
    if now.is_idle:
        return f"no trainer has connected again for {now.alone_s:.0f} s"
    if now.unmoved_s > max(linger_s, HOPELESS_S):
        return f"no trainer is left, and nothing could be saved for {now.unmoved_s:.0f} s"
    return None
