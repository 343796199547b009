"""obstore clients of one bucket, with a deadline for every request and without retries of their
own."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from obstore.exceptions import BaseError
from obstore.store import S3Store

from checkpointing.errors import StoreAccessError, StoreError
from checkpointing.storage.retry import reason
from checkpointing.storage.s3.s3_errors import ServerAnswer
from checkpointing.storage.s3.s3_options import S3Location, S3StoreOptions, check_endpoint

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Credential

    Provider = Callable[[], S3Credential]

LARGE = 4 << 20  # bytes from which a request counts as large
_LARGE_S = 150.0  # seconds for an object of 72 MiB: half a MiB per second
_READ_AGAIN = timedelta(minutes=10)  # how long keys from ~/.aws are used before they are read again
_METADATA_SERVICE = re.compile(r"/latest/(api/token|meta-data)")

_DIRECT = (  # variables for credentials that obstore uses itself
    "AWS_ACCESS_KEY_ID",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)
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
    config, provider, profile = _config(options, env)
    endpoint = options.endpoint_from(env) or _profile_endpoint(profile)
    plain = endpoint is not None and endpoint.startswith("http://")
    server, virtual = endpoint, options.addressing == "virtual"
    if endpoint is not None:
        if virtual:
            endpoint = endpoint.replace("://", f"://{place.bucket}.", 1)
        config["endpoint"] = config["aws_endpoint_url_s3"] = endpoint
    config["virtual_hosted_style_request"] = virtual
    unsigned = options.unsigned_payload
    config["unsigned_payload"] = not plain if unsigned is None else unsigned
    config["conditional_put"] = "etag"
    connection: ClientConfig = {
        "allow_http": plain,
        "connect_timeout": timedelta(seconds=min(10.0, options.timeout_s)),
    }
    bundle = options.ca_bundle or env.get("AWS_CA_BUNDLE") or profile.get("ca_bundle")
    if bundle:
        connection["root_certificate"] = _certificates(bundle)
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
        endpoint=server,
    )


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
    """Describes an error in one line, with its cause on the network, which obstore has only in the
    lines below."""
    below = str(error).partition("\n\nDebug source:")[2]
    found = _CAUSE.findall(below)
    cause = found[-1] if found else "no answer in time" if "TimedOut" in below else ""
    return f"{reason(error)} ({cause})" if cause else reason(error)


def lacks_credentials(error: Exception) -> bool:
    """Whether the request was never sent because the last source of credentials, the metadata
    service of cloud machines, had none."""
    return _METADATA_SERVICE.search(str(error).partition("\n\nDebug source:")[0]) is not None


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


def _config(
    options: S3StoreOptions, env: Mapping[str, str]
) -> tuple[S3Config, Provider | None, Mapping[str, str]]:
    """Returns the configuration of obstore, its source of credentials, and settings of the
    profile."""
    config: S3Config = {}
    region = options.region or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    provider: Provider | None = None
    profile: Mapping[str, str] = {}
    if options.anonymous:
        config["skip_signature"] = True
    elif options.access_key_id and options.secret_access_key:
        provider = _given(options.access_key_id, options.secret_access_key, options.session_token)
    elif options.access_key_id or options.secret_access_key:
        raise StoreError("options of an S3 store: access_key_id and secret_access_key go together")
    elif _needs_profile(options, env):
        provider, profile = _from_profile(options.profile)
        region = region or profile.get("region")
    if region:
        config["region"] = region
    return config, provider, profile


def _given(key_id: str, secret: str, token: str | None) -> Provider:
    """Returns a credential provider. With plain settings instead, obstore would also use
    AWS_SESSION_TOKEN, which belongs to other keys."""

    def give() -> S3Credential:
        return {
            "access_key_id": key_id,
            "secret_access_key": secret,
            "token": token,
            "expires_at": None,
        }

    return give


def _needs_profile(options: S3StoreOptions, env: Mapping[str, str]) -> bool:
    """Whether credentials must be read from ~/.aws, which obstore does not read."""
    if options.profile or env.get("AWS_PROFILE"):
        return True
    if any(env.get(name) for name in _DIRECT):
        return False
    places = {"AWS_SHARED_CREDENTIALS_FILE": "credentials", "AWS_CONFIG_FILE": "config"}
    files = [Path(env.get(name) or f"~/.aws/{short}") for name, short in places.items()]
    return any(file.expanduser().is_file() for file in files)


def _from_profile(
    name: str | None,
) -> tuple[Provider | None, Mapping[str, str]]:
    """Returns credentials by botocore's chain, read again each time, and settings of the
    profile."""
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError as error:
        raise StoreError(
            "credentials from ~/.aws need the package botocore: pip install botocore, or set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error

    def read() -> S3Credential:
        found = Session(profile=name).get_credentials()
        if found is None:
            raise StoreAccessError(
                f"no AWS credentials in profile {name or 'default'!r} of ~/.aws; run `aws "
                "configure`, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        keys = found.get_frozen_credentials()
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(UTC) + _READ_AGAIN,
        }

    try:
        session = Session(profile=name)
        scoped = session.get_scoped_config()
        settings = {k: v for k, v in scoped.items() if isinstance(v, str)}
        if session.get_credentials() is None and name is None:
            return None, settings  # ~/.aws has no keys; the machine's own credentials may work
        read()
    except BotoCoreError as error:
        raise StoreAccessError(f"AWS credentials: {error}") from error
    return read, settings


def _profile_endpoint(profile: Mapping[str, str]) -> str | None:
    found = profile.get("endpoint_url")
    return check_endpoint(found) if found else None


def _certificates(path: str) -> bytes:
    file = Path(path).expanduser()
    try:
        ssl.create_default_context(cafile=file)
        return file.read_bytes()
    except OSError as error:
        raise StoreError(f"certificates to trust, {path}: {error.strerror}") from error
