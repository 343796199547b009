"""The conversion of values for JSON, which has neither NaN nor infinity."""

from __future__ import annotations

import math
from typing import Any


def plain(value: Any) -> Any:
    """Returns `value` with all numbers that are not finite replaced by strings, including those in
    nested lists and dictionaries."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value
