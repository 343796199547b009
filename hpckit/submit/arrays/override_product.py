"""Expands overrides with several values each into one list of overrides per run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from hpckit.config.spec_parser import SpecError

MOST = 1000
"""The largest number of runs of one array; Slurm's default limit (MaxArraySize) is 1001."""


def multiply(overrides: Sequence[str]) -> list[list[str]]:
    """Returns the cartesian product of `overrides`, where the last one's values change fastest.

    Raises:
        SpecError: a sweep is not a list of values, or there are too many runs.
    """
    sweeps = [_values(text) for text in overrides]
    runs = [list(words) for words in product(*sweeps)]
    if len(runs) > MOST:
        raise SpecError([f"-m: {len(runs)} runs are more than the {MOST} of one job array"])
    return runs


def varying(run: Sequence[str], overrides: Sequence[str]) -> str:
    """Returns the overrides that distinguish a run from the others of its sweep."""
    return " ".join(word for word, text in zip(run, overrides, strict=True) if word != text)


def _values(text: str) -> list[str]:
    """Returns the single-valued overrides that `text` expands to."""
    try:
        item: Override = OverridesParser.create().parse_override(text)
    except HydraException:
        return [text]  # the error is reported when the run is composed
    if not item.is_sweep_override():
        return [text]
    if not item.is_discrete_sweep() or "glob(" in text:
        raise SpecError([f"{item.key_or_group}: {text!r} names no values; write {_EXAMPLE}"])
    return [f"{item.get_key_element()}={value}" for value in item.sweep_string_iterator()]


_EXAMPLE = "key=1,2,3 or key=range(1,4)"
