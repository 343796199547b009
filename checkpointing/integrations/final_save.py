"""Before the last save of a training, which nothing newer comes after."""

from __future__ import annotations

import logging

from checkpointing.checkpointer import Checkpointer
from checkpointing.errors import SaveError

logger = logging.getLogger("checkpointing")


def make_room(ckpt: Checkpointer) -> bool:
    """Wait for the newest save, so that a slow store does not skip the next. A collective.

    Returns:
        Whether it is durable; if not, its step may be saved again.
    """
    try:
        ckpt.wait()
    except SaveError as error:
        logger.warning("before the last save: %s", error)
        return False
    return True
