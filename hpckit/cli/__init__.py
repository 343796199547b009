"""The `hpckit` command: one command or command group per file. It imports everything below it
inside functions, and only model_export.merged_adapters imports torch."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from importlib import import_module
from pathlib import Path

import hpckit
from hpckit import distribution, earlier_names
from hpckit.system.output_streams import checked_output
from hpckit.system.process_end import end_process
from hpckit.system.pydantic_plugins import without_plugin_search

_OBJECTS = 100_000
"""Number of new objects after which Python looks for cyclic garbage. A short command imports that
many and leaves none, and with Python's own 700 a tenth of its processor time is that search."""


def main() -> None:
    """Run the command. Ctrl-C ends it without a traceback, also while it is being imported."""
    gc.set_threshold(_OBJECTS)
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except SystemExit as end:
        if not isinstance(end.code, int | None) or threading.active_count() > 1:
            raise
        end_process(end.code or 0)


def _run() -> None:
    """Run the command. Another project's package `hpckit` has its command begin at `main`, which
    this one has even if that package is installed over it."""
    if not hasattr(hpckit, "__version__"):  # that package's __init__ has replaced this one's
        distribution.warn_of_conflict(Path(__file__).parents[2])
        earlier_names.install()
    try:
        app = import_module("hpckit.cli.main").app
    except ModuleNotFoundError as error:
        if (said := distribution.describe_missing(error)) is None:
            raise
        sys.exit(f"hpckit: {said}")
    with checked_output(), without_plugin_search():
        app()
