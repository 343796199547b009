"""Every fault of the proxy, as a client and the server behind it see it."""

from __future__ import annotations

import fsspec
import obstore
import pytest
from obstore.exceptions import BaseError
from obstore.store import S3Store

from tests.services.fault_proxy import fault_proxy
from tests.services.faults import (
    ACCESS_DENIED,
    EXPIRED_TOKEN,
    INTERNAL_ERROR,
    NO_CONDITIONS,
    SLOW_DOWN,
    Answer,
    Delay,
    Fault,
    FlipByte,
    Hang,
    LoseReply,
    Reset,
    ResetDownload,
    ResetUpload,
    Stall,
    Truncate,
)
from tests.services.fixtures import FaultyS3
from tests.services.ministack import MinistackServer
from tests.services.processes import ServiceError
from tests.services.s3 import S3Place

BODY = bytes(range(256)) * 4096  # 1 MiB
SHORT_S = 0.3  # seconds of patience where no answer comes
LONG_S = 60.0


def read(store: S3Store, key: str) -> bytes:
    return bytes(obstore.get(store, key).bytes())


def keys(place: S3Place) -> list[str]:
    return [entry["path"] for entry in obstore.list(place.store()).collect()]


def test_without_rules_all_goes_through(faulty_s3: FaultyS3) -> None:
    store = faulty_s3.place.store()
    obstore.put(store, "a", BODY)
    obstore.put(store, "empty", b"")
    assert read(store, "a") == BODY
    assert bytes(obstore.get_range(store, "a", start=5, length=9)) == BODY[5:14]
    assert obstore.head(store, "a")["size"] == len(BODY)
    assert sorted(keys(faulty_s3.place)) == ["a", "empty"]
    obstore.delete(store, "a")
    assert keys(faulty_s3.direct) == ["empty"]
    assert faulty_s3.proxy.counts["PUT"] == 2
    assert {request.fault for request in faulty_s3.proxy.seen} == {None}


def test_a_client_that_waits_for_100_continue_is_served(faulty_s3: FaultyS3) -> None:
    place = faulty_s3.place
    keys_of_client = {"key": place.access_key, "secret": place.secret_key}
    client = fsspec.filesystem("s3", endpoint_url=place.endpoint, **keys_of_client)
    client.pipe_file(f"{place.bucket}/prefix/a", BODY)
    assert client.cat_file(f"{place.bucket}/prefix/a") == BODY
    assert faulty_s3.proxy.counts["PUT"] == 1


@pytest.mark.parametrize(
    "fault", [SLOW_DOWN, INTERNAL_ERROR, ACCESS_DENIED, EXPIRED_TOKEN, NO_CONDITIONS]
)
def test_an_injected_answer_is_all_the_client_hears(faulty_s3: FaultyS3, fault: Answer) -> None:
    rule = faulty_s3.proxy.inject(fault, method="PUT")
    with pytest.raises(BaseError, match=f"{fault.status}.*{fault.code}"):
        obstore.put(faulty_s3.place.store(), "a", BODY)
    assert rule.hits == 1
    assert keys(faulty_s3.direct) == []


@pytest.mark.parametrize("fault", [Reset(), ResetUpload(1000), ResetUpload(0)])
def test_a_reset_upload_leaves_nothing(faulty_s3: FaultyS3, fault: Fault) -> None:
    faulty_s3.proxy.inject(fault, method="PUT", times=1)
    with pytest.raises(BaseError, match="error sending request"):
        obstore.put(faulty_s3.place.store(), "a", BODY)
    assert keys(faulty_s3.direct) == []
    obstore.put(faulty_s3.place.store(), "a", BODY)


def test_a_lost_reply_hides_what_was_done(faulty_s3: FaultyS3) -> None:
    faulty_s3.proxy.inject(LoseReply(), method="PUT")
    with pytest.raises(BaseError, match="error sending request"):
        obstore.put(faulty_s3.place.store(), "a", BODY)
    assert read(faulty_s3.direct.store(), "a") == BODY


@pytest.mark.parametrize("fault", [ResetDownload(70_000), ResetDownload(0), Truncate(70_000)])
def test_a_download_breaks_off(faulty_s3: FaultyS3, fault: Fault) -> None:
    obstore.put(faulty_s3.direct.store(), "a", BODY)
    rule = faulty_s3.proxy.inject(fault, method="GET", times=1)
    with pytest.raises(BaseError):
        read(faulty_s3.place.store(), "a")
    assert rule.hits == 1
    assert read(faulty_s3.place.store(), "a") == BODY


def test_one_byte_is_flipped_unseen(faulty_s3: FaultyS3) -> None:
    obstore.put(faulty_s3.direct.store(), "a", BODY)
    faulty_s3.proxy.inject(FlipByte(at=100_000), method="GET")
    damaged = read(faulty_s3.place.store(), "a")
    assert [i for i in range(len(BODY)) if damaged[i] != BODY[i]] == [100_000]


@pytest.mark.parametrize("fault", [Hang(LONG_S), Delay(LONG_S)])
def test_a_request_is_never_answered(faulty_s3: FaultyS3, fault: Fault) -> None:
    faulty_s3.proxy.inject(fault, method="PUT")
    with pytest.raises(BaseError, match="error sending request"):
        obstore.put(faulty_s3.place.store(SHORT_S), "a", BODY)
    assert keys(faulty_s3.direct) == []


def test_a_hung_request_ends_in_a_reset(faulty_s3: FaultyS3) -> None:
    faulty_s3.proxy.inject(Hang(0.01), method="PUT")
    with pytest.raises(BaseError, match="error sending request"):
        obstore.put(faulty_s3.place.store(LONG_S), "a", BODY)


def test_a_delayed_request_is_done_all_the_same(faulty_s3: FaultyS3) -> None:
    rule = faulty_s3.proxy.inject(Delay(0.01), method="PUT")
    obstore.put(faulty_s3.place.store(), "a", BODY)
    assert rule.hits == 1
    assert read(faulty_s3.direct.store(), "a") == BODY


def test_a_download_stalls(faulty_s3: FaultyS3) -> None:
    obstore.put(faulty_s3.direct.store(), "a", BODY)
    faulty_s3.proxy.inject(Stall(1000, LONG_S), method="GET", times=1)
    with pytest.raises(BaseError):
        read(faulty_s3.place.store(SHORT_S), "a")
    faulty_s3.proxy.inject(Stall(1000, 0.01), method="GET", times=1)
    assert read(faulty_s3.place.store(LONG_S), "a") == BODY


def test_rules_choose_by_method_key_and_turn(faulty_s3: FaultyS3) -> None:
    store = faulty_s3.place.store()
    rule = faulty_s3.proxy.inject(SLOW_DOWN, method="PUT", key=r"/packs/\d+$", skip=1, times=2)
    outcomes = []
    for key in ("packs/1", "packs/x", "packs/2", "packs/3", "packs/4"):
        try:
            obstore.put(store, key, b"")
        except BaseError:
            outcomes.append(key)
    assert outcomes == ["packs/2", "packs/3"]
    assert rule.hits == 2
    faulted = [request.target for request in faulty_s3.proxy.seen if request.fault]
    assert faulted == [f"/{faulty_s3.place.bucket}/prefix/{key}" for key in outcomes]


def test_cleared_rules_are_gone(faulty_s3: FaultyS3) -> None:
    faulty_s3.proxy.inject(SLOW_DOWN)
    faulty_s3.proxy.clear()
    obstore.put(faulty_s3.place.store(), "a", b"")


def test_a_fault_that_cannot_happen_is_told(ministack_server: MinistackServer) -> None:
    place = ministack_server.new_place()
    obstore.put(place.store(), "a", b"short")

    def read_through_proxy() -> None:
        with fault_proxy(ministack_server.http) as proxy:
            proxy.inject(FlipByte(at=5), method="GET")
            with pytest.raises(BaseError):
                read(place.through(proxy.endpoint).store(), "a")

    with pytest.raises(ServiceError, match=r"FlipByte\(at=5\) is beyond .* body of 5 bytes"):
        read_through_proxy()


def test_a_proxy_of_tls_is_refused() -> None:
    with (
        pytest.raises(ServiceError, match="needs an http:// endpoint"),
        fault_proxy("https://127.0.0.1:1"),
    ):
        pass
