"""The parts of sources that decide: addresses, retries, limits, what an answer means."""

from datetime import UTC, datetime
from itertools import count
from typing import Any

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from data.cache.downloads.separate_read_choice import (
    LEAST_ROUND_TRIP_S,
    NEAR_BYTES,
    DownloadPace,
    is_affordable,
    is_quicker,
)
from data.cache.files.cache_entry import CacheEntry, ShardRef, url_key
from data.cache.files.filesystem_type import find_kind
from data.errors import DataError
from data.source import retry
from data.source.address import Address, expiry_of, masked
from data.source.host_limits import HostTokenBucket, Limits
from data.source.http import divided
from data.source.object_requests import classify_error, stream
from data.source.piece_size import LEAST, MOST, PieceSize, piece_bytes
from data.source.protocol import PermanentSourceError, RefusedError, TransientSourceError
from data.source.retry import SourceRetryPolicy, next_wait_s
from data.source.signed_urls import SignedUrls
from data.source.sources import Sources


class TestAddresses:
    @pytest.mark.parametrize(
        ("url", "scheme", "host", "name"),
        [
            ("/a/b c.tar", "file", "", "b_c.tar"),
            ("a.tar", "file", "", "a.tar"),
            ("file:///a/b%20c.tar", "file", "", "b_c.tar"),
            ("file://localhost/a/b?c#d.tar", "file", "localhost", "b_c_d.tar"),
            ("s3a://bucket/x/y.tar", "s3", "bucket", "y.tar"),
            ("HTTPS://me:pw@h:8/x/y.tar?a=b", "https", "h:8", "y.tar"),
            ("gs://b/ü/日本.tar", "gs", "b", "_.tar"),
            ("pipe:cat a/b.tar", "pipe", "", "b.tar"),
            ("http://[::1]:8/", "http", "[::1]:8", "shard"),
        ],
    )
    def test_parts(self, url: str, scheme: str, host: str, name: str) -> None:
        address = Address.parse(url)
        assert (address.scheme, address.host, address.name) == (scheme, host, name)

    @pytest.mark.parametrize("url", ["", "file://other/x.tar", "simplecache::s3://b/x.tar"])
    def test_refused(self, url: str) -> None:
        with pytest.raises(DataError):
            Address.parse(url)

    def test_one_object_has_one_key_whatever_signs_the_request(self) -> None:
        one = "https://h/x.tar?X-Amz-Signature=1&X-Amz-Date=2&part=7"
        assert url_key(one) == url_key("https://me:pw@h/x.tar?part=7&X-Amz-Signature=3")
        others = ["https://h/x.tar?part=8", "https://h/y/x.tar?part=7", "http://h/x.tar?part=7"]
        assert len({url_key(url) for url in [one, *others]}) == 4

    @given(st.text(min_size=1), st.text(min_size=1), st.from_regex(r"[a-zA-Z0-9%._-]+"))
    def test_nothing_secret_is_shown(self, user: str, query: str, path: str) -> None:
        from urllib.parse import quote

        secret_user, secret = quote(f"U{user}U", safe=""), quote(f"Q{query}Q", safe="&=")
        shown = masked(f"https://{secret_user}@host/{quote(path)}?sig={secret}")
        assert shown == f"https://host/{quote(path)}?…"
        assert "secret" not in masked("pipe:curl -H 'Authorization: secret' http://x")

    @given(st.text(), st.integers(0, 2**60), st.text())
    def test_file_names_come_back_as_entries(self, path: str, size: int, tag: str) -> None:
        entry = CacheEntry.of(ShardRef(f"gs://b/{path}".replace("::", "")), size, tag)
        assert CacheEntry.parse(f"{entry.stem}.shard") == (entry, "shard")
        assert len(entry.stem) < 200
        assert "/" not in entry.stem

    @pytest.mark.parametrize(
        "name", ["ledger.lock", "x.shard", "plans", "", "..part", "a-b-1-c.json"]
    )
    def test_other_files_are_none(self, name: str) -> None:
        assert CacheEntry.parse(name) is None


class TestRetries:
    @given(st.integers(1, 200), st.floats(0, 1000), st.floats(0, 1))
    def test_waits_are_bounded_and_end(self, failures: int, idle_s: float, jitter: float) -> None:
        retry = SourceRetryPolicy(budget_s=100.0, first_s=0.5, longest_s=8.0, least_tries=3)
        wait_s = next_wait_s(retry, failures, idle_s, jitter)
        if idle_s >= 100.0 and failures >= 3:
            assert wait_s is None
        else:
            assert wait_s is not None
            assert 0 <= wait_s <= min(8.0, 0.5 * 2.0 ** (failures - 1))
            assert idle_s >= 100.0 or idle_s + wait_s <= 100.0 + 1e-6

    @pytest.mark.parametrize(
        ("status", "final"),
        [(400, 1), (401, 1), (403, 1), (408, 0), (416, 1), (429, 0), (500, 0), (501, 1), (503, 0)],
    )
    def test_which_answers_pass(self, status: int, final: int) -> None:
        error = classify_error(f"Server returned non-2xx status code: {status} x", "GenericError")
        assert isinstance(error, PermanentSourceError if final else TransientSourceError)
        assert str(status) in str(error)

    @pytest.mark.parametrize(
        ("status", "body", "expired"),
        [
            (403, "<Code>AccessDenied</Code><Message>Request has expired</Message>", 1),
            (400, "<Code>ExpiredToken</Code><Message>The provided token has expired.</Message>", 1),
            (403, "<Message>Signature not valid in the specified time frame</Message>", 1),
            (403, "<Code>AccessDenied</Code><Message>Access Denied</Message>", 0),
            (404, "<Message>Request has expired</Message>", 0),
        ],
        ids=["S3", "S3 and Google", "Azure", "no right", "no object"],
    )
    def test_which_answers_say_that_a_signature_has_expired(
        self, status: int, body: str, expired: int
    ) -> None:
        error = classify_error(f"non-2xx status code: {status}: <Error>{body}</Error>", "x")
        assert isinstance(error, PermanentSourceError)
        assert isinstance(error, RefusedError) == (status != 404)
        assert getattr(error, "is_expired", False) == expired

    def test_a_server_that_never_says_the_length_is_not_asked_again(self) -> None:
        error = classify_error("Content-Length Header missing from response", "GenericError")
        assert isinstance(error, PermanentSourceError)

    def test_no_query_is_shown_of_an_answer(self) -> None:
        assert "abc" not in str(
            classify_error("error for url (http://h/x?sig=abc)", "GenericError")
        )


class TestSignatures:
    @pytest.mark.parametrize(
        ("query", "expiry"),
        [
            ("X-Amz-Date=20261128T100000Z&X-Amz-Expires=3600&X-Amz-Signature=s", (11, 0)),
            ("X-Goog-Date=20261128T100000Z&X-Goog-Expires=60", (10, 1)),
            ("Expires=1795860000&Signature=s&Key-Pair-Id=k", (10, 0)),
            ("sv=2024-11-04&se=2026-11-28T12%3A30%3A00%2B02:00&sig=s", (10, 30)),
            ("se=2026-11-28", (0, 0)),
            ("X-Amz-Date=now&X-Amz-Expires=3600", None),
            ("Expires=99999999999999999999", None),
            ("page=7", None),
        ],
    )
    def test_when_they_expire(self, query: str, expiry: tuple[int, int] | None) -> None:
        expected = None if expiry is None else datetime(2026, 11, 28, *expiry, tzinfo=UTC)
        assert expiry_of(f"https://h/x.tar?{query}") == expected
        assert expiry_of(f"s3://b/x.tar?{query}") is None

    def test_a_signature_is_used_until_it_is_refused(self) -> None:
        made = count()
        urls = SignedUrls(lambda url: f"{url}?sig={next(made)}")
        for _ in range(2):
            with urls.used("https://h/x") as asked:
                assert asked == "https://h/x?sig=0"
        with pytest.raises(TransientSourceError, match="signed again"), urls.used("https://h/x"):
            raise RefusedError("403")
        with pytest.raises(RefusedError, match="just now"), urls.used("https://h/x"):
            raise RefusedError("403")
        assert next(made) == 2

    def test_a_signature_is_renewed_before_it_expires(self) -> None:
        made = count()
        urls = SignedUrls(lambda url: f"{url}?Expires={next(made)}")
        for number in range(2):
            with urls.used("https://h/x") as asked:
                assert asked == f"https://h/x?Expires={number}"

    @pytest.mark.parametrize("signed", [None, b"https://h/x", "s3://b/x", "https://u:pw@[h/x"])
    def test_it_must_be_a_url(self, signed: Any) -> None:
        urls = SignedUrls(lambda _: signed)
        with pytest.raises(PermanentSourceError, match="must return an http") as raised:
            urls.used("https://h/x").__enter__()
        assert "pw" not in str(raised.value)

    def test_what_is_no_function_is_refused_at_once(self) -> None:
        with pytest.raises(DataError, match="sign must be a function of a URL, got a str"):
            Sources({"http": {"sign": "secret"}})

    def test_what_a_function_raises_is_told_without_the_secrets_of_urls(self) -> None:
        def sign(url: str) -> str:
            raise KeyError(f"{url}?sig=secret")

        with pytest.raises(PermanentSourceError, match="`sign` failed: KeyError") as raised:
            SignedUrls(sign).used("https://h/x").__enter__()
        assert "secret" not in str(raised.value)


class TestLimits:
    @given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 3)), max_size=30))
    def test_no_more_than_the_rate_and_one_second_of_it(
        self, requests: list[tuple[int, float]]
    ) -> None:
        rate, now_s, taken = 1000.0, 0.0, 0
        bucket = HostTokenBucket(rate, now_s)
        for size, pause_s in requests:
            now_s += pause_s
            now_s += bucket.take(size, now_s)
            taken += size
            assert taken <= rate * (now_s + 1) + 1e-3

    def test_numbers_that_make_no_sense(self) -> None:
        for bad in ({"requests": 0}, {"bytes_per_s": 0.0}):
            with pytest.raises(DataError):
                Limits(**bad)


def test_the_innermost_mount_counts() -> None:
    from pathlib import Path

    mounts = """\
1 0 8:1 / / rw shared:1 - ext4 /dev/a rw
2 1 0:2 / /scratch rw - lustre x@tcp:/s rw
3 2 0:3 / /scratch/my\\040disk rw master:1 - xfs /dev/b rw
4 1 0:4 / /scratchy rw - tmpfs none rw
"""
    want = {"/": "ext4", "/x": "ext4", "/scratch/a": "lustre", "/scratch/my disk/c": "xfs"}
    assert {path: find_kind(Path(path), mounts) for path in want} == want
    assert find_kind(Path("/scratchy/a"), mounts) == "tmpfs"
    assert find_kind(Path("/x"), "nonsense") == ""


class TestClients:
    @pytest.mark.parametrize(
        ("url", "base", "key"),
        [
            ("http://h:8/a/x-1.tar", "http://h:8/", "a/x-1.tar"),
            ("https://me:pw@h/x.tar", "https://me:pw@h/", "x.tar"),
            ("http://h/a/x.tar?sig=1", "http://h/a/x.tar?sig=1", ""),
            ("http://h/a%20b.tar", "http://h/a%20b.tar", ""),
            ("http://h/a//x.tar", "http://h/a//x.tar", ""),
            ("http://h/a/../x.tar", "http://h/a/../x.tar", ""),
            ("http://h/./x.tar", "http://h/./x.tar", ""),
            ("http://h/.hidden/..x.tar", "http://h/", ".hidden/..x.tar"),
            ("http://h/a/", "http://h/a/", ""),
            ("http://h", "http://h", ""),
        ],
    )
    def test_plain_urls_of_a_host_share_one(self, url: str, base: str, key: str) -> None:
        assert divided(url) == (base, key)


class TestPace:
    @given(st.integers(0, 2**40), st.floats(0, 1e3), st.floats(0, 1e10), st.floats(0, 10))
    def test_a_download_that_is_there_sooner_is_waited_for(
        self, lead: int, watched_s: float, rate: float, round_trip_s: float
    ) -> None:
        found = is_quicker(lead, watched_s, rate, round_trip_s)
        least_s = max(round_trip_s, LEAST_ROUND_TRIP_S)
        if watched_s < 3 * round_trip_s or (rate > 0 and lead / rate < 0.999 * least_s):
            assert not found
        elif watched_s > 3 * least_s and (rate == 0 or lead / rate > 1.001 * least_s):
            assert found

    def test_one_that_gets_on_is_watched_for_the_time_of_its_requests_and_no_longer(self) -> None:
        far, rate = 10**9, 1e8
        assert is_quicker(far, 0.021, rate, round_trip_s=0.001)
        assert not is_quicker(far, 0.019, rate, round_trip_s=0.001)
        assert not is_quicker(far, 0.021, rate, round_trip_s=0.01)
        assert not is_quicker(far, 0.021, 0.0, round_trip_s=0.001)  # nothing has come of it yet
        assert is_quicker(far, 0.0, 0.0, round_trip_s=0.001, early=True)
        assert not is_quicker(NEAR_BYTES, 0.0, 0.0, round_trip_s=0.001, early=True)

    @given(st.integers(1, 2**40), st.lists(st.integers(0, 2**30), max_size=50))
    def test_little_is_read_twice(self, whole: int, sizes: list[int]) -> None:
        spent = 0
        for size in sizes:
            spent += size if is_affordable(size, spent, whole) else 0
        assert spent <= whole / 16

    def test_it_counts_from_the_first_new_byte_on(self) -> None:
        pace = DownloadPace(10.0)
        assert pace.seen(0, 12.0) == (2.0, 0.0)
        assert pace.seen(100, 20.0) == (0.0, 0.0)  # of an earlier try, perhaps
        assert pace.seen(300, 22.0) == (2.0, 100.0)


@given(st.integers(1, 1000))
def test_short_requests_have_slots_of_their_own(requests: int) -> None:
    streams = Limits(requests=requests).streams
    assert 1 <= streams <= requests
    assert requests == 1 or streams < requests


def test_the_retry_policy_has_its_earlier_name_too() -> None:
    with pytest.warns(FutureWarning, match="Retry is SourceRetryPolicy now"):
        assert retry.Retry is SourceRetryPolicy


class TestPieceSizes:
    @given(rate=st.floats(0, 1e12), broke=st.booleans())
    def test_a_piece_comes_soon_and_is_a_power_of_two(self, rate: float, broke: bool) -> None:
        size = piece_bytes(rate, broke=broke)
        assert LEAST <= size <= MOST
        assert size & (size - 1) == 0
        assert size == LEAST or size <= rate * 0.004

    def test_it_grows_with_the_rate_and_is_small_after_a_break(self) -> None:
        sizes = PieceSize()
        assert sizes.next() == LEAST
        for _ in range(50):
            sizes.came(1 << 17, 0.0001)
        assert sizes.next() == MOST
        sizes.ended(well=False)
        assert sizes.next() == LEAST
        sizes.ended(well=True)
        assert sizes.next() == MOST
        for _ in range(50):
            sizes.came(1 << 16, 1.0)
        assert sizes.next() == LEAST

    def test_bursts_are_not_taken_for_the_rate(self) -> None:
        sizes = PieceSize()
        for number in range(200):  # 10 MB/s: of four pieces, three are there already
            sizes.came(1 << 16, 0.00005 if number % 4 else 0.025)
            assert sizes.next() <= 2 * LEAST

    def test_a_stream_that_is_left_at_its_last_byte_has_ended_well(self) -> None:
        store, sizes = MemoryStore(), PieceSize()
        obstore.put(store, "shard", bytes(MOST))
        for _ in range(50):
            sizes.came(MOST, 0.0001)
        sizes.ended(well=False)
        pieces = stream(store, "shard", 0, None, sizes)
        assert len(next(pieces)) == MOST
        pieces.close()  # type: ignore[attr-defined]
        assert sizes.next() == MOST
