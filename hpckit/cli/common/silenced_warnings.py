"""Keeps warnings off a screen that shows the same, such as the number of damaged lines of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silenced_warnings() -> Iterator[None]:
    """Log only errors for the duration of the block. Otherwise each refresh repeats its warnings,
    and on a full screen they stand between its lines."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)
