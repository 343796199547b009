"""Parses sizes such as 5GB."""

from __future__ import annotations

import re

from hpckit.cli.common.store_errors import CommandUsageError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of "5GB" or "500 MiB"; "1e9" is not accepted.

    Raises:
        CommandUsageError: the text is not a size above 0.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match[2].upper() if match else ""
    power = 1024 ** list(_UNITS).index(unit) if match and match[3] else _UNITS[unit]
    found = int(float(match[1]) * power) if match else 0
    if found <= 0:
        raise CommandUsageError(f"{text!r} is not a size: write 5GB, 500MiB or a number of bytes")
    return found
