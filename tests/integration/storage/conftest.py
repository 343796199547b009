"""What the tests of storages share."""

from __future__ import annotations

from functools import cache

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_botocore_loader() -> None:
    """Clients of S3 by fsspec read what botocore knows of S3 once in a process: it takes most of
    the time until one is there, and these tests make hundreds."""
    session = pytest.importorskip("botocore.session")
    vars(session)["create_loader"] = cache(session.create_loader)
