"""Arithmetic on intervals of time, by pure functions."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]
"""The begin and the end of an interval, in any unit."""


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the union of the spans as ordered spans that neither touch nor overlap."""
    found: list[Span] = []
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def length(spans: Iterable[Span]) -> int:
    """Return the length of the union of the spans."""
    return sum(end - begin for begin, end in merged(spans))


def outside(spans: Iterable[Span], others: Iterable[Span]) -> int:
    """Return the length of the union of `spans` without that of `others`."""
    covered = list(others)
    return length([*spans, *covered]) - length(covered)
