"""How a rank waits until rank 0 listens."""

import socket
import threading
from collections.abc import Iterator

import pytest

from hpckit.trainer.parallel.process_group import await_store


@pytest.fixture
def reserved() -> Iterator[socket.socket]:
    """A port that is bound, and on which nobody listens yet, as one that torchrun has chosen."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        yield found


def test_a_rank_goes_on_once_rank_0_listens(reserved: socket.socket) -> None:
    has_listened = threading.Event()

    def listen() -> None:
        has_listened.set()
        reserved.listen()

    timer = threading.Timer(0.05, listen)
    timer.start()
    host, port = reserved.getsockname()
    await_store(host, port)
    assert has_listened.is_set()
    timer.join()


def test_a_rank_leaves_it_to_torch_if_nobody_listens(reserved: socket.socket) -> None:
    host, port = reserved.getsockname()
    await_store(host, port, within_s=0.02)


def test_a_rank_leaves_an_unknown_host_to_torch() -> None:
    await_store("no-such-host.invalid", 1, within_s=3600)
