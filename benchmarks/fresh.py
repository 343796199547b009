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


def peak_rss() -> int:
    """Bytes that this process had in memory at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("the kernel does not tell VmHWM")


def _call(function: Callable[..., T], arguments: tuple[Any, ...], peers: Path | None) -> T:
    if peers is not None:
        sys.path.append(str(peers))
    return function(*arguments)
