"""A process that checks the dataset of a command. It imports numpy and the readers of data while
the command imports what it needs itself.

Its answer is used only if the dataset can be read and there is nothing to say about it. Otherwise
the command checks the dataset itself, and so says it where its user sees it. This module imports
nothing that takes long, as a process is forked after it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hpckit.submit.composition.composed_values import ComposedValues, Composition
from hpckit.submit.program.program_command import split
from hpckit.system.forked_answer import ForkedAnswer

if TYPE_CHECKING:
    from hpckit.config.spec import PackSpec, RunSpec
    from hpckit.submit.preflight.dataset_checks import DatasetCheck

_CHECKS_NOTHING = {"--cfg", "--fake-world"}
"""Options with which a command checks no dataset."""


class DatasetCheckProcess:
    """A fork of this process, which may have no other thread, that can check one dataset."""

    def __init__(self) -> None:
        self._fork = ForkedAnswer(_check_asked)

    def check(self, spec: RunSpec, pack: Callable[[PackSpec, Path], None] | None) -> DatasetCheck:
        """Returns what `check_dataset` returns. To be called once."""
        from hpckit.config.spec_parser import spec_values
        from hpckit.submit.preflight.dataset_checks import DatasetCheck, DatasetSize, check_dataset

        text = self._fork.ask(json.dumps(spec_values(spec)))
        if text is None:
            return check_dataset(spec, pack)
        size = json.loads(text)
        return DatasetCheck(None if size is None else DatasetSize(**size))


def _check_asked(question: Callable[[], str]) -> str:
    """Checks the dataset of the spec in the question and returns its size as JSON.

    Raises:
        ValueError: there is no question, something to say, or a dataset that has to be packed.
    """
    import data.read.dataset  # noqa: F401
    from hpckit.config.spec_parser import parse_spec, prepare_parser, spec_values
    from hpckit.submit.preflight.dataset_checks import DatasetCheck, check_dataset

    prepare_parser()
    values = json.loads(question())
    spec = parse_spec(values)
    found = check_dataset(spec, None)
    is_whole = found.dataset is not None or spec.data.mixture is not None
    if not is_whole or found != DatasetCheck(found.dataset) or spec_values(spec) != values:
        raise ValueError("the command has to check the dataset itself")
    return json.dumps(None if found.dataset is None else asdict(found.dataset))


def begin_dataset_check(
    arguments: Sequence[str], composition: Composition | None
) -> DatasetCheckProcess | None:
    """Begins the check of a command `launch.py`, or returns None where that would gain nothing.

    Args:
        arguments: the words of the command line.
        composition: what composes the config. While another process composes it, a third one would
            take processors from both.
    """
    own, program = split(arguments)
    is_useful = program is None and _CHECKS_NOTHING.isdisjoint(own)
    return DatasetCheckProcess() if is_useful and isinstance(composition, ComposedValues) else None
