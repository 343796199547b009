"""The URL of a webhook is a secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpckit.alerts.alert_errors import AlertRejectedError
from hpckit.alerts.webhook_url import url_problem, webhook_url
from hpckit.config.spec import WebhookSpec
from hpckit.config.spec_parser import SpecError
from tests.unit.hpckit.specs_and_processes import make_spec

URL = "https://hooks.example.org/services/T0/verysecret"


def hook(env: str | None = None, file: Path | None = None) -> WebhookSpec:
    return WebhookSpec(
        url_env=env, url_file=None if file is None else str(file), kinds=("verdict",)
    )


def test_the_url_comes_from_the_environment_or_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.touch(mode=0o600)
    file.write_text(f"{URL}\n")
    assert webhook_url(hook("HOOK"), {"HOOK": URL}) == URL
    assert webhook_url(hook(file=file), {}) == URL


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_that_others_can_access_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "url"
    file.write_text(URL)
    file.chmod(mode)
    with pytest.raises(AlertRejectedError, match="chmod 600"):
        webhook_url(hook(file=file), {})


def test_a_missing_variable_a_missing_file_and_a_pipe_are_named(tmp_path: Path) -> None:
    with pytest.raises(AlertRejectedError, match="HOOK is not set"):
        webhook_url(hook("HOOK"), {})
    with pytest.raises(AlertRejectedError, match="No such file"):
        webhook_url(hook(file=tmp_path / "none"), {})
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(AlertRejectedError, match="not a regular file"):
        webhook_url(hook(file=tmp_path / "pipe"), {})


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.org/services/verysecret",
        "ftp://hooks.example.org/verysecret",
        "hooks.example.org/verysecret",
        "https://user:verysecret@hooks.example.org/",
        "https://hooks.example.org/very secret",
        "https://hooks.example.org/verysecret\nHost: other",
        "https://hooks.example.org:port/verysecret",
        "https://[::1/verysecret",
        "https:///verysecret",
        "file:///etc/verysecret",
        "",
    ],
)
def test_what_is_no_url_of_a_webhook_is_refused_without_being_shown(url: str) -> None:
    problem = url_problem(url)
    assert problem is not None
    assert "verysecret" not in problem
    assert "very secret" not in problem


@pytest.mark.parametrize("url", [URL, "http://127.0.0.1:8065/hooks/x", "http://[::1]:1/x"])
def test_urls_that_keep_the_secret_are_used(url: str) -> None:
    assert url_problem(url) is None


def test_a_url_in_place_of_the_name_of_a_variable_is_not_shown() -> None:
    with pytest.raises(SpecError) as refused:
        make_spec({"alerts.slack.url_env": URL})
    assert "alerts.slack.url_env: must be the name" in str(refused.value)
    assert "verysecret" not in str(refused.value)


def test_one_place_for_the_url_is_enough() -> None:
    with pytest.raises(SpecError, match="set one of them to null"):
        make_spec({"alerts.slack.url_env": "A", "alerts.slack.url_file": "/b"})


@pytest.mark.parametrize("address", ["a@b\nBcc: c@d", "-Cconfig", "a b@c", "a@b,c@d", ""])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(SpecError, match=r"alerts\.email\.to\.0: must be an e-mail address"):
        make_spec({"alerts.email.to": [address]})
