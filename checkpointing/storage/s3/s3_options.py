"""Options of access to S3: their names, what they refuse, and their earlier names."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, get_type_hints
from urllib.parse import urlsplit

from checkpointing.errors import StoreError
from checkpointing.storage.key_rules import check_key

_log = logging.getLogger(__name__)

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_CHOICES = {"client": ("obstore", "s3fs"), "addressing": ("path", "virtual")}
_SWITCHES = ("anonymous", "unsigned_payload")
_EARLIER = "virtual_host"  # the earlier name of `addressing` in `data`: true or false
_said: set[str] = set()  # earlier names for which a warning was logged


@dataclass(frozen=True)
class S3Location:
    """A folder in a bucket."""

    bucket: str
    prefix: str  # without leading and trailing slashes; "" is the whole bucket

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse s3://bucket/folder.

        Raises:
            StoreError: the URL is not of this form.
        """
        parts = urlsplit(url)
        form = "s3://bucket/folder"
        if parts.query or parts.fragment or "@" in parts.netloc:
            raise StoreError(
                f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}: an S3 URL is {form}, without "
                "credentials, '?' or '#'; credentials come from AWS_* variables, ~/.aws or options"
            )
        if not _BUCKET.fullmatch(parts.netloc):
            raise StoreError(
                f"{url}: {parts.netloc!r} is not a valid name of a bucket; an S3 URL is {form}"
            )
        prefix = parts.path.strip("/")
        try:
            check_key(prefix or "x")
        except ValueError as error:
            raise StoreError(f"{url}: {error}") from error
        return cls(parts.netloc, prefix)

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


@dataclass(frozen=True)
class S3AccessOptions:
    """How to reach S3. Options that are not given come from AWS_* variables, then from ~/.aws."""

    endpoint: str | None = None
    """URL of a server other than AWS; plain http:// must be given explicitly."""

    region: str | None = None

    access_key_id: str | None = None

    secret_access_key: str | None = field(default=None, repr=False)

    session_token: str | None = field(default=None, repr=False)

    profile: str | None = None
    """A profile of ~/.aws."""

    anonymous: bool = False
    """Send no credentials, to read public data."""

    ca_bundle: str | None = None
    """Path of a PEM file with certificates to trust besides those of the system."""

    addressing: Literal["path", "virtual"] = "path"
    """"virtual" puts the bucket into the host name."""

    def __post_init__(self) -> None:
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise StoreError(
                "options of S3: access_key_id and secret_access_key must be given together"
            )
        if self.endpoint is not None:
            check_endpoint(self.endpoint)

    @classmethod
    def names(cls) -> set[str]:
        """What `parse` knows, earlier names included."""
        return {_EARLIER, *(f.name for f in fields(cls))}

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> Self:
        """Checked options. An earlier name is accepted, with a warning.

        Raises:
            StoreError: a name is unknown, or a value is of the wrong kind; values are never shown.
        """
        options = _renamed(options)
        known = sorted(f.name for f in fields(cls))
        for name, value in options.items():
            if name not in known:
                raise StoreError(f"unknown option {name!r} of an S3 store; the options are {known}")
            if not _fits(cls, name, value):
                raise StoreError(f"option {name!r} of an S3 store: expected {_expected(name)}")
        return cls(**options)

    def endpoint_from(self, env: Mapping[str, str]) -> str | None:
        """The endpoint of the options or of the environment; None if they name none.

        Raises:
            StoreError: it is not an http(s) URL, or holds credentials.
        """
        found = self.endpoint or env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL")
        return check_endpoint(found) if found else None


@dataclass(frozen=True)
class S3StoreOptions(S3AccessOptions):
    """What `options` of an s3:// store may hold."""

    client: Literal["obstore", "s3fs"] = "obstore"
    """obstore is 2-5 times lighter on the processor; s3fs is for sites without obstore."""

    unsigned_payload: bool | None = None
    """Leave the hash of the content out of the signature, which saves most of the CPU time; default
    over https, which protects the content itself."""

    timeout_s: float = 30.0
    """Seconds for one small request, and for silence in a large one."""

    budget_s: float = 120.0
    """Seconds to retry while no request at all succeeds."""

    reach_s: float | None = None
    """Seconds to retry until a first request is answered; None: as `budget_s`."""


def check_endpoint(endpoint: str) -> str:
    """Returns `endpoint` without a trailing slash.

    Raises:
        StoreError: it is not an http(s) URL, or holds credentials.
    """
    parts = urlsplit(endpoint)
    if "@" in parts.netloc:
        raise StoreError(
            "the S3 endpoint contains credentials; give them as options or AWS_* instead"
        )
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise StoreError(f"S3 endpoint {endpoint!r}: expected a URL such as https://s3.example.org")
    return endpoint.rstrip("/")


def server_of(endpoint: str | None) -> str:
    """Describes the server of an endpoint; None is AWS itself."""
    if endpoint is None:
        return "Amazon's S3 (AWS_ENDPOINT_URL names no other server)"
    return f"the S3 endpoint {endpoint} (of the options, AWS_ENDPOINT_URL or ~/.aws)"


def _renamed(options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` with `addressing` in place of its earlier name."""
    options = dict(options)
    if _EARLIER not in options:
        return options
    if "addressing" in options:
        raise StoreError(
            f"options of S3: {_EARLIER} is the earlier name of addressing; give only one of them"
        )
    virtual = options.pop(_EARLIER)
    if virtual is not None and not isinstance(virtual, bool):
        raise StoreError(f"option {_EARLIER!r} of S3: expected true or false")
    options["addressing"] = "virtual" if virtual else "path"
    if _EARLIER not in _said:
        _said.add(_EARLIER)
        _log.warning(
            "option %r of S3 is now called 'addressing': write addressing=%s",
            _EARLIER,
            options["addressing"],
        )
    return options


def _expected(name: str) -> str:
    if name in _CHOICES:
        return f"one of {_CHOICES[name]}"
    if name.endswith("_s"):
        return "a number of seconds above 0"
    return "true or false" if name in _SWITCHES else "text"


def _fits(kind: type[S3AccessOptions], name: str, value: Any) -> bool:
    if value is None:
        return type(None) in getattr(get_type_hints(kind)[name], "__args__", ())
    if name in _CHOICES:
        return value in _CHOICES[name]
    if name.endswith("_s"):
        return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return isinstance(value, bool if name in _SWITCHES else str)
