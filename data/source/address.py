"""URLs of shards: the kind of source that they need, their identity, and their form in messages."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from data.errors import USER, DataError
from data.errors import masked as masked  # of all URLs in messages

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HTTP = re.compile(r"https?://", re.IGNORECASE)
_CHAIN = re.compile(r"::[A-Za-z][A-Za-z0-9+.-]*://")

# Parts of a query that sign a request or limit its validity: AWS (2 ways), Google, CloudFront,
# Azure. They differ between two addresses of one object.
_SIGNING = re.compile(
    r"x-(amz|goog)-.*|awsaccesskeyid|googleaccessid|signature|expires|policy|key-pair-id"
    r"|sig|se|sp|st|sv|sr|spr|ske|skoid|sks|skt|sktid|skv|token|access_token|auth",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Address:
    """The parts of a URL.

    `scheme` is "file" for plain paths; `host` is "" where there is none.
    """

    url: str
    scheme: str
    host: str

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Parse a URL or path. Raises DataError for an empty URL, a chained URL of fsspec or a
        `file://` of another host."""
        if not url:
            raise DataError("a shard has an empty URL")
        if url.startswith("pipe:"):
            return cls(url, "pipe", "")
        if _CHAIN.search(url):
            raise DataError(
                f"{masked(url)}: a chained URL; give only the last part, because the node store "
                "caches shards"
            )
        match = _SCHEME.match(url)
        if match is None:
            return cls(url, "file", "")
        scheme = {"local": "file", "s3a": "s3"}.get(match[1].lower(), match[1].lower())
        host = urlsplit(url).netloc.rpartition("@")[2]
        if scheme == "file" and host not in ("", "localhost"):
            raise DataError(f"{url}: the host {host!r} in a file URL; write file:///path")
        return cls(url, scheme, host)

    @property
    def local(self) -> Path | None:
        """The path of a local file, None for other URLs."""
        if self.scheme != "file":
            return None
        if "://" not in self.url:
            return Path(self.url).expanduser()
        return Path(file_path(self.url))

    @property
    def name(self) -> str:
        """The last part of the path, reduced to characters that a file name may have; at most
        60."""
        path = self.url if self.scheme in ("file", "pipe") else urlsplit(self.url).path
        base = re.sub(r"[^A-Za-z0-9._-]+", "_", unquote(path).rstrip("/").rpartition("/")[2])
        return base[-60:] or "shard"

    @property
    def identity(self) -> str:
        """The URL without credentials and signatures: equal for all addresses of one object."""
        if self.scheme == "file":
            return str(self.local and self.local.absolute())
        if self.scheme == "pipe":
            return self.url
        parts = urlsplit(self.url)
        if self.scheme == "s3":  # keys may contain any character
            return f"s3://{self.host}/{self.url.partition('://')[2].partition('/')[2]}"
        query = parse_qsl(parts.query, keep_blank_values=True)
        kept = urlencode([(k, v) for k, v in query if not _SIGNING.fullmatch(k)])
        return urlunsplit((self.scheme, self.host, parts.path, kept, ""))


def file_path(url: str) -> str:
    """Return the path of a `file://` URL. It has no query: a `?` is one of a name, or of a
    pattern."""
    return unquote("/" + url.partition("://")[2].partition("/")[2])


def split_query(url: str) -> tuple[str, str]:
    """Return a URL as its part before the query, and the query with its `?`, which may be empty.

    Only `http` and `https` have queries: the keys of object stores may contain a `?`.
    """
    if not _HTTP.match(url):
        return url, ""
    path, mark, query = url.partition("?")
    return path, mark + query


def expiry_of(url: str) -> datetime | None:
    """Return when the signature of a URL expires, as AWS, Google, CloudFront and Azure state it in
    the query; None if it does not say."""
    query = {key.lower(): value for key, value in parse_qsl(split_query(url)[1].lstrip("?"))}
    try:
        for kind in ("amz", "goog"):
            signed, lasts_s = query.get(f"x-{kind}-date"), query.get(f"x-{kind}-expires")
            if signed and lasts_s:
                return _utc(signed) + timedelta(seconds=int(lasts_s))
        if "expires" in query:
            return datetime.fromtimestamp(int(query["expires"]), UTC)
        return _utc(query["se"]) if "se" in query else None
    except (ValueError, OverflowError, OSError):  # it is no time, or means something else
        return None


def _utc(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found.astimezone(UTC) if found.tzinfo is not None else found.replace(tzinfo=UTC)


def has_secrets(url: str) -> bool:
    """Return whether a URL has a password, a signature, or a user name that may be a token."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return False
    user = USER.match(f"://{rest}", 3)
    named = user is not None and (":" in user[0] or scheme.lower() in ("http", "https"))
    query = parse_qsl(rest.partition("?")[2], keep_blank_values=True)
    return named or any(_SIGNING.fullmatch(key) for key, _ in query)
