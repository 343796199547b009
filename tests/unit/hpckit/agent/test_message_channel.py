"""Messages between supervisor and agent, and how each notices that the other is gone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from hpckit.agent import message_channel as module
from hpckit.agent.message_channel import Channel, HeartbeatThread, Message
from tests.unit.hpckit.specs_and_processes import until


class Pair(NamedTuple):
    here: Channel
    there: Channel
    fds: list[int]  # read here, written there, read there, written here


@pytest.fixture
def pair() -> Iterator[Pair]:
    (up_read, up_write), (down_read, down_write) = os.pipe(), os.pipe()
    here, there = Channel(up_read, down_write), Channel(down_read, up_write)
    fds = [up_read, up_write, down_read, down_write]
    yield Pair(here, there, fds)
    here.close()
    there.close()
    for fd in fds:
        if fd >= 0:
            os.close(fd)


def test_messages_come_whole_and_in_order(pair: Pair) -> None:
    sent: list[Message] = [
        {"kind": "a", "text": "line\nbreak, ü"},
        {"kind": "b", "numbers": [1, 2.5]},
    ]
    for message in sent:
        pair.here.send(message)
    assert pair.there.receive() == sent
    assert pair.there.receive() == []


def test_a_message_in_pieces_waits_for_its_end(pair: Pair) -> None:
    os.write(pair.fds[3], b'{"kind": ')
    assert pair.there.receive() == []
    os.write(pair.fds[3], b'"late"}\n{"kind": "next"}\n')
    assert pair.there.receive() == [{"kind": "late"}, {"kind": "next"}]


def test_beats_are_no_messages_and_what_is_none_is_passed_over(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.here.send_heartbeat()
    os.write(pair.fds[3], b"srun: a remark\n[1]\n")
    pair.here.send({"kind": "real"})
    assert pair.there.receive() == [{"kind": "real"}]
    assert caplog.text.count("not a message") == 2


def test_what_a_full_pipe_has_no_room_for_comes_later(pair: Pair) -> None:
    messages = [{"kind": str(number), "padding": "x" * 9000} for number in range(30)]
    for message in messages:
        pair.here.send(message)  # some 270 KB into 64 KiB
    got: list[Message] = []
    while len(got) < len(messages):
        found = pair.there.receive()
        pair.here.send_heartbeat()
        got += found
    assert got == messages


def test_a_long_message_is_sent_on_while_its_side_reads(pair: Pair) -> None:
    message = {"kind": "long", "padding": "x" * 500_000}
    pair.here.send(message)
    got: list[Message] = []
    while not got:
        got += pair.there.receive()
        assert pair.here.receive() == []
    assert got == [message]


def test_it_is_over_when_the_other_side_has_ended(pair: Pair) -> None:
    pair.there.send({"kind": "last word"})
    assert not pair.here.is_over
    os.close(pair.fds[1])
    pair.fds[1] = -1
    assert pair.here.receive() == [{"kind": "last word"}]
    assert pair.here.is_over


def test_sending_to_nobody_is_no_error(pair: Pair) -> None:
    os.close(pair.fds[2])
    pair.fds[2] = -1
    pair.here.send({"kind": "x"})
    pair.here.send_heartbeat()


def test_who_says_nothing_for_long_is_lost(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.2)
    until(lambda: pair.here.receive() == [] and pair.here.is_over)
    pair.there.send_heartbeat()
    assert pair.here.receive() == []
    assert not pair.here.is_over, "it was only slow"


def test_who_is_suspect_is_lost_sooner(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 3600.0)
    monkeypatch.setattr(module, "SUSPECT_S", 0.2)
    monkeypatch.setattr(module, "QUIET_S", 0.2)
    pair.here.is_suspect = True
    until(lambda: pair.here.receive() == [] and pair.here.is_over)
    pair.here.is_suspect = False
    assert not pair.here.is_over
    assert pair.here.is_quiet
    pair.there.send_heartbeat()
    assert pair.here.receive() == []
    assert not pair.here.is_quiet


def test_who_was_busy_for_long_has_not_heard_the_other_side(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where both were frozen, with the machine that they share."""
    monkeypatch.setattr(module, "SILENT_S", 0.2)
    monkeypatch.setattr(module, "BEAT_S", 0.15)
    time.sleep(0.5)
    assert not pair.here.is_over
    assert pair.here.receive() == []
    assert not pair.here.is_over, "of all that time it has listened for a moment only"


def test_a_pulse_keeps_a_silent_side_alive(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.02)
    monkeypatch.setattr(module, "SILENT_S", 3.0)
    pulse = HeartbeatThread()
    pulse.start()
    pulse.add(pair.there)
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < 4.0:
        assert pair.here.receive() == []
        assert not pair.here.is_over
        time.sleep(0.05)
    pulse.close()


def test_nothing_is_written_after_its_end(pair: Pair) -> None:
    pair.here.close()
    pair.here.send({"kind": "x"})
    pair.here.send_heartbeat()
    assert pair.there.receive() == []
