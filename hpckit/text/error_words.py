"""The words of an error, by which two attempts are compared."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(0x[0-9a-f]+|\d+)")


def error_words(type_name: str, message: str) -> str:
    """Return the type and message of an error with numbers (addresses, processes, times) replaced,
    which are equal if another attempt fails with the same error."""
    return _NUMBER.sub("#", f"{type_name}: {message}")
