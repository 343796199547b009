"""Overrides with several values each, multiplied out: one list of overrides for each run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from hpckit.config.spec_parser import SpecError

MOST = 1000
"""Runs of one array: Slurm's own limit (MaxArraySize) is 1001 where nobody has changed it."""


def multiply(overrides: Sequence[str]) -> list[list[str]]:
    """The cartesian product of `overrides`, the last one's values changing fastest.

    Raises:
        SpecError: a sweep that is no list of values, or too many runs.
    """
    sweeps = [_values(text) for text in overrides]
    runs = [list(words) for words in product(*sweeps)]
    if len(runs) > MOST:
        raise SpecError([f"-m: {len(runs)} runs are more than the {MOST} of one job array"])
    return runs


def varying(run: Sequence[str], overrides: Sequence[str]) -> str:
    """What tells a run from the others of its sweep."""
    return " ".join(word for word, text in zip(run, overrides, strict=True) if word != text)


def _values(text: str) -> list[str]:
    """The overrides, of one value each, that `text` stands for."""
    try:
        item: Override = OverridesParser.create().parse_override(text)
    except HydraException:
        return [text]  # what is wrong with it is said where the run is composed
    if not item.is_sweep_override():
        return [text]
    if not item.is_discrete_sweep() or "glob(" in text:
        raise SpecError([f"{item.key_or_group}: {text!r} names no values; write {_EXAMPLE}"])
    return [f"{item.get_key_element()}={value}" for value in item.sweep_string_iterator()]


_EXAMPLE = "key=1,2,3 or key=range(1,4)"
