"""Ports that are listened on later: nobody has them, and no connection takes them meanwhile."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from hpckit.trainer.torchrun import free_port as ports
from hpckit.trainer.torchrun.free_port import free_port
from tests.unit.hpckit.specs_and_processes import line_of, python

CANDIDATES = range(25_000, 25_100)
CHOOSES = """
import sys
from hpckit.trainer.torchrun.free_port import free_port
print(free_port(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def ephemeral(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "range"
    path.write_text("32768\t60999\n")
    monkeypatch.setattr(ports, "_EPHEMERAL", path)
    return path


def test_they_are_none_of_those_that_connections_get(ephemeral: Path) -> None:
    found = {free_port() for _ in range(20)}
    assert len(found) > 10
    assert all(20_000 <= port < 32_768 for port in found)
    for port in found:
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))


def test_one_that_somebody_has_is_passed_over(
    ephemeral: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        drawn = iter((server.getsockname()[1], *CANDIDATES))
        monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: next(drawn))
        assert free_port() in CANDIDATES


def test_one_that_another_process_has_chosen_is_passed_over_until_that_process_ends(
    ephemeral: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with python(CHOOSES) as other:
        chosen = int(line_of(other))
        draw_first(monkeypatch, chosen)
        assert free_port() in CANDIDATES
    draw_first(monkeypatch, chosen)
    assert free_port() == chosen


def test_the_newest_choices_are_kept_from_others(ephemeral: Path) -> None:
    for _ in range(20):
        free_port()
    assert len(ports._reserved) == ports._MOST_RESERVED


def draw_first(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    drawn = iter((port, *CANDIDATES))
    monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: next(drawn))


def test_where_all_are_given_to_connections_the_kernel_chooses(ephemeral: Path) -> None:
    ephemeral.write_text("1024 65535\n")
    assert free_port() >= 1024
