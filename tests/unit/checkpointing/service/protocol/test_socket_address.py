from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from checkpointing.errors import ServiceError
from checkpointing.service.protocol import socket_address as module
from checkpointing.service.protocol.socket_address import address, all_sockets, check_peer, folder


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HPCKIT_RUNTIME_DIR", str(tmp_path / "rt"))
    monkeypatch.delenv("HPCKIT_NODE", raising=False)
    return tmp_path / "rt"


def test_the_folder_is_made_for_the_user_alone(runtime: Path) -> None:
    assert all_sockets() == []
    assert not runtime.exists()  # to look makes nothing
    assert folder() == runtime
    assert runtime.stat().st_mode & 0o777 == 0o700


def test_which_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCKIT_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert folder() == tmp_path / "hpckit"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert module._chosen() == Path(f"/tmp/hpckit-{os.getuid()}")
    monkeypatch.setenv("HPCKIT_RUNTIME_DIR", "here")
    monkeypatch.chdir(tmp_path)
    assert folder() == tmp_path / "here"  # whatever folder the service works in


@pytest.mark.parametrize("mode", [0o755, 0o701, 0o770, 0o777])
def test_a_folder_that_is_open_to_others_is_refused(runtime: Path, mode: int) -> None:
    runtime.mkdir()
    runtime.chmod(mode)
    for use in (folder, all_sockets):
        with pytest.raises(ServiceError, match="mode 0700"):
            use()


def test_a_link_or_a_file_is_refused(runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    runtime.symlink_to(tmp_path / "real")
    with pytest.raises(ServiceError, match="not a link"):
        folder()
    with pytest.raises(ServiceError, match="not a link"):
        all_sockets()
    runtime.unlink()
    runtime.write_text("")
    with pytest.raises(ServiceError, match="cannot use"):
        folder()


def test_somebody_elses_folder_is_refused(runtime: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away; run the tests as root")
    runtime.mkdir(mode=0o700)
    os.chown(runtime, 65534, -1)
    with pytest.raises(ServiceError, match="of user 0"):
        folder()


def test_an_address_tells_store_run_and_node_apart(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = [
        address("s3://a", "run", "n"),
        address("s3://b", "run", "n"),
        address("s3://a", "run2", "n"),
        address("s3://a", "run", "m"),
        address("s3://a", "run"),
    ]
    assert len(set(addresses)) == 5
    assert address("s3://a", "run", "n") == addresses[0]
    monkeypatch.setenv("HPCKIT_NODE", "m")
    assert address("s3://a", "run") == addresses[3]
    assert {path.parent for path in addresses} == {runtime}
    assert all(path.name.startswith("run") and path.suffix == ".sock" for path in addresses)


def test_a_run_with_dots_keeps_its_files_apart(runtime: Path) -> None:
    path = address("u", "v1.5")
    assert path.with_suffix(".lock").name.startswith("v1.5-")
    with pytest.raises(ValueError, match="run name"):
        address("u", "../run")


def test_a_path_that_is_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCKIT_RUNTIME_DIR", str(tmp_path / ("x" * 90)))
    with pytest.raises(ServiceError, match="too long"):
        address("u", "run")
    base = tmp_path / "b"
    used = len(os.fsencode(base / "run-0123456789abcdef.sock"))
    exact = base.with_name("b" * (module.MAX_PATH - used + 1))
    monkeypatch.setenv("HPCKIT_RUNTIME_DIR", str(exact))
    path = address("u", "run")
    assert len(os.fsencode(path)) == module.MAX_PATH
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))  # the longest that there can be
    assert all_sockets() == [path]


def test_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair()
    with one, other:
        check_peer(one)
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(ServiceError, match="refused"):
            check_peer(one)
