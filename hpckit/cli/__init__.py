"""The `hpckit` command: one command or command group per file. It imports everything below it
inside functions, and only model_export.merged_adapters imports torch."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from pathlib import Path

import hpckit
from hpckit import distribution, earlier_names
from hpckit.system.output_streams import checked_output


def main() -> None:
    """Run the command. Ctrl-C ends it without a traceback, also while it is being imported."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


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
    with checked_output():
        app()
