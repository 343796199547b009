"""Questions of an agent and answers of its workers, by real processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpckit.hangs.own_snapshot import describe_worker
from hpckit.ipc.snapshot_exchange import SnapshotExchange, SnapshotResponder
from tests.stopped_processes import stop
from tests.unit.hpckit.specs_and_processes import line_of, python, until

WORKER = """
import sys, time
from hpckit.hangs.own_snapshot import describe_worker
from hpckit.ipc.snapshot_exchange import SnapshotResponder
responder = SnapshotResponder(sys.argv[1], int(sys.argv[2]), describe_worker)
responder.start()
def waits_here():
    print("up", flush=True)
    responder.join()
    print("over", flush=True)
waits_here()
"""


@pytest.fixture
def exchange() -> Iterator[SnapshotExchange]:
    found = SnapshotExchange(2)
    yield found
    found.close()


def test_a_worker_describes_itself_and_a_stopped_one_does_not_answer() -> None:
    exchange = SnapshotExchange(2)
    with (
        python(WORKER, exchange.address, 0) as well,
        python(WORKER, exchange.address, 1) as stopped,
    ):
        assert line_of(well) == line_of(stopped) == "up"
        stop(stopped.pid)
        number = exchange.ask()
        until(lambda: exchange.answer(0, number) is not None)
        answer = json.loads(exchange.answer(0, number) or b"")
        main, *_ = answer["threads"]
        assert main["is_main"]
        assert any(frame[2] == "waits_here" for frame in main["frames"])
        assert (answer["groups"], answer["call"], answer["error"]) == (None, None, None)
        assert exchange.answer(1, number) is None
        assert exchange.answer(0, number - 1) is None
        again = exchange.ask()
        os.kill(stopped.pid, signal.SIGCONT)
        for rank in (0, 1):
            until(lambda rank=rank: exchange.answer(rank, again) is not None)  # type: ignore[misc]
        exchange.close()
        assert line_of(well) == "over", "the thread ends with the agent"


def test_questions_that_nobody_reads_do_not_block(exchange: SnapshotExchange) -> None:
    for _ in range(20_000):
        exchange.ask()
    responder = SnapshotResponder(exchange.address, 1, lambda number: str(number).encode())
    responder.start()
    last = exchange.ask()
    until(lambda: exchange.answer(1, exchange.ask()) is not None or last < 0)


def test_a_question_after_the_end_is_written_to_no_file_that_has_its_number_now() -> None:
    exchange = SnapshotExchange(1)
    exchange.close()
    exchange.close()
    readers, writers = zip(*(os.pipe2(os.O_NONBLOCK) for _ in range(4)), strict=True)
    try:
        number = exchange.ask()
        assert exchange.answer(0, number) is None
        for reader in readers:
            with pytest.raises(BlockingIOError):
                os.read(reader, 1)
    finally:
        for handle in (*readers, *writers):
            os.close(handle)


def test_a_program_without_torch_has_stacks_alone() -> None:
    with ThreadPoolExecutor(1) as threads:
        answer = json.loads(threads.submit(describe_worker, 1).result())
    main = next(one for one in answer["threads"] if one["is_main"])
    assert any("test_a_program_without_torch" in frame[2] for frame in main["frames"])
