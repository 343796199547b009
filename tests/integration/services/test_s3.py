"""The S3 servers of the tests: they answer, over http and https, and fail as they are told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import obstore
import psutil
import pytest
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError

from tests.services.ceph import CephServer
from tests.services.fixtures import chosen_server
from tests.services.ministack import MinistackServer
from tests.services.processes import MissingToolError, find_tools
from tests.services.s3 import S3Place

MIB = bytes(1 << 20)


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_ceph_stores_an_object_once(ceph_server: CephServer, tls: bool) -> None:
    place = ceph_server.new_place(tls=tls)
    assert place.endpoint.startswith("https:" if tls else "http:")
    store = place.store()
    obstore.put(store, "a/b", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "a/b", b"other", mode="create")
    assert bytes(obstore.get(store, "a/b").bytes()) == b"first"


def test_ceph_refuses_a_wrong_key_and_an_unknown_authority(ceph_server: CephServer) -> None:
    place = ceph_server.new_place(tls=True)
    wrong = S3Place(place.bucket, "p", place.endpoint, place.access_key, "wrong", place.ca_file)
    with pytest.raises(BaseError, match="SignatureDoesNotMatch"):
        obstore.put(wrong.store(), "a", b"")
    stranger = S3Place(place.bucket, "p", place.endpoint, place.access_key, place.secret_key)
    with pytest.raises(BaseError, match="error sending request"):
        obstore.put(stranger.store(), "a", b"")


def test_a_quota_of_the_user_fills_the_store(ceph_server: CephServer) -> None:
    store = ceph_server.new_place().store()
    ceph_server.set_quota(1)
    try:
        with pytest.raises(PermissionDeniedError, match="QuotaExceeded"):
            obstore.put(store, "a", MIB)
    finally:
        ceph_server.set_quota(None)
    obstore.put(store, "a", MIB)


def test_a_quota_of_a_bucket_leaves_others_alone(ceph_server: CephServer) -> None:
    small, other = ceph_server.new_place(), ceph_server.new_place()
    ceph_server.set_quota(len(MIB) * 3 // 2, bucket=small.bucket)
    obstore.put(small.store(), "a", MIB)
    with pytest.raises(PermissionDeniedError, match="QuotaExceeded"):
        obstore.put(small.store(), "b", MIB)
    obstore.put(other.store(), "b", MIB)


@pytest.mark.parametrize("name", ["ceph_server", "ministack_server"])
def test_a_paused_server_does_not_answer(name: str, request: pytest.FixtureRequest) -> None:
    server: CephServer | MinistackServer = request.getfixturevalue(name)
    place = server.new_place()
    obstore.put(place.store(), "a", b"kept")
    server.pause()
    try:
        with pytest.raises(BaseError, match="error sending request"):
            obstore.get(place.store(timeout_s=0.5), "a")
    finally:
        server.resume()
    assert bytes(obstore.get(place.store(), "a").bytes()) == b"kept"


def test_a_stopped_ceph_comes_back_with_its_objects(ceph_server: CephServer) -> None:
    place = ceph_server.new_place(tls=True)
    obstore.put(place.store(), "a", b"kept")
    ceph_server.stop()
    try:
        with pytest.raises(BaseError, match="error sending request"):
            obstore.get(place.store(), "a")
    finally:
        ceph_server.start()
    assert bytes(obstore.get(place.store(), "a").bytes()) == b"kept"


def test_places_are_new_and_do_not_tell_their_secret(s3_url: S3Place) -> None:
    assert s3_url.url == f"s3://{s3_url.bucket}/prefix"
    assert list(obstore.list(s3_url.store()).collect()) == []
    assert s3_url.secret_key == s3_url.env["AWS_SECRET_ACCESS_KEY"]
    assert s3_url.secret_key not in repr(s3_url)


def test_which_server_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_server({"HPCKIT_TEST_S3": "ministack"}) == "ministack"
    monkeypatch.setattr("tests.services.processes._PATH", "/nonexistent")
    assert chosen_server({}) == "ministack"
    assert chosen_server({"HPCKIT_TEST_S3": "ceph"}) == "ceph"
    with pytest.raises(pytest.UsageError, match="minio"):
        chosen_server({"HPCKIT_TEST_S3": "minio"})


def test_a_missing_tool_is_named_with_its_package() -> None:
    with pytest.raises(
        MissingToolError, match=r"no-such-tool not installed.*apt-get.* its-package"
    ):
        find_tools({"no-such-tool": "its-package", "sh": "dash"})


def test_servers_die_with_a_killed_test_process(tmp_path: Path) -> None:
    script = (
        "import json, sys, time; from pathlib import Path; from tests.services.ceph import ceph\n"
        "import psutil\n"
        "with ceph(Path(sys.argv[1]), tls=False):\n"
        "    print(json.dumps([p.pid for p in psutil.Process().children()]), flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    repository = Path(__file__).resolve().parents[3]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=repository) as tests:
        assert tests.stdout is not None
        servers = json.loads(tests.stdout.readline())
        assert len(servers) == 3
        os.kill(tests.pid, signal.SIGKILL)
    while any(psutil.pid_exists(pid) for pid in servers):  # the suite's timeout ends it
        time.sleep(0.02)
