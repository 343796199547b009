"""Readers of what others wrote: a few of the inputs of `python -m tests.faults.fuzz`, and what it
has found."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.fuzz import fuzz
from tests.faults.fuzzing import (
    MEMORY,
    HangError,
    Reader,
    bounded,
    failure_of,
    make_input,
    minimised,
)
from tests.faults.readers import readers

INPUTS = 100  # of each reader


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_nothing_but_documented_errors(tmp_path: Path) -> None:
    found = []
    for reader in readers(tmp_path):
        for number in range(math.ceil(INPUTS * reader.weight)):
            data = make_input(reader, 0, number)
            with bounded():
                failure = failure_of(reader, data)
            found += [] if failure is None else [str(failure)]
    assert found == []


def test_valid_bytes_are_read(tmp_path: Path) -> None:
    """Or the mutations begin from nothing that gets far."""
    read = set()
    for reader in readers(tmp_path):
        for seed in reader.seeds:
            try:
                reader.read(seed)
            except reader.refuses:
                continue
            read.add(reader.name)
    assert read == {reader.name for reader in readers(tmp_path)}


def test_inputs_follow_from_their_seed(tmp_path: Path) -> None:
    for reader in readers(tmp_path):
        one, again = ([make_input(reader, s, n) for n in range(30)] for s in (1, 1))
        assert one == again
        assert one != [make_input(reader, 2, n) for n in range(30)]


class Weak:
    """A reader with every fault that is to be found."""

    @staticmethod
    def crash(data: bytes) -> None:
        if b"\xff" in data:
            raise IndexError("no such thing")

    @staticmethod
    def hang(data: bytes) -> None:
        end = time.process_time() + 20
        while time.process_time() < end:
            pass

    @staticmethod
    def swell(data: bytes) -> None:
        bytearray(2 * MEMORY)


def test_what_escapes_is_found_and_made_small() -> None:
    reader = Reader("weak", [b"abc"], Weak.crash, (ValueError,))
    with bounded():
        assert failure_of(reader, b"abc") is None
        failure = failure_of(reader, b"abc" * 20 + b"\xff" + b"def" * 20)
        assert failure is not None
        assert minimised(reader, failure).data == b"\xff"


def test_blow_ups_and_hangs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.faults.fuzzing.CPU_S", 0.1)
    for read, kind in ((Weak.swell, MemoryError), (Weak.hang, HangError)):
        with bounded():
            failure = failure_of(Reader("weak", [b""], read), b"")
        assert failure is not None
        assert type(failure.error) is kind


def test_the_command_saves_what_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weak = Reader("weak", [b"\xff" * 9], Weak.crash)
    monkeypatch.setattr("tests.faults.fuzz.readers", lambda work: [weak])
    assert fuzz(50, 1, tmp_path, "", math.inf) > 0
    (saved,) = tmp_path.iterdir()
    assert saved.read_bytes() == b"\xff"
    assert "50 inputs" in capsys.readouterr().out
