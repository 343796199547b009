"""obstore clients of one bucket, with a deadline for every request and without retries of their
own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from obstore.exceptions import BaseError
from obstore.store import S3Store

from checkpointing.errors import StoreError
from checkpointing.storage.retry import reason
from checkpointing.storage.s3.s3_access import S3Access, resolve_access, resolve_credentials
from checkpointing.storage.s3.s3_errors import ServerAnswer
from checkpointing.storage.s3.s3_options import S3AccessOptions, S3Location, S3StoreOptions

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config

    from checkpointing.storage.s3.aws_profile import Provider

LARGE = 4 << 20  # bytes from which a request counts as large
_LARGE_S = 150.0  # for an object of 72 MiB: half a MiB per second
_STREAM = timedelta(days=7)  # of one whole answer of `build_reader`, whose silences alone count
_METADATA_SERVICE = re.compile(r"/latest/(api/token|meta-data)")
_CAUSE = re.compile(r'\b(?:message|error): "([^"\n]{1,200})"')
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>|\(code: (\w{1,100})\)")
_TEXT = re.compile(r"<Message>([^<]{1,300})</Message>")


@dataclass(frozen=True)
class ObstoreClients:
    """The clients of one bucket and one set of credentials; each has its own connections."""

    small: S3Store
    upload: S3Store
    download: S3Store
    one_by_one: S3Store  # deletes by single requests, for servers without DeleteObjects
    endpoint: str | None  # without the bucket; None: AWS itself

    def for_upload(self, size: int) -> S3Store:
        """Returns the client for an upload of `size` bytes."""
        return self.upload if size >= LARGE else self.small


def build(place: S3Location, options: S3StoreOptions, env: Mapping[str, str]) -> ObstoreClients:
    """Returns clients configured by options, environment and ~/.aws, in this order of precedence.
    Reads files, sends nothing.

    Raises:
        StoreAccessError: a profile does not exist or has no credentials.
        StoreError: an option cannot be used.
    """
    access, provider = resolve_access(options, env), resolve_credentials(options, env)
    config = access.obstore_config(place.bucket)
    unsigned = options.unsigned_payload
    config["unsigned_payload"] = not access.plain if unsigned is None else unsigned
    config["conditional_put"] = "etag"
    connection = _connection(access, options.timeout_s)
    small: ClientConfig = {**connection, "timeout": timedelta(seconds=options.timeout_s)}
    large: ClientConfig = {
        **connection,
        "timeout": timedelta(seconds=max(_LARGE_S, options.timeout_s)),
    }
    reading: ClientConfig = {**large, "read_timeout": timedelta(seconds=options.timeout_s)}
    one_by_one: S3Config = {**config, "disable_bulk_delete": True}
    return ObstoreClients(
        small=_client(place, config, small, provider),
        upload=_client(place, config, large, provider),
        download=_client(place, config, reading, provider),
        one_by_one=_client(place, one_by_one, small, provider),
        endpoint=access.endpoint,
    )


def build_reader(
    bucket: str, options: S3AccessOptions, env: Mapping[str, str], stall_s: float
) -> S3Store:
    """One client that reads a bucket, with options, environment and ~/.aws as `build` uses them.

    Args:
        stall_s: seconds for connecting, and of silence within an answer, which as a whole may take
            as long as it does.

    Raises:
        StoreAccessError: the profile does not exist or holds no credentials.
        StoreError: an option cannot be used.
    """
    access, provider = resolve_access(options, env), resolve_credentials(options, env)
    connection: ClientConfig = {
        **_connection(access, stall_s),
        "read_timeout": timedelta(seconds=stall_s),
        "timeout": _STREAM,
    }
    config = access.obstore_config(bucket)
    return _client(S3Location(bucket, ""), config, connection, provider)


def answer_of(error: Exception) -> ServerAnswer:
    """Returns the server's answer from an error of obstore."""
    text = str(error).partition("\n\nDebug source:")[0]
    status, code, message = _STATUS.search(text), _CODE.search(text), _TEXT.search(text)
    if message:
        line = message[1]
    elif status:
        line = ""
    else:
        line = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    name = (code[1] or code[2]) if code else ""
    return ServerAnswer(int(status[1]) if status else None, name, line[:300])


def said(error: Exception) -> str:
    """Describes an error in one line: by its cause on the network, if it has one, which obstore has
    only in the lines below."""
    below = str(error).partition("\n\nDebug source:")[2]
    found = _CAUSE.findall(below)
    cause = found[-1] if found else "no answer in time" if "TimedOut" in below else ""
    return cause or reason(error)


def lacks_credentials(error: Exception) -> bool:
    """Whether the request was never sent because the last source of credentials, the metadata
    service of cloud machines, had none."""
    return _METADATA_SERVICE.search(str(error).partition("\n\nDebug source:")[0]) is not None


def _connection(access: S3Access, timeout_s: float) -> ClientConfig:
    connection: ClientConfig = {
        "allow_http": access.plain,
        "connect_timeout": timedelta(seconds=min(10.0, timeout_s)),
    }
    if (bundle := access.certificates()) is not None:
        connection["root_certificate"] = bundle
    return connection


def _client(
    place: S3Location, config: S3Config, connection: ClientConfig, provider: Provider | None
) -> S3Store:
    try:
        return S3Store(
            place.bucket,
            prefix=place.prefix or None,
            config=config,
            client_options=connection,
            retry_config={"max_retries": 0},
            credential_provider=provider,
        )
    except (BaseError, ValueError) as error:
        raise StoreError(f"{place.url}: {reason(error)}") from error
