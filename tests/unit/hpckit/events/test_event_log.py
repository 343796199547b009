"""`events.jsonl`: nothing lost, nothing torn, whoever writes and however it ends."""

from __future__ import annotations

import json
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpckit.events.event_log import Event, EventLog, EventTail, read_events
from tests.unit.hpckit.specs_and_processes import line_of, python

WRITE = """
import sys; from pathlib import Path; from hpckit.events.event_log import EventLog
path, who, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True); sys.stdin.readline()
with EventLog(path, who=who) as log:
    for n in range(count):
        log.emit_kind("tick", n=n, filling="x" * ((n * 37 + who) % 9000))
"""

HALF_A_LINE = """
import fcntl, sys, time
with open(sys.argv[1], "a") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    file.write('{"time": 1, "kind"'); file.flush()
    print("half", flush=True); sys.stdin.readline()
    time.sleep(0.3)  # long enough for a writer that does not wait to spoil the line
    file.write(': "slow"}\\n')
"""


def fields(events: list[Event]) -> list[dict[str, object]]:
    return [event.fields for event in events]


def test_processes_that_append_at_once_lose_and_tear_nothing(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with (
        python(WRITE, path, 0, 300) as a,
        python(WRITE, path, 1, 300) as b,
        python(WRITE, path, 2, 300) as c,
        python(WRITE, path, 3, 300) as d,
    ):
        writers = [a, b, c, d]
        for writer in writers:
            assert line_of(writer) == "ready"
        for writer in writers:
            writer.communicate("go\n")
            assert writer.returncode == 0
    lines = path.read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert all(len(e["filling"]) == (e["n"] * 37 + e["who"]) % 9000 for e in found)
    for who in range(4):
        assert [e["n"] for e in found if e["who"] == who] == list(range(300))


def test_a_writer_waits_for_another_that_is_in_the_middle_of_a_line(tmp_path: Path) -> None:
    """On NFS one write is not one append: the lock has to keep writers apart."""
    path = tmp_path / "events.jsonl"
    with python(HALF_A_LINE, path) as slow, EventLog(path) as log:
        assert line_of(slow) == "half"
        assert slow.stdin is not None
        slow.stdin.write("\n")
        slow.stdin.flush()
        log.emit_kind("fast")
    assert [event.kind for event in read_events(path)] == ["slow", "fast"]


def test_threads_that_append_at_once_lose_and_tear_nothing(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log, ThreadPoolExecutor(4) as threads:
        for n in range(400):
            threads.submit(log.emit_kind, "tick", n=n, filling="x" * n)
    assert sorted(event["n"] for event in read_events(path)) == list(range(400))


def test_fields_kind_and_common_fields_come_back(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path, generation=3) as log:
        log.emit_kind("step", step=7, nested={"a": [1, None]}, text="é\n")
    (event,) = read_events(path)
    assert event.kind == "step"
    assert event.fields == {"generation": 3, "step": 7, "nested": {"a": [1, None]}, "text": "é\n"}
    assert (event["step"], event.get("none"), event.get("none", 5)) == (7, None, 5)


def test_a_diverging_loss_survives(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.emit_kind("step", loss=math.nan, norm=math.inf, low=-math.inf)
    (event,) = read_events(path)
    assert math.isnan(event["loss"])
    assert (event["norm"], event["low"]) == (math.inf, -math.inf)


def test_a_torn_line_costs_nothing_but_itself_and_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.emit_kind("a")
    with path.open("a") as file:
        file.write('{"time": 1.0, "kind": "to')
    assert [event.kind for event in read_events(path)] == ["a"]
    assert caplog.text == ""  # it may still become whole
    with EventLog(path) as log:
        log.emit_kind("b")
        log.emit_kind("c")
    assert [event.kind for event in read_events(path)] == ["a", "b", "c"]
    assert "torn line" in caplog.text
    assert str(path) in caplog.text
    assert Counter(path.read_bytes())[ord("\n")] == 4


@pytest.mark.parametrize("line", ["", "7", "[]", '{"kind": "x"}', '{"time": "soon", "kind": "x"}'])
def test_a_line_that_is_no_event_is_passed_over(
    tmp_path: Path, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(f'{line}\n{{"time": 1, "kind": "good"}}\n')
    assert [event.kind for event in read_events(path)] == ["good"]
    assert "torn line" in caplog.text


def test_a_tail_gives_each_whole_line_once_and_waits_for_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = EventTail(path)
    assert list(tail.read()) == []
    with EventLog(path) as log:
        log.emit_kind("a", n=1)
        assert fields(list(tail.read())) == [{"n": 1}]
        log.emit_kind("a", n=2)
        log.emit_kind("a", n=3)
        assert fields(list(tail.read())) == [{"n": 2}, {"n": 3}]
        assert list(tail.read()) == []
    with path.open("a") as file:
        file.write('{"time": 2, "kind": "a", ')
        file.flush()
        assert list(tail.read()) == []
        file.write('"n": 4}\n{"time"')
    assert fields(list(tail.read())) == [{"n": 4}]


def test_a_tail_without_steps_gives_all_others(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    text = '"kind": "step"'  # quotes of a value are escaped
    with EventLog(path) as log:
        log.emit_kind("step", step=1, step_s=0.1)
        log.emit_kind("a", n=text)
        log.emit_kind("stepped", n=2)
        log.emit_kind("step", step=2, step_s=0.1)
    tail = EventTail(path)
    assert fields(list(tail.read(with_steps=False))) == [{"n": text}, {"n": 2}]
    assert tail.offset == path.stat().st_size


def test_a_tail_left_early_goes_on_where_it_was_left(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for n in range(3):
            log.emit_kind("a", n=n)
    tail = EventTail(path)
    assert next(tail.read())["n"] == 0
    assert [event["n"] for event in tail.read()] == [1, 2]


def test_a_tail_from_the_end_sees_only_what_comes(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.emit_kind("a", n=1)
        tail = EventTail(path, from_end=True)
        log.emit_kind("a", n=2)
    assert fields(list(tail.read())) == [{"n": 2}]
    late = EventTail(tmp_path / "later.jsonl", from_end=True)
    with EventLog(tmp_path / "later.jsonl") as log:
        log.emit_kind("a", n=3)
    assert fields(list(late.read())) == [{"n": 3}]


def test_events_are_read_in_the_order_of_their_time(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(f'{{"time": {t}, "kind": "k"}}\n' for t in (3, 1, 2)))
    assert [event.time for event in read_events(path)] == [1.0, 2.0, 3.0]
    assert read_events(tmp_path / "none.jsonl") == []


def test_what_comes_after_the_end_is_written_to_no_other_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.close()
    with open(tmp_path / "other", "a+") as other:  # which has the number of the log's file
        log.emit_kind("late")
        log.close()
        assert other.tell() == 0
        other.write("mine")
    assert (tmp_path / "other").read_text() == "mine"
    assert (tmp_path / "events.jsonl").read_text() == ""
    assert "the log is closed" in caplog.text
