"""The program that the workers of a run execute, if it is not a training function."""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import GROUP, Line, Text, Words


@dataclass(frozen=True, config=GROUP)
class CommandSpec:
    """A program with its own training loop, such as an existing script (`conf/command/`). It has
    the environment that torchrun gives to its workers."""

    arguments: Words
    """The program and its arguments, one element each: [python, train.py, --lr, "0.1"]. `hpckit
    launch ... -- python train.py --lr 0.1` sets them. Python runs inside the worker; any other
    program is a child process of it."""
    cwd: Text | None
    """Folder in which the program runs; null: the one in which the run was launched. Files of the
    project are read from the copy of the code, all other files from this folder."""
    stop_signal: Literal["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"]
    """Signal by which the program is asked to leave, if it does not use hpckit.client."""
    step_pattern: Line | None
    """Regular expression for a line of the output of rank 0 that reports a step, with a group named
    `step` and any groups of metrics: iter (?P<step>\\d+): loss (?P<loss>\\S+). null: only what the
    program reports by hpckit.client is known."""
    tensorboard_dir: Text | None = None
    """Folder in which the program writes event files for TensorBoard, or a folder above it, from
    `cwd`; the steps and scalars that rank 0 writes there are those of the run. null: they are not
    read."""

    @property
    def has_observed_steps(self) -> bool:
        """Whether hpckit looks for the steps of rank 0 in what the program writes."""
        return self.step_pattern is not None or self.tensorboard_dir is not None
