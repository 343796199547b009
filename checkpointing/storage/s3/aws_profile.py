"""Settings and credentials of a profile of ~/.aws."""

from __future__ import annotations

import configparser
import os
import shlex
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from checkpointing.errors import StoreAccessError, StoreError

if TYPE_CHECKING:
    from obstore.store import S3Credential

    Provider = Callable[[], S3Credential]

_READ_AGAIN = timedelta(minutes=10)  # how long keys from ~/.aws are used without another look
_CONFIG = ("AWS_CONFIG_FILE", "~/.aws/config")
_CREDENTIALS = ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
_NAMES = ("AWS_DEFAULT_PROFILE", "AWS_PROFILE")  # in the order of botocore
_DIRECT = (  # variables of credentials that obstore can use directly
    "AWS_ACCESS_KEY_ID",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)
_Sections = Mapping[str, Mapping[str, str]]


def profile_settings(chosen: str | None, env: Mapping[str, str]) -> Mapping[str, str]:
    """Settings of a profile, as botocore reads them; works without botocore.

    Args:
        chosen: the name of the profile; None: by AWS_PROFILE, or "default".

    Returns:
        The keys of the profile. `endpoint_url` is the one of S3: that of the `services` section of
        the profile if it has one. Empty if there is no such profile and none was chosen.

    Raises:
        StoreAccessError: the chosen profile does not exist.
        StoreError: a file cannot be parsed, or a `services` section does not exist.
    """
    config, credentials = _sections(_file(_CONFIG, env)), _sections(_file(_CREDENTIALS, env))
    name = chosen or next((env[key] for key in _NAMES if env.get(key)), "default")
    profiles = _titled(config, "profile")
    if chosen and chosen not in {*profiles, *credentials}:
        raise StoreAccessError(f"AWS credentials: there is no profile {chosen!r} in ~/.aws")
    found = {**profiles.get(name, {}), **credentials.get(name, {})}
    services = found.get("services")
    if services:
        sections = _titled(config, "services")
        if services not in sections:
            raise StoreError(
                f"profile {name!r} of ~/.aws names the services section {services!r}, which does "
                "not exist"
            )
        of_s3 = _nested(sections[services].get("s3", ""))
        if endpoint := of_s3.get("endpoint_url"):
            found["endpoint_url"] = endpoint
    return found


def needs_profile(chosen: str | None, env: Mapping[str, str]) -> bool:
    """Whether credentials come from ~/.aws, which obstore does not read."""
    if chosen or any(env.get(key) for key in _NAMES):
        return True
    if any(env.get(key) for key in _DIRECT):
        return False
    return any(_file(place, env).is_file() for place in (_CONFIG, _CREDENTIALS))


def profile_credentials(chosen: str | None) -> Provider | None:
    """Credentials by the chain of botocore (keys, roles, SSO, processes), read each time.

    Returns:
        None if ~/.aws holds no credentials and no profile was chosen: the machine may have some.

    Raises:
        StoreAccessError: the profile does not exist or holds no credentials.
        StoreError: botocore is not installed.
    """
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError as error:
        raise StoreError(
            "credentials from ~/.aws require the package botocore: pip install botocore, or set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error

    def read() -> S3Credential:
        found = Session(profile=chosen).get_credentials()
        if found is None:
            raise StoreAccessError(
                f"no AWS credentials in profile {chosen or 'default'!r} of ~/.aws; run `aws "
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
        session = Session(profile=chosen)
        session.get_scoped_config()
        if session.get_credentials() is None and chosen is None:
            return None
        read()
    except BotoCoreError as error:
        raise StoreAccessError(f"AWS credentials: {error}") from error
    return read


def _file(place: tuple[str, str], env: Mapping[str, str]) -> Path:
    variable, usual = place
    # unlike Path.expanduser, it does not fail for a user without a home
    return Path(os.path.expanduser(env.get(variable) or usual))  # noqa: PTH111


def _sections(file: Path) -> _Sections:
    parser = configparser.RawConfigParser(default_section="")
    try:
        parser.read(file, encoding="utf-8")  # a file that does not exist counts as empty
    except (configparser.Error, UnicodeDecodeError) as error:
        # the text of the error would show lines of the file
        raise StoreError(f"{file}: it cannot be parsed ({type(error).__name__})") from error
    return {name: dict(parser.items(name)) for name in parser.sections()}


def _titled(sections: _Sections, kind: str) -> dict[str, Mapping[str, str]]:
    """The sections `[kind NAME]` by their names; a profile's may also be [default]."""
    found = {}
    for title, section in sections.items():
        try:
            words = shlex.split(title)
        except ValueError:  # an open quote
            continue
        if len(words) == 2 and words[0] == kind:
            found[words[1]] = section
        elif kind == "profile" and title == "default":
            found[title] = section
    return found


def _nested(text: str) -> dict[str, str]:
    """Indented lines below a key."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}
