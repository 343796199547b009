"""Blocks that are entered and left at different places."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpckit.integrations.open_phase import OpenPhase


def test_a_block_is_left_before_the_next_is_entered_and_only_once() -> None:
    seen: list[str] = []

    @contextmanager
    def block(name: str) -> Iterator[None]:
        seen.append(f"into {name}")
        yield
        seen.append(f"out of {name}")

    phase = OpenPhase()
    phase.leave()
    phase.enter(block("a"))
    phase.enter(block("b"))
    phase.leave()
    phase.leave()
    assert seen == ["into a", "out of a", "into b", "out of b"]
