"""The options of S3 access: given options, the AWS_* variables, and the files in ~/.aws."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from data.errors import DataError
from data.source.protocol import PermanentSourceError

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Credential

    Provider = Callable[[], S3Credential]

_READ_AGAIN = timedelta(minutes=10)  # how long keys from ~/.aws are used before they are read again
_DIRECT = (  # variables of credentials that obstore reads itself
    "AWS_ACCESS_KEY_ID",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)


@dataclass(frozen=True)
class SourceS3Options:
    """The options of S3; those not given come from the environment."""

    endpoint: str | None = None
    """URL of a server other than AWS; http:// is allowed if it is given here."""

    region: str | None = None

    access_key_id: str | None = None

    secret_access_key: str | None = field(default=None, repr=False)

    session_token: str | None = field(default=None, repr=False)

    profile: str | None = None
    """A profile in ~/.aws."""

    anonymous: bool = False
    """Send no credentials, to read public objects."""

    ca_bundle: str | None = None
    """Path of a PEM file with certificates that are trusted besides those of the system."""

    virtual_host: bool = False
    """Put the bucket into the host name rather than into the path."""

    def __post_init__(self) -> None:
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise DataError("options of s3: access_key_id and secret_access_key go together")
        if self.endpoint is not None:
            check_endpoint(self.endpoint)


def settings(
    options: SourceS3Options, env: Mapping[str, str], bucket: str
) -> tuple["S3Config", "Provider | None", bytes | None]:
    """Return the configuration of obstore, its credential provider, and certificates to trust.

    Raises PermanentSourceError if a file or profile that is named cannot be read.
    """
    config: S3Config = {"virtual_hosted_style_request": options.virtual_host}
    endpoint = options.endpoint or env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL")
    if endpoint:
        endpoint = check_endpoint(endpoint)
        if options.virtual_host:
            endpoint = endpoint.replace("://", f"://{bucket}.", 1)
        config["endpoint"] = config["aws_endpoint_url_s3"] = endpoint
    region = options.region or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    provider = None
    if options.anonymous:
        config["skip_signature"] = True
    elif options.access_key_id:
        provider = _given_keys(options)
    elif _needs_profile(options, env):
        provider, of_profile = _from_profile(options.profile)
        region = region or of_profile
    if region:
        config["region"] = region
    return config, provider, _certificates(options.ca_bundle or env.get("AWS_CA_BUNDLE"))


def check_endpoint(endpoint: str) -> str:
    """Return `endpoint` without a slash at its end. Raises DataError if it is no plain http(s)
    URL."""
    scheme, found, host = endpoint.partition("://")
    if "@" in host:
        raise DataError("the S3 endpoint holds credentials; give them as options or AWS_* instead")
    if not found or scheme not in ("http", "https") or not host:
        raise DataError(f"S3 endpoint {endpoint!r}: a URL such as https://s3.example.org expected")
    return endpoint.rstrip("/")


def _given_keys(options: SourceS3Options) -> "Provider":
    """Return a credential provider for the given keys. With plain settings, obstore would add an
    AWS_SESSION_TOKEN of the environment, which belongs to other keys."""

    def give() -> "S3Credential":
        return {
            "access_key_id": options.access_key_id or "",
            "secret_access_key": options.secret_access_key or "",
            "token": options.session_token,
            "expires_at": None,
        }

    return give


def _needs_profile(options: SourceS3Options, env: Mapping[str, str]) -> bool:
    """Return whether the keys must come from ~/.aws, which obstore does not read."""
    if options.profile or env.get("AWS_PROFILE"):
        return True
    if any(env.get(name) for name in _DIRECT):
        return False
    places = {"AWS_SHARED_CREDENTIALS_FILE": "credentials", "AWS_CONFIG_FILE": "config"}
    files = [Path(env.get(name) or f"~/.aws/{short}") for name, short in places.items()]
    return any(file.expanduser().is_file() for file in files)


def _from_profile(name: str | None) -> tuple["Provider | None", str | None]:
    """Return the keys from botocore's chain, read again each time, and the profile's region."""
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError as error:
        raise PermanentSourceError(
            "credentials from ~/.aws need the package botocore: pip install botocore, or set"
            " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error

    def read() -> "S3Credential":
        found = Session(profile=name).get_credentials()
        if found is None:
            raise PermanentSourceError(f"no credentials in profile {name or 'default'!r} of ~/.aws")
        keys = found.get_frozen_credentials()
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(UTC) + _READ_AGAIN,
        }

    try:
        session = Session(profile=name)
        region = session.get_config_variable("region")
        if session.get_credentials() is None and name is None:
            return None, region  # a ~/.aws without keys: the machine's own credentials may work
        read()
    except BotoCoreError as error:
        raise PermanentSourceError(f"AWS credentials: {error}") from error
    return read, region


def _certificates(path: str | None) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise PermanentSourceError(f"certificates to trust, {path}: {error.strerror}") from error
