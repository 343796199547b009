"""A process that composes the config of a command while the command imports what it needs after
that. Hydra and its composing take a third of a dry run.

The process answers only if everything went well. Otherwise the command composes itself, and so
raises each error and issues each warning where its user sees it. What is composed is kept for the
next command of the same words and config files.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from hpckit.config.config_trees import conf_dir, project_tree
from hpckit.config.spec_error import SpecError
from hpckit.rundir.code_snapshot.project import find_project
from hpckit.submit.composition.composed_values import ComposedValues, Composition
from hpckit.submit.composition.kept_compositions import KeptComposition, open_kept
from hpckit.submit.program.program_command import command_overrides, split, typed_overrides
from hpckit.system.forked_answer import ForkedAnswer

_COMPOSES_NOTHING = {"-m", "-h", "--help"}
"""Options with which a command composes no config, or several ones."""


class CompositionProcess:
    """A fork of this process that composes. This process may have no other thread."""

    def __init__(
        self, compose: Callable[[], ComposedValues], kept: KeptComposition | None = None
    ) -> None:
        """
        Args:
            compose: composes; it is called in the fork, which has nothing else to do.
            kept: where what is composed is kept. None: nowhere.
        """
        self._kept = kept
        self._found: ComposedValues | None = None
        self._fork = ForkedAnswer(lambda _: compose().to_json())

    def result(self) -> ComposedValues | None:
        """Waits for the process and returns its answer, or None if it has none. To be called
        once."""
        text = self._fork.ask()
        self._found = None if text is None else ComposedValues.from_json(text)
        return self._found

    def keep(self) -> None:
        """Keeps the result for the next command."""
        if self._kept is not None and self._found is not None:
            self._kept.write(self._found)


def begin_composition(arguments: Sequence[str]) -> Composition | None:
    """Begins to compose the config of a command `launch.py`, or returns what an earlier command has
    composed of the same. Returns None where that would gain nothing, or where this process has
    other threads, whose locks a fork would keep.

    Args:
        arguments: the words of the command line.
    """
    own, _ = split(arguments)
    is_useful = len(os.sched_getaffinity(0)) > 1 and _COMPOSES_NOTHING.isdisjoint(own)
    if not is_useful or "hydra" in sys.modules or threading.active_count() > 1:
        return None
    try:
        overrides = command_overrides(typed_overrides(arguments))
        conf, yours = conf_dir(), project_tree(find_project(Path.cwd()).root)
    except (SpecError, OSError):  # the command meets the same error, and reports it
        return None
    kept = open_kept(overrides, conf, yours, os.environ)
    if kept is not None and (known := kept.read()) is not None:
        return known

    def compose() -> ComposedValues:
        from hpckit.submit.composition.hydra_values import compose_values

        return compose_values(overrides, conf, yours)

    return CompositionProcess(compose, kept)
