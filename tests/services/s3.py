"""What every S3 server of the tests offers: endpoints, keys, and places in new buckets."""

from __future__ import annotations

import secrets
import urllib.error
import urllib.request
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.store import S3Store

from tests.services.processes import ServiceError

if TYPE_CHECKING:  # a stub without a class behind it
    from obstore.store import ClientConfig

REGION = "us-east-1"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class S3Place:
    """A prefix in a bucket, and what a client needs to get at it."""

    bucket: str
    prefix: str
    endpoint: str  # URL; http or https
    access_key: str
    secret_key: str = field(repr=False)
    ca_file: Path | None = None

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def options(self) -> dict[str, str]:
        """For `open_storage`."""
        options = {
            "endpoint": self.endpoint,
            "region": REGION,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
        }
        return options if self.ca_file is None else {**options, "ca_bundle": str(self.ca_file)}

    @property
    def env(self) -> dict[str, str]:
        """For a client that obeys the environment, or a child process."""
        env = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }
        return env if self.ca_file is None else {**env, "AWS_CA_BUNDLE": str(self.ca_file)}

    def through(self, endpoint: str) -> S3Place:
        """The same place by another endpoint, such as a fault proxy's."""
        return replace(self, endpoint=endpoint)

    def store(self, timeout_s: float = 30) -> S3Store:
        """A plain obstore client of this place that tries nothing again."""
        client: ClientConfig = {"allow_http": True, "timeout": timedelta(seconds=timeout_s)}
        if self.ca_file is not None:
            client["root_certificate"] = self.ca_file.read_bytes()
        return S3Store(
            self.bucket,
            prefix=self.prefix,
            endpoint=self.endpoint,
            region=REGION,
            access_key_id=self.access_key,
            secret_access_key=self.secret_key,
            virtual_hosted_style_request=False,
            client_options=client,
            retry_config={"max_retries": 0},
        )


@dataclass(kw_only=True)
class S3Server:
    """A running server on loopback, addressed in path style."""

    name: str
    http: str  # endpoint URL
    access_key: str
    secret_key: str = field(repr=False)
    https: str | None = None  # endpoint URL, if it speaks TLS
    ca_file: Path | None = None  # PEM; signed the certificate of `https`

    def make_bucket(self, name: str) -> None:
        """Make the bucket `name`, of three characters or more.

        Raises:
            ServiceError: the server refused.
        """
        place = S3Place(name, "", self.http, self.access_key, self.secret_key)
        url = obstore.sign(place.store(), "PUT", "", timedelta(minutes=1))
        request = urllib.request.Request(url, method="PUT", data=b"")
        try:
            with _DIRECT.open(request, timeout=30):
                pass
        except urllib.error.HTTPError as error:
            body = error.read().decode(errors="replace")
            raise ServiceError(f"{self.name}: no bucket {name!r}: {error} {body}") from error

    def new_place(self, *, tls: bool = False) -> S3Place:
        """A prefix in a new bucket of its own, reached over https if `tls`.

        Raises:
            ServiceError: `tls` of a server that was started without.
        """
        endpoint = self.https if tls else self.http
        if endpoint is None:
            raise ServiceError(f"{self.name} runs without TLS: start it with tls=True")
        bucket = f"bucket-{secrets.token_hex(6)}"
        self.make_bucket(bucket)
        ca_file = self.ca_file if tls else None
        return S3Place(bucket, "prefix", endpoint, self.access_key, self.secret_key, ca_file)
