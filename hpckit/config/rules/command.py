"""Rules for programs that take the place of a training function, as pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpckit.config.spec import CommandSpec, RunSpec

_SECRET_OPTION = re.compile(r"--?([\w-]*[_-])?(secret|password|passwd|api[_-]?key)(=|$)", re.I)


def command_violations(spec: RunSpec) -> Iterator[str]:
    """Yields the violations of these rules, one line each, the key first."""
    if spec.command is None:
        if spec.entry is None:
            yield (
                "entry: has no value; give entry=module:function, or a program as in "
                "`hpckit launch -- python train.py`"
            )
        return
    if spec.entry is not None:
        yield f"entry: must be null where command.arguments is given, got {spec.entry}"
    if spec.debug.canary.mode is not None:
        yield "debug.canary.mode: must be null where command.arguments is given; it runs entry"
    if spec.debug.ledger:
        yield "debug.ledger: must be false where command.arguments is given; hpckit sees no samples"
    if spec.heal.on_spike is not None:
        yield (
            "heal.on_spike: must be null where command.arguments is given; hpckit neither chooses "
            "the samples of a program nor makes its optimizer steps"
        )
    yield from _arguments(spec.command)
    yield from _pattern(spec.command)


def _arguments(command: CommandSpec) -> Iterator[str]:
    if not command.arguments[0].strip():
        yield "command.arguments: the first one is empty; it has to be the program"
    for word in command.arguments:
        if _SECRET_OPTION.match(word):
            name = word.partition("=")[0]
            yield (
                f"command.arguments: {name} would be written to the run's directory; export the "
                "secret before you submit, and let the program read it from the environment"
            )


def _pattern(command: CommandSpec) -> Iterator[str]:
    if command.step_pattern is None:
        return
    try:
        names = re.compile(command.step_pattern).groupindex
    except re.error as error:
        yield f"command.step_pattern: is not a regular expression: {error}"
        return
    if "step" not in names:
        yield (
            "command.step_pattern: has no group named step; write (?P<step>\\d+) where the line "
            "has the number of the step"
        )
