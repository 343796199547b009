from __future__ import annotations

from dataclasses import replace

import pytest

from checkpointing.service.service_lifetime import (
    HOPELESS_S,
    UNUSED_S,
    ServiceSituation,
    why_to_end,
)

LINGER_S = 120.0
EMPTY = ServiceSituation(
    was_joined=True, is_empty=True, is_alone=True, is_idle=True, up_s=1, alone_s=0, unmoved_s=1
)
LEFT = replace(EMPTY, is_empty=False)
BUSY = replace(LEFT, is_idle=False)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (EMPTY, "all trainers have left"),
        (replace(EMPTY, is_idle=False), None),  # a last save is under way
        (replace(EMPTY, was_joined=False), None),
        (replace(EMPTY, was_joined=False, up_s=UNUSED_S + 1), "no trainer has joined"),
        (LEFT, None),
        (replace(LEFT, alone_s=LINGER_S + 1), "no trainer has connected again"),
        (replace(LEFT, alone_s=1e9, is_alone=False), None),
        (replace(BUSY, alone_s=LINGER_S + 1), None),
        (replace(BUSY, alone_s=1e9, unmoved_s=HOPELESS_S - 1), None),
        (replace(BUSY, alone_s=1e9, unmoved_s=HOPELESS_S + 1), "nothing could be saved"),
    ],
)
def test_why_to_end(now: ServiceSituation, why: str | None) -> None:
    told = why_to_end(now, LINGER_S)
    assert (told is None) == (why is None)
    assert why is None or why in str(told)


def test_who_lingers_longer_than_an_hour_waits_longer_for_the_store() -> None:
    now = replace(BUSY, alone_s=1e9, unmoved_s=HOPELESS_S + 1)
    assert why_to_end(now, linger_s=2 * HOPELESS_S) is None
