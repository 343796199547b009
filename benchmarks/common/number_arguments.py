"""Types of arguments that are numbers, each of which refuses what the benchmark cannot measure."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", int, float)


def positive_int(text: str) -> int:
    """Returns a whole number of at least 1.

    Raises:
        argparse.ArgumentTypeError: it is not such a number.
    """
    return int_from(1)(text)


def int_from(least: int, *, multiple_of: int = 1) -> Callable[[str], int]:
    """Returns the type of numbers of at least `least` that `multiple_of` divides."""

    def parsed(text: str) -> int:
        number = _parsed(text, int, "a whole number")
        if number < least:
            raise argparse.ArgumentTypeError(f"{text} is below {least}")
        if number % multiple_of:
            raise argparse.ArgumentTypeError(f"{text} is not a multiple of {multiple_of}")
        return number

    return parsed


def positive_float(text: str) -> float:
    """Returns a number above 0, such as of seconds.

    Raises:
        argparse.ArgumentTypeError: it is not such a number.
    """
    number = _parsed(text, float, "a number")
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def _parsed(text: str, kind: Callable[[str], T], what: str) -> T:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None
