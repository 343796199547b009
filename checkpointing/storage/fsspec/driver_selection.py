"""Opens a storage by the fsspec driver of its URL's scheme."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import fsspec
from fsspec import AbstractFileSystem

from checkpointing.errors import StoreError
from checkpointing.storage.fsspec.call_deadlines import FsspecCalls
from checkpointing.storage.fsspec.fsspec_storage import DriverTraits, FsspecStorage
from checkpointing.storage.retry import StorageRetryPolicy

# drivers where an object that is being written is not visible, and whether one can be created
# exclusively
_WHOLE = {"abfs", "abfss", "adl", "az", "gcs", "gs", "oci", "oss", "s3", "s3a"}
_EXCLUSIVE = {"abfs", "abfss", "az", "gcs", "gs", "s3", "s3a"}


def open_fsspec(
    url: str, options: Mapping[str, Any], reach_s: float | None = None
) -> FsspecStorage:
    """Returns a storage on the driver of the URL's scheme. Sends nothing yet.

    Args:
        reach_s: see `open_storage`.

    Raises:
        StoreError: there is no such driver, its package is missing, or it cannot write objects
            atomically.
    """
    scheme = url.partition("://")[0].lower()
    shown = _without_secrets(url)
    try:
        driver = fsspec.get_filesystem_class(scheme)
    except ValueError as error:
        raise StoreError(
            f"{shown}: unknown scheme {scheme!r}; use a path, file://, s3://, memory://, or one "
            "of an installed fsspec driver, such as gs:// (pip install gcsfs)"
        ) from error
    except ImportError as error:
        raise StoreError(f"{shown}: the driver of {scheme}:// is missing: {error}") from error
    whole = scheme in _WHOLE
    if not whole and driver.mv is AbstractFileSystem.mv:
        raise StoreError(
            f"{shown}: a store requires atomic writes, and the driver of {scheme}:// supports "
            "neither these nor a rename; use a file system, S3 or another object store"
        )
    given = {**driver._get_kwargs_from_urls(url), **options}

    def make() -> AbstractFileSystem:
        return driver(**given, skip_instance_cache=True, use_listings_cache=False)

    traits = DriverTraits(whole, scheme in _EXCLUSIVE, {}, {})
    return FsspecStorage(
        FsspecCalls(make),
        driver._strip_protocol(url),
        shown,
        traits,
        policy=StorageRetryPolicy(reach_s=reach_s),
    )


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, f"{user.partition(':')[0]}{at}{host}", parts.path, "", ""))
