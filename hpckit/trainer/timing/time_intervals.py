"""Arithmetic of spans of time. Pure."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]
"""Begin and end, in any unit."""


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same time in spans that neither touch nor overlap, in order."""
    found: list[Span] = []
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def length(spans: Iterable[Span]) -> int:
    """Of the time in any of them."""
    return sum(end - begin for begin, end in merged(spans))


def outside(spans: Iterable[Span], others: Iterable[Span]) -> int:
    """Length of the time in any of `spans` and none of `others`."""
    covered = list(others)
    return length([*spans, *covered]) - length(covered)
