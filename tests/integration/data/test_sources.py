"""Sources against a server that does all that servers do wrong: never a wrong byte, never an early
end, and an error that tells every attempt."""

import hashlib
import logging
import os
import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import fsspec
import obstore
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from data.errors import DataError, FetchError, ObjectChangedError
from data.source.host_limits import Limits
from data.source.retry import SourceRetryPolicy
from data.source.sources import Sources
from tests.services.fault_proxy import FaultProxy, fault_proxy
from tests.services.faults import (
    ACCESS_DENIED,
    SLOW_DOWN,
    Fault,
    Hang,
    Reset,
    ResetDownload,
    Stall,
    Truncate,
)
from tests.services.fixtures import FaultyS3
from tests.services.range_server import RangeServer, Served, range_server

BODY = os.urandom(2_000_003)
QUICK = SourceRetryPolicy(budget_s=1.0, first_s=0.01, longest_s=0.05, least_tries=2)


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server() as server:
        server.put("/a/x.tar", BODY)
        yield server


@pytest.fixture
def proxy(server: RangeServer) -> Iterator[FaultProxy]:
    with fault_proxy(server.url) as proxy:
        yield proxy


def sources(**more: object) -> Sources:
    return Sources(retry=QUICK, **more)  # type: ignore[arg-type]


FAULTS = [
    SLOW_DOWN,
    Reset(),
    ResetDownload(700_000),
    Truncate(700_000),
    Stall(700_000, 60.0),
    Hang(60.0),
]


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_a_stream_goes_on_after_what_passes(
    server: RangeServer, proxy: FaultProxy, fault: Fault
) -> None:
    proxy.inject(fault, times=1)
    is_mute = isinstance(fault, Stall | Hang)
    one = sources(stall_s=1.0) if is_mute else sources()
    got = b"".join(one.stream(f"{proxy.endpoint}/a/x.tar", 0, '"1"'))
    assert got == BODY
    assert one.traffic.retries == 1 or (is_mute and one.traffic.retries > 1)
    if isinstance(fault, ResetDownload | Truncate | Stall):
        assert server.seen[-1][1] > 0  # not from the beginning again


def test_a_read_is_tried_again(proxy: FaultProxy) -> None:
    for fault in (SLOW_DOWN, Reset(), Truncate(50)):
        proxy.inject(fault, times=1)
    one = sources()
    assert one.read(f"{proxy.endpoint}/a/x.tar", 1000, 99, '"1"') == BODY[1000:1099]
    assert one.traffic.retries == 3


def test_it_is_given_up_with_every_attempt(proxy: FaultProxy) -> None:
    proxy.inject(SLOW_DOWN)
    with pytest.raises(FetchError, match=r"given up after \d+ tries") as caught:
        sources().stat(f"{proxy.endpoint}/a/x.tar?token=secret")
    assert len(caught.value.attempts) >= 2
    assert all("503" in attempt for attempt in caught.value.attempts)
    assert "secret" not in str(caught.value)
    assert "/a/x.tar?…" in str(caught.value)


@pytest.mark.parametrize(("path", "says"), [("/none.tar", "404"), ("/a/x.tar", "403")])
def test_what_does_not_pass_is_not_tried_again(
    proxy: FaultProxy, server: RangeServer, path: str, says: str
) -> None:
    if says == "403":
        proxy.inject(ACCESS_DENIED)
    one = sources()
    with pytest.raises(FetchError, match=says) as caught:
        list(one.stream(proxy.endpoint + path, 0, None))
    assert (len(caught.value.attempts), one.traffic.requests) == (1, 1)


def test_another_tag_half_way_is_an_error(server: RangeServer) -> None:
    url = server.put("/b.tar", BODY, then=Served(BODY[::-1], '"2"'), at=600_000)
    got = bytearray()
    with pytest.raises(ObjectChangedError, match='tag was "1" and is "2"'):
        got.extend(chain.from_iterable(sources().stream(url, 0, '"1"')))
    assert got == BODY[: len(got)]


def test_a_server_that_says_too_much_is_found_out(server: RangeServer) -> None:
    url = server.put("/b.tar", BODY, more=1000)
    got = bytearray()
    with pytest.raises(FetchError, match="given up"):
        got.extend(chain.from_iterable(sources().stream(url, 0, '"1"')))
    assert got == BODY[: len(got)]


def test_a_server_without_ranges_is_read_from_the_beginning(server: RangeServer) -> None:
    server.ranges = False
    one, url = sources(), server.url + "/a/x.tar"
    assert one.stat(url).bytes == len(BODY)
    assert one.read(url, 5000, 10) == BODY[5000:5010]
    assert b"".join(one.stream(url, 1_999_000)) == BODY[1_999_000:]


def test_a_signed_url_is_sent_as_it_is_and_user_names_are_not_shown(server: RangeServer) -> None:
    query = "?X-Amz-Signature=ab%2Fcd&x=1%202"
    url = server.url.replace("://", "://me:pass@") + "/a/x.tar" + query
    assert sources().read(url, 0, 5) == BODY[:5]
    assert server.seen == [("/a/x.tar" + query, 0)]
    assert server.headers[-1]["authorization"] == "Basic bWU6cGFzcw=="
    with pytest.raises(FetchError) as caught:
        sources().stat(url.replace("x.tar", "y.tar"))
    assert "pass" not in repr(caught.value)
    assert "Signature" not in repr(caught.value)


def test_urls_of_a_host_share_their_connections(server: RangeServer) -> None:
    one, urls = sources(), [server.put(f"/a/{number}.tar", BODY) for number in range(70)]
    for url in urls:
        assert one.read(url, 0, 5) == BODY[:5]
    # a client may ask again just before its thread has put the connection back
    assert len(server.clients) <= len(urls) // 2


def test_retries_are_logged_without_secrets(
    proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.inject(SLOW_DOWN, times=1)
    with caplog.at_level(logging.DEBUG):
        sources().stat(f"{proxy.endpoint}/a/x.tar?sig=secret")
    assert "trying again" in caplog.text
    assert "secret" not in caplog.text


def test_requests_of_one_host_are_limited(server: RangeServer) -> None:
    one = sources(limits=Limits(requests=1))
    first = one.stream(server.url + "/a/x.tar", 0)
    next(first)
    seen = list(server.seen)
    done = threading.Event()

    def read() -> None:
        one.read(server.url + "/a/x.tar", 0, 9)
        done.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert not done.wait(0.2)
    assert server.seen == seen
    first.close()  # type: ignore[attr-defined]
    assert done.wait(120)
    thread.join()


def test_any_fsspec_driver_serves(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe("/test-data-sources/x.tar", BODY)
    one, url = sources(), "memory://test-data-sources/x.tar"
    origin = one.stat(url)
    assert origin.bytes == len(BODY)
    assert b"".join(one.stream(url, 3, origin.tag)) == BODY[3:]
    assert one.read(url, 7, 10, origin.tag) == BODY[7:17]
    fs.rm("/test-data-sources", recursive=True)
    with pytest.raises(FetchError, match="FileNotFoundError"):
        one.stat(url)
    for url in ("nothing://x/y", "simplecache://x/y"):
        with pytest.raises(FetchError, match="cannot be read"):
            one.stat(url)


class HashedMemory(MemoryFileSystem):  # type: ignore[misc]
    """Tells versions apart as the driver of hf:// does."""

    protocol = "hashedmemory"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("hashedmemory://")))

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = super().info(path, **options)
        return {**found, "blob_id": hashlib.sha256(self.cat_file(path)).hexdigest()}


def test_a_version_of_the_hub_of_hugging_face_is_told_from_another() -> None:
    fsspec.register_implementation("hashedmemory", f"{__name__}.HashedMemory", clobber=True)
    fs, url = fsspec.filesystem("hashedmemory"), "hashedmemory://test-data-tags/x.tar"
    fs.pipe("/test-data-tags/x.tar", BODY)
    one = sources()
    tag = one.stat(url).tag
    assert one.read(url, 0, 5, tag) == BODY[:5]
    fs.pipe("/test-data-tags/x.tar", BODY[::-1])
    with pytest.raises(ObjectChangedError):
        one.read(url, 0, 5, tag)
    fs.rm("/test-data-tags", recursive=True)


def test_a_local_file_serves(tmp_path: Path) -> None:
    (tmp_path / "x y.tar").write_bytes(BODY)
    for url in (str(tmp_path / "x y.tar"), f"file://{tmp_path}/x%20y.tar"):
        origin = sources().stat(url)
        assert origin.bytes == len(BODY)
        assert b"".join(sources().stream(url, 5, origin.tag)) == BODY[5:]
        with pytest.raises(FetchError, match="ends at byte"):
            sources().read(url, len(BODY) - 1, 2)
    (tmp_path / "x y.tar").write_bytes(b"other")
    with pytest.raises(ObjectChangedError):
        sources().read(url, 0, 1, origin.tag)


class TestPipes:
    def test_they_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(FetchError, match="are refused; allow them"):
            list(sources().stream(f"pipe:touch {tmp_path}/ran", 0))
        assert not (tmp_path / "ran").exists()

    def test_exec_uses_no_shell(self, tmp_path: Path) -> None:
        (tmp_path / "x.tar").write_bytes(BODY)
        one = sources(pipes="exec")
        assert b"".join(one.stream(f"pipe:cat '{tmp_path}/x.tar'", 0)) == BODY
        assert b"".join(one.stream(f"pipe:cat {tmp_path}/x.tar", 70_000)) == BODY[70_000:]
        for text in (f"cat x; touch {tmp_path}/ran", "cat x | cat", "cat $(ls)", "cat < x"):
            with pytest.raises(FetchError, match="needs a shell"):
                list(one.stream(f"pipe:{text}", 0))
        assert b"".join(one.stream("pipe:printf 'a;b|c $HOME'", 0)) == b"a;b|c $HOME"
        assert not (tmp_path / "ran").exists()

    def test_shell_runs_pipelines_where_allowed(self) -> None:
        assert b"".join(sources(pipes="shell").stream("pipe:printf abc | tr a-c A-C", 0)) == b"ABC"

    def test_a_failing_command_is_never_an_end(self) -> None:
        one = sources(pipes="shell")
        with pytest.raises(FetchError, match="ended with status 3: why") as caught:
            list(one.stream("pipe:printf abc; echo why >&2; exit 3", 0))
        assert "printf abc" not in str(caught.value.url)

    def test_a_silent_command_is_ended(self) -> None:
        with pytest.raises(FetchError, match=r"wrote nothing for 0\.3 s"):
            list(sources(pipes="exec", stall_s=0.3).stream("pipe:sleep 60", 0))


def test_options_that_nothing_knows() -> None:
    with pytest.raises(DataError, match="options of s3: unknown one among") as caught:
        Sources({"s3": {"sekret": "abc"}})
    assert "abc" not in str(caught.value)
    with pytest.raises(DataError, match=r"endpoit; did you mean endpoint\?"):
        Sources({"s3": {"endpoit": "abc"}})


def test_s3(faulty_s3: FaultyS3) -> None:
    obstore.put(faulty_s3.direct.store(), "x.tar", BODY)
    options = faulty_s3.place.options
    url = f"{faulty_s3.place.url}/x.tar"
    one = sources(options={"s3": options})
    origin = one.stat(url)
    assert origin.bytes == len(BODY)
    faulty_s3.proxy.inject(ResetDownload(700_000), method="GET", times=1)
    faulty_s3.proxy.inject(SLOW_DOWN, method="GET", times=1)
    assert b"".join(one.stream(url, 0, origin.tag)) == BODY
    assert one.traffic.retries == 2
    assert one.read(url, 11, 22, origin.tag) == BODY[11:33]
    obstore.put(faulty_s3.direct.store(), "x.tar", BODY[::-1])
    with pytest.raises(ObjectChangedError):
        one.read(url, 11, 22, origin.tag)
    with pytest.raises(FetchError, match="404"):
        one.stat(url + "x")
    wrong = {**options, "secret_access_key": "not-the-key"}
    with pytest.raises(FetchError, match="403") as caught:
        sources(options={"s3": wrong}).stat(url)
    assert "not-the-key" not in repr(caught.value)
