"""When a service ends by itself: a pure rule."""

from __future__ import annotations

from dataclasses import dataclass

UNUSED_S = 60.0  # after which a service that nobody joined ends
HOPELESS_S = 3600.0  # without anything saved, after which what nobody waits for is given up


@dataclass(frozen=True)
class ServiceSituation:
    """How a service finds itself. All times in seconds."""

    was_joined: bool  # by any trainer, ever
    is_empty: bool  # no trainer is here, and none has left anything
    is_alone: bool  # no trainer is here
    is_idle: bool  # nothing is being saved or waits for it
    up_s: float
    alone_s: float  # since a trainer was here
    unmoved_s: float  # since anything was saved or staged


def why_to_end(now: ServiceSituation, linger_s: float) -> str | None:
    """In words for the log; None: it goes on.

    Args:
        linger_s: how long it holds what trainers left that have not said goodbye.
    """
    if not now.is_alone:
        return None
    if now.is_empty and now.is_idle:
        if now.was_joined:
            return "all trainers have said goodbye"
        return f"nobody has joined for {now.up_s:.0f} s" if now.up_s > UNUSED_S else None
    if now.alone_s <= linger_s:
        return None
    if now.is_idle:
        return f"no trainer has come back for {now.alone_s:.0f} s"
    if now.unmoved_s > max(linger_s, HOPELESS_S):
        return f"no trainer is left, and nothing could be saved for {now.unmoved_s:.0f} s"
    return None
