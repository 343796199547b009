"""Runs one measurement in one new process, so that no other one influences it."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def in_fresh(function: Callable[..., T], *arguments: Any, peers: Path | None = None) -> T:
    """Returns what a function of a module returns in a new process.

    Args:
        peers: a folder of packages that are not installed; searched last.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as fresh:
        return fresh.submit(_call, function, arguments, peers).result()


def _call(function: Callable[..., T], arguments: tuple[Any, ...], peers: Path | None) -> T:
    # else the workers that are measured would be spawned as well, and import torch in each epoch
    multiprocessing.set_start_method(None, force=True)
    if peers is not None:
        sys.path.append(str(peers))
    return function(*arguments)
