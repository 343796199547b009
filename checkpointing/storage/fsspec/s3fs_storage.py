"""A storage on S3 by s3fs, for sites without obstore."""

from __future__ import annotations

import os
from typing import Any

from botocore.handlers import add_expect_header
from s3fs import S3FileSystem

from checkpointing.storage.fsspec.call_deadlines import FsspecCalls
from checkpointing.storage.fsspec.fsspec_storage import CallDeadlines, DriverTraits, FsspecStorage
from checkpointing.storage.retry import StorageRetryPolicy
from checkpointing.storage.s3.s3_access import S3Access, resolve_access
from checkpointing.storage.s3.s3_options import S3Location, S3StoreOptions, server_of

_ONE_PART = 1 << 32  # bytes; in a multipart upload some servers ignore the condition of a create


def open_s3fs(place: S3Location, options: S3StoreOptions) -> FsspecStorage:
    """Returns a storage on s3fs. Sends nothing yet.

    Raises:
        StoreError: an option cannot be used.
    """
    traits = DriverTraits(
        whole=True,
        exclusive=True,
        write={"chunksize": _ONE_PART},
        read={"max_concurrency": 1},  # otherwise it asks for the size first
    )
    access = resolve_access(options, os.environ)
    access.certificates()  # botocore would say less of a file that it cannot use
    arguments = _arguments(options, access)
    return FsspecStorage(
        FsspecCalls(lambda: _file_system(arguments), _drop_expect),
        f"{place.bucket}/{place.prefix}",
        place.url,
        traits,
        policy=StorageRetryPolicy(budget_s=options.budget_s, reach_s=options.reach_s),
        deadlines=CallDeadlines(options.timeout_s, max(150.0, options.timeout_s)),
        server=server_of(access.endpoint),
    )


def _file_system(arguments: dict[str, Any]) -> S3FileSystem:
    fs = S3FileSystem(**arguments, skip_instance_cache=True, use_listings_cache=False)
    fs.retries = 1
    return fs


async def _drop_expect(fs: S3FileSystem) -> None:
    """Stop uploads from waiting for "100 Continue", since that wait has no time limit."""
    client = await fs.set_session()
    client.meta.events.unregister("before-call.s3", add_expect_header)


def _arguments(options: S3StoreOptions, access: S3Access) -> dict[str, Any]:
    seconds = options.timeout_s
    config: dict[str, Any] = {
        "connect_timeout": min(10.0, seconds),
        "read_timeout": seconds,
        "retries": {"total_max_attempts": 1},
        # old servers answer 411 to the checksums that botocore adds to uploads over https
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "max_pool_connections": 32,
    }
    style: dict[str, Any] = {"addressing_style": options.addressing}
    unsigned = options.unsigned_payload
    if not access.plain if unsigned is None else unsigned:
        style["payload_signing_enabled"] = False
    client: dict[str, Any] = {}
    if access.region:
        client["region_name"] = access.region
    if access.ca_bundle:
        client["verify"] = str(access.ca_bundle)
    given = {
        "endpoint_url": access.endpoint,
        "key": options.access_key_id,
        "secret": options.secret_access_key,
        "token": options.session_token,
        "profile": options.profile,
    }
    return {
        "anon": options.anonymous,
        "client_kwargs": client,
        "config_kwargs": {**config, "s3": style},
        **{name: value for name, value in given.items() if value is not None},
    }
