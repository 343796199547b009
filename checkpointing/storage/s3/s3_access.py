"""What options, environment and ~/.aws together say about access to S3, in this order."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from checkpointing.errors import StoreError
from checkpointing.storage.s3.aws_profile import (
    needs_profile,
    profile_credentials,
    profile_settings,
)
from checkpointing.storage.s3.s3_options import S3AccessOptions, check_endpoint

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Credential

    from checkpointing.storage.s3.aws_profile import Provider


@dataclass(frozen=True)
class S3Access:
    """The server, and how it is addressed and trusted; without credentials."""

    endpoint: str | None  # without the bucket; None: AWS itself
    region: str | None
    ca_bundle: Path | None
    virtual: bool
    anonymous: bool

    @property
    def plain(self) -> bool:
        """Whether the server is reached by http://."""
        return self.endpoint is not None and self.endpoint.startswith("http://")

    def obstore_config(self, bucket: str) -> S3Config:
        """Settings of an obstore client of `bucket`."""
        config: S3Config = {"virtual_hosted_style_request": self.virtual}
        if self.endpoint is not None:
            endpoint = self.endpoint
            if self.virtual:
                endpoint = endpoint.replace("://", f"://{bucket}.", 1)
            config["endpoint"] = config["aws_endpoint_url_s3"] = endpoint
        if self.region:
            config["region"] = self.region
        if self.anonymous:
            config["skip_signature"] = True
        return config

    def certificates(self) -> bytes | None:
        """The content of `ca_bundle`.

        Raises:
            StoreError: it cannot be read, or holds no certificate.
        """
        if self.ca_bundle is None:
            return None
        file = self.ca_bundle
        try:
            ssl.create_default_context(cafile=file)
            return file.read_bytes()
        except OSError as error:
            raise StoreError(
                f"cannot read the trusted certificates {file}: {error.strerror}"
            ) from error


def resolve_access(options: S3AccessOptions, env: Mapping[str, str]) -> S3Access:
    """Each setting by the option, else by the environment, else by the profile.

    Raises:
        StoreAccessError: the profile of the options does not exist.
        StoreError: a setting or a file of ~/.aws cannot be used.
    """
    profile = profile_settings(options.profile, env)
    endpoint = options.endpoint_from(env)
    if endpoint is None and (of_profile := profile.get("endpoint_url")):
        endpoint = check_endpoint(of_profile)
    bundle = options.ca_bundle or env.get("AWS_CA_BUNDLE") or profile.get("ca_bundle")
    return S3Access(
        endpoint=endpoint,
        region=options.region
        or env.get("AWS_REGION")
        or env.get("AWS_DEFAULT_REGION")
        or profile.get("region"),
        ca_bundle=Path(bundle).expanduser() if bundle else None,
        virtual=options.addressing == "virtual",
        anonymous=options.anonymous,
    )


def resolve_credentials(options: S3AccessOptions, env: Mapping[str, str]) -> Provider | None:
    """Where obstore gets credentials; None if it finds them itself, or needs none.

    Raises:
        StoreAccessError: the profile does not exist or holds no credentials.
        StoreError: botocore, which reads them from ~/.aws, is not installed.
    """
    if options.anonymous:
        return None
    if options.access_key_id and options.secret_access_key:
        return _given(options.access_key_id, options.secret_access_key, options.session_token)
    if needs_profile(options.profile, env):
        return profile_credentials(options.profile)
    return None


def _given(key_id: str, secret: str, token: str | None) -> Provider:
    """A provider and not settings, beside which obstore would use AWS_SESSION_TOKEN, which belongs
    to other keys."""

    def give() -> S3Credential:
        return {
            "access_key_id": key_id,
            "secret_access_key": secret,
            "token": token,
            "expires_at": None,
        }

    return give
