"""Shows the progress of a command: by a bar on a terminal, or by occasional lines in a job's
log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

from hpckit.cli.common.command_output import CommandOutput, size, speed

_EVERY_S = 15.0


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar on a terminal, and yields a function that sets it to (done, total)."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def progress_report(
    what: str, out: CommandOutput, fetched: Callable[[], int]
) -> Iterator[Callable[[int, int], None]]:
    """Does the same as `progress_bar`, but without a terminal prints a line every 15 seconds.

    Args:
        fetched: returns the number of bytes that were fetched so far.
    """
    began_s = told_s = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told_s
        bar(done, total)
        now_s = time.monotonic()
        if not terminal and now_s - told_s >= _EVERY_S:
            told_s = now_s
            rate = speed(fetched(), now_s - began_s) or "nothing fetched"
            out.note(f"{what}: {done:,} of {total:,} shards, {size(fetched())}, {rate}")

    terminal = Console(stderr=True).is_terminal
    with progress_bar(what) as bar:
        yield tell
