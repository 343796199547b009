"""One measurement in one new process, so that nothing of another is left in it."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def in_fresh(function: Callable[..., T], *arguments: Any, peers: Path | None = None) -> T:
    """What a function of a module gives in a process of its own.

    Args:
        peers: a folder of packages that are not installed; searched last.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as fresh:
        return fresh.submit(_call, function, arguments, peers).result()


def _call(function: Callable[..., T], arguments: tuple[Any, ...], peers: Path | None) -> T:
    # else the workers of what is measured would be spawned, too, and import torch in each epoch
    multiprocessing.set_start_method(None, force=True)
    if peers is not None:
        sys.path.append(str(peers))
    return function(*arguments)
