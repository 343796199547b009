"""Runs a training script as `python SCRIPT` does, for `ForkedProgram`."""

from __future__ import annotations

import runpy
import sys

left_by_script: dict[str, object] = {}
"""The script's variables, which stay until the process ends, as those of `__main__` do: the last
reference to a DistributedDataParallel may wait forever for the thread of gloo
(https://github.com/pytorch/pytorch/issues/56297)."""


def main() -> None:
    del sys.argv[0]
    left_by_script.update(runpy.run_path(sys.argv[0], run_name="__main__"))
