"""Slurm's times, such as "1-12:00:00" for a day and a half. Pure."""

from __future__ import annotations

import re

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def parse_time(text: str) -> int | None:
    """Parses "90", "90:30", "12:00:00", "1-12", "1-12:30" or "1-12:30:00" into seconds. Without
    days, a number alone is of minutes, and two are of minutes and seconds. None: there is no limit,
    or it is not a time."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    days, *parts = (None if part is None else int(part) for part in found.groups())
    given = [part for part in parts if part is not None]
    if days is not None:  # D-HH[:MM[:SS]]
        hours, minutes, seconds = (*given, 0, 0)[:3]
    elif len(given) == 3:
        hours, minutes, seconds = given
    else:  # MM[:SS]
        hours, (minutes, seconds) = 0, (*given, 0)[:2]
    return (((days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def limit_seconds(limit: str) -> int:
    """Returns the seconds of a time limit of a valid spec."""
    seconds = parse_time(limit)
    assert seconds is not None
    return seconds


def format_time(seconds: int) -> str:
    """Formats seconds as `cluster.slurm.time_limit` has them: "12:00:00", "1-12:00:00"."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes:02}:{seconds:02}"
