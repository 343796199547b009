"""A process that composes the config of a command while the command imports what it needs after
that. Importing Hydra and composing takes about as long as these imports.

The process answers only if everything went well. Otherwise the command composes itself, and so
raises each error and issues each warning where its user sees it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from hpckit.submit.composition.composed_values import ComposedValues
from hpckit.submit.program.program_command import command_overrides, split, typed_overrides

_COMPOSES_NOTHING = {"-m", "-h", "--help"}
"""Options with which a command composes no config, or several ones."""


class CompositionProcess:
    """A fork of this process that composes. This process may have no other thread."""

    def __init__(self, compose: Callable[[], ComposedValues]) -> None:
        """
        Args:
            compose: composes; it is called in the fork, which has nothing else to do.
        """
        self._read, write = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._read)
            _answer(compose, write)
        os.close(write)

    def result(self) -> ComposedValues | None:
        """Waits for the process and returns its answer, or None if it has none. To be called
        once."""
        with os.fdopen(self._read, encoding="utf-8") as answer:
            text = answer.read()
        try:
            _, status = os.waitpid(self._pid, 0)
        except ChildProcessError:  # SIGCHLD is ignored since before this program: it is not known
            return None
        return ComposedValues.from_json(text) if text and not status else None


def _answer(compose: Callable[[], ComposedValues], write: int) -> None:
    """Writes what is composed, and ends this process without running anything of its parent's."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent alone says what was interrupted
        with warnings.catch_warnings(record=True) as said:
            found = compose()
        if not said:
            with os.fdopen(write, "w", encoding="utf-8") as answer:
                answer.write(found.to_json())
            status = 0
    except BaseException:  # noqa: BLE001 - the parent meets the same error, and reports it
        pass
    finally:
        os._exit(status)


def begin_composition(arguments: Sequence[str]) -> CompositionProcess | None:
    """Begins to compose the config of a command `launch.py`, or returns None where that would gain
    nothing, or where this process has other threads, whose locks a fork would keep.

    Args:
        arguments: the words of the command line.
    """
    own, _ = split(arguments)
    is_useful = len(os.sched_getaffinity(0)) > 1 and _COMPOSES_NOTHING.isdisjoint(own)
    if not is_useful or "hydra" in sys.modules or threading.active_count() > 1:
        return None
    return CompositionProcess(lambda: _compose(arguments))


def _compose(arguments: Sequence[str]) -> ComposedValues:
    from hpckit.config.config_trees import conf_dir, project_tree
    from hpckit.rundir.code_snapshot.project import find_project
    from hpckit.submit.composition.quick_composition import compose_quickly

    yours = project_tree(find_project(Path.cwd()).root)
    return compose_quickly(command_overrides(typed_overrides(arguments)), conf_dir(), yours)
