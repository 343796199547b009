"""Waits for the last save of a training, which is followed by no newer one."""

from __future__ import annotations

import logging

from checkpointing.checkpointer import Checkpointer
from checkpointing.errors import SaveError

logger = logging.getLogger("checkpointing")


def wait_for_save(ckpt: Checkpointer) -> bool:
    """Wait for the newest save, and log why if it fails. Collective.

    Returns:
        Whether it is durable; if not, its step may be saved again.
    """
    try:
        ckpt.wait()
    except SaveError as error:
        logger.warning("the last save: %s", error)
        return False
    return True
