"""The rendezvous store: a real server process, for as long as its block lasts."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hpckit.elastic.store import RendezvousStore, StoreError

UNBINDABLE = "203.0.113.1"  # TEST-NET-3 (RFC 5737): nobody's address


def test_a_port_is_served_and_gone_after_the_block(tmp_path: Path) -> None:
    log = tmp_path / "store.log"
    with RendezvousStore("127.0.0.1", os.environ, log) as store:
        where = (store.host, store.port)
        assert store.alive()
        socket.create_connection(where).close()
    assert not store.alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where).close()


def test_a_store_that_cannot_start_is_an_error_that_names_host_and_log(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('torch is broken')\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    log = tmp_path / "store.log"
    with (
        RendezvousStore("127.0.0.1", env, log) as store,
        pytest.raises(StoreError, match=r"127\.0\.0\.1") as caught,
    ):
        _ = store.port
    assert "torch is broken" in log.read_text()
    assert str(log) in str(caught.value)


@pytest.mark.timeout(15)
def test_an_address_that_is_not_this_machines_is_an_error(tmp_path: Path) -> None:
    with (
        RendezvousStore(UNBINDABLE, os.environ, tmp_path / "store.log") as store,
        pytest.raises(StoreError, match=UNBINDABLE),
    ):
        _ = store.port
