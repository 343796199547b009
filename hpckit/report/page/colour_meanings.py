"""What each colour of a page stands for. A colour has one meaning in all pictures of a page, and
those of several runs have colours of their own. Pure."""

from __future__ import annotations

from enum import StrEnum

from hpckit.events.step_phases import Part
from hpckit.report.cost import node_hours

RUNS = 8
"""Number of colours of runs; further runs repeat them, and their lines are dashed."""


class Meaning(StrEnum):
    """A meaning, whose value is the class of the page's style that has its colour. `soft` and
    `faint` are lighter shades, which tell parts of the same kind apart."""

    TRAIN = "train"
    """Steps that count, and what is measured in them."""
    BACKWARD = "train soft"
    OPTIMIZER = "train faint"
    START = "start"
    """The time until ranks train."""
    LOST = "lost"
    """An interruption, and the time that it cost."""
    RESTART = "lost soft"
    REPEATED = "lost faint"
    DATA = "data"
    """Waiting for data."""
    COPY = "data soft"
    SAVE = "save"
    """Checkpoints."""
    CHECKS = "checks"
    """Checks of computations."""
    VALIDATION = "valid"
    EVALUATION = "eval"
    STRAGGLER = "slow"
    CURE = "cure"
    """A spike, and the samples or the update that were left out because of it."""
    OTHER = "other"
    IDLE = "other soft"
    PARENT = "parent"
    """The run that this one was forked from, or another thing to compare with."""


_OF_PHASE: dict[Part, Meaning] = {
    "data_wait": Meaning.DATA,
    "host_to_device": Meaning.COPY,
    "forward": Meaning.TRAIN,
    "compute": Meaning.TRAIN,
    "backward": Meaning.BACKWARD,
    "optimizer": Meaning.OPTIMIZER,
    "checkpoint_stall": Meaning.SAVE,
    "certification": Meaning.CHECKS,
    "validation": Meaning.VALIDATION,
    "other": Meaning.OTHER,
}
_OF_CAUSE = {
    node_hours.TRAINED: Meaning.TRAIN,
    node_hours.STALL: Meaning.SAVE,
    node_hours.CHECKS: Meaning.CHECKS,
    node_hours.DATA: Meaning.DATA,
    node_hours.STRAGGLERS: Meaning.STRAGGLER,
    node_hours.VALIDATION: Meaning.VALIDATION,
    node_hours.EVALUATION: Meaning.EVALUATION,
    node_hours.SKIPPED: Meaning.CURE,
    node_hours.START: Meaning.START,
    node_hours.SPARES: Meaning.IDLE,
}


def of_phase(part: Part) -> Meaning:
    """Return the meaning of a step phase."""
    return _OF_PHASE[part]


def of_cause(cause: str) -> Meaning:
    """Return the meaning of a cause of node-hours."""
    if cause == node_hours.LOST + node_hours.SPIKE:
        return Meaning.CURE
    is_lost = cause.startswith(node_hours.LOST)
    return Meaning.LOST if is_lost else _OF_CAUSE.get(cause, Meaning.OTHER)


def of_run(number: int) -> str:
    """Return the class of the colour of a run by its number on a page of several, or of another
    curve or part that has none of the meanings."""
    dashed = f" dash{number // RUNS % 3}" if number >= RUNS else ""
    return f"run{number % RUNS}{dashed}"
