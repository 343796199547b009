"""Events that a Checkpointer writes to the file of the environment."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from checkpointing.event_file import FIELDS, FILE, writer_from_env


def test_without_the_variable_there_is_no_file() -> None:
    assert writer_from_env({}) is None
    assert writer_from_env({FILE: ""}) is None


def test_events_are_lines_with_the_common_fields(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"torn": ')
    write = writer_from_env({FILE: str(path), FIELDS: '{"generation": 3}'})
    assert write is not None
    write("checkpoint_started", step=7)
    write("checkpoint_started", step=8)
    torn, *lines = path.read_text().splitlines()
    assert torn == '{"torn": '
    assert [(one["kind"], one["generation"], one["step"]) for one in map(json.loads, lines)] == [
        ("checkpoint_started", 3, 7),
        ("checkpoint_started", 3, 8),
    ]


def test_what_cannot_be_written_is_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        write = writer_from_env({FILE: str(tmp_path / "no" / "events.jsonl"), FIELDS: "{"})
        assert write is not None
        write("checkpoint_started", step=7)
    assert f"{FIELDS} is not JSON" in caplog.text
    assert "the event checkpoint_started is not written" in caplog.text
