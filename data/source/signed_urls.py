"""URLs that a function signs when they are requested, and again once the signature has expired."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from urllib.parse import urlsplit

from data.source.address import expiry_of, masked
from data.source.protocol import PermanentSourceError, RefusedError, TransientSourceError

Sign: TypeAlias = Callable[[str], str]
"""Returns the URL to request, with a signature, for the URL of a shard; may be called by several
threads at a time."""

_KEPT = 4096  # signed URLs
_SOON = timedelta(seconds=5)  # before its end, a signature is renewed: clocks differ


class SignedUrls:
    """Keeps the signed URL of each shard for as long as it is accepted. Thread-safe.

    Args:
        sign: returns a signed URL for a URL.
    """

    def __init__(self, sign: Sign) -> None:
        self._sign = sign
        self._kept: dict[str, str] = {}

    @contextmanager
    def used(self, url: str) -> Iterator[str]:
        """Yield the signed URL for one request of `url`.

        If the server refuses it, it is not used again: that raises TransientSourceError, so that
        the next attempt signs again, but RefusedError if it was signed for this very request.
        Raises PermanentSourceError if `sign` fails.
        """
        signed = self._kept.get(url)
        is_new = signed is None or is_over(signed, datetime.now(UTC) + _SOON)
        if signed is None or is_new:
            signed = self._signed(url)
            self._keep(url, signed)
        try:
            yield signed
        except RefusedError as error:
            if self._kept.get(url) == signed:
                self._kept.pop(url, None)
            if is_new:
                raise RefusedError(f"{error}; `sign` has made this signature just now") from error
            raise TransientSourceError(f"{error}; the URL is signed again") from error

    def _signed(self, url: str) -> str:
        try:
            signed = self._sign(url)
        except Exception as error:  # whatever the user's code raises
            what = f"{type(error).__name__}: {masked(str(error))}"
            raise PermanentSourceError(f"the function `sign` failed: {what}") from error
        if not _is_http(signed):
            kind = "another text" if isinstance(signed, str) else f"a {type(signed).__name__}"
            raise PermanentSourceError(
                f"the function `sign` must return an http(s) URL, it returned {kind}"
            )
        return signed

    def _keep(self, url: str, signed: str) -> None:
        if len(self._kept) >= _KEPT:
            self._kept = {}
        self._kept[url] = signed


def _is_http(url: object) -> bool:
    try:
        return isinstance(url, str) and urlsplit(url).scheme in ("http", "https")
    except ValueError:  # its text may show a password
        return False


def is_over(url: str, at: datetime) -> bool:
    """Return whether the signature of a URL says that it is no longer valid at a time."""
    expiry = expiry_of(url)
    return expiry is not None and expiry <= at


def advice(url: str, error: RefusedError, now: datetime) -> str:
    """Return what to do about a URL that a server refuses, without its signature; empty if it is
    not known that it was right once."""
    expiry = expiry_of(url)
    is_past = expiry is not None and expiry <= now
    if not is_past and not error.is_expired:
        return ""
    when = f" at {expiry:%Y-%m-%d %H:%M:%S} UTC" if expiry is not None and is_past else ""
    if url.startswith(("http://", "https://")):
        return (
            f"; the signature of the URL expired{when}: sign the URLs again and continue from the "
            "newest state, which other signatures do not change, or have a function sign them when "
            'they are read: Sources({"http": {"sign": f}})'
        )
    return "; the credentials have expired: renew them and continue from the newest state"
