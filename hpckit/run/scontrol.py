"""What `scontrol --oneliner show` says."""

from __future__ import annotations

import re


def field(text: str, key: str) -> str | None:
    """The value of `key`; None if it is not told."""
    match = re.search(rf"(?:^| ){key}=(\S+)", text)
    return match[1] if match else None
