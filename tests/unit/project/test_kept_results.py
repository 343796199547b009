"""What the suite works out once is what libraries work out each time."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
import yaml

from hpckit.cli.main import app
from tests.startup import kept_results


def read(file: Path) -> object:
    with file.open() as stream:
        return kept_results._load(stream)


def test_who_reads_a_config_file_may_change_what_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text('a: [1, "${b}"]\nb: 2\n')
    for _ in range(2):
        with file.open() as stream:
            found = kept_results._load(stream)
        assert found == kept_results._read(file)
        found.a.append(3)
    file.write_text("a: 4\n")
    assert read(file) == {"a": 4}


def test_an_error_of_a_config_file_tells_its_place_each_time(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: [1\n")
    for _ in range(2):
        with pytest.raises(yaml.MarkedYAMLError, match=file.name):
            read(file)


def test_the_commands_of_hpckit_are_built_once_and_those_of_others_each_time() -> None:
    other = typer.Typer()
    other.command()(lambda: None)
    assert kept_results._get_command(app) is kept_results._get_command(app)
    assert kept_results._get_command(other) is not kept_results._get_command(other)
