"""A fork of a process that answers it once.

It answers only if everything went well and there was nothing to say: no error, no warning, no log
record. Otherwise the process that waits does the work itself, and so raises each error and issues
each warning where its user sees it.
"""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Callable

Question = Callable[[], str]
"""Waits for the question and returns it; empty: the other process has ended or asks nothing."""


class ForkedAnswer:
    """A fork of this process, which may have no other thread."""

    def __init__(self, work: Callable[[Question], str]) -> None:
        """
        Args:
            work: returns the answer. It is called in the fork, which has nothing else to do.
        """
        self._read, answer = os.pipe()
        question, self._write = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._read)
            os.close(self._write)
            _answer(work, question, answer)
        os.close(answer)
        os.close(question)

    def ask(self, question: str = "") -> str | None:
        """Asks, waits for the answer and returns it, or None if there is none. To be called
        once."""
        try:
            with os.fdopen(self._write, "w", encoding="utf-8") as asked:
                asked.write(question)
        except BrokenPipeError:  # it has ended
            pass
        with os.fdopen(self._read, encoding="utf-8") as answer:
            text = answer.read()
        try:
            _, status = os.waitpid(self._pid, 0)
        except ChildProcessError:  # SIGCHLD is ignored since before this program: it is not known
            return None
        return text if text and not status else None


class _Records(logging.Handler):
    """Counts log records that a user would see."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def _answer(work: Callable[[Question], str], question: int, answer: int) -> None:
    """Writes the answer, and ends this process without running anything of its parent's."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent alone says what was interrupted
        _leave_streams()
        records = _Records()
        logging.getLogger().addHandler(records)
        with warnings.catch_warnings(record=True) as said:
            text = work(lambda: _read_all(question))
        if not said and not records.count:
            with os.fdopen(answer, "w", encoding="utf-8") as file:
                file.write(text)
            status = 0
    except BaseException:  # noqa: BLE001 - the parent meets the same error, and reports it
        pass
    finally:
        os._exit(status)


def _read_all(descriptor: int) -> str:
    with os.fdopen(descriptor, encoding="utf-8") as file:
        return file.read()


def _leave_streams() -> None:
    """Lets whoever reads the output of the parent see its end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
