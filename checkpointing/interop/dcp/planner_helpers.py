"""Functions shared by the classes with which DCP reads and writes a store. Requires torch."""

from __future__ import annotations

import os
from typing import Any

from torch.futures import Future

Id = str | os.PathLike[str]


def refuse(checkpoint_id: Id | None) -> None:
    if checkpoint_id is not None:
        raise ValueError(
            f"checkpoint_id={checkpoint_id!r}: leave it out; store, run and step give the place"
        )


def done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future
