"""S3 behind a network that fails: what passes is tried again, what is final is said at once."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from checkpointing.errors import StoreAccessError, StoreError, StoreFullError
from checkpointing.storage import Storage, open_storage
from checkpointing.storage.fsspec.fsspec_storage import FsspecStorage
from tests.services.ceph import CephServer
from tests.services.fault_proxy import fault_proxy
from tests.services.faults import (
    ACCESS_DENIED,
    EXPIRED_TOKEN,
    EXPIRED_TOKEN_AWS,
    INTERNAL_ERROR,
    NO_CONDITIONS,
    SLOW_DOWN,
    Answer,
    Fault,
    Hang,
    LoseReply,
    Reset,
    ResetDownload,
    ResetUpload,
    Stall,
    Truncate,
)
from tests.services.fixtures import FaultyS3
from tests.services.s3 import S3Place, S3Server

LARGE = bytes(range(256)) * (3 << 12)  # 3 MiB
PATIENT_S, IMPATIENT_S = (
    60.0,
    2.0,
)  # of one try: for an answer that comes, and for one that does not
Open = Callable[..., Storage]


@pytest.fixture(params=["obstore", "s3fs"])
def through(request: pytest.FixtureRequest, faulty_s3: FaultyS3) -> Open:
    """Opens a storage whose requests go through the proxy."""

    def open_one(**options: Any) -> Storage:
        place = faulty_s3.place
        given = {**place.options, "client": request.param, "timeout_s": PATIENT_S, **options}
        return open_storage(place.url, options=given)

    return open_one


def retries(storage: Storage) -> int:
    found: int = storage.counters.retries  # type: ignore[attr-defined]
    return found


def is_s3fs(storage: Storage) -> bool:
    """Whose client tries some resets again by itself, uncounted."""
    return isinstance(storage, FsspecStorage)


PASSING = [SLOW_DOWN, INTERNAL_ERROR, Reset(), ResetUpload(100_000), LoseReply()]


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: type(fault).__name__)
def test_a_put_outlives(through: Open, faulty_s3: FaultyS3, fault: Fault) -> None:
    storage = through()
    rule = faulty_s3.proxy.inject(fault, method="PUT", key="object", times=2)
    storage.put("object", [LARGE[:1000], LARGE[1000:]])
    assert rule.hits == 2
    assert retries(storage) == 2 or is_s3fs(storage)
    assert storage.get("object") == LARGE


@pytest.mark.parametrize(
    "fault",
    [
        SLOW_DOWN,
        Reset(),
        ResetDownload(100_000),
        Truncate(100_000),
        Hang(3600),
        Stall(100_000, 3600),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_a_read_outlives(through: Open, faulty_s3: FaultyS3, fault: Fault) -> None:
    is_mute = isinstance(fault, Hang | Stall)
    through(timeout_s=PATIENT_S).put("object", [LARGE])
    storage = through(timeout_s=IMPATIENT_S if is_mute else PATIENT_S)
    rule = faulty_s3.proxy.inject(fault, method="GET", key="object", times=1)
    assert storage.get("object") == LARGE
    faulty_s3.proxy.inject(fault, method="GET", key="object", times=1)
    assert bytes(storage.get_range("object", 5, 200_000)) == LARGE[5:200_005]
    assert rule.hits == 1
    assert retries(storage) == 2 or is_s3fs(storage) or (is_mute and retries(storage) > 2)


def test_ones_own_create_with_a_lost_reply_is_a_success(through: Open, faulty_s3: FaultyS3) -> None:
    storage = through()
    assert storage.create("first", b"so that the server was probed")
    rule = faulty_s3.proxy.inject(LoseReply(), method="PUT", key="manifest", times=1)
    assert storage.create("manifest", b"mine") is True
    assert rule.hits == 1
    assert storage.create("manifest", b"other") is False
    faulty_s3.proxy.inject(LoseReply(), method="PUT", key="manifest", times=1)
    assert storage.create("manifest", b"other") is False
    assert storage.get("manifest") == b"mine"


@pytest.mark.parametrize(
    "use",
    [
        lambda storage: storage.put("object", [b"small"]),
        lambda storage: storage.replace("object", b"small"),
        lambda storage: storage.create("object", b"small"),
        lambda storage: storage.get("object"),
        lambda storage: storage.get_range("object", 0, 1),
        lambda storage: storage.list(""),
        lambda storage: storage.delete(["object"]),
    ],
    ids=["put", "replace", "create", "get", "get_range", "list", "delete"],
)
def test_a_server_that_never_answers_ends_in_an_error(
    through: Open, faulty_s3: FaultyS3, use: Callable[[Storage], object]
) -> None:
    storage = through(timeout_s=0.5, budget_s=0.6)
    faulty_s3.proxy.inject(Hang(3600))
    with pytest.raises(StoreError, match="given up after"):
        use(storage)
    assert retries(storage) >= 1


def test_a_server_that_stays_overloaded(
    through: Open, faulty_s3: FaultyS3, caplog: pytest.LogCaptureFixture
) -> None:
    storage = through(budget_s=0.5)
    faulty_s3.proxy.inject(SLOW_DOWN)
    with caplog.at_level(logging.WARNING, "checkpointing"), pytest.raises(StoreError) as caught:
        storage.put("packs/one", [b"data"])
    text = str(caught.value)
    assert "write s3://" in text
    assert "packs/one" in text
    assert "given up after" in text
    assert faulty_s3.place.secret_key not in text + caplog.text
    assert "packs/one" in caplog.text


@pytest.mark.parametrize("fault", [ACCESS_DENIED, Answer(403, "RequestTimeTooSkewed")])
def test_no_access_is_said_at_once(through: Open, faulty_s3: FaultyS3, fault: Fault) -> None:
    storage = through()
    rule = faulty_s3.proxy.inject(fault)
    with pytest.raises(StoreAccessError, match="object"):
        storage.put("object", [b"data"])
    assert rule.hits == 1
    assert retries(storage) == 0


@pytest.mark.parametrize("fault", [EXPIRED_TOKEN, EXPIRED_TOKEN_AWS], ids=["403", "400"])
def test_credentials_are_read_once_more(through: Open, faulty_s3: FaultyS3, fault: Fault) -> None:
    storage = through()
    rule = faulty_s3.proxy.inject(fault, key="object", times=1)
    storage.put("object", [b"data"])
    assert rule.hits == 1
    faulty_s3.proxy.clear()
    rule = faulty_s3.proxy.inject(fault)
    with pytest.raises(StoreAccessError, match="renew the credentials"):
        storage.get("object")
    assert rule.hits == 2


@pytest.mark.parametrize("fault", [Answer(403, "QuotaExceeded"), Answer(507, "Other")])
def test_a_full_server_is_said_at_once(through: Open, faulty_s3: FaultyS3, fault: Fault) -> None:
    storage = through()
    rule = faulty_s3.proxy.inject(fault, method="PUT")
    with pytest.raises(StoreFullError, match="prune"):
        storage.put("object", [b"data"])
    assert rule.hits == 1


@pytest.mark.parametrize("fault", [NO_CONDITIONS, Answer(411, "MissingContentLength")])
def test_a_server_without_exclusive_create(
    through: Open, faulty_s3: FaultyS3, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    storage = through()
    faulty_s3.proxy.inject(fault, method="PUT", key="probe")
    with caplog.at_level(logging.WARNING, "checkpointing"):
        assert storage.create("manifest", b"mine") is True
        assert storage.create("manifest", b"other") is False
        assert storage.create("manifest", b"mine") is True
    assert [entry.key for entry in storage.list("")] == ["manifest"]
    assert caplog.text.count("writers agree through claim objects") == 1


MANY = [f"many/{n:04d}" for n in range(1001)]  # a list of S3 has a thousand


@pytest.fixture(scope="module")
def of_many(s3_server: S3Server) -> S3Place:
    """With many objects, as they take long to make."""
    place = s3_server.new_place()
    direct = open_storage(place.url, options=place.options)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: direct.put(name, [b"1"]), MANY))
    direct.close()
    return place


@pytest.mark.parametrize("client", ["obstore", "s3fs"])
def test_a_list_goes_on_where_it_was_cut(
    client: str, of_many: S3Place, s3_server: S3Server
) -> None:
    with fault_proxy(s3_server.http) as proxy:
        place = of_many.through(proxy.endpoint)
        options = {**place.options, "client": client, "timeout_s": PATIENT_S}
        storage = open_storage(place.url, options=options)
        rule = proxy.inject(INTERNAL_ERROR, method="GET", skip=1, times=1)
        assert [entry.key for entry in storage.list("many/")] == MANY
        assert (rule.hits, retries(storage)) == (1, 1)
        storage.close()


def test_a_server_without_bulk_delete(faulty_s3: FaultyS3) -> None:
    options = {**faulty_s3.place.options, "timeout_s": PATIENT_S}
    storage = open_storage(faulty_s3.place.url, options=options)
    names = [f"object-{n}" for n in range(12)]
    for name in names:
        storage.put(name, [b"1"])
    rule = faulty_s3.proxy.inject(Answer(400, "InvalidRequest"), method="POST")
    storage.delete(names[:6])
    storage.delete(names[6:])
    assert storage.list("") == []
    assert rule.hits == 1


@pytest.mark.parametrize("client", ["obstore", "s3fs"])
def test_https_with_a_certificate_of_ones_own(client: str, ceph_server: CephServer) -> None:
    place = ceph_server.new_place(tls=True)
    options = {**place.options, "client": client, "ca_bundle": str(place.ca_file)}
    storage = open_storage(place.url, options=options)
    storage.put("object", [LARGE])
    assert storage.create("manifest", b"mine") is True
    assert storage.create("manifest", b"other") is False
    assert storage.get("object") == LARGE
    del options["ca_bundle"]
    with pytest.raises(StoreError, match="given up after"):
        open_storage(place.url, options={**options, "budget_s": 0.2}).get("object")


@pytest.mark.parametrize("client", ["obstore", "s3fs"])
def test_wrong_keys(client: str, ceph_server: CephServer) -> None:
    place = ceph_server.new_place()
    options = {**place.options, "client": client, "secret_access_key": "not-the-right-one"}
    with pytest.raises(StoreAccessError, match="SignatureDoesNotMatch") as caught:
        open_storage(place.url, options=options).get("object")
    assert "not-the-right-one" not in str(caught.value)


@pytest.mark.parametrize("client", ["obstore", "s3fs"])
def test_the_environment_is_enough(
    client: str, ceph_server: CephServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ceph_server.new_place(tls=True)
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    storage = open_storage(place.url, options={"client": client})
    storage.put("object", [b"data"])
    assert storage.get("object") == b"data"


def test_keys_that_were_rotated_while_the_store_is_open(
    ceph_server: CephServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ceph_server.new_place()
    for name in place.env:
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    def write(key_id: str, secret: str) -> None:
        file.write_text(
            f"[default]\naws_access_key_id = {key_id}\naws_secret_access_key = {secret}\n"
        )

    write(place.access_key, place.secret_key)
    options = {"endpoint": place.endpoint, "region": "us-east-1"}
    storage = open_storage(place.url, options=options)
    storage.put("object", [b"data"])
    assert storage.get("object") == b"data"
    write("unknown", "key")
    stale = open_storage(place.url, options=options)
    with pytest.raises(StoreAccessError, match="InvalidAccessKeyId"):
        stale.get("object")
    assert storage.get("object") == b"data"
    write(place.access_key, place.secret_key)
    assert stale.get("object") == b"data"


def test_a_quota(ceph_server: CephServer) -> None:
    place = ceph_server.new_place()
    storage = open_storage(place.url, options=place.options)
    storage.put("small", [b"x"])
    ceph_server.set_quota(1 << 20)
    try:
        with pytest.raises(StoreFullError, match="QuotaExceeded"):
            storage.put("large", [LARGE])
    finally:
        ceph_server.set_quota(None)
    storage.put("large", [LARGE])
    assert storage.get("small") == b"x"


@pytest.mark.parametrize("client", ["obstore", "s3fs"])
def test_anonymous_requests_carry_no_keys(client: str, ceph_server: CephServer) -> None:
    place = ceph_server.new_place()
    options = {"endpoint": place.endpoint, "region": "us-east-1", "client": client}
    storage = open_storage(place.url, options={**options, "anonymous": True})
    with pytest.raises(StoreAccessError, match="AccessDenied"):
        storage.get("object")


def test_no_credentials_anywhere(
    ceph_server: CephServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ceph_server.new_place()
    for name in place.env:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    storage = open_storage(place.url, options={"endpoint": place.endpoint})
    with pytest.raises(StoreAccessError, match="no credentials found; set AWS_ACCESS_KEY_ID"):
        storage.get("object")


FORK = """
import os, sys
from checkpointing.storage import open_storage
url, client, when = sys.argv[1:]
storage = open_storage(url, options={"client": client, "timeout_s": 60.0, "budget_s": 0.1})
if when == "late":
    storage.put("object", [b"data"])
if os.fork() == 0:
    try:
        storage.put("object", [b"data"])
        print("done", flush=True)
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize(
    ("client", "when", "says"),
    [
        ("obstore", "early", "done"),
        ("obstore", "late", "start processes by 'spawn'"),
        ("s3fs", "early", "done"),
        ("s3fs", "late", "fork-safe"),
    ],
)
def test_a_fork_ends_in_an_error_and_not_in_a_wait(
    client: str, when: str, says: str, s3_url: S3Place
) -> None:
    command = [sys.executable, "-c", FORK, s3_url.url, client, when]
    run = subprocess.run(
        command,
        env={**os.environ, **s3_url.env},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert says in run.stdout
