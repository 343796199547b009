"""Measurements of speed, memory, bytes and recovery, each against a named peer; README.md tells how
to run them. Only tests import this package.

A benchmark is found without its folder, too: `python -m benchmarks.recovery`.
"""

from pathlib import Path

ROOMS = ("checkpoint", "common", "data", "device", "run", "scale", "store")
__path__ += [str(Path(__file__).parent / room) for room in ROOMS]
