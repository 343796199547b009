"""`hpckit doctor` with a real S3 server."""

from __future__ import annotations

import pytest

from hpckit.doctor import checkpoint_store
from hpckit.doctor.finding import Level
from tests.services.s3 import S3Place


def test_a_bucket_is_tried_and_a_wrong_key_is_told(
    s3_url: S3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = s3_url
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    (one, *rest) = checkpoint_store.findings(place.url)
    assert one.level is Level.OK
    assert all(other.level is Level.NOTE for other in rest)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    (one,) = checkpoint_store.findings(place.url)
    assert one.level is Level.FAIL
