"""The colours of charts, which are those of a page's style on white."""

from __future__ import annotations

import re

from hpckit.report.page.colour_meanings import RUNS
from hpckit.report.page.render.stylesheet import STYLE

_LIGHT: dict[str, str] = dict(
    reversed(re.findall(r"--(run\d): (#[0-9a-f]{6})", STYLE))
)  # the first of each


def colour(number: int) -> tuple[int, int, int]:
    """Return red, green and blue, from 0 to 255, of the part with that number."""
    text = hexadecimal(number)
    return int(text[:2], 16), int(text[2:4], 16), int(text[4:], 16)


def hexadecimal(number: int) -> str:
    """Return the colour of the part with that number as six hexadecimal digits."""
    return _LIGHT[f"run{number % RUNS}"].removeprefix("#")
