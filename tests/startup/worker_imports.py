"""Imports the modules of all tests that are asked for, as pytest does: assertions are rewritten.

The workers of xdist would otherwise import the same thousand modules each.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.config import Config, _prepareconfig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.startup.forked_process import CHECKOUT
from tests.startup.shared_imports import asked_arguments

_FILES = ("conftest.py", "test_*.py")


def import_all() -> None:
    """A module that cannot be imported, or skips its tests, is left to the workers to report."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = _prepareconfig(["--capture=no", *asked_arguments()])
        for name in module_names(config):
            with suppress(Exception, pytest.skip.Exception, SystemExit):
                importlib.import_module(name)
        _an_example()
    config._ensure_unconfigure()


@settings(max_examples=1, database=None, deadline=None, suppress_health_check=[*HealthCheck])
@given(st.text())
def _an_example(text: str) -> None:
    """Have Hypothesis read the constants of all modules of the project, and find out which
    characters there are, before the workers do so one by one."""


def module_names(config: Config) -> Iterator[str]:
    """The modules of the files and folders that pytest was given."""
    places = [config.invocation_params.dir / arg.partition("::")[0] for arg in config.args]
    for file in sorted({file.resolve() for file in _files(places)}):
        if file.is_relative_to(CHECKOUT):
            yield ".".join(file.relative_to(CHECKOUT).with_suffix("").parts)


def _files(places: Iterable[Path]) -> Iterator[Path]:
    for place in places:
        if place.is_file():
            yield place
        for pattern in _FILES:
            yield from place.rglob(pattern)
