"""Runs a training script as `python SCRIPT` does, for `ForkedProgram`."""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
