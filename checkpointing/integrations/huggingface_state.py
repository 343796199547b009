"""Reads and writes the state of a `transformers.Trainer` as in trainer_state.json."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from checkpointing.errors import DamagedError
from checkpointing.format.values.json_values import decode
from checkpointing.runs import opened
from checkpointing.store.catalog import newest_first
from checkpointing.store.checkpoint import Checkpoint

logger = logging.getLogger("checkpointing")

_NAME = "trainer"  # name of the item


def state_text(trainer: Any) -> str:
    """Returns the state as the Trainer would write it now, with the states of its callbacks."""
    callbacks = [*trainer.callback_handler.callbacks, trainer.control]
    exported = type(trainer.state)(stateful_callbacks=[c for c in callbacks if hasattr(c, "state")])
    whole = asdict(trainer.state) | {"stateful_callbacks": exported.stateful_callbacks}
    return json.dumps(whole)


def newest_text(
    root: str | os.PathLike[str], run: str, options: Mapping[str, Any] | None
) -> str | None:
    """Returns the state in the newest checkpoint of the store; None if there is none, or it cannot
    be read."""
    with opened(root, options) as store:
        for found in newest_first(store, run)[:1]:
            try:
                values = Checkpoint(store, found.stored).values()
            except DamagedError as error:
                logger.warning("%s", error)
                return None
            return str(decode(values[_NAME])["value"]["state"])
    return None
