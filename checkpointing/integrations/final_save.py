"""Prepares the last save of a training, which is followed by no newer one."""

from __future__ import annotations

import logging

from checkpointing.checkpointer import Checkpointer
from checkpointing.errors import SaveError

logger = logging.getLogger("checkpointing")


def make_room(ckpt: Checkpointer) -> bool:
    """Wait for the newest save, so that the next one is not skipped because of a slow store.
    Collective.

    Returns:
        Whether it is durable; if not, its step may be saved again.
    """
    try:
        ckpt.wait()
    except SaveError as error:
        logger.warning("before the last save: %s", error)
        return False
    return True
