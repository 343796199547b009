from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checkpointing.errors import StoreAccessError, StoreError
from checkpointing.storage.s3.obstore_clients import build
from checkpointing.storage.s3.s3_options import S3Location, S3StoreOptions

PLACE = S3Location("bucket", "a")
KEYS = {"AWS_ACCESS_KEY_ID": "from-env", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", *KEYS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"endpont": "x"}, "unknown option 'endpont'.*'endpoint'"),
        ({"client": "boto3"}, "one of .*'obstore'"),
        ({"timeout_s": 0}, "a number of seconds above 0"),
        ({"timeout_s": True}, "a number of seconds above 0"),
        ({"anonymous": "yes"}, "true or false"),
        ({"secret_access_key": 12345}, "'secret_access_key' of an S3 store: expected text"),
        ({"client": None}, "one of"),
    ],
)
def test_wrong_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(StoreError, match=says) as caught:
        S3StoreOptions.parse(options)
    assert "12345" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    secrets = {"secret_access_key": "hidden-1", "session_token": "hidden-2"}
    options = S3StoreOptions.parse({"access_key_id": "k", **secrets})
    assert "hidden" not in repr(options)


@pytest.mark.parametrize(
    ("given", "env", "endpoint"),
    [
        (None, {}, None),
        (None, {"AWS_ENDPOINT_URL": "http://a/"}, "http://a"),
        (None, {"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "https://b"}, "https://b"),
        ("https://c", {"AWS_ENDPOINT_URL_S3": "https://b"}, "https://c"),
    ],
)
def test_endpoints(given: str | None, env: dict[str, str], endpoint: str | None) -> None:
    assert S3StoreOptions(endpoint=given).endpoint_from(env) == endpoint


def test_an_endpoint_with_credentials_is_refused_and_not_shown() -> None:
    with pytest.raises(StoreError, match="contains credentials") as caught:
        S3StoreOptions(endpoint="https://me:hidden@host").endpoint_from({})
    assert "hidden" not in str(caught.value)


def settings(options: S3StoreOptions, env: dict[str, str]) -> dict[str, Any]:
    return dict(build(PLACE, options, env).small.config)


def test_regions() -> None:
    assert settings(S3StoreOptions(), {**KEYS, "AWS_DEFAULT_REGION": "a"})["region"] == "a"
    both = {**KEYS, "AWS_DEFAULT_REGION": "a", "AWS_REGION": "b"}
    assert settings(S3StoreOptions(), both)["region"] == "b"
    assert settings(S3StoreOptions(region="c"), both)["region"] == "c"


def test_payloads_are_signed_only_over_plain_http() -> None:
    def unsigned(**options: Any) -> object:
        return settings(S3StoreOptions(**options), KEYS)["unsigned_payload"]

    assert unsigned() == unsigned(endpoint="https://a") == "true"
    assert unsigned(endpoint="http://a") == unsigned(unsigned_payload=False) == "false"


def test_the_bucket_in_the_host_name() -> None:
    found = settings(S3StoreOptions(endpoint="https://s3.example.org", addressing="virtual"), KEYS)
    assert found["endpoint"] == "https://bucket.s3.example.org"
    assert found["virtual_hosted_style_request"] == "true"


def test_every_request_has_a_deadline_and_no_hidden_retries() -> None:
    clients = build(PLACE, S3StoreOptions(timeout_s=7.0), KEYS)
    for client in (clients.small, clients.upload, clients.download, clients.one_by_one):
        limits = client.client_options
        assert limits is not None
        assert "timeout" in limits
        assert client.retry_config is not None
        assert client.retry_config["max_retries"] == 0
    assert "read_timeout" in (clients.download.client_options or {})


def write_profiles(home: Path) -> None:
    (home / ".aws").mkdir()
    (home / ".aws/credentials").write_text(
        "[default]\naws_access_key_id = of-default\naws_secret_access_key = s\n"
        "[cluster]\naws_access_key_id = of-cluster\naws_secret_access_key = s\n"
        "aws_session_token = t\n"
    )
    (home / ".aws/config").write_text(
        "[profile cluster]\nregion = far-away\nendpoint_url = https://cluster\n[profile empty]\n"
    )


def keys_of(options: S3StoreOptions, env: dict[str, str]) -> Any:
    provider = build(PLACE, options, env).small.credential_provider
    return None if provider is None else provider()


def test_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_profiles(tmp_path)
    assert keys_of(S3StoreOptions(), {})["access_key_id"] == "of-default"
    assert keys_of(S3StoreOptions(), KEYS) is None  # obstore reads the environment by itself
    found = keys_of(S3StoreOptions(profile="cluster"), KEYS)
    assert (found["access_key_id"], found["token"]) == ("of-cluster", "t")
    assert settings(S3StoreOptions(profile="cluster"), {})["region"] == "far-away"
    assert settings(S3StoreOptions(profile="cluster"), {})["endpoint"] == "https://cluster"
    monkeypatch.setenv("AWS_PROFILE", "cluster")
    assert keys_of(S3StoreOptions(), {"AWS_PROFILE": "cluster"})["access_key_id"] == "of-cluster"


def test_profiles_are_read_anew(tmp_path: Path) -> None:
    write_profiles(tmp_path)
    provider: Any = build(PLACE, S3StoreOptions(profile="cluster"), {}).small.credential_provider
    file = tmp_path / ".aws/credentials"
    file.write_text(file.read_text().replace("of-cluster", "rotated"))
    assert provider()["access_key_id"] == "rotated"


def test_a_profile_that_is_not_there(tmp_path: Path) -> None:
    write_profiles(tmp_path)
    with pytest.raises(StoreAccessError, match="nobody"):
        build(PLACE, S3StoreOptions(profile="nobody"), {})


def test_given_keys_stand_alone() -> None:
    options = S3StoreOptions(access_key_id="given", secret_access_key="s")
    found = keys_of(options, {**KEYS, "AWS_SESSION_TOKEN": "of other keys"})
    assert (found["access_key_id"], found["token"]) == ("given", None)
    with pytest.raises(StoreError, match="must be given together"):
        build(PLACE, S3StoreOptions(access_key_id="given"), {})


def test_anonymous() -> None:
    assert settings(S3StoreOptions(anonymous=True), KEYS)["skip_signature"] == "true"


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_bundle_that_cannot_be_used(tmp_path: Path, content: str | None) -> None:
    bundle = tmp_path / "ca.pem"
    if content is not None:
        bundle.write_text(content)
    with pytest.raises(StoreError, match=r"ca\.pem"):
        build(PLACE, S3StoreOptions(ca_bundle=str(bundle)), KEYS)
    with pytest.raises(StoreError, match=r"ca\.pem"):
        build(PLACE, S3StoreOptions(), {**KEYS, "AWS_CA_BUNDLE": str(bundle)})
