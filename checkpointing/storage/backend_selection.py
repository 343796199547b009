"""Selects the storage for a URL."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlsplit

from checkpointing.errors import StoreError
from checkpointing.storage.interface import Storage
from checkpointing.store_url import meant_url

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_storage(url: str, *, options: Mapping[str, Any] | None = None) -> Storage:
    """Returns the storage at `url`. Nothing is sent or created yet, so it may be unreachable.

    Args:
        url: a path or file://; s3://bucket/folder; memory://name, in the memory of this process; or
            any other that an installed fsspec driver knows, such as gs:// or sftp://.
        options: for s3:// see `S3StoreOptions`; the usual AWS_* variables and ~/.aws are used, too.
            For others, arguments of the fsspec driver. Paths have only `reach_s`, which all but
            memory:// support: seconds after which a storage that has answered no request yet is
            given up (by default as for one that was reached and stopped answering).

    Raises:
        StoreError: a scheme or option is unknown, or a package is missing; the message says what to
            do.
    """
    given = dict(options or {})
    reach_s = _reach_s(given.get("reach_s"))
    if meant := meant_url(url):
        raise StoreError(
            f"{url}: neither a path nor a URL; did you mean {meant}? (as a path: ./{url})"
        )
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else "file"
    if scheme in ("s3", "s3a"):
        return _s3(url, given)
    given.pop("reach_s", None)
    if scheme in ("file", "local"):
        return _posix(url if match is None else _path_of(url), given, reach_s)
    if scheme == "memory":
        return _memory(url, given)
    return _generic(url, given, reach_s)


def _reach_s(given: Any) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or given <= 0:
        raise StoreError("option 'reach_s' of a store: expected a number of seconds above 0")
    return float(given)


def _posix(path: str, options: Mapping[str, Any], reach_s: float | None) -> Storage:
    from checkpointing.storage.posix.posix_storage import POLICY, PosixStorage

    _refuse_options(path, options)
    if not path:
        raise StoreError("the path of the store is empty; give one such as /scratch/me")
    root = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111
    return PosixStorage(root, policy=replace(POLICY, reach_s=reach_s))


def _path_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise StoreError(
            f"{url}: the host {parts.netloc!r} in a file URL; for a local path write "
            f"file:///{parts.netloc}{parts.path}"
        )
    return unquote(parts.path)


def _memory(url: str, options: Mapping[str, Any]) -> Storage:
    from checkpointing.storage.memory_storage import MemoryStorage

    _refuse_options(url, options)
    return MemoryStorage(url.rstrip("/"))


def _s3(url: str, options: Mapping[str, Any]) -> Storage:
    from checkpointing.storage.s3.s3_options import S3Location, S3StoreOptions

    place = S3Location.parse(url)
    chosen = S3StoreOptions.parse(options)
    _need(chosen.client, url, "or choose another client by options={'client': 's3fs'}")
    if chosen.client == "s3fs":
        from checkpointing.storage.fsspec.s3fs_storage import open_s3fs

        return open_s3fs(place, chosen)
    from checkpointing.storage.s3.s3_storage import S3Storage

    return S3Storage(place, chosen)


def _need(package: str, url: str, otherwise: str = "") -> None:
    if importlib.util.find_spec(package) is None:
        text = f"{url} needs the package {package}: pip install {package}"
        raise StoreError(f"{text}, {otherwise}" if otherwise else text)


def _generic(url: str, options: Mapping[str, Any], reach_s: float | None) -> Storage:
    _need("fsspec", url)
    from checkpointing.storage.fsspec.driver_selection import open_fsspec

    return open_fsspec(url, options, reach_s)


def _refuse_options(url: str, options: Mapping[str, Any]) -> None:
    if options:
        raise StoreError(
            f"{url}: storage options {sorted(options)} are given, but it does not take any"
        )
